"""x^2 by depth and by width: Theorems 4.2 and 4.6 of "Deep learning theory", built and trained.

Networks of one variable are piecewise linear, so their errors on [0, 1] are computed exactly.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from weightloom.construct import affine_pieces, square
from weightloom.construct import measure as sizes_of
from weightloom.construct.deep import best_square, square_distance
from weightloom.construct.layers import dense_layer
from weightloom.errors import ConfigError
from weightloom.training import Member, Settings, Split
from weightloom_papers.lab import Experiment, Outcome, Result, ResultTable, Run, Workspace
from weightloom_papers.lab.experiment import train_members
from weightloom_papers.lab.runs import digest_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "LOWERED",
    "SquareError",
    "deep_square",
    "errors",
    "execute_trained",
    "measure",
    "shallow_square",
    "shape",
    "started",
]


# How far the network is below the interpolation, in squares of the spacing. For the largest error
# half of the largest distance between interpolation and x^2, for the mean square the mean distance.
LOWERED = {"sup": 1 / 8, "l2": 1 / 6}


def deep_square(i: int, best: str = "") -> nn.Sequential:
    """h_i of Theorem 4.2; with ``best`` = "l2" lowered to the best function with its pieces."""
    if best not in ("", "l2"):
        raise ConfigError(f"best={best!r} was given; '' (the interpolation) or 'l2' is wanted")
    certified = best_square(2**i, deep=True) if best else square(i)
    return nn.Sequential(*certified.network.children())


def shallow_square(nodes: int, best: str) -> nn.Sequential:
    """x^2 by one hidden layer of ``nodes`` units: c + 2 h sum_j relu(x - (j - 1/2) h).

    h = 1 / (nodes + 1/2): the even function x^2 on [-1, 1] is cut into 2 nodes + 1 equal pieces,
    and one half of it is used. All units bend inside (0, 1), so there are nodes + 1 pieces, the
    first of half the length. The largest error is h^2 / 8 (``best`` = "sup"), or the squared L2
    distance is h^4 / 180 ("l2"). No function of nodes + 1 pieces has less than that with
    h = 1 / (nodes + 1).
    `best_square` uses a unit for x itself and has h = 1 / nodes.

    >>> sup, l2, pieces = errors(shallow_square(4, "sup"))
    >>> round(sup * 8 * 4.5**2, 12), pieces
    (1.0, 5)
    """
    if best not in LOWERED or nodes < 1:
        raise ConfigError(
            f"nodes={nodes}, best={best!r} were given; nodes >= 1 and 'sup' or 'l2' are wanted"
        )
    h = 1 / (nodes + 0.5)
    bends = (torch.arange(nodes, dtype=torch.float64) + 0.5) * h
    # At the first bend x^2 = h^2 / 4, and the network is as far below it as at all others.
    level = h * h * (0.25 - LOWERED[best])
    return nn.Sequential(
        dense_layer(torch.ones(nodes, 1, dtype=torch.float64), -bends),
        nn.ReLU(),
        dense_layer(
            torch.full((1, nodes), 2 * h, dtype=torch.float64),
            torch.tensor([level], dtype=torch.float64),
        ),
    )


def errors(net: nn.Module) -> tuple[float, float, int]:
    """Largest error, L2 error and affine pieces of a network for x^2 on [0, 1].

    On a piece the error is a parabola, largest at an end or where the slope of x^2 is that of the
    piece.
    """
    pieces = affine_pieces(net, 0, 1)
    left, right = pieces.breakpoints[:-1], pieces.breakpoints[1:]
    slope = pieces.slopes[:, 0]
    top = torch.minimum(torch.maximum(slope / 2, left), right)
    places = torch.stack([left, top, right], 1)
    given = pieces.starts + slope[:, None] * (places - left[:, None])
    sup = float((given - places.square()).abs().max())
    return sup, math.sqrt(square_distance(net)), pieces.count


def shape(kind: str, i: int) -> list[int]:
    """Hidden widths of the networks that are trained: all have the 3 i - 1 nodes of h_i.

    "shallow": one layer. "narrow": h_i's own layers of three. "three": three layers.

    >>> [shape(kind, 4) for kind in ("shallow", "narrow", "three")]
    [[11], [2, 3, 3, 3], [3, 4, 4]]
    """
    nodes = 3 * i - 1
    if kind == "shallow":
        return [nodes]
    if kind == "narrow":
        return [2, *[3] * (i - 1)]
    if kind == "three":
        return [nodes // 3, (nodes + 1) // 3, (nodes + 2) // 3]
    raise ConfigError(f"the kind of network {kind!r} is unknown; wanted shallow, narrow or three")


def started(kind: str, i: int, start: str, noise: float, seed: int) -> nn.Sequential:
    """A network to be trained, in double precision.

    ``start`` "default": PyTorch's initialisation. "spread": He normal weights, and the kinks of the
    first layer uniform on [0, 1], the domain of the task. "built": the network built for its shape
    (`shallow_square` or `deep_square`), every weight multiplied by 1 + ``noise`` times a normal
    number.
    """
    generator = torch.Generator().manual_seed(seed)
    if start == "built":
        if kind == "three":
            raise ConfigError("there is no built network of three layers; start it otherwise")
        net = shallow_square(3 * i - 1, "l2") if kind == "shallow" else deep_square(i, "l2")
        with torch.no_grad():
            for weight in net.parameters():
                normal = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
                weight.mul_(1 + noise * normal).requires_grad_(True)
        return net
    widths = shape(kind, i)
    layers: list[nn.Module] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for fan_in, width in zip([1, *widths], [*widths, 1], strict=True):
            layers += [nn.Linear(fan_in, width), nn.ReLU()]
    net = nn.Sequential(*layers[:-1]).double()
    if start == "spread":
        _spread(net, generator)
    elif start != "default":
        raise ConfigError(f"start={start!r} is unknown; wanted default, spread or built")
    return net


@torch.no_grad()
def _spread(net: nn.Sequential, generator: torch.Generator) -> None:
    for number, layer in enumerate(module for module in net if isinstance(module, nn.Linear)):
        scale = math.sqrt(2 / layer.in_features)
        layer.weight.normal_(0, scale, generator=generator)
        layer.bias.zero_()
        if number == 0:
            bends = torch.rand(layer.out_features, generator=generator, dtype=torch.float64)
            layer.bias.copy_(-layer.weight[:, 0] * bends)


def measure(config: Mapping[str, Any]) -> Outcome:
    """Errors of a built network: ``network`` "deep" (size: levels) or "shallow" (size: nodes)."""
    began = time.perf_counter()
    if config["network"] not in ("deep", "shallow"):
        raise ConfigError(f"network {config['network']!r} is unknown; wanted deep or shallow")
    make = deep_square if config["network"] == "deep" else shallow_square
    net = make(config["size"], config["best"])
    return Outcome("done", _metrics(net), seconds=time.perf_counter() - began)


def execute_trained(runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
    """Train all runs of one shape at once, on all points at every step."""
    config = runs[0].config
    x = torch.linspace(0, 1, config["points"], dtype=torch.float64)[:, None]
    data = Split((x,), x.square())
    members = [
        Member(
            started(c["kind"], c["i"], c["start"], c["noise"], run.seed),
            data,
            seed=run.seed,
            learning_rate=c["learning_rate"],
            name=f"{c['start']}, rate {c['learning_rate']:g}, seed {run.seed}",
        )
        for run in runs
        for c in [run.config]
    ]
    settings = Settings(
        epochs=config["steps"],
        batch_size=config["points"],
        optimiser="adam",
        schedule="cosine",
        precision="64-true",
        evaluate_every=max(1, config["steps"] // 20),
    )
    label = f"square-error: {config['kind']}, i = {config['i']}, {len(runs)} at once"
    reports = train_members(members, settings, workspace, label)
    for run, member, report in zip(runs, members, reports, strict=True):
        metrics = _metrics(member.model)
        metrics["train_mse"] = report.final.get("train", math.nan)
        yield run, Outcome(report.status, metrics, report.curves, report.message, report.seconds)


def _metrics(net: nn.Module) -> dict[str, float]:
    size = sizes_of(net)
    metrics: dict[str, float] = {"nodes": size.nodes, "layers": size.layers}
    if not all(bool(torch.isfinite(weight).all()) for weight in net.parameters()):
        return metrics | dict.fromkeys(("sup", "l2", "pieces"), math.nan)
    sup, l2, pieces = errors(net)
    return metrics | {"sup": sup, "l2": l2, "pieces": pieces}


@dataclass(frozen=True)
class SquareErrorSizes:
    """Sizes, repetitions and training of one scale."""

    levels: int
    """h_1, ..., h_levels are built"""
    widest: int
    """nodes of the largest shallow network (powers of two, and the sizes of the deep ones)"""
    trained: Sequence[int]
    """levels i of the trained networks, which have 3 i - 1 nodes"""
    seeds: int
    steps: int
    points: int = 257
    rates: Sequence[float] = (0.003, 0.01, 0.03)


PLANS = {
    "smoke": SquareErrorSizes(6, 32, (2, 3), 2, 100, 65, (0.01,)),
    "laptop": SquareErrorSizes(12, 2048, (2, 3, 4, 5, 6), 8, 3000),
    "paper": SquareErrorSizes(
        16, 8192, (2, 3, 4, 5, 6, 8, 10), 20, 20_000, 1025, (0.001, 0.003, 0.01, 0.03)
    ),
}

# What is trained: (kind, start).
TRAINED = (
    ("shallow", "default"), ("shallow", "spread"), ("shallow", "built"),
    ("narrow", "default"), ("narrow", "spread"), ("narrow", "built"),
    ("three", "default"), ("three", "spread"),
)  # fmt: skip

NOISE = 0.1


class SquareError(Experiment):
    """Two parts, named by ``part``: "built" networks, and "trained" ones of the same sizes."""

    name = "deep-learning-theory/square-error"
    title = "x^2 by depth and by width"
    claim = (
        "h_i approximates x^2 within 4^-(i+1) with 5 i nodes, so that ln(1/eps) nodes are enough "
        "in depth (Theorem 4.2); every network of N nodes in L layers has a squared L2 distance "
        "of at least 1/(5760 (2N/L)^(4L)) (Theorem 4.6)."
    )
    paper = "deep-learning-theory, Theorems 4.2 and 4.6"
    main_metrics = ("sup", "l2", "nodes", "pieces")

    def runs(self, scale: str) -> list[Run]:
        plan = PLANS[scale]
        deep = [("deep", i, best) for best in ("", "l2") for i in range(1, plan.levels + 1)]
        sizes = {3 * i - 1 for i in range(1, plan.levels + 1)}
        sizes |= {2**j for j in range(plan.widest.bit_length())}
        shallow = [("shallow", nodes, best) for best in ("sup", "l2") for nodes in sorted(sizes)]
        built = [
            Run(self.name, {"part": "built", "network": network, "size": size, "best": best}, 0)
            for network, size, best in [*deep, *shallow]
        ]
        trained = [
            Run(
                self.name,
                {
                    "part": "trained",
                    "kind": kind,
                    "start": start,
                    "noise": NOISE if start == "built" else 0.0,
                    "i": i,
                    "learning_rate": rate,
                    "steps": plan.steps,
                    "points": plan.points,
                },
                seed,
            )
            for i in plan.trained
            for kind, start in TRAINED
            for rate in plan.rates
            for seed in range(plan.seeds)
        ]
        return built + trained

    def group(self, run: Run) -> str:
        """Built networks together; trained ones of one shape at once."""
        config = {key: run.config.get(key) for key in ("part", "kind", "i", "steps", "points")}
        return digest_of(config)

    def size_limit(self) -> int:
        """The networks are tiny: time depends on the steps, hardly on the number of members."""
        return 80

    def cost(self, run: Run) -> float:
        """Seconds on one core."""
        config = run.config
        if config["part"] == "built":
            return 0.01 + (2.0 ** config["size"] if config["network"] == "deep" else 0.0) / 1e5
        depth = (
            1 if config["kind"] == "shallow" else 3 if config["kind"] == "three" else config["i"]
        )
        return float(config["steps"] * (1 + 0.5 * depth) * 4e-5 * (0.5 + config["points"] / 514))

    def execute(self, runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
        if runs[0].config["part"] == "trained":
            yield from execute_trained(runs, workspace)
        else:
            for run in runs:
                yield run, measure(run.config)

    def figures(self, results: Sequence[Result]) -> Mapping[str, Figure]:
        from weightloom_papers.deep_learning_theory.experiments.square_error.figure import (
            draw_square,
        )

        return draw_square(results)

    def table(self, results: Sequence[Result]) -> ResultTable:
        from weightloom_papers.deep_learning_theory.experiments.square_error.analysis import (
            square_table,
        )

        return square_table(results, self.title)

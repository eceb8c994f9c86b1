"""How many affine pieces networks have: Lemma 4.9 of "Deep learning theory" beside exact counts.

Random networks, networks before and after training on small tasks, and the sawtooth Delta^L with
noise on its weights. Pieces are counted along lines, because the lemma is about one variable.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from weightloom.construct import affine_pieces, deep
from weightloom.construct.deep import sawtooth
from weightloom.errors import ConfigError
from weightloom.training import Member, Settings, Split
from weightloom_papers.lab import Experiment, Outcome, Result, ResultTable, Run, Workspace
from weightloom_papers.lab.experiment import train_members
from weightloom_papers.lab.runs import digest_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "INPUTS",
    "PiecesExperiment",
    "TASKS",
    "count",
    "count_random",
    "count_sawtooth",
    "execute_trained",
    "lines_through",
    "network",
    "noisy_sawtooth",
    "task",
]


TASKS = ("sawtooth", "spirals", "labels")
INPUTS = {"sawtooth": 1, "spirals": 2, "labels": 16}

# The task "sawtooth" is Delta^4: 16 pieces, 8 teeth.
POWER = 4


def network(inputs: int, width: int, depth: int, init: str, seed: int) -> nn.Sequential:
    """``depth`` hidden ReLU layers of ``width`` units and one output, in double precision.

    ``init`` "default" is PyTorch's. "he" has He normal weights and standard normal biases. The
    scale of the biases does not matter on a line through the origin: a network with all biases
    times c is c net(x / c), with as many pieces on the whole line.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for fan_in in [inputs, *[width] * (depth - 1)]:
            layers += [nn.Linear(fan_in, width), nn.ReLU()]
        net = nn.Sequential(*layers, nn.Linear(width, 1)).double()
        if init == "he":
            with torch.no_grad():
                for layer in (module for module in net if isinstance(module, nn.Linear)):
                    layer.weight.normal_(0, math.sqrt(2 / layer.in_features))
                    layer.bias.normal_()
        elif init != "default":
            raise ConfigError(f"init={init!r} is unknown; wanted default or he")
    return net


def lines_through(points: Tensor, lines: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Lines, each through two different points; in one dimension one line, from end to end."""
    if points.shape[1] == 1:
        return [(points.min(0).values, points.max(0).values)]
    generator = torch.Generator().manual_seed(seed)
    chosen = [torch.randperm(len(points), generator=generator)[:2] for _ in range(lines)]
    return [(points[pair[0]], points[pair[1]]) for pair in chosen]


def count(net: nn.Sequential, line: tuple[Tensor, Tensor]) -> tuple[int, int]:
    """Affine pieces of ``net`` on the whole line through two points, and between the points.

    The line becomes a layer of one input before the network, so that pieces are those of a network
    of one variable, as in Lemma 4.9.
    """
    start, end = (point.double() for point in line)
    along = nn.Linear(1, len(start), dtype=torch.float64)
    with torch.no_grad():
        along.weight.copy_((end - start)[:, None])
        along.bias.copy_(start)
    joined = nn.Sequential(along, *net)
    whole = affine_pieces(joined, -math.inf, math.inf)
    inside = (whole.breakpoints > 0) & (whole.breakpoints < 1)
    return whole.count, int(inside.sum()) + 1


def noisy_sawtooth(depth: int, noise: float, seed: int) -> nn.Sequential:
    """Delta^depth with every weight and bias multiplied by 1 + noise times a normal number."""
    net = sawtooth(depth)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in net.parameters():
            normal = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
            weight.mul_(1 + noise * normal)
    return net


def task(name: str, points: int, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs [n, d] and targets [n, 1] of a small task.

    "sawtooth": Delta^4 stretched over [-1, 1], on a grid. "spirals": two arms of a spiral in the
    square, labelled 1 and -1. "labels": normal points in 16 dimensions with random signs, which can
    only be memorised.
    """
    generator = torch.Generator().manual_seed(seed)
    if name == "sawtooth":
        x = torch.linspace(-1, 1, points, dtype=torch.float64)[:, None]
        return x, deep.triangle((x + 1) / 2, POWER)
    if name == "spirals":
        label = torch.arange(points) % 2 * 2.0 - 1
        radius = torch.rand(points, generator=generator).sqrt()
        angle = 3 * math.pi * radius + math.pi * (label + 1) / 2
        x = radius[:, None] * torch.stack([angle.cos(), angle.sin()], 1)
        return x.double(), label.double()[:, None]
    if name == "labels":
        x = torch.randn(points, INPUTS[name], generator=generator, dtype=torch.float64)
        signs = torch.randint(0, 2, (points, 1), generator=generator) * 2 - 1
        return x, signs.double()
    raise ConfigError(f"the task {name!r} is unknown; wanted one of {', '.join(TASKS)}")


def count_random(config: Mapping[str, Any], seed: int) -> Outcome:
    """Pieces of a network at initialisation, along lines through standard normal points."""
    began = time.perf_counter()
    net = network(config["inputs"], config["width"], config["depth"], config["init"], seed)
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(64, config["inputs"], generator=generator, dtype=torch.float64)
    metrics = _counted(net, lines_through(points, config["lines"], seed), "pieces", "inside")
    return Outcome("done", metrics, seconds=time.perf_counter() - began)


def count_sawtooth(config: Mapping[str, Any], seed: int) -> Outcome:
    """Pieces of Delta^depth with noise on its weights, on the whole line and on [0, 1]."""
    began = time.perf_counter()
    net = noisy_sawtooth(config["depth"], config["noise"], seed)
    ends = (torch.zeros(1), torch.ones(1))
    metrics = _counted(net, [ends], "pieces", "inside")
    return Outcome("done", metrics, seconds=time.perf_counter() - began)


def execute_trained(runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
    """Train all seeds of one task and shape at once; count along the same lines before and after.

    ``before``, ``after``: pieces on whole lines, means over lines; ``..._inside``: between the two
    training points that a line goes through. ``loss``: mean squared error over the variance.
    """
    config = runs[0].config
    members, lines, starts = [], [], []
    for run in runs:
        x, y = task(config["task"], config["points"], run.seed)
        net = network(
            INPUTS[config["task"]], config["width"], config["depth"], config["init"], run.seed
        )
        starts.append(copy.deepcopy(net))
        lines.append(lines_through(x, config["lines"], run.seed))
        data = Split((x.float(),), y.float())
        members.append(Member(net.float(), data, seed=run.seed, name=f"seed {run.seed}"))
    settings = Settings(
        epochs=config["steps"],
        batch_size=config["points"],
        learning_rate=config["learning_rate"],
        optimiser="adam",
        schedule="cosine",
        evaluate_every=max(1, config["steps"] // 20),
    )
    label = f"pieces: {config['task']}, {config['depth']} x {config['width']}, {len(runs)} at once"
    reports = train_members(members, settings, workspace, label)
    for run, member, start, along, report in zip(
        runs, members, starts, lines, reports, strict=True
    ):
        metrics = _counted(start, along, "before", "before_inside")
        net = _double(member.model)
        if all(bool(torch.isfinite(weight).all()) for weight in net.parameters()):
            metrics |= _counted(net, along, "after", "after_inside")
        y = member.train.target
        metrics["loss"] = report.final.get("train", math.nan) / float(y.var(correction=0))
        yield run, Outcome(report.status, metrics, report.curves, report.message, report.seconds)


def _double(net: nn.Module) -> nn.Sequential:
    return nn.Sequential(*copy.deepcopy(net).double().children())


def _counted(
    net: nn.Sequential, lines: Sequence[tuple[Tensor, Tensor]], whole: str, inside: str
) -> dict[str, float]:
    """Mean pieces over lines, and ``..._most``, the largest count, which the lemma bounds."""
    counts = [count(net, line) for line in lines]
    return {
        whole: sum(a for a, _ in counts) / len(counts),
        inside: sum(b for _, b in counts) / len(counts),
        f"{whole}_most": max(a for a, _ in counts),
    }


@dataclass(frozen=True)
class PiecesSizes:
    """Widths, depths, noise levels and repetitions of one scale."""

    widths: Sequence[int]
    depths: Sequence[int]
    seeds: int
    trained_widths: Sequence[int]
    trained_depths: Sequence[int]
    trained_seeds: int
    steps: int
    powers: Sequence[int]
    """L of the Delta^L that is disturbed"""
    noises: Sequence[float]
    most: int = 1024
    """units of the largest random network"""


NOISES = (0.0, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0)

PLANS = {
    "smoke": PiecesSizes((4, 8), (1, 2, 4), 3, (8,), (1, 2), 2, 60, (4,), (0.0, 0.01, 0.3)),
    "laptop": PiecesSizes(
        (4, 8, 16, 32, 64, 128), (1, 2, 3, 4, 6, 8, 12, 16), 10,
        (8, 16, 32), (1, 2, 4, 6), 6, 2000, (4, 8, 12), NOISES,
    ),
    "paper": PiecesSizes(
        (4, 8, 16, 32, 64, 128, 256), (1, 2, 3, 4, 6, 8, 12, 16, 24, 32), 40,
        (8, 16, 32, 64), (1, 2, 3, 4, 6, 8), 20, 10_000, (4, 8, 12, 16), NOISES, 4096,
    ),
}  # fmt: skip

LINES = 4


class PiecesExperiment(Experiment):
    """Three parts: "random" networks, "trained" ones before and after, and a noisy "sawtooth"."""

    name = "deep-learning-theory/pieces"
    title = "Affine pieces of random, trained and built networks"
    claim = (
        "A ReLU network of m nodes in L layers has at most (2 m / L)^L affine pieces "
        "(Lemma 4.9); Delta^L has exponentially many in L."
    )
    paper = "deep-learning-theory, Lemma 4.9 and Proposition 4.1"
    main_metrics = ("pieces", "before", "after", "loss")

    def runs(self, scale: str) -> list[Run]:
        plan = PLANS[scale]
        configs: list[tuple[dict[str, Any], int]] = []
        for inputs in (1, 16):
            for init in ("he", "default"):
                common: dict[str, Any] = {
                    "part": "random",
                    "inputs": inputs,
                    "init": init,
                    "lines": LINES,
                }
                for width in plan.widths:
                    for depth in plan.depths:
                        if width * depth <= plan.most:
                            shape = {"width": width, "depth": depth}
                            configs.append(({**common, **shape}, plan.seeds))
        for name in TASKS:
            settings: dict[str, Any] = {
                "part": "trained",
                "task": name,
                "init": "default",
                "lines": LINES,
                "steps": plan.steps,
                "points": 128,
                "learning_rate": 0.01,
            }
            for width in plan.trained_widths:
                for depth in plan.trained_depths:
                    shape = {"width": width, "depth": depth}
                    configs.append(({**settings, **shape}, plan.trained_seeds))
        for depth in plan.powers:
            for noise in plan.noises:
                config = {"part": "sawtooth", "depth": depth, "noise": noise}
                configs.append((config, plan.seeds if noise else 1))
        return [Run(self.name, config, seed) for config, seeds in configs for seed in range(seeds)]

    def group(self, run: Run) -> str:
        """Trained networks by task and shape; the others in groups of many small counts."""
        if run.config["part"] == "trained":
            return digest_of(run.config)
        kept = ("part", "inputs", "init", "width")
        return digest_of({key: run.config.get(key) for key in kept})

    def size_limit(self) -> int:
        return 100

    def cost(self, run: Run) -> float:
        """Seconds on one core."""
        config = run.config
        if config["part"] == "random":
            lines = 1 if config["inputs"] == 1 else config["lines"]
            return float(0.005 + lines * (config["width"] * config["depth"]) ** 1.5 / 6e5)
        if config["part"] == "sawtooth":
            return float(0.005 + 2 ** config["depth"] / 1e5)
        return float(config["steps"] * config["depth"] * (1 + config["width"] / 32) * 9e-5)

    def execute(self, runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
        part = runs[0].config["part"]
        if part == "trained":
            yield from execute_trained(runs, workspace)
        else:
            for run in runs:
                counted = count_random if part == "random" else count_sawtooth
                yield run, counted(run.config, run.seed)

    def figures(self, results: Sequence[Result]) -> Mapping[str, Figure]:
        from weightloom_papers.deep_learning_theory.experiments.pieces.figure import draw_pieces

        return draw_pieces(results)

    def table(self, results: Sequence[Result]) -> ResultTable:
        from weightloom_papers.deep_learning_theory.experiments.pieces.analysis import pieces_table

        return pieces_table(results, self.title)

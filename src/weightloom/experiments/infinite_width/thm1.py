"""Theorem 1: how terms of the Taylor series of a gradient step shrink as f becomes wide."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weightloom.experiments.infinite_width.fig1a import generator_of
from weightloom.experiments.infinite_width.thm1_series import (
    ACTIVATIONS,
    hypernetwork_series,
    terms,
)
from weightloom.kernels import Tower, empirical
from weightloom.kernels.finite import FiniteHypernetwork
from weightloom.lab import Experiment, Outcome, Result, Run, Table, Workspace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "ORDERS",
    "PAIRS",
    "SETTINGS",
    "Thm1",
    "draw_network",
    "inputs",
    "measure",
    "shared_path",
]

ORDERS = (1, 2, 3, 4)
#: The example whose output is expanded, and the one that the step is taken on.
PAIRS = {"same": (0, 0), "other": (0, 1)}
#: Activations of f and of g, by name. The theorem is about the first two.
SETTINGS = {
    "relu": ("relu", "relu"),
    "leaky": ("leaky", "leaky"),
    "smooth g": ("relu", "tanh"),
    "smooth f": ("tanh", "relu"),
}
INPUTS = 3  # numbers in x, and in z
NARROW = 3  # hidden width of g

#: Widths of f with two layers, of f with four (H = 1: K^(r) = 0 for r > L), and draws, by scale.
SCALE: dict[str, tuple[Sequence[int], Sequence[int], int]] = {
    "smoke": ((64, 512), (16, 64), 12),
    "laptop": ((256, 1024, 4096, 16384), (64, 128, 256, 512), 300),
    "paper": ((256, 1024, 4096, 16384, 65536, 131072), (64, 128, 256, 512, 1024, 2048), 1000),
}


def inputs() -> tuple[Tensor, Tensor]:
    """Two conditions and two points, [2, 3] each; rows of length sqrt 3, so that S = Q = 1."""
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randn(4, INPUTS, dtype=torch.float64, generator=generator)
    drawn = drawn * (math.sqrt(INPUTS) / drawn.norm(dim=1, keepdim=True))
    return drawn[:2], drawn[2:]


def draw_network(config: Mapping[str, Any], generator: torch.Generator) -> FiniteHypernetwork:
    """A hypernetwork with f of ``layers`` matrices and ``width``, g of ``depth`` and width 3."""
    f, g = (ACTIVATIONS[name][0] for name in SETTINGS[config["setting"]])
    return FiniteHypernetwork(
        Tower(depth=config["layers"], activation=f),
        Tower(depth=config["depth"], activation=g),
        [INPUTS] + [config["width"]] * (config["layers"] - 1),
        [INPUTS] + [NARROW] * (config["depth"] - 1) + [1],
        generator=generator,
        dtype=torch.float64,
    )


def shared_path(net: FiniteHypernetwork, x: Tensor, z: Tensor) -> bool:
    """Whether some path through g is on for every row: else the limit of their K^(r) is 0.

    With ReLUs, a step on one example changes, at leading order, those weights of g alone that lie
    on its own active paths. Always true for activations whose derivative is nowhere 0.
    """
    with torch.no_grad():
        q, scale = z, net.sigma_w
        for weight, _ in net.weights(x)[:-1]:
            q = scale * torch.einsum("nba,na->nb", weight, q) / math.sqrt(q.shape[1])
            q = net.gain * net.activation(q)
            if not bool((q != 0).all(0).any()):
                return False
    return True


def measure(run: Run) -> Outcome:
    """K^(1) .. K^(4) of many networks, for a step on the same example and on another one.

    Curves: ``same 1`` .. ``other 4``, a value for each draw, and ``same path`` and ``other path``
    (`shared_path`). ``disagreement`` is the largest relative difference of the series to
    `empirical.higher_order` on the first network whose kernel is not 0; NaN without a check.
    """
    started = time.perf_counter()
    config, generator = run.config, generator_of(run)
    x, z = inputs()
    columns: dict[str, list[float]] = {
        f"{pair} {what}": [] for pair in PAIRS for what in (*ORDERS, "path")
    }
    disagreement: list[float] = []
    for _ in range(config["draws"]):
        net = draw_network(config, generator)
        for pair, (i, j) in PAIRS.items():
            found = _terms(net, config["setting"], x, z, i, j)
            for r in ORDERS:
                columns[f"{pair} {r}"].append(found[r])
            path = shared_path(net, x[[i, j]], z[[i, j]])
            columns[f"{pair} path"].append(float(path))
            if config["check"] and pair == "other" and not disagreement and found[1] != 0:
                u_i, u_j = (x[i : i + 1], z[i : i + 1]), (x[j : j + 1], z[j : j + 1])
                slow = empirical.higher_order(net, u_i, u_j, (0, *ORDERS))
                disagreement.append(_difference(found, [float(k) for k in slow]))
    steps = list(range(config["draws"]))
    return Outcome(
        "done",
        {"disagreement": max(disagreement, default=math.nan)},
        {name: (steps, values) for name, values in columns.items()},
        seconds=time.perf_counter() - started,
    )


def _terms(
    net: FiniteHypernetwork, setting: str, x: Tensor, z: Tensor, i: int, j: int
) -> list[float]:
    output = net(x[j : j + 1], z[j : j + 1])[0, 0]
    direction = torch.autograd.grad(output, list(net.parameters()))
    with torch.no_grad():
        series = hypernetwork_series(net, SETTINGS[setting], x[i], z[i], direction, max(ORDERS))
    return terms(series)


def _difference(found: Sequence[float], wanted: Sequence[float]) -> float:
    """Largest relative difference; numbers below 1e-12 of the first kernel are rounding."""
    tiny = 1e-12 * max(abs(wanted[1]), 1e-300)
    return max(abs(a - b) / max(abs(b), tiny) for a, b in zip(found, wanted, strict=True))


class Thm1(Experiment):
    """Sizes of K^(r) against the width of f, for shallow and deep g."""

    name = "thm1"
    title = "Terms of the Taylor series of a gradient step"
    claim = (
        "K^(r) ~ n^(H - r) if r > H, and 1 otherwise: the deeper the primary network, the more "
        "terms stay, however wide f is (Theorem 1)."
    )
    paper = "001, Theorem 1"
    main_metrics = ("disagreement",)
    seconds_per_cost = 6e-3

    def runs(self, scale: str) -> list[Run]:
        wide, deep, draws = SCALE[scale]
        shapes = [(1, 4, deep), (2, 2, wide), (3, 2, wide)]
        settings = ("relu", "smooth g") if scale == "smoke" else tuple(SETTINGS)
        return [
            Run(
                self.name,
                {
                    "setting": setting,
                    "depth": depth,
                    "layers": layers,
                    "width": width,
                    "draws": draws,
                    "check": width == widths[0],
                },
                0,
            )
            for setting in settings
            for depth, layers, widths in shapes
            for width in widths
        ]

    def cost(self, run: Run) -> float:
        """In draws of small networks; a check costs as much as 30 of them."""
        config = run.config
        numbers = 10 * config["width"] if config["layers"] == 2 else 2 * config["width"] ** 2
        return 30 * config["check"] + float(config["draws"]) * (1 + numbers / 100_000)

    def execute(self, runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
        for run in runs:
            yield run, measure(run)

    def figures(self, results: Sequence[Result]) -> Mapping[str, Figure]:
        from weightloom.experiments.infinite_width.thm1_draw import draw_thm1

        return draw_thm1(results)

    def table(self, results: Sequence[Result]) -> Table:
        from weightloom.experiments.infinite_width.thm1_numbers import thm1_table

        return thm1_table(results, self.title)

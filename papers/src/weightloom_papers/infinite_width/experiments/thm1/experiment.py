"""Theorem 1: terms of the Taylor series of a gradient step, as f becomes wide."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from weightloom.kernels import empirical
from weightloom.kernels.gradient_step import (
    INPUTS,
    ORDERS,
    SETTINGS,
    Shape,
    inputs,
    sample_network,
    shared_path,
    step_terms,
)
from weightloom_papers.infinite_width.experiments.fig1.experiment import generator_of
from weightloom_papers.lab import Experiment, Outcome, Result, ResultTable, Run, Workspace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "INPUTS",
    "ORDERS",
    "PAIRS",
    "SETTINGS",
    "Thm1",
    "inputs",
    "measure",
    "shared_path",
]

#: The example whose output is expanded, and the one that the step is taken on.
PAIRS = {"same": (0, 0), "other": (0, 1)}
#: Widths of f with two layers, of f with four (H = 1: K^(r) = 0 for r > L), and draws, by scale.
PLANS: dict[str, tuple[Sequence[int], Sequence[int], int]] = {
    "smoke": ((64, 512), (16, 64), 12),
    "laptop": ((256, 1024, 4096, 16384), (64, 128, 256, 512), 300),
    "paper": ((256, 1024, 4096, 16384, 65536, 131072), (64, 128, 256, 512, 1024, 2048), 1000),
}


def measure(run: Run) -> Outcome:
    """K^(1) .. K^(4) of many networks, for a step on the same example and on another one.

    Curves: ``same 1`` .. ``other 4``, a value for each draw, and ``same path`` and ``other path``
    (`shared_path`). ``disagreement`` is the largest relative difference of the series to
    `empirical.higher_order` on the first network whose kernel is not 0; NaN without a check.
    """
    started = time.perf_counter()
    config, generator = run.config, generator_of(run)
    x, z = inputs()
    shape = Shape(config["setting"], config["depth"], config["layers"], config["width"])
    columns: dict[str, list[float]] = {
        f"{pair} {what}": [] for pair in PAIRS for what in (*ORDERS, "path")
    }
    disagreement: list[float] = []
    for _ in range(config["draws"]):
        net = sample_network(shape, generator)
        for pair, (i, j) in PAIRS.items():
            terms = step_terms(net, shape.setting, x, z, i, j)
            for r in ORDERS:
                columns[f"{pair} {r}"].append(terms[r])
            path = shared_path(net, x[[i, j]], z[[i, j]])
            columns[f"{pair} path"].append(float(path))
            if config["check"] and pair == "other" and not disagreement and terms[1] != 0:
                u_i, u_j = (x[i : i + 1], z[i : i + 1]), (x[j : j + 1], z[j : j + 1])
                slow = empirical.higher_order(net, u_i, u_j, (0, *ORDERS))
                disagreement.append(_difference(terms, [float(k) for k in slow]))
    steps = list(range(config["draws"]))
    return Outcome(
        "done",
        {"disagreement": max(disagreement, default=math.nan)},
        {name: (steps, values) for name, values in columns.items()},
        seconds=time.perf_counter() - started,
    )


def _difference(terms: Sequence[float], wanted: Sequence[float]) -> float:
    """Largest relative difference; numbers below 1e-12 of the first kernel are rounding."""
    tiny = 1e-12 * max(abs(wanted[1]), 1e-300)
    return max(abs(a - b) / max(abs(b), tiny) for a, b in zip(terms, wanted, strict=True))


class Thm1(Experiment):
    """The size of K^(r) against the width of f, for shallow and deep g."""

    name = "infinite-width/thm1"
    title = "Terms of the Taylor series of a gradient step"
    claim = (
        "K^(r) ~ n^(H - r) if r > H, and 1 otherwise: the deeper the primary network, the more "
        "terms stay, however wide f is (Theorem 1)."
    )
    paper = "infinite-width, Theorem 1"
    main_metrics = ("disagreement",)
    seconds_per_cost = 6e-3

    def runs(self, scale: str) -> list[Run]:
        wide, deep, draws = PLANS[scale]
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
        """In units of one draw of a small network; a check costs 30 of them."""
        config = run.config
        numbers = 10 * config["width"] if config["layers"] == 2 else 2 * config["width"] ** 2
        return 30 * config["check"] + float(config["draws"]) * (1 + numbers / 100_000)

    def execute(self, runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
        for run in runs:
            yield run, measure(run)

    def figures(self, results: Sequence[Result]) -> Mapping[str, Figure]:
        from weightloom_papers.infinite_width.experiments.thm1.figure import draw_thm1

        return draw_thm1(results)

    def table(self, results: Sequence[Result]) -> ResultTable:
        from weightloom_papers.infinite_width.experiments.thm1.analysis import thm1_table

        return thm1_table(results, self.title)

"""Smooth functions by depth: Theorem 5.4 of "Deep learning theory", sizes against errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weightloom.experiments.depth.sobolev_build import TARGETS, measure
from weightloom.lab import Experiment, Outcome, Result, Run, Table, Workspace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Sobolev"]

SMOOTHNESS = (2, 3, 4)


@dataclass(frozen=True)
class Plan:
    """What one scale has."""

    digits: Mapping[int, int]
    """by dimension: eps falls from 0.1 to 10^-digits, two values to a factor of ten"""
    targets: Sequence[str]
    max_nodes: int
    """networks with more units are counted, not built"""
    points: int


PLANS = {
    "smoke": Plan({1: 2, 2: 1}, TARGETS[:1], 1_500, 300),
    "laptop": Plan({1: 9, 2: 8, 3: 7}, TARGETS, 10_000, 2_000),
    "paper": Plan({1: 11, 2: 9, 3: 8}, TARGETS, 150_000, 20_000),
}


class Sobolev(Experiment):
    """Taylor networks for four smooth targets, three orders r and three dimensions d."""

    name = "sobolev"
    title = "Networks for smooth functions: nodes against error"
    claim = (
        "A function on [0, 1]^d whose derivatives up to order r are at most M is approximated "
        "within M r d^r (s^-r + 4 d 2^d 4^-k) + 3 d 2^d 4^-k by O(k (r + d)) layers and "
        "O((k d + d^2 + r^2 d^r + k r d^r) s^d) nodes, hence about eps^-(d/r) ln(1/eps) nodes."
    )
    paper = "004, Theorem 5.4"
    main_metrics = ("error", "bound", "nodes", "cells", "s", "k")

    def runs(self, scale: str) -> list[Run]:
        chosen = PLANS[scale]
        return [
            Run(
                self.name,
                {
                    "part": "built",
                    "target": target,
                    "d": d,
                    "r": r,
                    "eps": round(10 ** (-half / 2), 15),
                    "max_nodes": chosen.max_nodes,
                    "points": chosen.points,
                },
                0,
            )
            for d, digits in chosen.digits.items()
            for r in SMOOTHNESS
            for target in chosen.targets
            for half in range(2, 2 * digits + 1)
        ]

    def group(self, run: Run) -> str:
        return f"{run.config['target']}-{run.config['d']}-{run.config['r']}"

    def size_limit(self) -> int:
        return 32

    def cost(self, run: Run) -> float:
        """Seconds on one core: derivatives and the search for the largest error."""
        config = run.config
        return float(0.1 + config["d"] * config["points"] * config["max_nodes"] ** 0.5 / 2e6)

    def execute(self, runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
        for run in runs:
            yield run, measure(run.config, run.seed)

    def figures(self, results: Sequence[Result]) -> Mapping[str, Figure]:
        from weightloom.experiments.depth.sobolev_draw import draw_sobolev

        return draw_sobolev(results)

    def table(self, results: Sequence[Result]) -> Table:
        from weightloom.experiments.depth.sobolev_numbers import sobolev_table

        return sobolev_table(results, self.title)

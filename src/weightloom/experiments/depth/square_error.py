"""x^2 by depth and by width: Theorems 4.2 and 4.6 of "Deep learning theory", built and trained."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weightloom.experiments.depth.square_train import execute_trained, measure
from weightloom.lab import Experiment, Outcome, Result, Run, Table, Workspace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["SquareError"]


@dataclass(frozen=True)
class Plan:
    """What one scale has."""

    levels: int
    """h_1, ..., h_levels are built"""
    widest: int
    """shallow networks up to so many nodes (powers of two, and the deep ones' sizes)"""
    trained: Sequence[int]
    """levels i of the trained networks, which have 3 i - 1 nodes"""
    seeds: int
    steps: int
    points: int = 257
    rates: Sequence[float] = (0.003, 0.01, 0.03)


PLANS = {
    "smoke": Plan(6, 32, (2, 3), 2, 100, 65, (0.01,)),
    "laptop": Plan(12, 2048, (2, 3, 4, 5, 6), 8, 3000),
    "paper": Plan(16, 8192, (2, 3, 4, 5, 6, 8, 10), 20, 20_000, 1025, (0.001, 0.003, 0.01, 0.03)),
}
# What is trained: (kind, start).
TRAINED = (
    ("shallow", "default"), ("shallow", "spread"), ("shallow", "built"),
    ("narrow", "default"), ("narrow", "spread"), ("narrow", "built"),
    ("three", "default"), ("three", "spread"),
)  # fmt: skip
NOISE = 0.1


class SquareError(Experiment):
    """Two parts, told apart by ``part``: "built" networks, and "trained" ones of the same sizes."""

    name = "square-error"
    title = "x^2 by depth and by width"
    claim = (
        "h_i approximates x^2 within 4^-(i+1) with 5 i nodes, so that ln(1/eps) nodes are enough "
        "in depth (Theorem 4.2); every network of N nodes in L layers has a squared L2 distance "
        "of at least 1/(5760 (2N/L)^(4L)) (Theorem 4.6)."
    )
    paper = "004, Theorems 4.2 and 4.6"
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
        return json.dumps(config, sort_keys=True)

    def size_limit(self) -> int:
        """The networks are tiny: time goes into steps, hardly into members."""
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
        from weightloom.experiments.depth.square_draw import draw_square

        return draw_square(results)

    def table(self, results: Sequence[Result]) -> Table:
        from weightloom.experiments.depth.square_table import square_table

        return square_table(results, self.title)

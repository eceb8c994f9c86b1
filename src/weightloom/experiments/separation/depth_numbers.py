"""From results to statements: the numbers behind the figure of ``depth-separation``."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weightloom.experiments.modularity.fig3_statistics import Estimate, differences
from weightloom.lab import Result, Table
from weightloom.lab.table import Cell

__all__ = ["Point", "by_hand", "depth_table", "longer", "points", "usual"]


@dataclass(frozen=True)
class Point:
    """Networks of one shape that learned one function: errors by seed, at the best rate."""

    task: str
    d: int
    level: int
    depth: int
    steps: int
    rate: float
    hidden: tuple[int, ...]
    errors: Mapping[int, float]
    """mean squared error over the target's variance; NaN where training diverged"""
    pieces: Sequence[float]
    parameters: int
    slack: float
    """sawtooth: least of L1 distance minus what the number of pieces implies"""
    curves: Sequence[tuple[list[int], list[float]]]

    @property
    def finite(self) -> list[float]:
        return [error for error in self.errors.values() if math.isfinite(error)]

    @property
    def estimate(self) -> Estimate:
        """Mean over seeds and its 95 percent interval; NaN if all diverged."""
        if not self.finite:
            return Estimate(math.nan, math.nan, 0)
        return differences({0: self.finite})[0]

    @property
    def name(self) -> str:
        if self.task == "sphere":
            return f"d = {self.d}, frequency {self.level}"
        return f"Delta^{self.level}"


def points(results: Sequence[Result]) -> list[Point]:
    """One for each function, depth and length of training, at the learning rate whose validation
    error is lowest on average (in logarithms); the test error has no say in it.
    """
    found: dict[tuple[str, int, int, int, int], dict[float, list[Result]]] = {}
    for result in results:
        config = result.run.config
        if config.get("part") != "trained" or result.outcome.failed:
            continue
        key = (config["task"], config["d"], config["level"], config["depth"], config["steps"])
        found.setdefault(key, {}).setdefault(config["learning_rate"], []).append(result)
    made = []
    for key, rates in sorted(found.items()):
        rate = min(rates, key=lambda each: _validation(rates[each]))
        made.append(_point(key, rate, rates[rate]))
    return made


def _point(key: tuple[str, int, int, int, int], rate: float, chosen: Sequence[Result]) -> Point:
    metrics = [result.outcome.metrics for result in chosen]
    return Point(
        *key,
        rate,
        tuple(chosen[0].run.config["hidden"]),
        {result.run.seed: result.outcome.metrics["relative"] for result in chosen},
        [each["pieces"] for each in metrics if "pieces" in each],
        int(metrics[0]["parameters"]),
        min((each["l1"] - each["l1_bound"] for each in metrics if "l1" in each), default=math.inf),
        [result.outcome.curves["validation"] for result in chosen if result.outcome.curves],
    )


def _validation(results: Sequence[Result]) -> float:
    values = [result.outcome.metrics["validation"] for result in results]
    if not all(math.isfinite(value) for value in values):
        return math.inf
    return statistics.fmean(math.log(max(value, 1e-30)) for value in values)


def usual(every: Sequence[Point], task: str) -> list[Point]:
    """Points of a task at its usual, shortest length of training."""
    here = [point for point in every if point.task == task]
    least = min((point.steps for point in here), default=0)
    return [point for point in here if point.steps == least]


def longer(every: Sequence[Point]) -> list[tuple[Point, Point]]:
    """(usual, longer) for each that was trained at several lengths, the longest."""
    pairs = []
    for task in ("sphere", "sawtooth"):
        for point in usual(every, task):
            same = [
                other
                for other in every
                if (other.task, other.d, other.level, other.depth)
                == (point.task, point.d, point.level, point.depth)
            ]
            most = max(same, key=lambda other: other.steps)
            if most.steps > point.steps:
                pairs.append((point, most))
    return pairs


def by_hand(results: Sequence[Result]) -> dict[tuple[str, int, int, int], Mapping[str, float]]:
    """Metrics of hand-written networks by task, d, level, depth."""
    return {
        (c["task"], c["d"], c["level"], c["depth"]): result.outcome.metrics
        for result in results
        for c in (result.run.config,)
        if c.get("part") == "by hand" and result.outcome.status == "done"
    }


def depth_table(results: Sequence[Result], title: str) -> Table:
    """One row for each function, depth and length of training, beside the network by hand."""
    from weightloom.experiments.separation.depth_claims import verdicts

    built = by_hand(results)
    rows: list[list[Cell]] = []
    for point in points(results):
        hand = built.get((point.task, point.d, point.level, point.depth))
        estimate = point.estimate
        known = math.isfinite(estimate.low)
        rows.append(
            [
                point.name,
                point.depth,
                point.hidden[0],
                point.parameters,
                point.steps,
                point.rate,
                len(point.finite),
                len(point.errors) - len(point.finite),
                estimate.mean,
                max(0.0, estimate.low) if known else None,
                estimate.high if known else None,
                None if hand is None else hand["relative"],
                None if hand is None else int(hand["parameters"]),
                statistics.median(point.pieces) if point.pieces else None,
            ]
        )
    columns = [
        "function", "depth", "width", "parameters", "steps", "rate", "seeds", "diverged",
        "error/variance", "low", "high", "by hand", "its parameters", "pieces",
    ]  # fmt: skip
    notes = [
        "error/variance: on new points, mean over seeds, 95 percent interval (low, high); 1.0 "
        "predicts the mean. Learning rates were chosen on other points. Every batch is new.",
        "by hand: the same for a network with written weights; it fits into the trained one's "
        "layers where its parameters are not more. pieces: affine pieces on [0, 1], median.",
    ]
    return Table(columns, rows, title, [*notes, *(one.text() for one in verdicts(results))])

"""Errors at the best learning rate, verdicts on depth, and the table of ``training``."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from weightloom_papers.lab import Result, ResultTable
from weightloom_papers.lab.statistics import MeanDifference, differences
from weightloom_papers.lab.tables import Cell
from weightloom_papers.lab.verdicts import FAILS, HOLDS, PARTLY, UNCLEAR, Verdict, decide

__all__ = [
    "FOUND",
    "LEARNED",
    "TrainedPoint",
    "by_hand",
    "depth_table",
    "longer",
    "points",
    "usual",
    "verdicts",
]


@dataclass(frozen=True)
class TrainedPoint:
    """Networks of one shape trained on one function: errors by seed, at the best learning rate."""

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
    def estimate(self) -> MeanDifference:
        """Mean over seeds and its 95 percent interval; NaN if all diverged."""
        if not self.finite:
            return MeanDifference(math.nan, math.nan, 0)
        return differences({0: self.finite})[0]

    @property
    def name(self) -> str:
        if self.task == "sphere":
            return f"d = {self.d}, frequency {self.level}"
        return f"Delta^{self.level}"


def points(results: Sequence[Result]) -> list[TrainedPoint]:
    """One point for each function, depth and length of training, at the best learning rate.

    The rate with the lowest validation error is chosen, on average over seeds and in logarithms.
    The test error is not used.
    """
    groups: dict[tuple[str, int, int, int, int], dict[float, list[Result]]] = {}
    for result in results:
        config = result.run.config
        if config.get("part") != "trained" or result.outcome.failed:
            continue
        key = (config["task"], config["d"], config["level"], config["depth"], config["steps"])
        groups.setdefault(key, {}).setdefault(config["learning_rate"], []).append(result)
    chosen = []
    for key, rates in sorted(groups.items()):
        rate = min(rates, key=lambda each: _validation(rates[each]))
        chosen.append(_point(key, rate, rates[rate]))
    return chosen


def _point(
    key: tuple[str, int, int, int, int], rate: float, chosen: Sequence[Result]
) -> TrainedPoint:
    metrics = [result.outcome.metrics for result in chosen]
    return TrainedPoint(
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


def usual(every: Sequence[TrainedPoint], task: str) -> list[TrainedPoint]:
    """Points of a task at its usual, shortest length of training."""
    here = [point for point in every if point.task == task]
    least = min((point.steps for point in here), default=0)
    return [point for point in here if point.steps == least]


def longer(every: Sequence[TrainedPoint]) -> list[tuple[TrainedPoint, TrainedPoint]]:
    """(usual, longest) for every point that was trained at several lengths."""
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


def depth_table(results: Sequence[Result], title: str) -> ResultTable:
    """One row for each function, depth and length of training, beside the network by hand."""
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
    notes += [verdict.text() for verdict in verdicts(results)]
    return ResultTable(columns, rows, title, notes)


#: Below half of the variance a function counts as learned.
LEARNED = 0.5

#: A function counts as found if its error is at most this, or at most that of the network by hand.
FOUND = 0.05

#: Differences below a tenth of the error are not called better or worse.
LITTLE = 0.1


def verdicts(results: Sequence[Result]) -> list[Verdict]:
    """Every claim, judged by what is stored."""
    every = points(results)
    sphere, sawtooth = usual(every, "sphere"), usual(every, "sawtooth")
    built = by_hand(results)
    judged = [_better("sin(pi w <x, x'>)", sphere, 3), _paper_frequency(sphere)]
    judged.append(
        _gradient_descent_finds(
            "sin(pi w <x, x'>) by depth 3", [p for p in sphere if p.depth == 3], built
        )
    )
    for depth in sorted({point.depth for point in sawtooth if point.depth > 2}) or [3]:
        judged.append(_better("Delta^k", sawtooth, depth))
    judged.append(_gradient_descent_finds("Delta^k", sawtooth, built))
    judged.append(_pieces(every))
    judged += [_longer_is_enough(before, after) for before, after in longer(every)]
    return judged


def _better(what: str, every: Sequence[TrainedPoint], depth: int) -> Verdict:
    """Depth ``depth`` against depth 2 on each function, paired by seed.

    Each function has its own variance: errors of 1e-5 vary by factors, those near 1 hardly at all.
    """
    claim = f"Depth {depth} learns {what} to a lower error than depth 2 with as many parameters"
    shallow = {(p.d, p.level): p for p in every if p.depth == 2}
    deep = {(p.d, p.level): p for p in every if p.depth == depth}
    both = sorted(shallow.keys() & deep.keys())
    logs = {i: _logs(shallow[key], deep[key]) for i, key in enumerate(both)}
    gaps = {i: differences({0: each})[0] for i, each in logs.items() if each}  # > 0: deep is better
    little = -math.log(1 - LITTLE)
    won = [both[i] for i, gap in gaps.items() if gap.low > 0 and gap.mean > little]
    lost = [both[i] for i, gap in gaps.items() if gap.high < 0 and gap.mean < -little]
    if not gaps:
        return decide(claim, None)
    parts = [f"{word} at {_names(shallow[k] for k in keys)}" for word, keys in
            (("lower", won), ("higher", lost)) if keys]  # fmt: skip
    rest = len(gaps) - len(won) - len(lost)
    parts += [f"no clear difference of {LITTLE:.0%} at {rest} of {len(gaps)}"] if rest else []
    word = PARTLY if won and lost else HOLDS if won else FAILS if lost else UNCLEAR
    return Verdict(claim, word, " - ".join(parts))


def _logs(point: TrainedPoint, other: TrainedPoint) -> list[float]:
    """log error of ``one`` minus that of ``other``, for the seeds that both have finished."""
    return [
        math.log(max(point.errors[seed], 1e-12)) - math.log(max(other.errors[seed], 1e-12))
        for seed in sorted(point.errors.keys() & other.errors.keys())
        if math.isfinite(point.errors[seed]) and math.isfinite(other.errors[seed])
    ]


def _paper_frequency(sphere: Sequence[TrainedPoint]) -> Verdict:
    claim = f"The paper's frequency d^3 is learned by depth 3 (error below {LEARNED:g})"
    here = [p for p in sphere if p.depth == 3 and p.level == p.d**3]
    if not here:
        return decide(claim, None)
    text = "; ".join(f"d = {p.d}: {_text(p)}" for p in here)
    if all(p.estimate.high < LEARNED for p in here):
        return Verdict(claim, HOLDS, text)
    missed = any(p.estimate.low > LEARNED or not p.finite for p in here)
    return Verdict(claim, FAILS if missed else UNCLEAR, text)


def _gradient_descent_finds(
    what: str,
    every: Sequence[TrainedPoint],
    built: Mapping[tuple[str, int, int, int], Mapping[str, float]],
) -> Verdict:
    claim = f"Gradient descent finds {what} wherever the same layers, by hand, represent it"
    hands = [(p, built.get((p.task, p.d, p.level, p.depth))) for p in every]
    there = [(p, hand) for p, hand in hands if hand is not None and hand["fits"]]
    if not there:
        return decide(claim, None)
    goals = [(p, max(hand["relative"], FOUND)) for p, hand in there]
    missed = [p for p, goal in goals if p.estimate.low > goal or not p.finite]
    reached = [p for p, goal in goals if p.estimate.high <= goal]
    text = f"found {len(reached)} of {len(there)}"
    if missed:
        worst = max(missed, key=lambda p: p.estimate.mean if p.finite else math.inf)
        hand = next(hand for p, hand in there if p is worst)
        text += f", missed {len(missed)}; worst: {worst.name}, depth {worst.depth}: {_text(worst)}"
        text += f", by hand {hand['relative']:.2g}"
    word = FAILS if missed else HOLDS if len(reached) == len(there) else UNCLEAR
    return Verdict(claim, word, text)


def _pieces(every: Sequence[TrainedPoint]) -> Verdict:
    claim = "No network is nearer to Delta^k in L1 than its number of pieces allows"
    slack = [p.slack for p in every if math.isfinite(p.slack)]
    if not slack:
        return decide(claim, None)
    count = sum(len(p.errors) for p in every if math.isfinite(p.slack))
    # Distances are finite sums in double precision.
    return decide(claim, min(slack) >= -1e-12, f"{count} networks, nearest {min(slack):.2g} above")


def _longer_is_enough(before: TrainedPoint, after: TrainedPoint) -> Verdict:
    """Whether more steps make the difference between not learned and learned."""
    factor = after.steps / before.steps
    claim = (
        f"{factor:g} times as many steps are enough to learn {after.name} with depth {after.depth}"
    )
    text = f"{_text(before)} before, {_text(after)} after"
    estimate = after.estimate
    if not after.finite or estimate.low > LEARNED:
        return Verdict(claim, FAILS, text)
    return Verdict(claim, HOLDS if estimate.high < LEARNED else UNCLEAR, text)


def _text(point: TrainedPoint) -> str:
    if not point.finite:
        return "diverged"
    estimate = point.estimate
    spread = f" ± {estimate.high - estimate.mean:.2g}" if math.isfinite(estimate.high) else ""
    return f"{estimate.mean:.3g}{spread}"


def _names(every: Iterable[TrainedPoint]) -> str:
    """d = 2, frequency 1, 2; d = 3, frequency 1."""
    kinds: dict[str, list[str]] = {}
    for point in every:
        kind = f"d = {point.d}, frequency" if point.task == "sphere" else "k ="
        kinds.setdefault(kind, []).append(str(point.level))
    return "; ".join(f"{kind} {', '.join(levels)}" for kind, levels in kinds.items())

"""Exponents, verdicts and the table of ``pieces``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weightloom.construct.pieces import pieces_bound
from weightloom_papers.deep_learning_theory.printed import printed_pieces_bound
from weightloom_papers.lab import Result, ResultTable
from weightloom_papers.lab.statistics import MeanDifference, Slope, differences, fit_slope, median
from weightloom_papers.lab.tables import Cell, finished
from weightloom_papers.lab.verdicts import FAILS, HOLDS, NO_DATA, UNCLEAR, Verdict

__all__ = ["PieceGrowth", "growths", "mean_by", "per_unit", "pieces_table", "verdicts", "widths_of"]


# "About linear": exponents in width and depth at most this much above 1, and at every width and
# depth at most this many pieces for each unit (geometric means over seeds). If every layer
# multiplied the pieces, exponents would be far above: that of 2^L is 1.9 between 1 and 6 layers.
NEAR, FACTOR = 0.25, 2.0

# "Survives": at least half of the pieces at this relative change of the weights.
SMALL = 0.01


def widths_of(result: Result) -> list[int]:
    """Hidden widths; three for each layer of a sawtooth."""
    config = result.run.config
    return [int(config.get("width", 3))] * int(config["depth"])


def per_unit(result: Result, counted: str) -> float:
    return result.outcome.metrics[counted] / sum(widths_of(result))


@dataclass(frozen=True)
class PieceGrowth:
    """How the pieces of one kind of network grow with its units."""

    name: str
    slope: Slope | None
    """of log pieces against log units, with one level for each depth"""
    depth: Slope | None
    """of log pieces against log depth, at fixed width: 1 if every layer adds as many"""
    ratio: Mapping[tuple[int, int], MeanDifference]
    """(width, depth) -> log of pieces for each unit, over seeds"""
    counted: str


def growths(results: Sequence[Result]) -> list[PieceGrowth]:
    """Random networks by inputs and initialisation; trained ones by task, before and after."""
    all_growths = []
    kinds: dict[str, list[Result]] = {}
    for result in finished(results, "random"):
        c = result.run.config
        where = "on the line" if c["inputs"] == 1 else f"along lines in {c['inputs']} dimensions"
        start = "He start" if c["init"] == "he" else "PyTorch's start"
        kinds.setdefault(f"random, {start}, {where}", []).append(result)
    for name, group in kinds.items():
        all_growths.append(_growth(name, group, "pieces"))
    tasks: dict[str, list[Result]] = {}
    for result in finished(results, "trained"):
        tasks.setdefault(result.run.config["task"], []).append(result)
    for name, group in tasks.items():
        all_growths += [
            _growth(f"{name}, {when} training", group, when) for when in ("before", "after")
        ]
    return all_growths


def _growth(name: str, results: Sequence[Result], counted: str) -> PieceGrowth:
    logs = [math.log(result.outcome.metrics[counted]) for result in results]
    width = [math.log(result.run.config["width"]) for result in results]
    depth = [math.log(result.run.config["depth"]) for result in results]
    by: dict[tuple[int, int], list[float]] = {}
    for result in results:
        key = (result.run.config["width"], result.run.config["depth"])
        by.setdefault(key, []).append(math.log(per_unit(result, counted)))
    return PieceGrowth(
        name,
        fit_slope(width, logs, depth),
        fit_slope(depth, logs, width),
        # Not pooled: narrow and deep networks vary more from seed to seed than others.
        {key: differences({0: by[key]})[0] for key in sorted(by)},
        counted,
    )


def mean_by(results: Sequence[Result], counted: str, by: str) -> dict[float, MeanDifference]:
    """{value of a setting: mean over seeds of log counts}."""
    logs: dict[float, list[float]] = {}
    for result in results:
        logs.setdefault(result.run.config[by], []).append(math.log(result.outcome.metrics[counted]))
    return {key: differences({0: logs[key]})[0] for key in sorted(logs)}


def verdicts(results: Sequence[Result]) -> list[Verdict]:
    """Verdicts on the bounds, on growth with units, on training, and on noise."""
    every = growths(results)
    started = [growth for growth in every if growth.counted != "after"]
    ended = [growth for growth in every if growth.counted == "after"]
    return [
        _below(results),
        _sawtooth(results),
        _linear("pieces of networks at their start grow at most about linearly", started),
        _linear("pieces of trained networks grow at most about linearly", ended),
        _many(every),
        *_training(results),
        _survives(results),
    ]


def _below(results: Sequence[Result]) -> Verdict:
    claim = "no network has more pieces than prod (m_l + 1), which is at most (2 m / L)^L"
    shares = []
    for part, counted in (
        ("random", ("pieces_most",)),
        ("trained", ("before_most", "after_most")),
        ("sawtooth", ("pieces_most",)),
    ):
        for result in finished(results, part):
            widths = widths_of(result)
            if printed_pieces_bound(widths) < pieces_bound(widths):
                return Verdict(claim, FAILS, f"the printed bound is the smaller one at {widths}")
            for name in counted:
                share = math.log(result.outcome.metrics[name]) / math.log(pieces_bound(widths))
                shares.append((share, len(widths)))
    if not shares:
        return Verdict(claim, NO_DATA, "nothing was counted")
    deep = [share for share, depth in shares if depth >= 4]
    text = f"{len(shares)} counts; log pieces over log bound at most {max(shares)[0]:.3f}"
    if deep:
        text += f", with four layers or more at most {max(deep):.2f}, median {median(deep):.2f}"
    return Verdict(claim, HOLDS if max(shares)[0] <= 1 + 1e-12 else FAILS, text)


def _sawtooth(results: Sequence[Result]) -> Verdict:
    claim = "Delta^L has 2^L pieces on [0, 1], and two more on the line"
    exact = [result for result in finished(results, "sawtooth") if result.run.config["noise"] == 0]
    if not exact:
        return Verdict(claim, NO_DATA, "not counted")
    pairs = [(result.run.config["depth"], result.outcome.metrics) for result in exact]
    good = all((m["inside"], m["pieces"]) == (2**depth, 2**depth + 2) for depth, m in pairs)
    text = ", ".join(
        f"L = {depth}: {m['pieces']:.0f}" for depth, m in sorted(pairs, key=lambda p: p[0])
    )
    return Verdict(claim, HOLDS if good else FAILS, text)


def _linear(claim: str, every: Sequence[PieceGrowth]) -> Verdict:
    claim += f" with units (at most {FACTOR:g} for each)"
    if not every:
        return Verdict(claim, NO_DATA, "not counted")
    parts, good = [], True
    for growth in every:
        ratios = [math.exp(estimate.mean) for estimate in growth.ratio.values()]
        slopes = [slope for slope in (growth.slope, growth.depth) if slope is not None]
        good = good and max(ratios) <= FACTOR
        good = good and all(slope.value <= 1 + NEAR for slope in slopes)
        width = "unknown" if growth.slope is None else growth.slope.text()
        depth = "unknown" if growth.depth is None else growth.depth.text()
        parts.append(
            f"{growth.name}: {min(ratios):.2f} to {max(ratios):.2f} for each unit, exponent in "
            f"width {width}, in depth {depth}"
        )
    return Verdict(claim, HOLDS if good else FAILS, "; ".join(parts))


def _many(every: Sequence[PieceGrowth]) -> Verdict:
    """The opposite: shapes with far fewer pieces than units."""
    claim = f"there are not far fewer pieces than units (at least {1 / FACTOR:g} for each)"
    ratios = [
        (math.exp(e.mean), *shape, growth.name)
        for growth in every
        for shape, e in growth.ratio.items()
    ]
    if not ratios:
        return Verdict(claim, NO_DATA, "not counted")
    few = sorted(ratio for ratio in ratios if ratio[0] < 1 / FACTOR)
    if not few:
        return Verdict(claim, HOLDS, f"at least {min(ratios)[0]:.2f}")
    widest = max(width for _, width, _, _ in few)
    shallowest = min(depth for _, _, depth, _ in few)
    text = (
        f"{len(few)} of {len(ratios)} shapes have fewer, all with layers of {widest} or narrower "
    )
    text += f"and {shallowest} layers or more; least {few[0][0]:.2f} ({few[0][3]})"
    return Verdict(claim, FAILS, text)


def _training(results: Sequence[Result]) -> list[Verdict]:
    """One verdict for each task: whether training adds pieces, paired before and after."""
    judged = []
    for task in dict.fromkeys(result.run.config["task"] for result in finished(results, "trained")):
        here = [
            result for result in finished(results, "trained") if result.run.config["task"] == task
        ]
        parts, gaps = [], {}
        for name, ending in (("on the whole line", ""), ("between training points", "_inside")):
            logs = [
                math.log(result.outcome.metrics[f"after{ending}"])
                - math.log(result.outcome.metrics[f"before{ending}"])
                for result in here
            ]
            gap = gaps[ending] = differences({0: logs})[0]
            parts.append(
                f"{name} times {math.exp(gap.mean):.2f} "
                f"[{math.exp(gap.low):.2f}, {math.exp(gap.high):.2f}]"
            )
        loss = median([result.outcome.metrics["loss"] for result in here])
        parts.append(f"median error left {loss:.2g} of the variance")
        inside = gaps["_inside"]
        word = HOLDS if inside.low > 0 else FAILS if inside.high < 0 else UNCLEAR
        claim = f"training on {task} adds pieces between training points"
        judged.append(Verdict(claim, word, f"{len(here)} networks; " + "; ".join(parts)))
    return judged


def _survives(results: Sequence[Result]) -> Verdict:
    claim = f"half of Delta^L's pieces survive when its weights change by {SMALL:.0%}"
    parts, good = [], True
    every = finished(results, "sawtooth")
    for depth in sorted({result.run.config["depth"] for result in every}):
        here = [result for result in every if result.run.config["depth"] == depth]
        counts = [
            result.outcome.metrics["pieces"]
            for result in here
            if result.run.config["noise"] == SMALL
        ]
        if counts:
            share = median(counts) / (2**depth + 2)
            good = good and share >= 0.5
            parts.append(f"L = {depth}: {share:.0%} (median of {len(counts)})")
    if not parts:
        return Verdict(claim, NO_DATA, "not counted")
    return Verdict(claim, HOLDS if good else FAILS, ", ".join(parts))


COLUMNS = (
    "networks", "width", "layers", "units", "pieces", "low", "high", "for each unit",
    "prod (m + 1)", "(2m/L)^L",
)  # fmt: skip


def pieces_table(results: Sequence[Result], title: str) -> ResultTable:
    """One row for each kind, width and depth; the verdicts below."""
    rows: list[list[Cell]] = []
    for growth in growths(results):
        for (width, depth), estimate in growth.ratio.items():
            rows.append(_row(growth.name, width, depth, estimate, math.log(width * depth)))
    every = finished(results, "sawtooth")
    for depth in sorted({result.run.config["depth"] for result in every}):
        here = [result for result in every if result.run.config["depth"] == depth]
        for noise, estimate in mean_by(here, "pieces", "noise").items():
            name = "Delta^L" if noise == 0 else f"Delta^L, weights {noise:g} off"
            rows.append(_row(name, 3, depth, estimate, 0.0))
    notes = [
        "pieces: on whole lines, geometric mean over seeds, with 95 percent intervals (low, high).",
        *(verdict.text() for verdict in verdicts(results)),
    ]
    return ResultTable(COLUMNS, rows, title=title, notes=notes)


def _row(name: str, width: int, depth: int, estimate: MeanDifference, shift: float) -> list[Cell]:
    """``estimate`` is of log pieces minus ``shift``."""
    widths = [width] * depth
    ends = [estimate.mean, estimate.low, estimate.high]
    mean, low, high = (math.exp(end + shift) if math.isfinite(end) else None for end in ends)
    return [
        name, width, depth, width * depth, mean, low, high,
        None if mean is None else mean / (width * depth),
        float(pieces_bound(widths)), printed_pieces_bound(widths),
    ]  # fmt: skip

"""From counts to exponents and verdicts: the numbers behind the figure of ``pieces``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weightloom.construct.pieces import pieces_bound, printed_pieces_bound
from weightloom.experiments.depth.verdicts import (
    FAILS,
    HOLDS,
    NO_DATA,
    UNCLEAR,
    Verdict,
    finished,
    median,
)
from weightloom.experiments.modularity.fig3_statistics import Estimate, differences
from weightloom.lab import Result
from weightloom.lab.intervals import Slope, fit_slope

__all__ = ["Growth", "growths", "mean_by", "per_unit", "verdicts", "widths_of"]

# "About linear": exponents in width and depth at most this much above 1, and at every width and
# depth at most this many pieces for each unit (geometric means over seeds). Depth that multiplies
# has exponents far above: that of 2^L is 1.9 between 1 and 6 layers.
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
class Growth:
    """Pieces of one kind of network against its units; levels by depth, one slope."""

    name: str
    slope: Slope | None
    """of log pieces against log units, at fixed depth"""
    depth: Slope | None
    """of log pieces against log depth, at fixed width: 1 if every layer adds as many"""
    ratio: Mapping[tuple[int, int], Estimate]
    """(width, depth) -> log of pieces for each unit, over seeds"""
    counted: str


def growths(results: Sequence[Result]) -> list[Growth]:
    """Random networks by inputs and init; trained ones by task, before and after."""
    found = []
    kinds: dict[str, list[Result]] = {}
    for one in finished(results, "random"):
        c = one.run.config
        where = "on the line" if c["inputs"] == 1 else f"along lines in {c['inputs']} dimensions"
        start = "He start" if c["init"] == "he" else "PyTorch's start"
        kinds.setdefault(f"random, {start}, {where}", []).append(one)
    for name, some in kinds.items():
        found.append(_growth(name, some, "pieces"))
    tasks: dict[str, list[Result]] = {}
    for one in finished(results, "trained"):
        tasks.setdefault(one.run.config["task"], []).append(one)
    for name, some in tasks.items():
        found += [_growth(f"{name}, {when} training", some, when) for when in ("before", "after")]
    return found


def _growth(name: str, results: Sequence[Result], counted: str) -> Growth:
    logs = [math.log(one.outcome.metrics[counted]) for one in results]
    width = [math.log(one.run.config["width"]) for one in results]
    depth = [math.log(one.run.config["depth"]) for one in results]
    by: dict[tuple[int, int], list[float]] = {}
    for one in results:
        key = (one.run.config["width"], one.run.config["depth"])
        by.setdefault(key, []).append(math.log(per_unit(one, counted)))
    return Growth(
        name,
        fit_slope(width, logs, depth),
        fit_slope(depth, logs, width),
        # Not pooled: narrow and deep ones differ more from seed to seed than others.
        {key: differences({0: by[key]})[0] for key in sorted(by)},
        counted,
    )


def mean_by(results: Sequence[Result], counted: str, by: str) -> dict[float, Estimate]:
    """{value of a setting: mean over seeds of log counts}."""
    logs: dict[float, list[float]] = {}
    for one in results:
        logs.setdefault(one.run.config[by], []).append(math.log(one.outcome.metrics[counted]))
    return {key: differences({0: logs[key]})[0] for key in sorted(logs)}


def verdicts(results: Sequence[Result]) -> list[Verdict]:
    every = growths(results)
    started = [one for one in every if one.counted != "after"]
    ended = [one for one in every if one.counted == "after"]
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
        for one in finished(results, part):
            widths = widths_of(one)
            if printed_pieces_bound(widths) < pieces_bound(widths):
                return Verdict(claim, FAILS, f"the printed bound is the smaller one at {widths}")
            for name in counted:
                share = math.log(one.outcome.metrics[name]) / math.log(pieces_bound(widths))
                shares.append((share, len(widths)))
    if not shares:
        return Verdict(claim, NO_DATA, "nothing was counted")
    deep = [share for share, depth in shares if depth >= 4]
    said = f"{len(shares)} counts; log pieces over log bound at most {max(shares)[0]:.3f}"
    if deep:
        said += f", with four layers or more at most {max(deep):.2f}, median {median(deep):.2f}"
    return Verdict(claim, HOLDS if max(shares)[0] <= 1 + 1e-12 else FAILS, said)


def _sawtooth(results: Sequence[Result]) -> Verdict:
    claim = "Delta^L has 2^L pieces on [0, 1], and two more on the line"
    exact = [one for one in finished(results, "sawtooth") if one.run.config["noise"] == 0]
    if not exact:
        return Verdict(claim, NO_DATA, "not counted")
    pairs = [(one.run.config["depth"], one.outcome.metrics) for one in exact]
    good = all((m["inside"], m["pieces"]) == (2**depth, 2**depth + 2) for depth, m in pairs)
    said = ", ".join(
        f"L = {depth}: {m['pieces']:.0f}" for depth, m in sorted(pairs, key=lambda p: p[0])
    )
    return Verdict(claim, HOLDS if good else FAILS, said)


def _linear(claim: str, every: Sequence[Growth]) -> Verdict:
    claim += f" with units (at most {FACTOR:g} for each)"
    if not every:
        return Verdict(claim, NO_DATA, "not counted")
    said, good = [], True
    for one in every:
        ratios = [math.exp(estimate.mean) for estimate in one.ratio.values()]
        slopes = [slope for slope in (one.slope, one.depth) if slope is not None]
        good = good and max(ratios) <= FACTOR
        good = good and all(slope.value <= 1 + NEAR for slope in slopes)
        width = "unknown" if one.slope is None else one.slope.text()
        depth = "unknown" if one.depth is None else one.depth.text()
        said.append(
            f"{one.name}: {min(ratios):.2f} to {max(ratios):.2f} for each unit, exponent in width "
            f"{width}, in depth {depth}"
        )
    return Verdict(claim, HOLDS if good else FAILS, "; ".join(said))


def _many(every: Sequence[Growth]) -> Verdict:
    """The other side: where there are far fewer pieces than units."""
    claim = f"there are not far fewer pieces than units (at least {1 / FACTOR:g} for each)"
    ratios = [
        (math.exp(e.mean), *shape, one.name) for one in every for shape, e in one.ratio.items()
    ]
    if not ratios:
        return Verdict(claim, NO_DATA, "not counted")
    few = sorted(found for found in ratios if found[0] < 1 / FACTOR)
    if not few:
        return Verdict(claim, HOLDS, f"at least {min(ratios)[0]:.2f}")
    widest = max(width for _, width, _, _ in few)
    shallowest = min(depth for _, _, depth, _ in few)
    said = (
        f"{len(few)} of {len(ratios)} shapes have fewer, all with layers of {widest} or narrower "
    )
    said += f"and {shallowest} layers or more; least {few[0][0]:.2f} ({few[0][3]})"
    return Verdict(claim, FAILS, said)


def _training(results: Sequence[Result]) -> list[Verdict]:
    """One for each task: whether training adds pieces, from pairs before and after."""
    found = []
    for task in dict.fromkeys(one.run.config["task"] for one in finished(results, "trained")):
        here = [one for one in finished(results, "trained") if one.run.config["task"] == task]
        said, gaps = [], {}
        for name, ending in (("on the whole line", ""), ("between training points", "_inside")):
            logs = [
                math.log(one.outcome.metrics[f"after{ending}"])
                - math.log(one.outcome.metrics[f"before{ending}"])
                for one in here
            ]
            gap = gaps[ending] = differences({0: logs})[0]
            said.append(
                f"{name} times {math.exp(gap.mean):.2f} "
                f"[{math.exp(gap.low):.2f}, {math.exp(gap.high):.2f}]"
            )
        loss = median([one.outcome.metrics["loss"] for one in here])
        said.append(f"median error left {loss:.2g} of the variance")
        inside = gaps["_inside"]
        word = HOLDS if inside.low > 0 else FAILS if inside.high < 0 else UNCLEAR
        claim = f"training on {task} adds pieces between training points"
        found.append(Verdict(claim, word, f"{len(here)} networks; " + "; ".join(said)))
    return found


def _survives(results: Sequence[Result]) -> Verdict:
    claim = f"half of Delta^L's pieces survive when its weights change by {SMALL:.0%}"
    said, good = [], True
    every = finished(results, "sawtooth")
    for depth in sorted({one.run.config["depth"] for one in every}):
        here = [one for one in every if one.run.config["depth"] == depth]
        counts = [one.outcome.metrics["pieces"] for one in here if one.run.config["noise"] == SMALL]
        if counts:
            share = median(counts) / (2**depth + 2)
            good = good and share >= 0.5
            said.append(f"L = {depth}: {share:.0%} (median of {len(counts)})")
    if not said:
        return Verdict(claim, NO_DATA, "not counted")
    return Verdict(claim, HOLDS if good else FAILS, ", ".join(said))

"""What the stored numbers of ``square-error`` say about the theorems, and about training."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weightloom.construct.pieces import pieces_bound
from weightloom.construct.separation import square_bound
from weightloom.experiments.depth.square_numbers import KINDS, STARTS, Trained, best_rates, built
from weightloom.experiments.depth.verdicts import (
    FAILS,
    HOLDS,
    NO_DATA,
    UNCLEAR,
    Verdict,
    finished,
    median,
)
from weightloom.experiments.modularity.fig3_statistics import differences
from weightloom.lab import Result
from weightloom.lab.intervals import Slope, fit_slope

__all__ = ["slopes", "verdicts"]

# The first sizes of shallow networks are left out of the fit: m and m + 1/2 still differ there.
FIT_FROM = 8
# "Found" means: with at most this many times the L2 error of the network that was built.
NEAR = 2.0


def slopes(results: Sequence[Result]) -> tuple[Slope | None, Slope | None]:
    """Of log4 of h_i's error against i; of log of the shallow error against log of nodes."""
    deep = built(results, "deep", "")
    wide = [pair for pair in built(results, "shallow", "sup") if pair[0] >= FIT_FROM]
    return (
        fit_slope([float(i) for i, _ in deep], [math.log(m["sup"], 4) for _, m in deep]),
        fit_slope([math.log(n) for n, _ in wide], [math.log(m["sup"]) for _, m in wide]),
    )


def verdicts(results: Sequence[Result]) -> list[Verdict]:
    """The theorems' claims, then what training makes of them."""
    found = [_exact(results), _rates(results), _lower(results)]
    table = best_rates(results)
    for kind in ("shallow", "narrow"):
        for start in STARTS:
            found.append(_reached(results, table, kind, start))
    for start, rival in (("default", "narrow"), ("spread", "narrow"), ("spread", "three")):
        found.append(_ahead(table, rival, start))
    found.append(_depth_used(table))
    return found


def _exact(results: Sequence[Result]) -> Verdict:
    claim = "the largest error of h_i is 4^-(i+1)"
    deep = built(results, "deep", "")
    if not deep:
        return Verdict(claim, NO_DATA, "no h_i was built")
    off = max(abs(m["sup"] - 4.0 ** -(i + 1)) for i, m in deep)
    nodes = all(m["nodes"] == 3 * i - 1 for i, m in deep)
    said = f"h_1 to h_{deep[-1][0]}: off by at most {off:.1g}"
    said += ", 3 i - 1 nodes each" if nodes else ", but not with 3 i - 1 nodes"
    return Verdict(claim, HOLDS if off <= 1e-14 and nodes else FAILS, said)


def _rates(results: Sequence[Result]) -> Verdict:
    claim = "the error falls exponentially with depth and as nodes^-2 with width"
    deep, wide = slopes(results)
    if deep is None or wide is None:
        return Verdict(claim, NO_DATA, "fewer than two sizes")
    good = abs(deep.value + 1) < 0.01 and abs(wide.value + 2) < 0.1
    said = (
        f"each layer of three nodes divides it by 4^{-deep.value:.3f}; in one layer it falls as "
        f"nodes^{wide.value:.2f} (fitted from {FIT_FROM} nodes on)"
    )
    return Verdict(claim, HOLDS if good else FAILS, said)


def _lower(results: Sequence[Result]) -> Verdict:
    claim = "no network with N pieces is nearer to x^2 than 1/(180 N^4) in squared L2 distance"
    every = [*finished(results, "built"), *finished(results, "trained")]
    ratios = [
        m["l2"] ** 2 / square_bound(int(m["pieces"]))
        for m in (one.outcome.metrics for one in every)
        if not math.isnan(m["l2"])
    ]
    if not ratios:
        return Verdict(claim, NO_DATA, "no networks")
    # Built ones attain it, up to rounding: 1e-16 beside residuals of 1e-11 and more.
    return Verdict(
        claim,
        HOLDS if min(ratios) >= 1 - 1e-4 else FAILS,
        f"{len(ratios)} networks, least ratio {min(ratios):.6f}",
    )


def _reached(
    results: Sequence[Result],
    table: Trained,
    kind: str,
    start: str,
) -> Verdict:
    """Whether training comes within twice the L2 error of the network that was built."""
    claim = f"training finds the {KINDS[kind]} network that was built ({STARTS[start]})"
    known = dict(built(results, "shallow", "l2"))
    goals = {3 * i - 1: m["l2"] for i, m in built(results, "deep", "l2")}
    if kind == "shallow":
        goals = {n: m["l2"] for n, m in known.items()}
    said, medians, bests = [], [], []
    for (k, s, i), seeds in sorted(table.items(), key=lambda item: item[0][2]):
        goal = goals.get(3 * i - 1)
        if (k, s) != (kind, start) or goal is None or not seeds:
            continue
        ratios = [one.outcome.metrics["l2"] / goal for one in seeds.values()]
        medians.append(median(ratios))
        bests.append(min(ratios))
        said.append(
            f"{3 * i - 1} nodes: {median(ratios):.3g} (best of {len(ratios)}: {min(ratios):.3g})"
        )
    if not said:
        return Verdict(claim, NO_DATA, "not trained")
    word = HOLDS if max(medians) <= NEAR else FAILS if bests[-1] > NEAR else UNCLEAR
    return Verdict(claim, word, "median error over the built one's, " + "; ".join(said))


def _ahead(table: Trained, rival: str, start: str) -> Verdict:
    """Trained deep against trained shallow networks, by the mean of log L2 errors over seeds."""
    claim = (
        f"trained {KINDS[rival]} networks are ahead of shallow ones of their size ({STARTS[start]})"
    )
    pairs: dict[int, list[float]] = {}
    for (kind, s, i), seeds in table.items():
        if (kind, s) != (rival, start):
            continue
        others = table.get(("shallow", start, i), {})
        common = sorted(set(seeds) & set(others))
        if common:
            pairs[i] = [
                math.log(others[seed].outcome.metrics["l2"] / seeds[seed].outcome.metrics["l2"])
                for seed in common
            ]
    if not pairs:
        return Verdict(claim, NO_DATA, "not trained")
    said, won, lost = [], 0, 0
    for i, gap in sorted(differences(pairs).items()):
        won, lost = won + (gap.low > 0), lost + (gap.high < 0)
        said.append(
            f"{3 * i - 1} nodes: {math.exp(-gap.mean):.3g} "
            f"[{math.exp(-gap.high):.2g}, {math.exp(-gap.low):.2g}]"
        )
    word = FAILS if lost else HOLDS if won == len(pairs) else UNCLEAR
    return Verdict(
        claim, word, "deep error over shallow, geometric mean and 95 percent, " + "; ".join(said)
    )


def _depth_used(table: Trained) -> Verdict:
    """Whether any deep network was nearer to x^2 than every shallow one of its size can be."""
    claim = "training from random starts gets a deep network below every shallow one of its size"
    below = tried = 0
    nearest = math.inf
    for (kind, start, i), seeds in table.items():
        if kind == "shallow" or start == "built":
            continue
        limit = math.sqrt(square_bound(pieces_bound([3 * i - 1])))
        for one in seeds.values():
            ratio = one.outcome.metrics["l2"] / limit
            nearest = min(nearest, ratio)
            tried, below = tried + 1, below + (ratio < 1)
    if not tried:
        return Verdict(claim, NO_DATA, "not trained")
    said = (
        f"{below} of {tried} (best learning rate of each seed); nearest {nearest:.2f} of the limit"
    )
    return Verdict(claim, HOLDS if below else FAILS, said)

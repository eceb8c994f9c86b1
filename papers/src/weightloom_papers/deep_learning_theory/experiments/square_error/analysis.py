"""Slopes, verdicts on the theorems and on training, and the table of ``square-error``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weightloom.construct.deep import square_bound
from weightloom.construct.pieces import pieces_bound
from weightloom_papers.deep_learning_theory.experiments.square_error.experiment import shape
from weightloom_papers.deep_learning_theory.printed import printed_square_bound
from weightloom_papers.lab import Result, ResultTable
from weightloom_papers.lab.statistics import Slope, differences, fit_slope, median
from weightloom_papers.lab.tables import Cell, finished
from weightloom_papers.lab.verdicts import FAILS, HOLDS, NO_DATA, UNCLEAR, Verdict

__all__ = [
    "KINDS",
    "STARTS",
    "Trained",
    "best_rates",
    "built",
    "slopes",
    "square_table",
    "verdicts",
]


KINDS = {"shallow": "shallow", "narrow": "narrow deep", "three": "three-layer"}
STARTS = {"default": "PyTorch's start", "spread": "spread start", "built": "start near the built"}

# (kind, start, i) -> seed -> result
Trained = Mapping[tuple[str, str, int], Mapping[int, Result]]


def built(results: Sequence[Result], network: str, best: str) -> list[tuple[int, dict[str, float]]]:
    """(size, metrics) of built networks, by size."""
    chosen = [
        (int(result.run.config["size"]), result.outcome.metrics)
        for result in finished(results, "built")
        if (result.run.config["network"], result.run.config["best"]) == (network, best)
    ]
    return sorted(chosen, key=lambda pair: pair[0])


def best_rates(results: Sequence[Result]) -> dict[tuple[str, str, int], dict[int, Result]]:
    """(kind, start, i) -> seed -> the result at the learning rate with the least L2 error."""
    best: dict[tuple[str, str, int], dict[int, Result]] = {}
    for result in finished(results, "trained"):
        c = result.run.config
        seeds = best.setdefault((c["kind"], c["start"], c["i"]), {})
        error = result.outcome.metrics["l2"]
        if math.isnan(error):
            continue
        old = seeds.get(result.run.seed)
        if old is None or error < old.outcome.metrics["l2"]:
            seeds[result.run.seed] = result
    return best


# Smaller shallow networks are left out of the fit, because m and m + 1/2 differ too much there.
FIT_FROM = 8

# Training finds the built network if it has at most this many times its L2 error.
NEAR = 2.0


def slopes(results: Sequence[Result]) -> tuple[Slope | None, Slope | None]:
    """Two slopes: of log4 of h_i's error against i, of log shallow error against log nodes."""
    deep = built(results, "deep", "")
    wide = [pair for pair in built(results, "shallow", "sup") if pair[0] >= FIT_FROM]
    return (
        fit_slope([float(i) for i, _ in deep], [math.log(m["sup"], 4) for _, m in deep]),
        fit_slope([math.log(n) for n, _ in wide], [math.log(m["sup"]) for _, m in wide]),
    )


def verdicts(results: Sequence[Result]) -> list[Verdict]:
    """Verdicts on the theorems, then on training."""
    judged = [_exact(results), _rates(results), _lower(results)]
    table = best_rates(results)
    for kind in ("shallow", "narrow"):
        for start in STARTS:
            judged.append(_reached(results, table, kind, start))
    for start, rival in (("default", "narrow"), ("spread", "narrow"), ("spread", "three")):
        judged.append(_ahead(table, rival, start))
    judged.append(_depth_used(table))
    return judged


def _exact(results: Sequence[Result]) -> Verdict:
    claim = "the largest error of h_i is 4^-(i+1)"
    deep = built(results, "deep", "")
    if not deep:
        return Verdict(claim, NO_DATA, "no h_i was built")
    off = max(abs(m["sup"] - 4.0 ** -(i + 1)) for i, m in deep)
    nodes = all(m["nodes"] == 3 * i - 1 for i, m in deep)
    text = f"h_1 to h_{deep[-1][0]}: off by at most {off:.1g}"
    text += ", 3 i - 1 nodes each" if nodes else ", but not with 3 i - 1 nodes"
    return Verdict(claim, HOLDS if off <= 1e-14 and nodes else FAILS, text)


def _rates(results: Sequence[Result]) -> Verdict:
    claim = "the error falls exponentially with depth and as nodes^-2 with width"
    deep, wide = slopes(results)
    if deep is None or wide is None:
        return Verdict(claim, NO_DATA, "fewer than two sizes")
    good = abs(deep.value + 1) < 0.01 and abs(wide.value + 2) < 0.1
    text = (
        f"each layer of three nodes divides it by 4^{-deep.value:.3f}; in one layer it falls as "
        f"nodes^{wide.value:.2f} (fitted from {FIT_FROM} nodes on)"
    )
    return Verdict(claim, HOLDS if good else FAILS, text)


def _lower(results: Sequence[Result]) -> Verdict:
    claim = "no network with N pieces is nearer to x^2 than 1/(180 N^4) in squared L2 distance"
    every = [*finished(results, "built"), *finished(results, "trained")]
    ratios = [
        m["l2"] ** 2 / square_bound(int(m["pieces"]))
        for m in (result.outcome.metrics for result in every)
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
    """Whether training reaches twice the L2 error of the built network, or less."""
    claim = f"training finds the {KINDS[kind]} network that was built ({STARTS[start]})"
    known = dict(built(results, "shallow", "l2"))
    goals = {3 * i - 1: m["l2"] for i, m in built(results, "deep", "l2")}
    if kind == "shallow":
        goals = {n: m["l2"] for n, m in known.items()}
    parts, medians, bests = [], [], []
    for (k, s, i), seeds in sorted(table.items(), key=lambda item: item[0][2]):
        goal = goals.get(3 * i - 1)
        if (k, s) != (kind, start) or goal is None or not seeds:
            continue
        ratios = [result.outcome.metrics["l2"] / goal for result in seeds.values()]
        medians.append(median(ratios))
        bests.append(min(ratios))
        parts.append(
            f"{3 * i - 1} nodes: {median(ratios):.3g} (best of {len(ratios)}: {min(ratios):.3g})"
        )
    if not parts:
        return Verdict(claim, NO_DATA, "not trained")
    word = HOLDS if max(medians) <= NEAR else FAILS if bests[-1] > NEAR else UNCLEAR
    return Verdict(claim, word, "median error over the built one's, " + "; ".join(parts))


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
    parts, won, lost = [], 0, 0
    for i, gap in sorted(differences(pairs).items()):
        won, lost = won + (gap.low > 0), lost + (gap.high < 0)
        parts.append(
            f"{3 * i - 1} nodes: {math.exp(-gap.mean):.3g} "
            f"[{math.exp(-gap.high):.2g}, {math.exp(-gap.low):.2g}]"
        )
    word = FAILS if lost else HOLDS if won == len(pairs) else UNCLEAR
    return Verdict(
        claim, word, "deep error over shallow, geometric mean and 95 percent, " + "; ".join(parts)
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
        for result in seeds.values():
            ratio = result.outcome.metrics["l2"] / limit
            nearest = min(nearest, ratio)
            tried, below = tried + 1, below + (ratio < 1)
    if not tried:
        return Verdict(claim, NO_DATA, "not trained")
    text = (
        f"{below} of {tried} (best learning rate of each seed); nearest {nearest:.2f} of the limit"
    )
    return Verdict(claim, HOLDS if below else FAILS, text)


COLUMNS = (
    "network", "nodes", "hidden layers", "runs", "largest error", "L2 error", "pieces",
    "best L2", "bound for its layers", "printed",
)  # fmt: skip


def square_table(results: Sequence[Result], title: str) -> ResultTable:
    """One row for each network that was built, and for each kind, start and size trained."""
    rows: list[list[Cell]] = []
    names = {
        ("deep", ""): "h_i",
        ("deep", "l2"): "h_i lowered, for L2",
        ("shallow", "sup"): "shallow, for the largest error",
        ("shallow", "l2"): "shallow, for L2",
    }
    for (network, best), name in names.items():
        for size, m in built(results, network, best):
            widths = shape("narrow", size) if network == "deep" else [size]
            rows.append(_row(name, widths, [m]))
    for (kind, start, i), seeds in sorted(best_rates(results).items()):
        if seeds:
            name = f"trained {KINDS[kind]}, {STARTS[start]}"
            rows.append(
                _row(name, shape(kind, i), [result.outcome.metrics for result in seeds.values()])
            )
    notes = [
        "trained: median over seeds of the best learning rate's errors; best L2: of all seeds.",
        "bound: L2 error that no network of these layers can be below, 1/sqrt(180 N^4) with "
        "N = prod (m_l + 1) pieces; printed: the same from Theorem 4.6 as printed.",
        *(verdict.text() for verdict in verdicts(results)),
    ]
    return ResultTable(COLUMNS, rows, title=title, notes=notes)


def _row(name: str, widths: Sequence[int], metrics: Sequence[Mapping[str, float]]) -> list[Cell]:
    return [
        name,
        sum(widths),
        len(widths),
        len(metrics),
        median([m["sup"] for m in metrics]),
        median([m["l2"] for m in metrics]),
        median([m["pieces"] for m in metrics]),
        min(m["l2"] for m in metrics),
        math.sqrt(square_bound(pieces_bound(widths))),
        math.sqrt(printed_square_bound(sum(widths), len(widths))),
    ]

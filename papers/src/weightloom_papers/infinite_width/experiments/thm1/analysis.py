"""Exponents of K^(r), the table and the verdicts of ``thm1``."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weightloom.kernels.gradient_step import exponent, resampled_margin
from weightloom_papers.infinite_width.experiments.thm1.experiment import ORDERS, PAIRS, SETTINGS
from weightloom_papers.lab import Result, ResultTable
from weightloom_papers.lab.statistics import Slope, fit_slope, median
from weightloom_papers.lab.tables import Cell
from weightloom_papers.lab.verdicts import FAILS, HOLDS, NO_DATA, UNCLEAR, Verdict, worst_of

__all__ = [
    "TermRate",
    "exponent",
    "exponent_smooth_f",
    "is_rate",
    "median_slope",
    "rates",
    "thm1_table",
    "verdicts",
]

#: Claimed exponents are whole numbers. A measured one agrees if its distance and its margin are at
#: most this.
NEAR = 0.4


def exponent_smooth_f(depth: int, order: int) -> int:
    """The exponent for smooth f and piecewise-linear g: every other order costs a factor n.

    <grad^a f, (grad h)^a> ~ n^-floor(a / 2) for smooth f. A term of K^(r) is a product of H such
    factors with a_1 + .. + a_H = r, and the largest of them has exponent -ceil((r - H) / 2).
    """
    return -math.ceil(max(0, order - depth) / 2)


@dataclass(frozen=True)
class TermRate:
    """How the median of |K^(r)| depends on the width of f."""

    setting: str
    depth: int
    layers: int
    pair: str
    order: int
    widths: tuple[int, ...]
    draws: tuple[tuple[float, ...], ...]
    """|K^(r)| at each width, of networks with a path that is active for both examples"""
    everyone: tuple[tuple[float, ...], ...]
    """|K^(r)| at each width, of all networks"""

    @property
    def medians(self) -> list[float]:
        return [median(values) for values in self.draws]

    @property
    def slope(self) -> Slope | None:
        return median_slope(self.widths, self.draws)

    @property
    def slope_of_all(self) -> Slope | None:
        return median_slope(self.widths, self.everyone)

    @property
    def zeros(self) -> float:
        """Share of networks whose K^(r) is exactly 0."""
        return _share([value == 0 for values in self.everyone for value in values])

    @property
    def apart(self) -> float:
        """Share of networks without a shared path; their K^(r) falls faster than the rate."""
        count = sum(map(len, self.everyone))
        return 1 - sum(map(len, self.draws)) / count if count else math.nan


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else math.nan


def median_slope(widths: Sequence[int], draws: Sequence[Sequence[float]]) -> Slope | None:
    """Exponent of the medians, with a 95 percent interval from resampling the draws.

    None with fewer than two widths, or if a median is 0.
    """
    return _median_slope(tuple(widths), tuple(map(tuple, draws)))


@functools.lru_cache(maxsize=512)  # table, caption and figure need the same slopes
def _median_slope(widths: tuple[int, ...], draws: tuple[tuple[float, ...], ...]) -> Slope | None:
    x = [math.log10(width) for width in widths]
    medians = [median(values) for values in draws]
    if len(x) < 2 or not all(value > 0 for value in medians):
        return None
    fit = fit_slope(x, [math.log10(value) for value in medians])
    if fit is None or min(map(len, draws)) < 3:
        return fit
    return Slope(fit.value, resampled_margin(x, draws), fit.intercept, fit.points)


def rates(results: Sequence[Result]) -> list[TermRate]:
    """One for each setting, depth of g, pair and order, in that order."""
    good = [result for result in results if result.outcome.status == "done"]
    shapes = sorted({(r.run.config["depth"], r.run.config["layers"]) for r in good})
    every = []
    for setting in SETTINGS:
        for depth, layers in shapes:
            wanted = {"setting": setting, "depth": depth, "layers": layers}
            here = [r for r in good if wanted.items() <= r.run.config.items()]
            here.sort(key=lambda result: result.run.config["width"])
            for pair in PAIRS if here else ():
                for order in ORDERS:
                    every.append(_rate(setting, depth, layers, pair, order, here))
    return every


def _rate(
    setting: str, depth: int, layers: int, pair: str, order: int, results: Sequence[Result]
) -> TermRate:
    widths, draws, everyone = [], [], []
    for result in results:
        values = [abs(value) for value in result.outcome.curves[f"{pair} {order}"][1]]
        paths = result.outcome.curves[f"{pair} path"][1]
        widths.append(int(result.run.config["width"]))
        everyone.append(tuple(values))
        draws.append(tuple(v for v, path in zip(values, paths, strict=True) if path))
    return TermRate(
        setting, depth, layers, pair, order, tuple(widths), tuple(draws), tuple(everyone)
    )


def is_rate(slope: Slope | None, wanted: float) -> str:
    """Whether ``slope`` is the whole number ``wanted``; it fails only if it clearly is not."""
    if slope is None:
        return NO_DATA
    if math.isnan(slope.margin):
        return UNCLEAR
    away = abs(slope.value - wanted)
    if away <= NEAR and slope.margin <= NEAR:
        return HOLDS
    return FAILS if away - slope.margin > NEAR else UNCLEAR


def verdicts(results: Sequence[Result]) -> list[Verdict]:
    """Verdicts on the theorem where it should hold and where it should not, and on corrections."""
    every = rates(results)
    law = "K^(r) ~ n^min(0, H - r)"

    def of(setting: str, pair: str | None = None) -> list[TermRate]:
        return [r for r in every if r.setting == setting and pair in (None, r.pair)]

    def zero(depth: int, order: int) -> int:
        return 0

    return [
        _judge(f"{law}, ReLU, a step on the same example", of("relu", "same"), exponent),
        _judge(f"{law}, ReLU, a step on another example", of("relu", "other"), exponent),
        _judge(f"{law}, leaky ReLU", of("leaky"), exponent),
        _judge(f"{law}, smooth g, which the setup allows", of("smooth g"), exponent),
        _judge("smooth g and H > 1: K^(r) ~ 1 for every r", _deep(of("smooth g")), zero),
        _judge(f"{law}, smooth f, which the setup excludes", of("smooth f"), exponent),
        _judge("smooth f: K^(r) ~ n^-ceil((r - H) / 2)", of("smooth f"), exponent_smooth_f),
        _series_agree(results),
    ]


def _deep(every: Sequence[TermRate]) -> list[TermRate]:
    """A g of one layer has no activation."""
    return [rate for rate in every if rate.depth > 1]


def _judge(claim: str, every: Sequence[TermRate], wanted: Callable[[int, int], int]) -> Verdict:
    if not every:
        return Verdict(claim, NO_DATA, "nothing measured")
    judged = [(is_rate(r.slope, wanted(r.depth, r.order)), r) for r in every]
    words = [word for word, _ in judged]
    verdict = worst_of(words, (FAILS, UNCLEAR, NO_DATA))
    decisive = [r for word, r in judged if word == verdict] if verdict != HOLDS else every
    worst = max(decisive, key=lambda r: _distance(r.slope, wanted(r.depth, r.order)))
    evidence = (
        f"{words.count(HOLDS)} of {len(words)} exponents as claimed; furthest "
        f"H = {worst.depth}, r = {worst.order}, {worst.pair} example: {_text(worst.slope)} "
        f"for {wanted(worst.depth, worst.order)}"
    )
    return Verdict(claim, verdict, evidence)


def _distance(slope: Slope | None, wanted: float) -> float:
    return -1.0 if slope is None else abs(slope.value - wanted)


def _text(slope: Slope | None) -> str:
    return "none" if slope is None else slope.text()


def _series_agree(results: Sequence[Result]) -> Verdict:
    claim = "power series give the K^(r) of nested derivatives"
    values = [r.outcome.metrics["disagreement"] for r in results if r.outcome.metrics]
    values = [value for value in values if not math.isnan(value)]
    if not values:
        return Verdict(claim, NO_DATA, "nothing measured")
    evidence = f"{len(values)} runs, largest relative difference {max(values):.1e}"
    return Verdict(claim, HOLDS if max(values) < 1e-8 else FAILS, evidence)


def thm1_table(results: Sequence[Result], title: str) -> ResultTable:
    """One row for each exponent; verdicts below."""
    rows: list[list[Cell]] = []
    for rate in rates(results):
        slope, whole = rate.slope, rate.slope_of_all
        rows.append(
            [
                rate.setting,
                rate.depth,
                rate.pair,
                rate.order,
                exponent(rate.depth, rate.order),
                None if slope is None else slope.value,
                None if slope is None or math.isnan(slope.margin) else slope.margin,
                None if whole is None else whole.value,
                rate.zeros,
                rate.apart,
                rate.medians[-1],
            ]
        )
    columns = [
        "setting", "H", "step on", "r", "theorem", "exponent", "+-", "of all draws", "zeros",
        "apart", "at widest",
    ]  # fmt: skip
    notes = [
        "Exponents of the median of |K^(r)| against the width of f, with half of a 95 percent "
        "interval (resampled draws), over networks whose g has a path that is on for both "
        "examples; then the same over all draws. zeros: share of draws that are exactly 0; apart: "
        "share without such a path; at widest: the median there.",
        *(verdict.text() for verdict in verdicts(results)),
    ]
    return ResultTable(columns, rows, title=title, notes=notes)

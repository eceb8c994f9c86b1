"""From draws of K^(r) to exponents and verdicts: the numbers behind ``thm1``."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.experiments.infinite_width.thm1 import ORDERS, PAIRS, SETTINGS
from weightloom.experiments.verdicts import Verdict
from weightloom.lab import Result, Table
from weightloom.lab.intervals import Slope, fit_slope
from weightloom.lab.table import Cell

__all__ = [
    "Rate",
    "exponent",
    "exponent_smooth_f",
    "is_rate",
    "median_slope",
    "rates",
    "thm1_table",
    "verdicts",
]

#: Claimed exponents are whole numbers: one is measured if it is nearer than this to the claimed
#: one, and surer than this.
NEAR = 0.4
RESAMPLES = 400


def exponent(depth: int, order: int) -> int:
    """Theorem 1: K^(r) ~ n^this."""
    return min(0, depth - order)


def exponent_smooth_f(depth: int, order: int) -> int:
    """For smooth f and piecewise-linear g: every other order costs a factor n.

    <grad^a f, (grad h)^a> ~ n^-floor(a / 2) for smooth f; a term of K^(r) is a product of H such
    factors with a_1 + .. + a_H = r, and the largest wastes least: -ceil((r - H) / 2).
    """
    return -math.ceil(max(0, order - depth) / 2)


@dataclass(frozen=True)
class Rate:
    """How the median of |K^(r)| depends on the width of f."""

    setting: str
    depth: int
    layers: int
    pair: str
    order: int
    widths: tuple[int, ...]
    draws: tuple[tuple[float, ...], ...]
    """|K^(r)| at each width, of the networks with a path that both examples share"""
    everyone: tuple[tuple[float, ...], ...]
    """of all networks"""

    @property
    def medians(self) -> list[float]:
        return [_median(values) for values in self.draws]

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
        """Share of networks without a shared path: K^(r) tends to 0 faster than its rate."""
        count = sum(map(len, self.everyone))
        return 1 - sum(map(len, self.draws)) / count if count else math.nan


def _median(values: Sequence[float]) -> float:
    return float(torch.tensor(values, dtype=torch.float64).quantile(0.5)) if values else math.nan


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else math.nan


def median_slope(widths: Sequence[int], draws: Sequence[Sequence[float]]) -> Slope | None:
    """Exponent of the medians, with a 95 percent interval from resampling the draws.

    None with fewer than two widths, or if a median is 0.
    """
    return _median_slope(tuple(widths), tuple(map(tuple, draws)))


@functools.lru_cache(maxsize=512)  # table, caption and figure ask for the same
def _median_slope(widths: tuple[int, ...], draws: tuple[tuple[float, ...], ...]) -> Slope | None:
    x = [math.log10(width) for width in widths]
    medians = [_median(values) for values in draws]
    if len(x) < 2 or not all(value > 0 for value in medians):
        return None
    fit = fit_slope(x, [math.log10(value) for value in medians])
    if fit is None or min(map(len, draws)) < 3:
        return fit
    generator = torch.Generator().manual_seed(0)
    y = torch.stack([_resampled(values, generator) for values in draws])  # [widths, resamples]
    if not bool((y > 0).all()):
        return Slope(fit.value, math.nan, fit.intercept, fit.points)
    centred = torch.tensor(x, dtype=torch.float64)
    centred = centred - centred.mean()
    slopes = centred @ y.log10() / centred.square().sum()
    low, high = slopes.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Slope(fit.value, (high - low) / 2, fit.intercept, fit.points)


def _resampled(values: Sequence[float], generator: torch.Generator) -> Tensor:
    drawn = torch.tensor(values, dtype=torch.float64)
    which = torch.randint(len(values), (RESAMPLES, len(values)), generator=generator)
    return drawn[which].quantile(0.5, dim=1)


def rates(results: Sequence[Result]) -> list[Rate]:
    """One for each setting, depth of g, pair and order, in that order."""
    good = [one for one in results if one.outcome.status == "done"]
    shapes = sorted({(one.run.config["depth"], one.run.config["layers"]) for one in good})
    found = []
    for setting in SETTINGS:
        for depth, layers in shapes:
            wanted = {"setting": setting, "depth": depth, "layers": layers}
            here = [r for r in good if wanted.items() <= r.run.config.items()]
            here.sort(key=lambda one: one.run.config["width"])
            for pair in PAIRS if here else ():
                for order in ORDERS:
                    found.append(_rate(setting, depth, layers, pair, order, here))
    return found


def _rate(
    setting: str, depth: int, layers: int, pair: str, order: int, results: Sequence[Result]
) -> Rate:
    widths, draws, everyone = [], [], []
    for one in results:
        values = [abs(value) for value in one.outcome.curves[f"{pair} {order}"][1]]
        paths = one.outcome.curves[f"{pair} path"][1]
        widths.append(int(one.run.config["width"]))
        everyone.append(tuple(values))
        draws.append(tuple(v for v, path in zip(values, paths, strict=True) if path))
    return Rate(setting, depth, layers, pair, order, tuple(widths), tuple(draws), tuple(everyone))


def is_rate(slope: Slope | None, wanted: float) -> str:
    """Whether ``slope`` is the whole number ``wanted`` and no other; fails if no doubt is left."""
    if slope is None:
        return "no data"
    if math.isnan(slope.margin):
        return "unclear"
    away = abs(slope.value - wanted)
    if away <= NEAR and slope.margin <= NEAR:
        return "holds"
    return "fails" if away - slope.margin > NEAR else "unclear"


def verdicts(results: Sequence[Result]) -> list[Verdict]:
    """The theorem where it should hold and where it should not, and what holds instead."""
    every = rates(results)
    law = "K^(r) ~ n^min(0, H - r)"

    def of(setting: str, pair: str | None = None) -> list[Rate]:
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
        _roads(results),
    ]


def _deep(every: Sequence[Rate]) -> list[Rate]:
    """A g of one layer has no activation."""
    return [rate for rate in every if rate.depth > 1]


def _judge(claim: str, every: Sequence[Rate], wanted: object) -> Verdict:
    if not callable(wanted) or not every:
        return Verdict(claim, "no data", "nothing measured")
    found = [(is_rate(r.slope, wanted(r.depth, r.order)), r) for r in every]
    words = [word for word, _ in found]
    verdict = next((w for w in ("fails", "unclear", "no data") if w in words), "holds")
    odd = [r for word, r in found if word == verdict] if verdict != "holds" else every
    worst = max(odd, key=lambda r: _distance(r.slope, wanted(r.depth, r.order)))
    said = (
        f"{words.count('holds')} of {len(words)} exponents as claimed; furthest "
        f"H = {worst.depth}, r = {worst.order}, {worst.pair} example: {_text(worst.slope)} "
        f"for {wanted(worst.depth, worst.order)}"
    )
    return Verdict(claim, verdict, said)


def _distance(slope: Slope | None, wanted: float) -> float:
    return -1.0 if slope is None else abs(slope.value - wanted)


def _text(slope: Slope | None) -> str:
    return "none" if slope is None else slope.text()


def _roads(results: Sequence[Result]) -> Verdict:
    claim = "power series give the K^(r) of nested derivatives"
    found = [one.outcome.metrics["disagreement"] for one in results if one.outcome.metrics]
    found = [value for value in found if not math.isnan(value)]
    if not found:
        return Verdict(claim, "no data", "nothing measured")
    said = f"{len(found)} runs, largest relative difference {max(found):.1e}"
    return Verdict(claim, "holds" if max(found) < 1e-8 else "fails", said)


def thm1_table(results: Sequence[Result], title: str) -> Table:
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
        *(one.text() for one in verdicts(results)),
    ]
    return Table(columns, rows, title=title, notes=notes)

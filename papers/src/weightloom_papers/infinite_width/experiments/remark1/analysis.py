"""Exponents of terms and remainders, the table and the verdicts of ``remark1``."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weightloom_papers.infinite_width.experiments.remark1.experiment import POWERS, SETTINGS
from weightloom_papers.infinite_width.experiments.thm1.analysis import is_rate, median_slope
from weightloom_papers.infinite_width.experiments.thm1.experiment import ORDERS
from weightloom_papers.lab import Result, ResultTable
from weightloom_papers.lab.statistics import Slope
from weightloom_papers.lab.tables import Cell
from weightloom_papers.lab.verdicts import (
    FAILS,
    HOLDS,
    NO_DATA,
    UNCLEAR,
    Verdict,
    slope_text,
    worst_of,
)

__all__ = ["Family", "families", "remark1_table", "shifted", "verdicts"]

HIGHER = ORDERS[1:]
#: A power of n that Remark 1 allows (below 1/2), and one that only Appendix B.2 allows (below 1).
BELOW_ROOT, BELOW_N = 0.4, 0.75


@dataclass(frozen=True)
class Family:
    """All curves of one activation, at every width."""

    setting: str
    widths: tuple[int, ...]
    curves: dict[str, tuple[tuple[float, ...], ...]]
    """absolute values of the draws at each width, by name of the curve"""

    def slope(self, name: str) -> Slope | None:
        return median_slope(self.widths, self.curves[name])

    def medians(self, name: str) -> list[float]:
        return [statistics.median_high(values) for values in self.curves[name]]


def families(results: Sequence[Result]) -> list[Family]:
    """One family for each activation with results."""
    every = []
    for setting in SETTINGS:
        here = sorted(_of_setting(results, setting), key=lambda result: result.run.config["width"])
        if here:
            curves = {
                name: tuple(tuple(map(abs, result.outcome.curves[name][1])) for result in here)
                for name in here[0].outcome.curves
            }
            widths = tuple(int(result.run.config["width"]) for result in here)
            every.append(Family(setting, widths, curves))
    return every


def _of_setting(results: Sequence[Result], setting: str) -> list[Result]:
    return [
        result
        for result in results
        if result.outcome.status == "done" and result.run.config["setting"] == setting
    ]


def shifted(slope: Slope | None, order: int, power: float) -> Slope | None:
    """The exponent of mu^r K^(r) for mu = n^power, from that of K^(r)."""
    if slope is None:
        return None
    return Slope(slope.value + order * power, slope.margin, slope.intercept, slope.points)


def _remark(order: int) -> int:
    return 1 - order


def _smooth(order: int) -> int:
    return -(order // 2)


def verdicts(results: Sequence[Result]) -> list[Verdict]:
    """Verdicts on the remark for both activations, and on the series against true steps."""
    by_name = {family.setting: family for family in families(results)}
    relu, tanh = by_name.get("relu"), by_name.get("tanh")
    return [
        _rates("ReLU: the r-th term is of order mu^r / n^(r-1)", relu, _remark),
        _rates("tanh: the r-th term is of order mu^r / n^(r-1)", tanh, _remark),
        _rates("tanh: it is of order mu^r / n^floor(r/2)", tanh, _smooth),
        _vanish(f"ReLU: terms beyond the first vanish for mu = n^{BELOW_ROOT}", relu, BELOW_ROOT),
        _vanish(f"tanh: terms beyond the first vanish for mu = n^{BELOW_ROOT}", tanh, BELOW_ROOT),
        _vanish(f"ReLU: they vanish for mu = n^{BELOW_N} (B.2: o(n))", relu, BELOW_N),
        _relative(f"ReLU: they vanish beside the first for mu = n^{BELOW_N}", relu, BELOW_N),
        _explained("ReLU: terms 2 to 4 are what a step with mu = 1 adds to the first", results),
        _explained("tanh: terms 2 to 4 are what a step with mu = 1 adds to the first", results),
    ]


def _rates(claim: str, family: Family | None, wanted: Callable[[int], int]) -> Verdict:
    if family is None:
        return Verdict(claim, NO_DATA, "nothing measured")
    slopes = {r: family.slope(str(r)) for r in HIGHER}
    words = [is_rate(slopes[r], wanted(r)) for r in HIGHER]
    verdict = worst_of(words, (FAILS, UNCLEAR, NO_DATA))
    evidence = ", ".join(f"r = {r}: {slope_text(slopes[r])} for {wanted(r)}" for r in HIGHER)
    return Verdict(claim, verdict, evidence)


def _vanish(claim: str, family: Family | None, power: float) -> Verdict:
    if family is None:
        return Verdict(claim, NO_DATA, "nothing measured")
    slopes = {r: shifted(family.slope(str(r)), r, power) for r in HIGHER}
    return _all_fall(claim, slopes)


def _relative(claim: str, family: Family | None, power: float) -> Verdict:
    """Relative to mu K^(1), whose exponent is that of mu."""
    if family is None:
        return Verdict(claim, NO_DATA, "nothing measured")
    slopes = {r: shifted(family.slope(str(r)), r - 1, power) for r in HIGHER}
    return _all_fall(claim, slopes)


def _all_fall(claim: str, slopes: dict[int, Slope | None]) -> Verdict:
    words = []
    for slope in slopes.values():
        if slope is None or math.isnan(slope.margin):
            words.append(UNCLEAR)
        elif slope.high < 0:
            words.append(HOLDS)
        else:
            words.append(FAILS if slope.low > 0 else UNCLEAR)
    verdict = worst_of(words)
    evidence = ", ".join(f"r = {r}: {slope_text(slope)}" for r, slope in slopes.items())
    return Verdict(claim, verdict, evidence)


def _explained(claim: str, results: Sequence[Result]) -> Verdict:
    """Median share of the true remainder that the series misses, at the largest width."""
    setting = "relu" if claim.startswith("ReLU") else "tanh"
    here = _of_setting(results, setting)
    if not here:
        return Verdict(claim, NO_DATA, "nothing measured")
    widest = max(here, key=lambda result: float(result.run.config["width"]))
    curves = widest.outcome.curves
    pairs = zip(curves["rest 0.0"][1], curves["series 0.0"][1], strict=True)
    left = [abs(rest - series) / abs(rest) for rest, series in pairs if rest]
    middle = statistics.median_high(left) if left else 0.0
    evidence = f"n = {widest.run.config['width']}: they miss {middle:.2g} of it (median)"
    return Verdict(claim, HOLDS if middle < 0.1 else FAILS, evidence)


def remark1_table(results: Sequence[Result], title: str) -> ResultTable:
    """Exponents of terms and of true remainders; verdicts below."""
    rows: list[list[Cell]] = []
    for family in families(results):
        for r in ORDERS:
            rows.append(_row(family, f"K^({r})", str(r), _remark(r)))
        for power in POWERS:
            rows.append(_row(family, f"remainder, mu = n^{power}", f"rest {power}", None))
            rows.append(_row(family, f"terms 2 to 4, mu = n^{power}", f"series {power}", None))
    columns = ["activation", "what", "Remark 1", "exponent", "+-", "narrowest", "widest"]
    notes = [
        "Exponents of medians against the width, with half of a 95 percent interval (resampled "
        "draws); medians at the narrowest and the widest. The r-th term is mu^r K^(r) / r!: for "
        "mu = n^a its exponent is that of K^(r) plus a r. The remainder is that of the true step.",
        *(verdict.text() for verdict in verdicts(results)),
    ]
    return ResultTable(columns, rows, title=title, notes=notes)


def _row(family: Family, what: str, name: str, wanted: int | None) -> list[Cell]:
    slope, medians = family.slope(name), family.medians(name)
    return [
        family.setting,
        what,
        wanted,
        None if slope is None else slope.value,
        None if slope is None or math.isnan(slope.margin) else slope.margin,
        medians[0],
        medians[-1],
    ]

"""How wide depth 2 must be for sin(pi d^3 <x, x'>), with whole numbers where they are exact."""

from __future__ import annotations

import math
from dataclasses import dataclass

from weightloom.construct.separation import (
    SQUARED_ERROR,
    depth3_log2_width,
    printed_depth2_log2_width,
)
from weightloom.verify.claim import Claim, Evidence, Size, Statement

__all__ = ["CLAIMS"]


@dataclass(frozen=True)
class Dimension:
    """One dimension d: N_(d, d^2) exactly, and widths as logarithms to base 2."""

    d: int
    root: float
    """log2 sqrt(N), from the whole number"""
    printed: float
    """log2 of the printed width, from the whole number"""
    library: float
    depth3: float

    def error_left(self, weight_power: int) -> float:
        """Least squared error by the theorem for a network of the printed width, over the wanted.

        ||P_n F||^2 is taken as (1 - 1 / sqrt(d)) / (4 e pi), the lemma's. Neurons' norms are at
        most 2^(power d) (1 + sqrt(4d)) each, 2^d for the output bias. The width is the printed one
        with 2^(2d) replaced by 2^(power d).
        """
        T = (1 - 1 / math.sqrt(self.d)) / (4 * math.e * math.pi)
        each = 2 * self.d + math.log2(1 + math.sqrt(4 * self.d))
        below = _log2_sum(weight_power * self.d + math.log2(20 * math.e * math.pi)
                          + math.log2(1 + math.sqrt(4 * self.d)), self.d + 1)  # fmt: skip
        width = self.root - below
        norms = _log2_sum(width + each, self.d)
        ratio = 2.0 ** min(1 + norms - self.root, 300.0)
        return math.sqrt(T) * (math.sqrt(T) - ratio) / SQUARED_ERROR


def _log2_sum(a: float, b: float) -> float:
    """log2(2^a + 2^b)."""
    high, low = max(a, b), min(a, b)
    return high + math.log1p(2.0 ** (low - high)) / math.log(2)


def _log2(number: int) -> float:
    """Of a whole number of any length."""
    shift = max(0, number.bit_length() - 60)
    return math.log2(number >> shift) + shift


def _dimension(d: int) -> Dimension:
    n = d * d
    N = math.comb(d + n - 1, d - 1) - math.comb(d + n - 3, d - 1)
    root = _log2(N) / 2
    many = 2 * d + math.log2(20 * math.e * math.pi * (1 + math.sqrt(4 * d)))
    printed = root - _log2_sum(many, d + 1)
    return Dimension(d, root, printed, printed_depth2_log2_width(d), depth3_log2_width(d))


def _measure(size: Size) -> list[Dimension]:
    last = 200 if size == "quick" else 600
    return [_dimension(d) for d in range(2, last + 1)]


def _far(size: Size) -> list[Dimension]:
    return [_dimension(d) for d in (25, 100, 400, 1600, *([] if size == "quick" else [3200]))]


def _forces(text: str, power: int) -> Statement:
    """Networks of less than the printed width keep the error, wherever that is a neuron or more."""

    def judge(measured: list[Dimension]) -> Evidence:
        kept = [one for one in measured if one.d >= 25]
        one = min(kept, key=lambda m: m.error_left(power))
        seen = one.error_left(power)
        told = f"d = 25 to {kept[-1].d}, width as printed (2^{one.printed:.1f} at d = {one.d}): "
        told += f"the theorem leaves at least {seen:.4g} times the squared error 1 / (50 e^2 pi^2)"
        return Evidence(1, seen, told)

    return Statement(text, judge)


def _grows(text: str, rate: str) -> Statement:
    """log2 width over d log2 d (or d (log2 d)^2) does not fall."""

    def judge(measured: list[Dimension]) -> Evidence:
        def over(one: Dimension) -> float:
            log = math.log2(one.d)
            return one.printed / (one.d * (log if rate == "d log d" else log * log))

        ratios = [over(one) for one in measured]
        tail = [ratios[k] - ratios[k + 1] for k in range(len(ratios) - 1)]
        shown = ", ".join(f"d = {m.d}: {r:.3f}" for m, r in zip(measured, ratios, strict=True))
        # From d = 100 on: before that the constants in the width still count.
        fall = max(tail[-2:])
        return Evidence(fall, 0, f"log2 of the width over {rate}: {shown}")

    return Statement(text, judge)


def _crosses(text: str, one_neuron: int, depth3: int) -> Statement:
    def judge(measured: list[Dimension]) -> Evidence:
        first = 1 + max(m.d for m in measured if m.printed <= 0)
        second = 1 + max(m.d for m in measured if m.printed <= m.depth3)
        off = max(abs(m.printed - m.library) for m in measured)
        told = f"d up to {measured[-1].d}, whole numbers: above one neuron from d = {first} on, "
        told += f"above 16 pi d^5 / eps from d = {second} on; the library's logarithms are off by "
        told += f"{off:.1g}"
        wrong = max(abs(first - one_neuron), abs(second - depth3))
        return Evidence(wrong if off < 1e-8 else math.inf, 0, told)

    return Statement(text, judge)


CLAIMS = (
    Claim("003/depth2-width", "Example - conclusion", (14, 18), _measure,
          printed=_forces("Squared error 1 / (50 e^2 pi^2) with weights up to 2^d takes width "
                          "sqrt(N_(d,d^2)) / (20 e pi 2^(2d) (1 + sqrt(4d)) + 2^(d+1)): with less "
                          "the theorem leaves more (d >= 25)", 2),
          wrong=_forces("... sqrt(N) / (20 e pi 2^d (1 + sqrt(4d)) + 2^(d+1))", 1)),
    Claim("003/depth2-rate", "Example - conclusion: 2^Omega(d log d)", (14,), _far,
          printed=_grows("The width is 2^Omega(d log d): log2 width / (d log2 d) does not fall",
                         "d log d"),
          wrong=_grows("It is 2^Omega(d (log d)^2)", "d (log d)^2")),
    Claim("003/crossing", "Example and conclusion together", (10, 14, 18), _measure,
          printed=_crosses("Depth 2 needs more than depth 3's 16 pi d^5 / eps for large d: with "
                           "the printed numbers from d = 41 on, and above one neuron from d = 19",
                           19, 41),
          wrong=_crosses("From d = 40 on", 19, 40)),
)  # fmt: skip

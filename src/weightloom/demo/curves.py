"""Kernels of chosen towers, as plain numbers: exact, of sampled networks, and K^(r).

Conditions and points have two numbers and length sqrt(2), so that S^0 = Q^0 = 1: a kernel is a
function of two angles, between the conditions x and between the points z.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from weightloom.errors import ConfigError
from weightloom.kernels import HyperKernel, Tower, empirical
from weightloom.kernels.finite import FiniteHypernetwork
from weightloom.kernels.gradient_step import (
    ORDERS,
    Shape,
    exponent,
    resampled_margin,
    same_example,
)

__all__ = ["ANGLES", "LARGEST", "Towers", "curve", "orders", "sampled"]

ANGLES = 8  # steps between 0 and pi at which sampled networks are evaluated
POINTS = 91  # of the exact curve
OUTPUTS = 32  # of networks whose NNGP is estimated: each estimate is an average over them
LARGEST = 60_000_000  # parameters in all networks of one width: some ten seconds
INPUTS = 2


@dataclass(frozen=True)
class Towers:
    """A hypernetwork up to its widths."""

    kind: str  # "ntk" or "nngp"
    f: tuple[int, str]  # depth, activation
    g: tuple[int, str]
    angle: float  # between the conditions, in radians

    def pair(self) -> tuple[Tower, Tower]:
        return Tower(self.f[0], self.f[1]), Tower(self.g[0], self.g[1])


def curve(towers: Towers) -> dict[str, list[float]]:
    """The exact kernel against the angle between z and z'."""
    angles = torch.linspace(0, math.pi, POINTS, dtype=torch.float64).tolist()
    return {"angle": angles, "kernel": _exact(towers, angles).tolist()}


def sampled(towers: Towers, widths: list[int], draws: int) -> dict[str, Any]:
    """Kernels of ``draws`` networks for each of ``widths``, and how their spread falls.

    Each width is computed once and cached, so adding a width costs only that width.
    """
    measured = [_sampled(towers, width, draws) for width in widths]
    spread = [estimate["spread"] for estimate in measured]
    slope = None
    if len(widths) > 1 and all(value > 0 for value in spread):
        slope = _fit([math.log10(w) for w in widths], [math.log10(s) for s in spread])
    return {
        "angle": _angles(),
        "exact": _exact(towers, _angles()).tolist(),
        "widths": measured,
        "slope": slope,
    }


def orders(setting: str, depth: int, widths: list[int], draws: int) -> dict[str, Any]:
    """Medians of |K^(r)| against the width of f, fitted exponents, and those of Theorem 1."""
    layers = 4 if depth == 1 else 2  # with H = 1, K^(r) = 0 for r > L
    rows = []
    for order in ORDERS:
        values = [_orders(setting, depth, layers, width, draws)[order] for width in widths]
        medians = [statistics.median(sample) if sample else math.nan for sample in values]
        rows.append(
            {
                "order": order,
                "medians": [value if math.isfinite(value) else None for value in medians],
                "slope": _slope_of_medians(widths, medians, values),
                "theorem": exponent(depth, order),
            }
        )
    return {"widths": widths, "layers": layers, "orders": rows}


def _slope_of_medians(
    widths: list[int], medians: list[float], values: list[tuple[float, ...]]
) -> dict[str, float | None] | None:
    """The exponent of the medians, with an interval from resampling; None if a median is 0."""
    if len(widths) < 2 or not all(value > 0 for value in medians):
        return None
    x = [math.log10(width) for width in widths]
    slope = _fit(x, [math.log10(value) for value in medians])
    if slope is not None and min(map(len, values)) >= 3:
        slope["margin"] = _finite(resampled_margin(x, values))
    return slope


def _fit(x: list[float], y: list[float]) -> dict[str, float | None] | None:
    """Least squares, with half of Student's 95 percent interval; None unless x varies."""
    from scipy import stats

    if len(set(x)) < 2:
        return None
    fit = stats.linregress(x, y)
    margin = fit.stderr * stats.t.ppf(0.975, len(x) - 2) if len(x) > 2 else math.nan
    return {
        "value": float(fit.slope),
        "margin": _finite(float(margin)),
        "intercept": float(fit.intercept),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _angles() -> list[float]:
    return [math.pi * i / ANGLES for i in range(ANGLES + 1)]


def _at(angles: list[float]) -> Tensor:
    rows = [[math.cos(a), math.sin(a)] for a in angles]
    return math.sqrt(INPUTS) * torch.tensor(rows, dtype=torch.float64)


def _exact(towers: Towers, angles: list[float]) -> Tensor:
    f, g = towers.pair()
    x, z = _at([towers.angle]).expand(len(angles), -1), _at(angles)
    kernel: Tensor = HyperKernel(f, g, kind=towers.kind)(_at([0.0]), _at([0.0]), x, z)
    return kernel[0]


@lru_cache(maxsize=64)
def _sampled(towers: Towers, width: int, draws: int) -> dict[str, Any]:
    f, g = towers.pair()
    outputs = OUTPUTS if towers.kind == "nngp" else 1
    sizes_f = [INPUTS] + [width] * (f.depth - 1)
    sizes_g = [INPUTS] + [width] * (g.depth - 1) + [outputs]
    _check(sizes_f, sizes_g, draws)
    angles = _angles()
    first = _at([0.0]), _at([0.0])
    second = _at([towers.angle]).expand(len(angles), -1), _at(angles)

    def sample(generator: torch.Generator) -> FiniteHypernetwork:
        return FiniteHypernetwork(f, g, sizes_f, sizes_g, generator=generator, dtype=torch.float64)

    measure = empirical.ntk if towers.kind == "ntk" else empirical.nngp
    estimate = empirical.average(sample, lambda net: measure(net, first, second)[0], draws)
    deviation = estimate.standard_error * math.sqrt(draws)
    return {
        "width": width,
        "mean": estimate.mean.tolist(),
        "deviation": deviation.tolist(),
        # One number over all angles, relative to the kernel's own size.
        "spread": float(deviation.norm() / _exact(towers, angles).norm().clamp_min(1e-300)),
    }


def _check(sizes_f: list[int], sizes_g: list[int], draws: int) -> None:
    generated = sum(a * b for a, b in pairwise(sizes_g))
    sizes = [*sizes_f, generated]
    numbers = draws * sum(a * b for a, b in pairwise(sizes))
    if numbers > LARGEST:
        raise ConfigError(
            f"{draws} networks of these widths and depths have {numbers:,} weights; at most "
            f"{LARGEST:,} are sampled here: take narrower, shallower or fewer networks"
        )


@lru_cache(maxsize=64)
def _orders(
    setting: str, depth: int, layers: int, width: int, draws: int
) -> dict[int, tuple[float, ...]]:
    """{r: |K^(r)| of each sampled network}; the step is on the example that is evaluated.

    Networks that cannot respond to the step are left out.
    """
    # Widths get different seeds: else narrow networks would be parts of wide ones.
    generator = torch.Generator().manual_seed(10_000 * depth + width)
    shape = Shape(setting, depth, layers, width)
    responding = [terms for terms, live in same_example(shape, draws, generator) if live]
    return {order: tuple(abs(terms[order]) for terms in responding) for order in ORDERS}

"""Kernels of towers chosen by hand: exact, of sampled networks, and K^(r), as plain numbers.

Conditions and points have two numbers and length sqrt(2), so that S^0 = Q^0 = 1: a kernel is a
function of two angles, between the conditions x and between the points z.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from weightloom.errors import ConfigError
from weightloom.kernels import HyperKernel, Tower, empirical
from weightloom.kernels.finite import FiniteHypernetwork

__all__ = ["ANGLES", "LARGEST", "Towers", "curve", "orders", "sampled"]

ANGLES = 8  # steps between 0 and pi at which sampled networks are evaluated
POINTS = 91  # of the exact curve
OUTPUTS = 32  # of networks whose NNGP is estimated: one draw is an average over them
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

    Each width is computed once and remembered, so that asking for one more costs that one.
    """
    from weightloom.lab.intervals import fit_slope

    found = [_sampled(towers, width, draws) for width in widths]
    spread = [one["spread"] for one in found]
    slope = None
    if len(widths) > 1 and all(value > 0 for value in spread):
        slope = fit_slope([math.log10(w) for w in widths], [math.log10(s) for s in spread])
    return {
        "angle": _angles(),
        "exact": _exact(towers, _angles()).tolist(),
        "widths": found,
        "slope": None if slope is None else _slope(slope),
    }


def orders(setting: str, depth: int, widths: list[int], draws: int) -> dict[str, Any]:
    """Medians of |K^(r)| against the width of f, exponents, and what Theorem 1 says they are."""
    from weightloom.experiments.infinite_width.thm1 import ORDERS
    from weightloom.experiments.infinite_width.thm1_numbers import exponent, median_slope

    layers = 4 if depth == 1 else 2  # with H = 1, K^(r) = 0 for r > L
    rows = []
    for order in ORDERS:
        values = [_orders(setting, depth, layers, width, draws)[order] for width in widths]
        slope = median_slope(widths, values)
        rows.append(
            {
                "order": order,
                "medians": [float(torch.tensor(v).quantile(0.5)) if v else None for v in values],
                "slope": None if slope is None else _slope(slope),
                "theorem": exponent(depth, order),
            }
        )
    return {"widths": widths, "layers": layers, "orders": rows}


def _slope(slope: Any) -> dict[str, float | None]:
    margin = slope.margin if math.isfinite(slope.margin) else None
    return {"value": slope.value, "margin": margin, "intercept": slope.intercept}


def _angles() -> list[float]:
    return [math.pi * i / ANGLES for i in range(ANGLES + 1)]


def _at(angles: list[float]) -> Tensor:
    rows = [[math.cos(a), math.sin(a)] for a in angles]
    return math.sqrt(INPUTS) * torch.tensor(rows, dtype=torch.float64)


def _exact(towers: Towers, angles: list[float]) -> Tensor:
    f, g = towers.pair()
    x, z = _at([towers.angle]).expand(len(angles), -1), _at(angles)
    found: Tensor = HyperKernel(f, g, kind=towers.kind)(_at([0.0]), _at([0.0]), x, z)
    return found[0]


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

    def draw(generator: torch.Generator) -> FiniteHypernetwork:
        return FiniteHypernetwork(f, g, sizes_f, sizes_g, generator=generator, dtype=torch.float64)

    measure = empirical.ntk if towers.kind == "ntk" else empirical.nngp
    estimate = empirical.average(draw, lambda net: measure(net, first, second)[0], draws)
    deviation = estimate.standard_error * math.sqrt(draws)
    return {
        "width": width,
        "mean": estimate.mean.tolist(),
        "deviation": deviation.tolist(),
        # One number: over all angles, beside the kernel's own size.
        "spread": float(deviation.norm() / _exact(towers, angles).norm().clamp_min(1e-300)),
    }


def _check(sizes_f: list[int], sizes_g: list[int], draws: int) -> None:
    generated = sum(a * b for a, b in pairwise(sizes_g))
    sizes = [*sizes_f, generated]
    numbers = draws * sum(a * b for a, b in pairwise(sizes))
    if numbers > LARGEST:
        raise ConfigError(
            f"{draws} networks of these widths and depths have {numbers:,} weights; at most "
            f"{LARGEST:,} are drawn here: take narrower, shallower or fewer networks"
        )


@lru_cache(maxsize=64)
def _orders(
    setting: str, depth: int, layers: int, width: int, draws: int
) -> dict[int, tuple[float, ...]]:
    """|K^(r)| by r, of networks whose step and example are the same."""
    from weightloom.experiments.infinite_width.thm1 import ORDERS, measure
    from weightloom.lab import Run

    config: dict[str, Any] = {
        "setting": setting,
        "depth": depth,
        "layers": layers,
        "width": width,
        "draws": draws,
        "check": False,
    }
    curves = measure(Run("thm1", config, 0)).curves
    live = curves["same path"][1]
    return {
        order: tuple(
            abs(value) for value, on in zip(curves[f"same {order}"][1], live, strict=True) if on
        )
        for order in ORDERS
    }

"""Derivatives of a target by automatic differentiation, and what they say about its smoothness."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.construct.box import Box
from weightloom.construct.certified import Function
from weightloom.construct.deep.polynomial import exponents
from weightloom.construct.grid import Grid
from weightloom.construct.interpolate import node_values
from weightloom.errors import ConfigError

__all__ = ["Smoothness", "partials", "remainder", "smoothness"]

# A sampled maximum is below the true one; the estimate is this much above it.
ALLOWANCE = 1.1


def partials(
    target: Function, points: Tensor, lowest: int, highest: int
) -> dict[tuple[int, ...], Tensor]:
    """D^alpha target at points [n, d], each [n], for all alpha of these degrees; all finite."""
    dims = points.shape[1]

    def value(x: Tensor) -> Tensor:
        return target(x[None]).reshape(())

    derivative: Function = value
    found: dict[tuple[int, ...], Tensor] = {}
    for degree in range(highest + 1):
        if degree >= lowest:
            try:
                table = torch.func.vmap(derivative, chunk_size=4096)(points)
            except RuntimeError as reason:
                raise ConfigError(
                    f"derivatives of order {degree} could not be taken by torch.func: {reason}; "
                    f"write the function with differentiable torch operations on [n, {dims}]"
                ) from reason
            for alpha in (one for one in exponents(dims, degree) if sum(one) == degree):
                axes = [axis for axis, times in enumerate(alpha) for _ in range(times)]
                entry = table
                for axis in axes:
                    entry = entry.select(1, axis)
                found[alpha] = entry.detach().to(torch.float64)
        derivative = torch.func.jacfwd(derivative)
    for alpha, values in found.items():
        if not bool(torch.isfinite(values).all()):
            row = int((~torch.isfinite(values)).nonzero()[0])
            raise ConfigError(
                f"the derivative {alpha} of the function is {float(values[row])} at "
                f"{points[row].tolist()}; finite derivatives are wanted everywhere on the domain"
            )
    return found


@dataclass(frozen=True)
class Smoothness:
    """|D^alpha g| <= bound for all |alpha| = r; ``sampled`` if this is an estimate, not a claim."""

    r: int
    bound: float
    sampled: bool


def smoothness(target: Function, box: Box, r: int, claimed: float | None) -> Smoothness:
    """The claim, if a look at some thousand places does not refute it; else an estimate."""
    if claimed is not None and not 0 <= claimed < math.inf:
        raise ConfigError(f"derivative_bound={claimed} was given; a finite number >= 0 is wanted")
    outputs = node_values(target, Grid(box, (3,) * box.dims, corners=True)).shape[1]
    if outputs != 1:
        raise ConfigError(f"the function has {outputs} outputs; wanted one number for each point")
    generator = torch.Generator().manual_seed(0)
    places = torch.cat([box.grid(2000), box.sample(1000, generator)])
    found = partials(target, places, r, r)
    alpha = max(found, key=lambda one: float(found[one].abs().max()))
    at = int(found[alpha].abs().argmax())
    largest = float(found[alpha][at].abs())
    if claimed is None:
        return Smoothness(r, ALLOWANCE * largest, True)
    if largest > claimed * (1 + 1e-9) + 1e-12:
        where = ", ".join(f"{c:.6g}" for c in places[at].tolist())
        raise ConfigError(
            f"derivatives of order {r} were claimed to be at most {claimed:g}, but the derivative "
            f"{alpha} at ({where}) is {float(found[alpha][at]):.6g}; pass derivative_bound= at "
            f"least its size, or none for an estimate"
        )
    return Smoothness(r, float(claimed), False)


def remainder(r: int, spacings: tuple[float, ...]) -> float:
    """Largest error of a mean of Taylor polynomials of degree r - 1, for derivatives up to 1.

    Expanded at v, |g(x) - P_v(x)| <= M (sum_i |x_i - v_i|)^r / r!. The hats draw v: along each axis
    it is the lower node with probability 1 - t and the upper one with t, so that

        E |x_i - v_i|^r = h_i^r ((1 - t) t^r + t (1 - t)^r) <= kappa_r h_i^r,

    and (a_1 + ... + a_d)^r <= d^(r-1) (a_1^r + ... + a_d^r). Theorem 5.4 has kappa_r = 1 (and
    leaves out 1/r! in the end); kappa_1, ..., kappa_4 are 1/2, 1/4, 1/8, 1/12.
    """
    d = len(spacings)
    return d ** (r - 1) * kappa(r) * sum(h**r for h in spacings) / math.factorial(r)


def kappa(r: int) -> float:
    """Maximum of (1 - t) t^r + t (1 - t)^r on [0, 1], rounded up.

    On a grid, plus half a step times the slope, which is at most r + 1.
    """
    steps = 2**20
    t = torch.arange(steps // 2 + 1, dtype=torch.float64) / steps
    return float(((1 - t) * t**r + t * (1 - t) ** r).max()) + (r + 1) / (2 * steps)

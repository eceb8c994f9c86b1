"""What the constructions on an interval share: checked claims, samples, and rounding.

The claims of a user (Lipschitz constant, largest second derivative) cannot be proven from finitely
many values, but they can be refuted: every claim is tried on the samples that are taken anyway and
on a grid of at least 1,000 points, and a counterexample is shown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from weightloom.construct.box import Box
from weightloom.construct.certified import Function
from weightloom.construct.grid import Claim, Grid
from weightloom.construct.interpolate import node_values
from weightloom.errors import ConfigError

__all__ = ["UNIT", "gamma", "line_values", "require", "roundoff"]

UNIT = Box((0.0,), (1.0,))

# Nodes that are built without being asked twice, and values of the target that are taken at most.
MAX_NODES, MAX_SAMPLES = 1_000_000, 4_000_000
CHECKED = 1001

# Counts are rounded up, but not because of a last digit: 0.3 / 0.1 is 3.
SLACK = 1e-12


def ceil(ratio: float) -> int:
    return max(1, math.ceil(ratio * (1 - SLACK)))


def require(name: str, value: float, *, zero: bool = False) -> float:
    """``value`` if it is finite and positive (or zero, where allowed)."""
    if not (0 < value < math.inf or (zero and value == 0)):
        wanted = "a finite number >= 0" if zero else "a finite number > 0"
        raise ConfigError(f"{name}={value} was given; {wanted} is wanted")
    return float(value)


def chosen(name: str, value: str, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise ConfigError(f"{name}={value!r} is unknown; choose one of {', '.join(allowed)}")
    return value


def neurons(count: int) -> int:
    if count < 1:
        raise ConfigError(f"{count} neurons were asked for; at least 1 is wanted")
    return count


def limit_nodes(nodes: int, max_nodes: int, what: str) -> None:
    """Refuse before anything is built."""
    if nodes > max_nodes:
        raise ConfigError(
            f"this needs {what} = {nodes:,} nodes, more than max_nodes={max_nodes:,}; allow a "
            f"larger eps or raise max_nodes"
        )


def roundoff(dtype: torch.dtype) -> float:
    """u: fl(x op y) = (x op y)(1 + e) with |e| <= u."""
    if dtype not in (torch.float32, torch.float64):
        raise ConfigError(f"dtype={dtype} was given; torch.float64 or torch.float32 is wanted")
    return float(torch.finfo(dtype).eps) / 2


def gamma(steps: int, dtype: torch.dtype) -> float:
    """n u / (1 - n u): the relative error of n roundings in a row, in any order of summation."""
    moved = steps * roundoff(dtype)
    if moved >= 0.5:
        raise ConfigError(f"{steps:,} nodes cannot be summed in {dtype}; use torch.float64")
    return moved / (1 - moved)


def size_of(domain: Box) -> tuple[float, float, float]:
    """Length, largest coordinate and low end of an interval."""
    if domain.dims != 1:
        raise ConfigError(f"the domain has {domain.dims} dimensions; an interval is wanted")
    (low, high) = domain.sides[0]
    return high - low, max(abs(low), abs(high)), low


def line_values(
    target: Function,
    domain: Box,
    count: int,
    *,
    corners: bool,
    lipschitz: float | None = None,
    curvature: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Places and values of the target at ``count`` cells' centres, or at their count + 1 corners.

    Both [n], float64. What is claimed is tried on them, and on a finer grid if they are few.
    """
    if count > MAX_SAMPLES:
        raise ConfigError(
            f"this needs {count:,} values of the target, more than {MAX_SAMPLES:,}; allow a larger "
            f"eps or lower oversampling"
        )
    grid = Grid(domain, (count + corners,), corners)
    values = node_values(target, grid)
    if values.shape[1] != 1:
        raise ConfigError(f"the target has {values.shape[1]} outputs; one is wanted")
    _check(grid, values, lipschitz, curvature)
    if grid.size < CHECKED and (lipschitz is not None or curvature is not None):
        finer = Grid(domain, (CHECKED,), True)
        _check(finer, node_values(target, finer), lipschitz, curvature)
    return grid.nodes()[:, 0], values[:, 0]


def _check(grid: Grid, values: Tensor, lipschitz: float | None, curvature: float | None) -> None:
    """The slopes between neighbours, and the bends of three in a row."""
    if lipschitz is not None:
        Claim(lipschitz).check(grid, values)
    if curvature is None or grid.size < 3:
        return
    (h,) = grid.spacings
    bends = values[:, 0].diff(n=2).abs()
    # Each value of the target is trusted to a few units in the last place.
    noise = 32 * torch.finfo(torch.float64).eps * float(values.abs().max())
    largest, at = float(bends.max()), int(bends.argmax()) + 1
    if largest > curvature * h * h * (1 + 1e-6) + noise:
        raise ConfigError(
            f"the function bends more than claimed: around {float(grid.nodes()[at, 0]):.6g} its "
            f"second difference is {largest / h**2:.6g} per unit squared, but "
            f"curvature={curvature:g} was given; pass curvature= at least that"
        )

"""Properties of an unknown function, measured by evaluating it: elementwise? odd? how steep?"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from weightloom.errors import UnsupportedModuleError
from weightloom.networks.activations.record import Kind, Scalar

__all__ = ["elementwise_problem", "evaluator", "is_elementwise", "probe_kind", "probe_lipschitz"]

# Small, ordinary and large arguments, irregularly spaced, so that a function that is linear near
# zero or flat far away is not taken for linear or flat everywhere.
_POINTS = (*(0.37 * 1.31**i for i in range(12)), 1e-3, 0.02, 0.11, 53.0, 1.7e2, 9.1e3)
_FACTORS = (0.5, 1.7, 3.0)

# Slopes are measured densely near zero, and far out to detect slopes that grow.
_NEAR, _FAR, _STEPS = 16.0, 1024.0, 2**15


def is_elementwise(function: Scalar) -> bool:
    """Whether a function maps each entry of a tensor by the same fixed rule.

    It is called on a vector, on parts of it, and on tensors with the same entries in another order
    and shape (some dimensions have size 1, to detect `squeeze`).
    """
    return elementwise_problem(function) is None


def elementwise_problem(function: Scalar) -> str | None:
    """Why a function is not elementwise, as the end of a sentence; None if it is."""
    points = torch.tensor(_POINTS, dtype=torch.float64)
    values = torch.cat((points, -points))  # [36]
    order = torch.arange(36).reshape(4, 9).T.reshape(-1)
    try:
        s = evaluator(function)
        flat, block = s(values), s(values.reshape(2, 1, 18, 1))
        if flat.shape != values.shape or block.shape != (2, 1, 18, 1):
            return "it changes the shape of its input"
        again, parts = s(values[order]), torch.cat((s(points), s(-points)))
    except Exception as error:
        return f"it cannot be applied to single numbers ({error})"
    # Not bitwise: vectorised code may round differently at the end of a tensor.
    alike = (
        torch.allclose(flat[order], again, 1e-6, 1e-9, equal_nan=True)
        and torch.allclose(flat, block.reshape(-1), 1e-6, 1e-9, equal_nan=True)
        and torch.allclose(flat, parts, 1e-6, 1e-9, equal_nan=True)
    )
    return None if alike else "it does not act on every entry alone"


def probe_kind(function: Scalar, name: str = "") -> tuple[Kind, float]:
    """The kind of an elementwise function, and its constant if the kind is FLIP.

    Tested at 18 values of |t| from 0.001 to 9100, both signs, and at 0, in float64 (float32 if the
    function takes no other): s(k t) = k s(t) for k = 0.5, 1.7 and 3; s(-t) = -s(t); s(-t) = s(t);
    s(t) + s(-t) constant. Values count as equal up to 1e-9 relative (1e-5 in float32). A function
    that breaks a rule only between these points is misread; `symmetry.equivalent` would notice,
    because it compares outputs.

    >>> probe_kind(lambda t: 1 + torch.tanh(t))
    (<Kind.FLIP: 'flip'>, 2.0)
    """
    if not is_elementwise(function):
        name = name or str(getattr(function, "__name__", type(function).__name__))
        raise UnsupportedModuleError(
            f"{name} is not an elementwise function with a fixed rule (its output has another "
            "shape, mixes entries or is random), so it cannot be read as an activation"
        )
    s = evaluator(function)
    positive = torch.tensor((0.0, *_POINTS), dtype=torch.float64)
    up, down = s(positive), s(-positive)
    pairs = [(s(k * t), k * s(t)) for k in _FACTORS for t in (positive, -positive)]
    tolerance = 1e-9 if _takes(function, torch.float64) else 1e-5
    scale = all(_same(a, b, tolerance) for a, b in pairs)
    odd, even = _same(down, -up, tolerance), _same(down, up, tolerance)
    sums = up + down
    flip = _same(sums, sums[0].expand_as(sums), tolerance)
    if scale:
        return (Kind.FREE if odd else Kind.ABSOLUTE if even else Kind.SCALE), 0.0
    if odd or even:
        return (Kind.SIGN if odd else Kind.EVEN), 0.0
    # c from s(0) = c / 2, which has no rounding error of a sum.
    return (Kind.FLIP, float(2 * up[0])) if flip else (Kind.PERMUTE, 0.0)


def probe_lipschitz(function: Scalar) -> float:
    """The largest slope of an elementwise function on a fine grid; infinite if unbounded.

    Slopes are difference quotients over [-16, 16] (65,537 points) and over [-1024, 1024]. The
    function has no Lipschitz constant if slopes grow with the distance from zero (squares) or as
    the grid gets finer (jumps). The result is measured, not proven: a spike between two grid points
    is missed.

    >>> round(probe_lipschitz(lambda t: 1 + torch.tanh(t)), 6), probe_lipschitz(torch.square)
    (1.0, inf)
    """
    fine, coarse = _steepest(function, _NEAR, 2 * _STEPS), _steepest(function, _NEAR, _STEPS)
    far = _steepest(function, _FAR, 2 * _STEPS)
    if not math.isfinite(fine + far) or fine > 1.5 * coarse + 1e-12 or far > 1.05 * fine + 1e-9:
        return math.inf
    return max(fine, far)


@torch.no_grad()
def _steepest(function: Scalar, reach: float, steps: int) -> float:
    t = torch.linspace(-reach, reach, steps + 1, dtype=torch.float64)
    values = function(t.clone())
    return float((values.diff() / t.diff()).abs().max())


def evaluator(function: Scalar) -> Scalar:
    """The function on a copy of its argument (it may work in place), from float64 to float64."""
    dtype = torch.float64 if _takes(function, torch.float64) else torch.float32

    def evaluate(points: Tensor) -> Tensor:
        with torch.no_grad():
            return function(points.to(dtype, copy=True)).to(torch.float64)

    return evaluate


def _takes(function: Scalar, dtype: torch.dtype) -> bool:
    try:
        with torch.no_grad():
            return isinstance(function(torch.ones(2, dtype=dtype)), Tensor)
    except Exception:
        return False


def _same(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Equal up to rounding, point by point; infinity equals itself, NaN equals nothing."""
    return bool(torch.isclose(a, b, rtol=tolerance, atol=tolerance * 1e-3).all())

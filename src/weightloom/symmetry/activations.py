"""What an activation lets through: positive scales, signs, a flip with a shift, or exchanges only.

Activations of torch without settings are in a table; everything else (settings such as a slope,
custom functions and modules) is probed numerically. The tests hold the table to the probe.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weightloom.errors import UnsupportedModuleError
from weightloom.symmetry.spec import Kind

__all__ = ["Activation", "TABLE", "classify", "is_elementwise", "probe"]


@dataclass(frozen=True)
class Activation:
    """The kind of an activation s; ``constant`` is c of s(-t) = c - s(t) for the kind FLIP."""

    name: str
    kind: Kind
    constant: float = 0.0


TABLE: dict[str, tuple[Kind, float]] = {
    # name of the torch function, or of the module in lower case
    "identity": (Kind.FREE, 0.0),
    "relu": (Kind.SCALE, 0.0),
    "abs": (Kind.ABSOLUTE, 0.0),
    "tanh": (Kind.SIGN, 0.0),
    "sin": (Kind.SIGN, 0.0),
    "erf": (Kind.SIGN, 0.0),
    "arctan": (Kind.SIGN, 0.0),
    "asinh": (Kind.SIGN, 0.0),
    "softsign": (Kind.SIGN, 0.0),
    "tanhshrink": (Kind.SIGN, 0.0),
    "sigmoid": (Kind.FLIP, 1.0),
    "hardsigmoid": (Kind.FLIP, 1.0),
    "cos": (Kind.EVEN, 0.0),
    "square": (Kind.EVEN, 0.0),
    "gelu": (Kind.PERMUTE, 0.0),
    "silu": (Kind.PERMUTE, 0.0),
    "mish": (Kind.PERMUTE, 0.0),
    "selu": (Kind.PERMUTE, 0.0),
    "hardswish": (Kind.PERMUTE, 0.0),
    "logsigmoid": (Kind.PERMUTE, 0.0),
    "relu6": (Kind.PERMUTE, 0.0),
    "exp": (Kind.PERMUTE, 0.0),
}
"""Kind and constant of the activations that have no settings which matter (gelu's variant does
not)."""

_ALIASES = {"relu_": "relu", "tanh_": "tanh", "sigmoid_": "sigmoid", "atan": "arctan"}
_ALIASES |= {"swish": "silu", "absolute": "abs"}

# Zero, small, ordinary and large arguments without a pattern, so that a function which is linear
# near zero or flat far away is not taken for one that is so everywhere.
_POINTS = (*(0.37 * 1.31**i for i in range(12)), 1e-3, 0.02, 0.11, 53.0, 1.7e2, 9.1e3)
_FACTORS = (0.5, 1.7, 3.0)


def classify(activation: nn.Module | Callable[[Tensor], Tensor], name: str = "") -> Activation:
    """The kind of an activation, from the table if it is there, else by `probe`.

    >>> classify(nn.ReLU()).kind, classify(torch.tanh).kind, classify(nn.LeakyReLU(0.1)).kind
    (<Kind.SCALE: 'scale'>, <Kind.SIGN: 'sign'>, <Kind.SCALE: 'scale'>)
    """
    known = _known_name(activation)
    if known in TABLE:
        kind, constant = TABLE[known]
        return Activation(known, kind, constant)
    return probe(activation, name or known)


def _known_name(activation: object) -> str:
    """Name in the table's spelling; what is not torch's own keeps its capitals or its module."""
    if isinstance(activation, nn.Module):
        name, settings = type(activation).__name__, activation.extra_repr()
        if type(activation).__module__.startswith("torch.nn."):
            name = name.lower()
        # Settings belong to the name: two slopes are two activations.
        return f"{name}({settings})" if settings and name not in TABLE else name
    name = str(getattr(activation, "__name__", type(activation).__name__))
    module = str(getattr(activation, "__module__", None) or "torch")
    own = module.partition(".")[0] in ("torch", "_operator", "math")
    return _ALIASES.get(name, name) if own else f"{module}.{name}"


def probe(activation: Callable[[Tensor], Tensor], name: str = "") -> Activation:
    """The kind of an elementwise function, found by evaluating it.

    At 18 sizes of t of either sign, from 0.001 to 9100, and at 0, in float64 (float32 if it takes
    no other): s(k t) = k s(t) for k = 0.5, 1.7 and 3; s(-t) = -s(t); s(-t) = s(t); s(t) + s(-t)
    constant. Equal means to 1e-9 relative (1e-5 in float32). A function that breaks a rule only
    between these points is misread; `equivalent` would notice, because it compares outputs.

    >>> probe(lambda t: 1 + torch.tanh(t)).constant
    2.0
    """
    name = name or str(getattr(activation, "__name__", type(activation).__name__))
    if not is_elementwise(activation):
        raise UnsupportedModuleError(
            f"{name} is not an elementwise function with a fixed rule (its output has another "
            "shape, mixes entries or is random), so it cannot be read as an activation"
        )
    s = _evaluator(activation)
    positive = torch.tensor((0.0, *_POINTS), dtype=torch.float64)
    up, down = s(positive), s(-positive)
    pairs = [(s(k * t), k * s(t)) for k in _FACTORS for t in (positive, -positive)]
    tolerance = 1e-9 if _takes(activation, torch.float64) else 1e-5
    scale = all(_same(a, b, tolerance) for a, b in pairs)
    odd, even = _same(down, -up, tolerance), _same(down, up, tolerance)
    sums = up + down
    flip = _same(sums, sums[0].expand_as(sums), tolerance)
    if scale:
        return Activation(name, Kind.FREE if odd else Kind.ABSOLUTE if even else Kind.SCALE)
    if odd or even:
        return Activation(name, Kind.SIGN if odd else Kind.EVEN)
    # s(0) = c / 2, and it has no rounding of a sum in it.
    constant = float(2 * up[0])
    return Activation(name, Kind.FLIP, constant) if flip else Activation(name, Kind.PERMUTE)


def is_elementwise(activation: Callable[[Tensor], Tensor]) -> bool:
    """Whether a function treats all entries of a tensor alike, one by one, twice the same way.

    It is called on a vector, on parts of it, and on tensors with the same entries in another order
    and shape (some dimensions of size 1, so that `squeeze` shows).
    """
    points = torch.tensor(_POINTS, dtype=torch.float64)
    values = torch.cat((points, -points))  # [36]
    order = torch.arange(36).reshape(4, 9).T.reshape(-1)
    try:
        s = _evaluator(activation)
        flat, again = s(values), s(values[order])
        parts = torch.cat((s(points), s(-points)))
        block = s(values.reshape(2, 1, 18, 1))
    except Exception:
        return False
    return (
        flat.shape == values.shape
        and block.shape == (2, 1, 18, 1)
        # Not bitwise: vectorised code rounds another way at the end of a tensor.
        and torch.allclose(flat[order], again, 1e-6, 1e-9, equal_nan=True)
        and torch.allclose(flat, block.reshape(-1), 1e-6, 1e-9, equal_nan=True)
        and torch.allclose(flat, parts, 1e-6, 1e-9, equal_nan=True)
    )


def _takes(activation: Callable[[Tensor], Tensor], dtype: torch.dtype) -> bool:
    try:
        with torch.no_grad():
            return isinstance(activation(torch.ones(2, dtype=dtype)), Tensor)
    except Exception:
        return False


def _evaluator(activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """s on a copy of a float64 tensor (activations may work in place), as float64."""
    dtype = torch.float64 if _takes(activation, torch.float64) else torch.float32

    def evaluate(points: Tensor) -> Tensor:
        with torch.no_grad():
            return activation(points.to(dtype, copy=True)).to(torch.float64)

    return evaluate


def _same(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Equal to rounding, point by point; infinities agree with themselves, NaN with nothing."""
    return bool(torch.isclose(a, b, rtol=tolerance, atol=tolerance * 1e-3).all())

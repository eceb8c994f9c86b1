"""How steep an activation is: a table for the known ones, a numerical probe for the others.

Every entry is the largest slope |s(t) - s(u)| / |t - u| over the whole line. Constants without a
closed form are rounded up in the last digit, so that bounds made of them stay bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from weightloom.errors import UnsupportedModuleError

__all__ = ["Activation", "activation_of", "probe"]

Elementwise = Callable[[Tensor], Tensor]

# Phi(sqrt 2) + sqrt 2 phi(sqrt 2): where the second derivative of t Phi(t) is zero.
GELU = 0.5 * (1 + math.erf(1.0)) + math.exp(-1.0) / math.sqrt(math.pi)
GELU_TANH, SILU, MISH = 1.1290, 1.0998394, 1.0885160
# torch's own two constants of SELU; the slope just left of zero is their product.
SELU = 1.0507009873554804934193349852946 * 1.6732632423543772848170429916717

_PLAIN: dict[type[nn.Module], float] = {
    nn.ReLU: 1.0,
    nn.ReLU6: 1.0,
    nn.Tanh: 1.0,
    nn.Sigmoid: 0.25,
    nn.SiLU: SILU,
    nn.Mish: MISH,
    nn.SELU: SELU,
    nn.CELU: 1.0,
    nn.Softplus: 1.0,
    nn.Softsign: 1.0,
    nn.Softshrink: 1.0,
    nn.Hardtanh: 1.0,
    nn.Hardsigmoid: 1 / 6,
    nn.Hardswish: 1.5,
    nn.LogSigmoid: 1.0,
    nn.Tanhshrink: 1.0,
}
_WITH_OPTIONS: dict[type[nn.Module], Callable[[Any], float]] = {
    nn.LeakyReLU: lambda m: max(1.0, abs(m.negative_slope)),
    nn.ELU: lambda m: max(1.0, abs(m.alpha)),
    nn.PReLU: lambda m: max(1.0, float(m.weight.detach().abs().max())),
    nn.GELU: lambda m: GELU if m.approximate == "none" else GELU_TANH,
}
# Functions by name, when they are called with the tensor alone.
_FUNCTIONS = {
    "relu": 1.0,
    "tanh": 1.0,
    "sigmoid": 0.25,
    "gelu": GELU,
    "silu": SILU,
    "softplus": 1.0,
    "sin": 1.0,
    "cos": 1.0,
    "abs": 1.0,
    "erf": 2 / math.sqrt(math.pi),
    "relu_": 1.0,
    "tanh_": 1.0,
}

# Where custom functions are looked at: densely near zero, and far out to see growing slopes.
NEAR, FAR, STEPS = 16.0, 1024.0, 2**15


@dataclass(frozen=True)
class Activation:
    """A function of one number, applied to every entry."""

    name: str
    lipschitz: float
    at_zero: float
    """s(0): the rigorous covering rule needs it"""
    signs: bool
    """whether flipping a neuron's sign can be undone (s odd, even, or odd up to a constant)"""
    probed: bool
    """True: not in the table; the constant was measured on a grid, not proven"""


def activation_of(name: str, function: nn.Module | Elementwise, plain: bool = True) -> Activation:
    """The constants of a module or a function; unknown ones are probed.

    ``plain=False`` says that the function was called with options, which the table does not know.
    A module or function that does not act entry by entry gets `UnsupportedModuleError`.
    """
    kind = type(function)
    known: float | None = None
    if kind in _PLAIN:
        known = _PLAIN[kind]
    elif kind in _WITH_OPTIONS:
        known = _WITH_OPTIONS[kind](function)
    elif plain and not isinstance(function, nn.Module) and _from_torch(function):
        known = _FUNCTIONS.get(getattr(function, "__name__", ""))
    if isinstance(function, nn.PReLU):  # one slope per channel: not one function of one number
        return Activation("PReLU", float(known or 1.0), 0.0, signs=False, probed=False)
    label = kind.__name__ if isinstance(function, nn.Module) else _name_of(function)
    if known is None:
        known = probe(name, function)
    return Activation(label, known, *_shape(function), probed=not _known(function, plain))


def probe(name: str, function: Elementwise) -> float:
    """The largest slope seen on a fine grid, for functions that are not in the table.

    Slopes are difference quotients over [-16, 16] (65,537 points) and over [-1024, 1024]. Refused:
    what does not act entry by entry; slopes that grow with the distance from zero (squares) or
    as the grid gets finer (jumps), because then there is no constant. The result is measured,
    not proven: a spike between two points of the grid is not seen.
    """
    try:
        _require_entrywise(name, function)
        fine, coarse = _steepest(function, NEAR, 2 * STEPS), _steepest(function, NEAR, STEPS)
        far = _steepest(function, FAR, 2 * STEPS)
    except UnsupportedModuleError:
        raise
    except Exception as error:
        raise _refuse(name, function, f"it cannot be applied to single numbers ({error})") from None
    if not math.isfinite(fine + far) or fine > 1.5 * coarse + 1e-12 or far > 1.05 * fine + 1e-9:
        raise _refuse(name, function, "it has no Lipschitz constant on the line (jumps or growth)")
    return max(fine, far)


def _known(function: nn.Module | Elementwise, plain: bool) -> bool:
    if isinstance(function, nn.Module):
        return type(function) in _PLAIN or type(function) in _WITH_OPTIONS
    return plain and _from_torch(function) and _name_of(function) in _FUNCTIONS


def _from_torch(function: object) -> bool:
    """Whether a function is torch's own: somebody else's ``relu`` may be anything."""
    module = getattr(function, "__module__", None) or "torch"  # built-ins of torch have none
    return module.split(".")[0] == "torch"


def _name_of(function: object) -> str:
    return getattr(function, "__name__", type(function).__name__)


@torch.no_grad()
def _steepest(function: Elementwise, reach: float, steps: int) -> float:
    t = torch.linspace(-reach, reach, steps + 1, dtype=torch.float64)
    values = function(t.clone())
    return float((values.diff() / t.diff()).abs().max())


@torch.no_grad()
def _shape(function: Elementwise) -> tuple[float, bool]:
    """s(0), and whether s is odd, even, or odd up to a constant."""
    t = torch.linspace(0, 4, 257, dtype=torch.float64)
    up, down = function(t.clone()), function(-t)
    total = up + down
    odd = bool((total - total[0]).abs().max() < 1e-12)
    even = bool((up - down).abs().max() < 1e-12)
    return float(up[0]), odd or even


@torch.no_grad()
def _require_entrywise(name: str, function: Elementwise) -> None:
    x = torch.linspace(-2, 2.5, 24, dtype=torch.float64).reshape(2, 3, 4)
    whole = function(x.clone())
    if whole.shape != x.shape:
        raise _refuse(name, function, "it changes the shape of what it is given")
    single = torch.stack([function(v.reshape(1)).reshape(()) for v in x.flatten()])
    if not torch.allclose(whole.flatten(), single, rtol=1e-9, atol=1e-12):
        raise _refuse(name, function, "it does not act on every entry alone")


def _refuse(name: str, function: object, why: str) -> UnsupportedModuleError:
    return UnsupportedModuleError(
        f"layer '{name}' ({_name_of(function)}) was taken for an activation, but {why}; bounds "
        f"are known for chains of Linear, Conv, BatchNorm (eval), pooling, Flatten and "
        f"activations that act entry by entry"
    )

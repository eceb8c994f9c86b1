"""The table of activations: the one place where a new activation is added.

Every Lipschitz constant is the largest slope |s(t) - s(u)| / |t - u| over the whole line. Constants
without a closed form are rounded up in the last digit, so that bounds that use them stay valid. The
tests compare every number here with an independent numerical probe.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from weightloom.errors import ConfigError
from weightloom.networks.activations.record import Activation, Kind, Pieces

__all__ = [
    "ELEMENTWISE",
    "TABLE",
    "Cosine",
    "Exponential",
    "Sine",
    "Threshold",
    "register",
    "registered",
]


# -- activations without a module in torch ------------------------------------------------------


class Threshold(nn.Module):
    """1[z >= 0], the Heaviside step; NaN stays NaN, the gradient is zero.

    (`nn.Threshold` is another function: it returns z itself above the threshold.)

    >>> Threshold()(torch.tensor([-1.0, 0.0, 2.0]))
    tensor([0., 1., 1.])
    """

    def forward(self, z: Tensor) -> Tensor:
        # where() keeps the result in the autograd graph, with gradient zero.
        return torch.where(z.isnan(), z, (z >= 0).to(z.dtype))


class Cosine(nn.Module):
    """cos z."""

    def forward(self, z: Tensor) -> Tensor:
        return z.cos()


class Exponential(nn.Module):
    """exp z."""

    def forward(self, z: Tensor) -> Tensor:
        return z.exp()


class Sine(nn.Module):
    """sin(omega z): the activation of a SIREN (Sitzmann et al. 2020), which has omega = 30.

    >>> Sine(2.0)(torch.tensor([0.0, torch.pi / 4]))
    tensor([0., 1.])
    """

    def __init__(self, omega: float = 1.0) -> None:
        super().__init__()
        if not 0.0 < omega < math.inf:
            raise ConfigError(
                f"omega={omega} was given; a sine needs a positive, finite frequency, such as 30.0"
            )
        self.omega = float(omega)

    def forward(self, z: Tensor) -> Tensor:
        # 1 z is z: no pass over the numbers for the plain sine.
        return torch.sin(z if self.omega == 1.0 else self.omega * z)

    def extra_repr(self) -> str:
        return f"omega={self.omega:g}"


# -- constants and settings -----------------------------------------------------------------------

# Phi(sqrt 2) + sqrt 2 phi(sqrt 2): where the second derivative of t Phi(t) is zero.
GELU = 0.5 * (1 + math.erf(1.0)) + math.exp(-1.0) / math.sqrt(math.pi)
GELU_TANH, SILU, MISH = 1.1290, 1.0998394, 1.0885160
# GELU, SiLU and hardswish have s(t) - s(-t) = t, so slopes at t and -t add up to 1. Mish does not.
MISH_LEAST = -0.1125262
# The product of torch's two constants of SELU: the slope just left of zero.
SELU = 1.0507009873554804934193349852946 * 1.6732632423543772848170429916717


def _gauss(t: Tensor) -> Tensor:
    return torch.exp(-t * t / 2) / math.sqrt(2 * math.pi)


def _silu_slope(t: Tensor) -> Tensor:
    return torch.sigmoid(t) * (1 + t * torch.sigmoid(-t))


def _leaky(module: nn.LeakyReLU) -> Mapping[str, Any]:
    slope = module.negative_slope
    return {
        "kind": {1.0: Kind.FREE, -1.0: Kind.ABSOLUTE}.get(slope, Kind.SCALE),
        "lipschitz": max(1.0, abs(slope)),
        "monotone": slope >= 0,
        "pieces": Pieces((0,), (slope, 1), (0, 0)),
        "gaussian": {"name": "leaky_relu", "slope": slope},
    }


def _prelu(module: nn.PReLU) -> Mapping[str, Any]:
    # With one slope per channel it is not one function of one number: only scales pass through.
    slopes = module.weight.detach()
    return {
        "name": "prelu",
        "kind": Kind.SCALE,
        "lipschitz": max(1.0, float(slopes.abs().max())),
        "monotone": bool((slopes >= 0).all()),
        "least_slope": min(1.0, float(slopes.min())),
    }


def _gelu(module: nn.GELU) -> Mapping[str, Any]:
    same = {"name": "gelu", "kind": Kind.PERMUTE}  # symmetry treats both variants alike
    if module.approximate == "none":
        return same
    unknown = {"derivative": None, "smoothness": math.nan, "gaussian": None}
    return {**same, "lipschitz": GELU_TANH, "least_slope": 1 - GELU_TANH, **unknown}


def _elu(module: nn.ELU) -> Mapping[str, Any]:
    return {
        "kind": Kind.PERMUTE if module.alpha else Kind.SCALE,
        "lipschitz": max(1.0, abs(module.alpha)),
        "monotone": module.alpha >= 0,
    }


def _softplus(module: nn.Softplus) -> Mapping[str, Any]:
    unknown = {"derivative": None, "smoothness": math.nan}
    return {"kind": Kind.PERMUTE, "at_zero": math.log(2) / module.beta, **unknown}


def _sine(module: Sine) -> Mapping[str, Any]:
    omega = module.omega
    if omega == 1.0:
        return {"name": "sin", "function": torch.sin, "kind": Kind.SIGN}
    return {
        "kind": Kind.SIGN,
        "lipschitz": omega,
        "derivative": lambda t: omega * torch.cos(omega * t),
        "smoothness": omega**2,
        "gaussian": {"name": "sin", "frequency": omega},
    }


def _clamp(low: float, high: float) -> Pieces:
    return Pieces((low, high), (0, 1, 0), (low, 0, high))


def _hardtanh(module: nn.Hardtanh) -> Mapping[str, Any]:
    low, high = float(module.min_val), float(module.max_val)
    return {
        "kind": Kind.SIGN if low == -high else Kind.PERMUTE,
        "at_zero": min(max(0.0, low), high),
        "bound": max(abs(low), abs(high)),
        "pieces": _clamp(low, high),
    }


def _softshrink(module: nn.Softshrink) -> Mapping[str, Any]:
    width = float(module.lambd)
    pieces = Pieces((-width, width), (1, 0, 1), (width, 0, -width))
    return {"kind": Kind.SIGN if width else Kind.FREE, "pieces": pieces if width else None}


def _hardshrink(module: nn.Hardshrink) -> Mapping[str, Any]:
    width = float(module.lambd)
    if width <= 0:  # the identity
        return {"kind": Kind.FREE, "lipschitz": 1.0, "pieces": None}
    pieces = Pieces((-width, width), (1, 0, 1), (0, 0, 0))
    return {"kind": Kind.SIGN, "pieces": pieces}


def _cut(module: nn.Threshold) -> Mapping[str, Any]:
    threshold, value = float(module.threshold), float(module.value)
    return {
        "kind": Kind.SCALE if threshold == value == 0 else Kind.PERMUTE,
        "lipschitz": 1.0 if threshold == value else math.inf,
        "at_zero": 0.0 if threshold < 0 else value,
        "monotone": value <= threshold,
        "pieces": Pieces((threshold,), (0, 1), (value, 0)),
    }


# -- the table ------------------------------------------------------------------------------------

# The smoothness is sup |s''|: 4/(3 sqrt 3) for tanh, 1/(6 sqrt 3) for the sigmoid,
# 2 sqrt(2/(e pi)) for erf, sqrt(2/pi) for GELU, whose second derivative is (2 - t^2) phi(t).
# s'(0) = 0 for the ReLU: the smallest element of the Clarke differential, as in torch.
_ROWS = (
    Activation(
        "relu", torch.relu, (nn.ReLU,), ("relu_",), kind=Kind.SCALE, lipschitz=1.0, monotone=True,
        rectifier=True, pieces=Pieces((0,), (0, 1), (0, 0)), smoothness=math.inf,
        derivative=lambda t: (t > 0).to(t.dtype), gaussian={"name": "relu"},
    ),
    Activation(
        "leaky_relu", F.leaky_relu, (nn.LeakyReLU,), ("leaky_relu_",), _leaky, kind=Kind.SCALE,
        lipschitz=1.0, monotone=True, rectifier=True, pieces=Pieces((0,), (0.01, 1), (0, 0)),
        gaussian={"name": "leaky_relu"},
    ),
    Activation(
        "prelu", lambda t: F.leaky_relu(t, 0.25), (nn.PReLU,), (), _prelu, kind=Kind.SCALE,
        lipschitz=1.0, least_slope=0.25, monotone=True,
    ),
    Activation(
        "abs", torch.abs, (), ("absolute", "abs_"), kind=Kind.ABSOLUTE, lipschitz=1.0,
        pieces=Pieces((0,), (-1, 1), (0, 0)), gaussian={"name": "abs"},
    ),
    Activation(
        "identity", lambda t: t, (nn.Identity,), kind=Kind.FREE, lipschitz=1.0, monotone=True,
        least_slope=1.0,
        gaussian={"name": "identity"},
    ),
    Activation(
        "erf", torch.erf, (), ("erf_",), kind=Kind.SIGN, lipschitz=2 / math.sqrt(math.pi),
        monotone=True, bound=1.0, derivative=lambda t: 2 / math.sqrt(math.pi) * torch.exp(-t * t),
        smoothness=2 * math.sqrt(2 / (math.e * math.pi)), gaussian={"name": "erf"},
    ),
    Activation(
        "sin", torch.sin, (Sine,), ("sin_",), _sine, kind=Kind.SIGN, lipschitz=1.0, bound=1.0,
        derivative=torch.cos, smoothness=1.0, gaussian={"name": "sin"},
    ),
    Activation(
        "cos", torch.cos, (Cosine,), ("cos_",), kind=Kind.EVEN, lipschitz=1.0, at_zero=1.0,
        bound=1.0, gaussian={"name": "cos"},
    ),
    Activation(
        "exp", torch.exp, (Exponential,), ("exp_",), lipschitz=math.inf, at_zero=1.0,
        monotone=True, gaussian={"name": "exp"},
    ),
    Activation(
        "gelu", F.gelu, (nn.GELU,), (), _gelu, lipschitz=GELU, least_slope=1 - GELU,
        derivative=lambda t: torch.special.ndtr(t) + t * _gauss(t),
        smoothness=math.sqrt(2 / math.pi), gaussian={"name": "gelu"},
    ),
    Activation(
        "tanh", torch.tanh, (nn.Tanh,), ("tanh_",), kind=Kind.SIGN, lipschitz=1.0, monotone=True,
        bound=1.0, derivative=lambda t: 1 - torch.tanh(t) ** 2, smoothness=4 / (3 * math.sqrt(3)),
        gaussian={"name": "tanh"},
    ),
    Activation(
        "sigmoid", torch.sigmoid, (nn.Sigmoid,), ("sigmoid_",), kind=Kind.FLIP, constant=1.0,
        lipschitz=0.25, at_zero=0.5, monotone=True, bound=1.0,
        derivative=lambda t: torch.sigmoid(t) * torch.sigmoid(-t),
        smoothness=1 / (6 * math.sqrt(3)),
    ),
    Activation(
        "softplus", F.softplus, (nn.Softplus,), (), _softplus, lipschitz=1.0,
        at_zero=math.log(2), monotone=True, derivative=torch.sigmoid, smoothness=1 / 4,
    ),
    Activation(
        "silu", F.silu, (nn.SiLU,), ("swish",), lipschitz=SILU, least_slope=1 - SILU,
        derivative=_silu_slope, smoothness=1 / 2,
    ),
    Activation("mish", F.mish, (nn.Mish,), lipschitz=MISH, least_slope=MISH_LEAST),
    Activation(
        "elu", F.elu, (nn.ELU,), ("elu_",), _elu, lipschitz=1.0, monotone=True, rectifier=True,
    ),
    Activation("selu", F.selu, (nn.SELU,), ("selu_",), lipschitz=SELU, monotone=True),
    Activation(
        "celu", F.celu, (nn.CELU,), ("celu_",), lambda module: {"kind": Kind.PERMUTE},
        lipschitz=1.0, monotone=True, rectifier=True,
    ),
    Activation(
        "softsign", F.softsign, (nn.Softsign,), kind=Kind.SIGN, lipschitz=1.0, monotone=True,
        bound=1.0,
    ),
    Activation(
        "hardswish", F.hardswish, (nn.Hardswish,), lipschitz=1.5, least_slope=-0.5,
    ),
    Activation(
        "relu6", F.relu6, (nn.ReLU6,), lipschitz=1.0, monotone=True, bound=6.0,
        pieces=_clamp(0, 6),
    ),
    Activation(
        "hardtanh", F.hardtanh, (nn.Hardtanh,), ("hardtanh_",), _hardtanh, kind=Kind.SIGN,
        lipschitz=1.0, monotone=True, bound=1.0, pieces=_clamp(-1, 1),
    ),
    Activation(
        "hardsigmoid", F.hardsigmoid, (nn.Hardsigmoid,), kind=Kind.FLIP, constant=1.0,
        lipschitz=1 / 6, at_zero=0.5, monotone=True, bound=1.0,
        pieces=Pieces((-3, 3), (0, 1 / 6, 0), (0, 0.5, 1)),
    ),
    Activation(
        "logsigmoid", F.logsigmoid, (nn.LogSigmoid,), ("log_sigmoid",), lipschitz=1.0,
        at_zero=-math.log(2), monotone=True,
    ),
    Activation(
        "tanhshrink", F.tanhshrink, (nn.Tanhshrink,), kind=Kind.SIGN, lipschitz=1.0, monotone=True,
    ),
    Activation(
        "softshrink", F.softshrink, (nn.Softshrink,), (), _softshrink, kind=Kind.SIGN,
        lipschitz=1.0, monotone=True, pieces=Pieces((-0.5, 0.5), (1, 0, 1), (0.5, 0, -0.5)),
    ),
    Activation(
        "hardshrink", F.hardshrink, (nn.Hardshrink,), (), _hardshrink, kind=Kind.SIGN,
        lipschitz=math.inf, monotone=True, pieces=Pieces((-0.5, 0.5), (1, 0, 1), (0, 0, 0)),
    ),
    Activation(
        "arctan", torch.arctan, (), ("atan", "arctan_", "atan_"), kind=Kind.SIGN, lipschitz=1.0,
        monotone=True, bound=math.pi / 2,
    ),
    Activation(
        "asinh", torch.asinh, (), ("arcsinh", "asinh_", "arcsinh_"), kind=Kind.SIGN,
        lipschitz=1.0, monotone=True,
    ),
    Activation("square", torch.square, (), ("square_",), kind=Kind.EVEN, lipschitz=math.inf),
    Activation(
        "half_square", lambda t: t * t / 2, kind=Kind.EVEN, lipschitz=math.inf,
        derivative=lambda t: t, smoothness=1.0,
    ),
    Activation(
        "step", Threshold(), (Threshold,), lipschitz=math.inf, at_zero=1.0, monotone=True,
        bound=1.0, pieces=Pieces((0,), (0, 0), (0, 1)),
    ),
    # nn.Threshold has no default settings: this record has those that make it a ReLU.
    Activation(
        "threshold", lambda t: F.threshold(t, 0.0, 0.0), (nn.Threshold,),
        ("_threshold", "threshold_"), _cut, kind=Kind.SCALE, lipschitz=1.0, monotone=True,
        pieces=Pieces((0,), (0, 1), (0, 0)),
    ),
)  # fmt: skip


TABLE: dict[str, Activation] = {row.name: row for row in _ROWS}


"""every known activation by name"""

ELEMENTWISE: tuple[type[nn.Module], ...] = tuple(
    kind for row in _ROWS for kind in row.modules if kind is not nn.PReLU
)
"""modules of the table that act on each number alone and have no parameters

Modules of rows that are registered later are not among them: they may have parameters.
"""


def register(activation: Activation) -> Activation:
    """Add an activation to the table, so that every part of weightloom knows it.

    >>> row = Activation("cube_root", lambda t: t.abs().pow(1 / 3) * t.sign(), kind=Kind.SIGN)
    >>> with registered(row):
    ...     "cube_root" in TABLE
    True
    """
    names = (activation.name, *activation.aliases)
    taken = {name for row in TABLE.values() for name in (row.name, *row.aliases)}
    modules = {module for row in TABLE.values() for module in row.modules}
    for clash in (*(name for name in names if name in taken),
                  *(kind.__name__ for kind in activation.modules if kind in modules)):  # fmt: skip
        raise ConfigError(
            f"an activation called {clash!r} is already known; give {activation.name!r} a name "
            f"and modules of its own"
        )
    TABLE[activation.name] = activation
    return activation


@contextmanager
def registered(activation: Activation) -> Iterator[Activation]:
    """`register` for the length of a ``with`` block."""
    register(activation)
    try:
        yield activation
    finally:
        del TABLE[activation.name]

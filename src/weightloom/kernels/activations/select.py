"""From a name, a description or a callable to an Activation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from weightloom.errors import KernelError
from weightloom.kernels.activations.base import Activation
from weightloom.kernels.activations.closed import Cos, Erf, Exp, Sin
from weightloom.kernels.activations.gelu import GELU
from weightloom.kernels.activations.piecewise import (
    Abs,
    Identity,
    LeakyReLU,
    PiecewiseLinear,
    ReLU,
)
from weightloom.kernels.activations.quadrature import Quadrature, Tanh

__all__ = ["activation"]

_CLASSES: dict[str, Callable[..., Activation]] = {
    kind.name: kind
    for kind in (ReLU, LeakyReLU, Abs, Identity, PiecewiseLinear, Erf, Sin, Cos, Exp, GELU, Tanh)
}

# Callables that mean one of these get its closed form instead of quadrature.
_FUNCTIONS: dict[Any, str] = {
    torch.relu: "relu",
    functional.relu: "relu",
    torch.abs: "abs",
    torch.erf: "erf",
    torch.sin: "sin",
    torch.cos: "cos",
    torch.exp: "exp",
    torch.tanh: "tanh",
    functional.gelu: "gelu",
}
_MODULES: dict[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.Identity: "identity",
    nn.Tanh: "tanh",
}


def activation(
    spec: str | Mapping[str, Any] | Activation | Callable[[Tensor], Tensor],
) -> Activation:
    """The activation that `spec` means.

    A name ("relu"), a description with options ({"name": "leaky_relu", "slope": 0.2}), an
    Activation, which is returned as it is, or any callable on tensors, whose moments come from
    quadrature (torch.relu, nn.Tanh() and the like are recognised).

    >>> activation({"name": "leaky_relu", "slope": 0.2})
    LeakyReLU(slope=0.2)
    """
    if isinstance(spec, Activation):
        return spec
    if callable(spec):
        return _from_callable(spec)
    if isinstance(spec, str):
        spec = {"name": spec}
    if isinstance(spec, Mapping):
        options = dict(spec)
        name = options.pop("name", None)
        if name not in _CLASSES:
            known = ", ".join(repr(known) for known in _CLASSES)
            raise KernelError(
                f"unknown activation {name!r}; known are {known}, or pass any callable on tensors"
            )
        try:
            return _CLASSES[name](**options)
        except TypeError as error:
            raise KernelError(f"activation {name!r} does not take {options}: {error}") from error
    raise KernelError(
        f"cannot make an activation of {spec!r}; pass a name such as 'relu', an Activation or a "
        "callable on tensors"
    )


def _from_callable(function: Callable[[Tensor], Tensor]) -> Activation:
    if isinstance(function, nn.Module):
        if isinstance(function, nn.LeakyReLU):
            return LeakyReLU(function.negative_slope)
        if isinstance(function, nn.GELU) and function.approximate == "none":
            return GELU()
        name = _MODULES.get(type(function))
    else:
        try:
            name = _FUNCTIONS.get(function)
        except TypeError:  # a callable that cannot be hashed is none of these
            name = None
    return Quadrature(function) if name is None else _CLASSES[name]()

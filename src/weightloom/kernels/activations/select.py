"""From a name, a description, a module or a callable to its Gaussian expectations.

Which activation something is, and whether it has a closed form, is written in the table of
`weightloom.networks.activations`; the closed forms themselves are here, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from weightloom.errors import KernelError
from weightloom.kernels.activations.base import GaussianActivation
from weightloom.kernels.activations.closed import GELU, Cos, Erf, Exp, Sin
from weightloom.kernels.activations.piecewise import Abs, Identity, LeakyReLU, PiecewiseLinear, ReLU
from weightloom.kernels.activations.quadrature import Quadrature, Tanh
from weightloom.networks.activations import TABLE, Activation, lookup

__all__ = ["activation"]

_CLASSES: dict[str, Callable[..., GaussianActivation]] = {
    kind.name: kind
    for kind in (ReLU, LeakyReLU, Abs, Identity, PiecewiseLinear, Erf, Sin, Cos, Exp, GELU, Tanh)
}


def activation(
    spec: str | Mapping[str, Any] | GaussianActivation | Activation | Callable[[Tensor], Tensor],
) -> GaussianActivation:
    """The expectations of the activation that `spec` means.

    A name ("relu"), a description with options ({"name": "leaky_relu", "slope": 0.2}), a
    GaussianActivation, which is returned as it is, a record of the table of activations, or any
    callable on tensors, whose moments come from quadrature (torch.relu, nn.Tanh() and the like are
    recognised).

    >>> activation({"name": "leaky_relu", "slope": 0.2})
    LeakyReLU(slope=0.2)
    """
    if isinstance(spec, GaussianActivation):
        return spec
    if isinstance(spec, Activation):
        return _closed(spec) or Quadrature(spec.function, spec.derivative)
    if callable(spec):
        known = lookup(spec)
        return (known and _closed(known)) or Quadrature(spec)
    if isinstance(spec, str):
        spec = {"name": spec}
    if isinstance(spec, Mapping):
        return _described(dict(spec))
    raise KernelError(
        f"cannot make an activation of {spec!r}; pass a name such as 'relu', a GaussianActivation "
        "or a callable on tensors"
    )


def _described(options: dict[str, Any]) -> GaussianActivation:
    name = options.pop("name", None)
    try:
        if name in _CLASSES:
            return _CLASSES[name](**options)
        if name in TABLE:
            return _named(TABLE[name], **options)
    except TypeError as error:
        raise KernelError(f"activation {name!r} does not take {options}: {error}") from error
    known = ", ".join(repr(known) for known in dict.fromkeys((*_CLASSES, *TABLE)))
    raise KernelError(
        f"unknown activation {name!r}; known are {known}, or pass any callable on tensors"
    )


def _named(row: Activation) -> GaussianActivation:
    """A row of the table with its default settings; its name is enough to build it again."""
    return _closed(row) or Quadrature(row.function, row.derivative, name=row.name)


def _closed(record: Activation) -> GaussianActivation | None:
    """The closed form that the record names, or that of two slopes which meet at zero."""
    if record.gaussian is not None:
        return _described(dict(record.gaussian))
    pieces = record.pieces
    if pieces is not None and pieces.kinks == (0,) and pieces.offsets == (0, 0):
        return PiecewiseLinear(pieces.slopes[1], pieces.slopes[0])
    return None

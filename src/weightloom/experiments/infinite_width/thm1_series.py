"""Taylor coefficients of h along a gradient, by arithmetic with power series.

`empirical.higher_order` takes K^(r) of any network by r nested derivatives: 0.2 seconds for r = 4,
however small the network is. Towers are layers W q and activations, so the series of h(w + e d) in
e can be carried through them directly, in milliseconds. A series is a list [c_0, .., c_R] of
tensors; K^(r) = r! c_r if d is the gradient of h at the input that the step is taken on.
Experiments check one against the other as they run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from weightloom.errors import ConfigError
from weightloom.kernels.finite import FiniteHypernetwork, FiniteTower, NTKLinear

__all__ = ["ACTIVATIONS", "hypernetwork_series", "terms", "tower_series"]

Series = list[Tensor]
LEAK = 0.2


def _piecewise(slope: float) -> Callable[[Series], Series]:
    def apply(u: Series) -> Series:
        on = torch.where(u[0] > 0, torch.ones_like(u[0]), slope * torch.ones_like(u[0]))
        return [on * c for c in u]

    return apply


def _tanh(u: Series) -> Series:
    """From y' = (1 - y^2) u': k y_k = sum_j j u_j (1 - y^2)_{k-j}."""
    y = [u[0].tanh()]
    rest: Series = []  # 1 - y^2
    for k in range(1, len(u)):
        product = torch.stack([y[i] * y[k - 1 - i] for i in range(k)]).sum(0)
        rest.append((1.0 if k == 1 else 0.0) - product)
        y.append(torch.stack([j * u[j] * rest[k - j] for j in range(1, k + 1)]).sum(0) / k)
    return y


#: By name: what towers call the activation, and series through it. (With a slope as small as the
#: usual 0.01, leaky ReLUs behave like ReLUs up to widths of many thousands.)
ACTIVATIONS: dict[str, tuple[Any, Callable[[Series], Series]]] = {
    "relu": ("relu", _piecewise(0.0)),
    "leaky": ({"name": "leaky_relu", "slope": LEAK}, _piecewise(LEAK)),
    "tanh": ("tanh", _tanh),
}


def _through(name: str) -> Callable[[Series], Series]:
    if name not in ACTIVATIONS:
        raise ConfigError(
            f"no series through the activation {name!r}; there are: {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[name][1]


def tower_series(
    tower: FiniteTower, activation: str, x: Tensor, direction: Sequence[Tensor], order: int
) -> Series:
    """Coefficients of f(x; w + e d), each [outputs], for one x [inputs].

    ``direction`` has a tensor for each layer's weight.
    """
    through = _through(activation)
    q: Series = [x] + [torch.zeros_like(x)] * order
    last = len(direction) - 1
    for number, (layer, step) in enumerate(zip(tower.layers, direction, strict=True)):
        if not isinstance(layer, NTKLinear):
            raise ConfigError(f"layer {number} is {type(layer).__name__}; wanted NTKLinear")
        columns = torch.stack(q, 1)  # one product with each matrix, not one for each coefficient
        still, moved = layer.weight @ columns, step @ columns
        still[:, 1:] += moved[:, :-1]
        q = list((layer.weight_scale * still).unbind(1))
        if number < last:
            q = [tower.gain * c for c in through(q)]
    return q


def hypernetwork_series(
    net: FiniteHypernetwork,
    activations: tuple[str, str],
    x: Tensor,
    z: Tensor,
    direction: Sequence[Tensor],
    order: int,
) -> Series:
    """Coefficients of h(x, z; w + e d), each [outputs], for one x and one z; g without biases."""
    written = tower_series(net.f, activations[0], x, direction, order)
    through = _through(activations[1])
    layers = [piece.split(net.pieces[: len(net.shapes)]) for piece in written]
    q: Series = [z] + [torch.zeros_like(z)] * order
    for number, shape in enumerate(net.shapes):
        weights = [piece[number].view(shape) for piece in layers]
        scale = net.sigma_w / math.sqrt(shape[1])
        q = [scale * sum(weights[i] @ q[k - i] for i in range(k + 1)) for k in range(order + 1)]
        if number < len(net.shapes) - 1:
            q = [net.gain * c for c in through(q)]
    return q


def terms(series: Series) -> list[float]:
    """K^(0), .., K^(R) = r! c_r of a network with one output."""
    return [math.factorial(r) * float(c) for r, c in enumerate(series)]

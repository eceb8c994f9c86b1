"""The Taylor series of one gradient step: its terms K^(r) for towers and sampled hypernetworks.

One step of gradient descent on an example changes the output at another by a series whose terms
have the sizes K^(1), K^(2), ...: K^(r) is the r-th derivative of h(w + e d) in e at 0, where d is
the gradient of h at the example of the step. Theorem 1 of "On Infinite-Width Hypernetworks" says
how K^(r) shrinks as f becomes wide. The page shows the terms; the papers' experiment ``thm1``
measures them.

`empirical.higher_order` computes K^(r) of any network by r nested derivatives: 0.2 seconds for
r = 4, however small the network is. Towers are layers W q and activations, so the power series of
h(w + e d) can be propagated through them directly, in milliseconds. A series is a list
[c_0, .., c_R] of tensors, and K^(r) = r! c_r. The experiments compare both methods as they run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weightloom.errors import ConfigError
from weightloom.kernels import Tower
from weightloom.kernels.finite import FiniteHypernetwork, FiniteTower, NTKLinear

__all__ = [
    # power series through networks
    "ACTIVATIONS",
    "hypernetwork_series",
    "terms",
    "tower_series",
    # terms of sampled hypernetworks
    "INPUTS",
    "ORDERS",
    "SETTINGS",
    "Shape",
    "inputs",
    "same_example",
    "sample_network",
    "shared_path",
    "step_terms",
    # how they depend on the width
    "exponent",
    "resampled_margin",
]

Series = list[Tensor]

LEAK = 0.2
INPUTS = 3  # numbers in x, and in z
NARROW = 3  # hidden width of g
RESAMPLES = 400

ORDERS = (1, 2, 3, 4)

#: Activations of f and of g, by name. The theorem is about the first two.
SETTINGS = {
    "relu": ("relu", "relu"),
    "leaky": ("leaky", "leaky"),
    "smooth g": ("relu", "tanh"),
    "smooth f": ("tanh", "relu"),
}


# -- power series through networks ----------------------------------------------------------------


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


#: By name: the activation as towers take it, and its action on series. (With a slope as small as
#: the usual 0.01, leaky ReLUs behave like ReLUs up to widths of many thousands.)
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
        columns = torch.stack(q, 1)  # one product per matrix, not one per coefficient
        product, moved = layer.weight @ columns, step @ columns
        product[:, 1:] += moved[:, :-1]
        q = list((layer.weight_scale * product).unbind(1))
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


# -- terms of sampled hypernetworks ---------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """Activations (a key of SETTINGS), depths of g and f, and the width of f."""

    setting: str
    depth: int
    layers: int
    width: int


def inputs() -> tuple[Tensor, Tensor]:
    """Two conditions and two points, [2, 3] each; rows of length sqrt 3, so that S = Q = 1."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(4, INPUTS, dtype=torch.float64, generator=generator)
    rows = rows * (math.sqrt(INPUTS) / rows.norm(dim=1, keepdim=True))
    return rows[:2], rows[2:]


def sample_network(shape: Shape, generator: torch.Generator) -> FiniteHypernetwork:
    """A hypernetwork with f of ``layers`` matrices and ``width``, g of ``depth`` and width 3."""
    f, g = (ACTIVATIONS[name][0] for name in SETTINGS[shape.setting])
    return FiniteHypernetwork(
        Tower(depth=shape.layers, activation=f),
        Tower(depth=shape.depth, activation=g),
        [INPUTS] + [shape.width] * (shape.layers - 1),
        [INPUTS] + [NARROW] * (shape.depth - 1) + [1],
        generator=generator,
        dtype=torch.float64,
    )


def shared_path(net: FiniteHypernetwork, x: Tensor, z: Tensor) -> bool:
    """Whether some path through g is active for every row; if not, the limit of their K^(r) is 0.

    With ReLUs, a step on an example changes, at leading order, only those weights of g that lie on
    its active paths. Always true for activations whose derivative is nowhere 0.
    """
    with torch.no_grad():
        q, scale = z, net.sigma_w
        for weight, _ in net.weights(x)[:-1]:
            q = scale * torch.einsum("nba,na->nb", weight, q) / math.sqrt(q.shape[1])
            q = net.gain * net.activation(q)
            if not bool((q != 0).all(0).any()):
                return False
    return True


def step_terms(
    net: FiniteHypernetwork, setting: str, x: Tensor, z: Tensor, i: int, j: int
) -> list[float]:
    """K^(0) .. K^(4): the output at example ``i``, for a step on example ``j``."""
    output = net(x[j : j + 1], z[j : j + 1])[0, 0]
    direction = torch.autograd.grad(output, list(net.parameters()))
    with torch.no_grad():
        series = hypernetwork_series(net, SETTINGS[setting], x[i], z[i], direction, max(ORDERS))
    return terms(series)


def same_example(
    shape: Shape, draws: int, generator: torch.Generator
) -> Iterator[tuple[list[float], bool]]:
    """For each of ``draws`` networks: K^(0) .. K^(4) of a step on the example itself, and whether
    a path through g is active for it."""
    x, z = inputs()
    for _ in range(draws):
        net = sample_network(shape, generator)
        yield step_terms(net, shape.setting, x, z, 0, 0), shared_path(net, x[:1], z[:1])


# -- how they depend on the width -----------------------------------------------------------------


def exponent(depth: int, order: int) -> int:
    """The exponent p of K^(r) ~ n^p in Theorem 1."""
    return min(0, depth - order)


def resampled_margin(x: Sequence[float], samples: Sequence[Sequence[float]]) -> float:
    """Half the width of a 95 percent bootstrap interval of the slope of log10(median) in ``x``.

    ``samples`` has the values at each ``x``. NaN if a resampled median is 0.
    """
    generator = torch.Generator().manual_seed(0)
    y = torch.stack([_resampled(values, generator) for values in samples])  # [x, resamples]
    if not bool((y > 0).all()):
        return math.nan
    centred = torch.tensor(x, dtype=torch.float64)
    centred = centred - centred.mean()
    slopes = centred @ y.log10() / centred.square().sum()
    low, high = slopes.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return float(high - low) / 2


def _resampled(values: Sequence[float], generator: torch.Generator) -> Tensor:
    """Medians of samples of ``values`` with replacement, [resamples]."""
    which = torch.randint(len(values), (RESAMPLES, len(values)), generator=generator)
    return torch.tensor(values, dtype=torch.float64)[which].quantile(0.5, dim=1)

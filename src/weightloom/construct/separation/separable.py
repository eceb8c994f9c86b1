"""The main theorem of "Depth separation for neural networks", and both of its sides measured.

A neuron w s(<v, x> + <v', x'> + b) depends on <v, x> and <v', x'> alone: it is (v, v')-separable.
For an inner product function F and separable g_1, ..., g_r

    ||F - sum_j g_j||^2 >= ||P_n F|| (||P_n F|| - 2 sum_j ||g_j|| / sqrt(N_{d,n})).

The slides print "=", which the proof does not claim. The proof writes g_j with diagonal
coefficients only; the others, beta_{ij} L_i^v L_j^v' with i != j, are orthogonal to all h_n and can
only make the left side larger, so dropping them is fine for ">=".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weightloom.construct.separation.legendre import log_harmonics_count
from weightloom.construct.separation.spheres import directions
from weightloom.errors import ConfigError, UnsupportedModuleError

__all__ = [
    "Estimate",
    "Neuron",
    "neuron_norm_bound",
    "neurons",
    "separability_defect",
    "separable_bound",
    "squared_distance",
]

PairFunction = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Estimate:
    """A mean over sampled pairs of directions, and its standard error."""

    value: float
    standard_error: float


@dataclass(frozen=True)
class Neuron:
    """(x, x') -> weight * activation(<v, x> + <v', x'> + bias)."""

    v: Tensor
    other: Tensor
    bias: float
    weight: float
    activation: nn.Module

    def __call__(self, x: Tensor, x2: Tensor) -> Tensor:
        return self.weight * self.activation(x @ self.v + x2 @ self.other + self.bias)


def separable_bound(tail: float, norms: float, d: int, n: int) -> float:
    """The theorem's right side: ||P_n F|| (||P_n F|| - 2 sum_j ||g_j|| / sqrt(N_{d,n})).

    ``tail`` is ||P_n F||^2 as `weightloom.construct.separation.tail` gives it, ``norms`` the sum of
    ||g_j||, the output bias of a network included. Negative: nothing is said.

    >>> round(separable_bound(0.25, 10.0, 10, 20), 4)
    0.2457
    """
    if tail < 0 or norms < 0:
        raise ConfigError(f"tail={tail} and norms={norms} were given; both must be >= 0")
    root = math.sqrt(tail)
    return root * (root - 2 * norms * math.exp(-log_harmonics_count(d, n) / 2))


def neuron_norm_bound(d: int, B: float) -> float:
    """B^2 (1 + 2 sqrt(d)): most that a neuron with weights in [-B, B] can be on unit vectors.

    For activations with |s(z)| <= |z|: |<v, x>| <= B sqrt(d), twice, the bias, the output weight.
    """
    return B * B * (1 + 2 * math.sqrt(d))


def neurons(net: nn.Module) -> tuple[list[Neuron], float]:
    """The neurons of Linear(2d, r), an activation, Linear(r, 1) on (x, x'); and the output bias."""
    layers = list(net) if isinstance(net, nn.Sequential) else [net]
    if (
        len(layers) != 3
        or not isinstance(layers[0], nn.Linear)
        or not isinstance(layers[2], nn.Linear)
        or layers[0].in_features % 2
        or layers[2].out_features != 1
    ):
        raise UnsupportedModuleError(
            f"{[type(layer).__name__ for layer in layers]} is no depth-2 network on pairs; wanted "
            f"nn.Sequential(nn.Linear(2 d, r), activation, nn.Linear(r, 1))"
        )
    first, last = (layer.weight.detach().to(torch.float64) for layer in (layers[0], layers[2]))
    halves = first.chunk(2, -1)
    bias = layers[0].bias
    biases = [0.0] * len(first) if bias is None else bias.tolist()
    parts = zip(*halves, biases, last[0].tolist(), strict=True)
    made = [Neuron(v, v2, b, w, layers[1]) for v, v2, b, w in parts]
    last_bias = layers[2].bias
    return made, 0.0 if last_bias is None else float(last_bias.detach())


def separability_defect(
    g: PairFunction, v: Tensor, v2: Tensor, *, samples: int = 1000, seed: int = 0
) -> float:
    """Largest change of g(x, x') seen when x is turned about v and x' about v'; 0 if separable.

    v and v' need not be unit vectors; a zero vector means that g must not depend on that side.

    >>> v = torch.tensor([1.0, 0.0, 2.0], dtype=torch.float64)
    >>> separability_defect(lambda x, x2: torch.relu(x @ v - x2 @ v), v, v) < 1e-12
    True
    >>> separability_defect(lambda x, x2: (x * x2).sum(-1), v, v) > 0.5
    True
    """
    generator = torch.Generator().manual_seed(seed)
    x, x2 = (directions(samples, len(v), generator) for _ in range(2))
    turned = _turned(x, v, generator), _turned(x2, v2, generator)
    return float((g(x, x2) - g(*turned)).abs().max())


def _turned(x: Tensor, v: Tensor, generator: torch.Generator) -> Tensor:
    """Another unit vector with the same inner product with v."""
    axis = v.to(torch.float64) / v.norm().to(torch.float64) if v.any() else torch.zeros_like(x[0])
    along = (x @ axis)[:, None] * axis
    other = directions(len(x), x.shape[-1], generator)
    across = other - (other @ axis)[:, None] * axis
    length = (1 - along.square().sum(-1, keepdim=True)).clamp(min=0).sqrt()
    return along + length * across / across.norm(dim=-1, keepdim=True)


@torch.no_grad()
def squared_distance(
    f: Callable[[Tensor], Tensor],
    g: PairFunction,
    d: int,
    *,
    samples: int = 100_000,
    seed: int = 0,
) -> Estimate:
    """||f(<x, x'>) - g(x, x')||^2 in L2 of pairs of uniform directions, by Monte Carlo.

    With f = 0 it is the squared norm of g; a sum of separable functions is a g like any other.

    >>> found = squared_distance(lambda t: 0 * t, lambda x, x2: (x * x2).sum(-1), 4)
    >>> abs(found.value - 1 / 4) < 4 * found.standard_error
    True
    """
    if samples < 2:
        raise ConfigError(f"samples={samples} was given; at least 2 are wanted")
    generator = torch.Generator().manual_seed(seed)
    count = total = squares = 0.0
    while count < samples:
        size = min(20_000, samples - int(count))
        x, x2 = (directions(size, d, generator) for _ in range(2))
        gap = (f((x * x2).sum(-1)) - g(x, x2)).square()
        count, total = count + size, total + float(gap.sum())
        squares += float(gap.square().sum())
    mean = total / count
    spread = max(0.0, squares / count - mean * mean)
    return Estimate(mean, math.sqrt(spread / (count - 1)))

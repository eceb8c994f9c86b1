"""The main theorem of "Depth separation for neural networks": both sides measured, and its widths.

A neuron w s(<v, x> + <v', x'> + b) depends on <v, x> and <v', x'> alone: it is (v, v')-separable.
For an inner product function F and separable g_1, ..., g_r

    ||F - sum_j g_j||^2 >= ||P_n F|| (||P_n F|| - 2 sum_j ||g_j|| / sqrt(N_{d,n})).

The slides print "=", which the proof does not claim. The proof writes g_j with diagonal
coefficients only. The others, beta_{ij} L_i^v L_j^v' with i != j, are orthogonal to all h_n and can
only make the left side larger, so dropping them is valid for ">=".

How wide must depth 2 be for sin(pi d^3 <x, x'>)? All widths are logarithms. Take the main theorem
with n = d^2 and weights in [-B, B], B = 2^d. If a network of depth 2 has squared error eps, its
neurons' norms sum to at least sqrt(N) (T - eps) / (2 sqrt(T)), where T = ||P_n F||^2 and
N = N_{d,n}; r neurons and the output bias reach at most r B^2 (1 + 2 sqrt(d)) + B. Therefore

    r >= (sqrt(N) (T - eps) / (2 sqrt(T)) - B) / (B^2 (1 + 2 sqrt(d))) = 2^Omega(d log d).

The slides' conclusion reads "P_n F >= 1/(5 e pi)". The lemma gives that for the square T, for
d >= 25 (where (1 - 1/sqrt(d)) / (4 e pi) >= 1/(5 e pi)). Their width,
sqrt(N) / (20 e pi B^2 (1 + sqrt(4 d)) + 2 B), rests on ||P_n F|| >= 1/(5 e pi), which is less than
is known, and moves the output bias into the denominator; it is below the bound above.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weightloom.construct.inner_products import directions
from weightloom.errors import ConfigError, UnsupportedModuleError
from weightloom_papers.depth_separation.harmonics import log_harmonics_count, polynomial_bound

__all__ = [
    "Estimate",
    "Neuron",
    "SQUARED_ERROR",
    "crossing_dimension",
    "depth2_log2_width",
    "depth3_log2_width",
    "neuron_norm_bound",
    "neurons",
    "printed_depth2_log2_width",
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

    ``tail`` is ||P_n F||^2, as `weightloom_papers.depth_separation.tail` computes it. ``norms`` is
    the sum of ||g_j||, the output bias of a network included. A negative value bounds nothing.

    >>> round(separable_bound(0.25, 10.0, 10, 20), 4)
    0.2457
    """
    if tail < 0 or norms < 0:
        raise ConfigError(f"tail={tail} and norms={norms} were given; both must be >= 0")
    root = math.sqrt(tail)
    return root * (root - 2 * norms * math.exp(-log_harmonics_count(d, n) / 2))


def neuron_norm_bound(d: int, B: float) -> float:
    """B^2 (1 + 2 sqrt(d)), the largest output on unit vectors of a neuron with weights in [-B, B].

    For activations with |s(z)| <= |z|. Both |<v, x>| and |<v', x'>| are at most B sqrt(d), the bias
    and the output weight at most B.
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
    units = [Neuron(v, v2, b, w, layers[1]) for v, v2, b, w in parts]
    last_bias = layers[2].bias
    return units, 0.0 if last_bias is None else float(last_bias.detach())


def separability_defect(
    g: PairFunction, v: Tensor, v2: Tensor, *, samples: int = 1000, seed: int = 0
) -> float:
    """The largest change of g(x, x') when x is rotated about v and x' about v'; 0 if separable.

    Over ``samples`` random pairs and rotations. v and v' need not be unit vectors; a zero vector
    means that g must not depend on that side.

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

    With f = 0 it is the squared norm of g. g may be a sum of separable functions.

    >>> norm = squared_distance(lambda t: 0 * t, lambda x, x2: (x * x2).sum(-1), 4)
    >>> abs(norm.value - 1 / 4) < 4 * norm.standard_error
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


#: The squared L2 error that the slides ask for.
SQUARED_ERROR = 1 / (50 * math.e**2 * math.pi**2)


def depth2_log2_width(
    d: int, *, tail: float | None = None, eps: float = SQUARED_ERROR, log2_B: float | None = None
) -> float:
    """log2 of a lower bound on the width of a depth-2 network with squared error ``eps``.

    ``tail`` is ||P_n F||^2 at n = d^2; by default the lemma's bound (1 - 1/sqrt(d)) / (4 e pi).
    The weights are at most 2^log2_B, by default 2^d. -inf where the theorem gives no bound.

    >>> round(depth2_log2_width(100), 1)
    188.2
    """
    B = _checked(d, log2_B)
    known = polynomial_bound(d**2.5, d * d) if tail is None else tail
    if not 0 < eps < known:
        raise ConfigError(
            f"eps={eps:.4g} was given for a tail of {known:.4g}; a squared error below the tail is "
            f"wanted, because a polynomial reaches the tail"
        )
    reached = log_harmonics_count(d, d * d) / 2 / math.log(2)
    reached += math.log2((known - eps) / (2 * math.sqrt(known)))
    if reached <= B:
        return -math.inf
    left = reached + math.log2(-math.expm1((B - reached) * math.log(2)))
    return left - 2 * B - math.log2(1 + 2 * math.sqrt(d))


def printed_depth2_log2_width(d: int) -> float:
    """log2 of sqrt(N_{d,d^2}) / (20 e pi 2^(2d) (1 + sqrt(4d)) + 2^(d+1)), as printed.

    >>> printed_depth2_log2_width(18) < 0 < printed_depth2_log2_width(19)
    True
    """
    B = _checked(d, None)
    many = 2 * B + math.log2(20 * math.e * math.pi * (1 + math.sqrt(4 * d)))
    below = many + math.log1p(2 ** (B + 1 - many)) / math.log(2)
    return log_harmonics_count(d, d * d) / 2 / math.log(2) - below


def depth3_log2_width(d: int, eps: float = math.sqrt(SQUARED_ERROR)) -> float:
    """log2 of 16 pi d^5 / eps, the depth-3 width for the same function and largest error ``eps``.

    By default the largest error is the root of `SQUARED_ERROR`, which makes the squared L2 error at
    most that.
    """
    return math.log2(16 * math.pi / eps) + 5 * math.log2(d)


def crossing_dimension(
    lower: Callable[[int], float] = depth2_log2_width,
    upper: Callable[[int], float] = lambda d: 0.0,
    *,
    last: int = 10_000,
) -> int:
    """The least dimension from which on ``lower(d) > upper(d)``, up to ``last``.

    Both return log2 of a width; ``upper`` is one neuron by default.

    >>> crossing_dimension(printed_depth2_log2_width)
    19
    >>> crossing_dimension(printed_depth2_log2_width, depth3_log2_width)
    41
    """
    for d in range(last, 1, -1):
        if not lower(d) > upper(d):
            if d == last:
                raise ConfigError(
                    f"at d={last} the lower bound is still below (2^{lower(d):.1f} against "
                    f"2^{upper(d):.1f}); raise last"
                )
            return d + 1
    return 2


def _checked(d: int, log2_B: float | None) -> float:
    if d < 2:
        raise ConfigError(f"d={d} was given; a dimension of at least 2 is wanted")
    return float(d) if log2_B is None else log2_B

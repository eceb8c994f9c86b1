"""Networks of depth 3 for f(<x, x'>) on pairs of unit vectors, with certificates.

Two networks of depth 2 are composed ("Depth separation for neural networks"):

    N_i   <x, x'> = |x + x'|^2 / 2 - 1 = sum_i (x_i + x'_i)^2 / 2 - 1, each square interpolated
    N_f   f interpolated on [-1, 1] and continued by its last slopes: L-Lipschitz on the whole line

    |N_f(N_i) - f(<x, x'>)| <= L |N_i - <x, x'>| + |N_f - f|.

N_i has no activation at its end, so the layers in between merge into one matrix and N_f o N_i has
depth 3.

The printed networks are wider than needed. An interpolant of an L-Lipschitz function with spacing h
is off by at most L h / 2, not L h, so half of the units suffice. The interpolant of s^2 / 2 is off
by at most h^2 / 8, always above; lowered by half of that, by at most h^2 / 16. Then N_i needs
d ceil(sqrt(d / delta) / 2) * 2 units for precision delta instead of 8 d^2 / delta. Widths need
ceilings either way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from weightloom.construct.certified import Certified
from weightloom.construct.checks import (
    MAX_SHALLOW_NODES,
    limit_nodes,
    require_positive,
    round_up,
)
from weightloom.construct.grid import Box, Grid, Regularity
from weightloom.construct.interpolation import node_values
from weightloom.construct.layers import Entries, dense_layer
from weightloom.errors import ConfigError

__all__ = [
    "SpherePairs",
    "depth3",
    "depth3_width_bound",
    "directions",
    "inner_product_network",
    "lipschitz_network",
]


def directions(count: int, d: int, generator: torch.Generator | None = None) -> Tensor:
    """Uniform unit vectors, [count, d], float64."""
    return F.normalize(torch.randn(count, d, dtype=torch.float64, generator=generator), dim=-1)


@dataclass(frozen=True)
class SpherePairs(Box):
    """Points (x, x') in R^(2d) with |x| = |x'| = 1, as a `Box` around them.

    The points that `Certified.verify` evaluates stay on the spheres: samples are uniform, the grid
    has evenly spaced inner products (uniform directions have inner products near 0 if d is large,
    and would never reach -1 or 1), and `clamp` rescales both halves.
    """

    @classmethod
    def of(cls, d: int) -> SpherePairs:
        if d < 2:
            raise ConfigError(f"d={d} was given; a sphere needs a dimension of at least 2")
        return cls((-1.0,) * (2 * d), (1.0,) * (2 * d))

    @property
    def d(self) -> int:
        return self.dims // 2

    def grid(self, points: int) -> Tensor:
        """[points, 2d]: inner products evenly from -1 to 1, random directions with a fixed seed."""
        generator = torch.Generator().manual_seed(0)
        x = directions(points, self.d, generator)
        other = torch.randn(points, self.d, dtype=torch.float64, generator=generator)
        orthogonal = F.normalize(other - (other * x).sum(-1, keepdim=True) * x, dim=-1)
        t = torch.linspace(-1, 1, points, dtype=torch.float64)[:, None]
        return self.clamp(torch.cat([x, t * x + (1 - t * t).sqrt() * orthogonal], -1))

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        pairs = directions(2 * count, self.d, generator)
        return pairs.reshape(count, 2 * self.d)

    def clamp(self, points: Tensor) -> Tensor:
        halves = points.unflatten(-1, (2, self.d))
        return F.normalize(halves, dim=-1).flatten(-2)


OneDimensional = Callable[[Tensor], Tensor]


# Entries of the middle matrix, which is dense: 800 MB in double precision.
MAX_ENTRIES = 100_000_000


@dataclass(frozen=True)
class _Line:
    """offset + sum_i gamma_i relu(alpha_i x + beta_i), alpha_i = 1 or -1."""

    offset: float
    alpha: Tensor
    beta: Tensor
    gamma: Tensor

    def __len__(self) -> int:
        return len(self.alpha)

    def size(self, reach: float) -> float:
        """sum_i |gamma_i| (reach + |beta_i|): what rounding scales with for |x| <= reach."""
        return float((self.gamma.abs() * (reach + self.beta.abs())).sum())


def _line(values: Tensor, radius: float) -> _Line:
    """Interpolates values [2k + 1] at even places from -radius to radius, the middle one at 0."""
    k = len(values) // 2
    h = radius / k
    alpha, beta, gamma = [], [], []
    for sign, side in ((1.0, values[k:]), (-1.0, values[: k + 1].flip(0))):
        slopes = side.diff() / h
        gamma.append(slopes.diff(prepend=slopes.new_zeros(1)))
        beta.append(-h * torch.arange(k, dtype=torch.float64))
        alpha.append(torch.full((k,), sign, dtype=torch.float64))
    return _Line(float(values[k]), torch.cat(alpha), torch.cat(beta), torch.cat(gamma))


def lipschitz_network(
    f: OneDimensional,
    *,
    radius: float = 1.0,
    lipschitz: float,
    eps: float,
    printed: bool = False,
    dtype: torch.dtype = torch.float64,
    sparse: bool | None = None,
    max_nodes: int = MAX_SHALLOW_NODES,
) -> Certified:
    """f(0) + sum_i gamma_i relu(alpha_i x + beta_i), within ``eps`` of f on [-radius, radius].

    f maps [n] to [n] and is ``lipschitz`` (L); so is the network, on the whole line. alpha_i is 1
    or -1, |beta_i| <= radius, |gamma_i| <= 2 L, and 2 ceil(radius L / (2 eps)) units suffice;
    ``printed`` takes the spacing of the slides, 2 ceil(radius L / eps) units.

    >>> c = lipschitz_network(torch.sin, lipschitz=1.0, eps=0.01)
    >>> c.nodes, c.verify().error < 0.01
    (100, True)
    """
    line, error = _approximate(f, radius, lipschitz, eps, printed, max_nodes)
    units, zero = torch.arange(len(line)), torch.zeros(len(line), dtype=torch.int64)
    first = Entries(len(line), 1).add(units, zero, line.alpha)
    first.bias += line.beta
    last = Entries(1, len(line)).add(zero, units, line.gamma)
    last.bias += line.offset
    network = nn.Sequential(first.layer(dtype, sparse), nn.ReLU(), last.layer(dtype, sparse))
    # A sum of n terms is off by at most n u sum|terms|; u = eps / 2, the rest for rounded weights.
    rounding = _ulp(dtype, len(line)) * (line.size(radius) + abs(line.offset))
    box = Box((-radius,), (radius,))
    return Certified.of(network, error + rounding, box, lambda p: f(p[:, 0]))


def inner_product_network(
    d: int,
    eps: float,
    *,
    printed: bool = False,
    dtype: torch.dtype = torch.float64,
    sparse: bool | None = None,
    max_nodes: int = MAX_SHALLOW_NODES,
) -> Certified:
    """<x, x'> for unit vectors in R^d within ``eps``, by a network of depth 2 on (x, x').

    2 d ceil(sqrt(d / eps) / 2) units; ``printed``: 2 d ceil(4 d / eps), the slides' 8 d^2 / eps.

    >>> inner_product_network(4, 0.01).nodes, inner_product_network(4, 0.01, printed=True).nodes
    (80, 12800)
    """
    square, count, error = _squares(d, eps, printed, max_nodes)
    first = _shared_layer(square, d)
    units = torch.arange(count)
    last = Entries(1, count).add(torch.zeros_like(units), units, square.gamma.repeat(d))
    constant = _constant(square, d)
    last.bias += constant
    network = nn.Sequential(first.layer(dtype, sparse), nn.ReLU(), last.layer(dtype, sparse))
    rounding = _ulp(dtype, count) * (d * square.size(2.0) + abs(constant) + 1)
    return Certified.of(network, error + rounding, SpherePairs.of(d), _dot)


def depth3(
    f: OneDimensional,
    d: int,
    *,
    lipschitz: float,
    eps: float,
    printed: bool = False,
    dtype: torch.dtype = torch.float64,
    sparse: bool | None = None,
    max_nodes: int = MAX_SHALLOW_NODES,
) -> Certified:
    """N_F = N_f o N_i: f(<x, x'>) for unit vectors within ``eps``, by a network of depth 3.

    f is L-Lipschitz on [-1, 1] (``lipschitz``). Half of eps goes to N_f and half, divided by L, to
    N_i. ``printed`` builds the network of the slides, whose wider layer has at most 16 d^2 L / eps
    units up to rounding up (`depth3_width_bound`); the default is far narrower. ``domain`` is
    `SpherePairs`: the certificate is about unit vectors only. The bound on rounding assumes that
    every unit of the middle layer is off in the worst direction; in float32 it often exceeds eps.

    >>> c = depth3(lambda t: torch.sin(9 * t), 3, lipschitz=9.0, eps=0.1)
    >>> c.layers, c.verify().error < 0.1
    (3, True)
    """
    outer, outer_error = _approximate(f, 1.0, lipschitz, eps / 2, printed, max_nodes)
    square, count, inner_error = _squares(d, eps / (2 * lipschitz), printed, max_nodes)
    if count + len(outer) > max_nodes or count * len(outer) > MAX_ENTRIES:
        raise ConfigError(
            f"this needs {count:,} + {len(outer):,} nodes and a middle matrix of "
            f"{count * len(outer):,} entries, more than max_nodes={max_nodes:,} or "
            f"{MAX_ENTRIES:,} entries; allow a larger eps, or printed=False"
        )
    constant = _constant(square, d)
    middle = outer.alpha[:, None] * square.gamma.repeat(d)
    network = nn.Sequential(
        _shared_layer(square, d).layer(dtype, sparse),
        nn.ReLU(),
        dense_layer(middle.to(dtype), (outer.beta + outer.alpha * constant).to(dtype)),
        nn.ReLU(),
        dense_layer(outer.gamma[None].to(dtype), torch.tensor([outer.offset], dtype=dtype)),
    )
    # Each middle unit has its own rounding error of at most `inside`, weighted by |gamma|.
    inside = _ulp(dtype, count) * (d * square.size(2.0) + abs(constant) + 2)
    total = float(outer.gamma.abs().sum())
    rounding = total * inside + _ulp(dtype, len(outer)) * (outer.size(2.0) + abs(outer.offset))
    bound = outer_error + lipschitz * inner_error + rounding
    return Certified.of(network, bound, SpherePairs.of(d), lambda p: f(_dot(p)))


def depth3_width_bound(d: int, lipschitz: float, eps: float) -> float:
    """16 d^2 L / eps: the width of the slides' depth-3 network.

    >>> depth3_width_bound(3, math.pi * 27, 0.1) == 16 * math.pi * 3**5 / 0.1
    True
    """
    return 16 * d * d * lipschitz / eps


def _approximate(
    f: OneDimensional, radius: float, lipschitz: float, eps: float, printed: bool, max_nodes: int
) -> tuple[_Line, float]:
    """The interpolant of f and a bound on its error, before rounding."""
    for name, value in (("radius", radius), ("lipschitz", lipschitz), ("eps", eps)):
        require_positive(name, value)
    k = round_up(radius * lipschitz / (eps if printed else 2 * eps))
    limit_nodes(2 * k, max_nodes, "this")
    grid = Grid(Box((-radius,), (radius,)), (2 * k + 1,), corners=True)
    values = node_values(lambda p: f(p[:, 0]), grid)
    Regularity(lipschitz, "1").check(grid, values)
    return _line(values[:, 0], radius), lipschitz * radius / k / 2


def _squares(d: int, eps: float, printed: bool, max_nodes: int) -> tuple[_Line, int, float]:
    """s^2 / 2 on [-2, 2] for one coordinate, units for all d, a bound on the error of the sum."""
    if d < 2 or not 0 < eps < math.inf:
        raise ConfigError(f"d={d} and eps={eps} were given; d >= 2 and a positive eps are wanted")
    # As printed: each square is 2-Lipschitz on [-2, 2] and gets eps / d, so h <= eps / (2 d).
    k = round_up(4 * d / eps if printed else math.sqrt(d / eps) / 2)
    count = 2 * k * d
    advice = "allow a larger eps or take printed=False" if printed else "allow a larger eps"
    limit_nodes(count, max_nodes, "the inner product", advice)
    s = torch.linspace(-2, 2, 2 * k + 1, dtype=torch.float64)
    h = 2 / k
    return _line(s * s / 2 - h * h / 16, 2.0), count, d * h * h / 16


def _shared_layer(square: _Line, d: int) -> Entries:
    """alpha_j (x_i + x'_i) + beta_j for all coordinates i and units j."""
    count = len(square)
    layer = Entries(d * count, 2 * d)
    rows = torch.arange(d * count)
    columns = rows // count
    alpha = square.alpha.repeat(d)
    layer.add(rows, columns, alpha).add(rows, columns + d, alpha)
    layer.bias += square.beta.repeat(d)
    return layer


def _constant(square: _Line, d: int) -> float:
    return d * square.offset - 1


def _dot(points: Tensor) -> Tensor:
    x, other = points.chunk(2, -1)
    return (x * other).sum(-1)


def _ulp(dtype: torch.dtype, terms: int) -> float:
    return (terms + 8) * float(torch.finfo(dtype).eps)

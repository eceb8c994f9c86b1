"""The networks that claims are checked on: how they are built, compared and evaluated.

Networks in float64 and their distance; the examples of the slides beyond plain layers (pooling,
residual layers, attention), each a pair of equivalent networks with different weights; many
networks of one shape at once, with packings and covers.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from weightloom.errors import ConfigError, ShapeError
from weightloom_papers.claims import Evidence, Statement

__all__ = [
    # Networks in float64, and how far they are apart
    "EPS",
    "AppliedFunction",
    "OutputGap",
    "compare",
    "gap",
    "judged",
    "linears",
    "network",
    "points",
    "rounding",
    "trained",
    "twin",
    "worst",
    "worst_of_each",
    # Examples of the slides
    "PooledRegions",
    "ResidualLayer",
    "attention_map",
    "attention_pair",
    "pooling_pair",
    "residual_difference",
    # Many networks at once
    "ball",
    "cover_size",
    "distances",
    "outputs",
    "packing_size",
]

EPS = torch.finfo(torch.float64).eps


class AppliedFunction(nn.Module):
    """A function as an activation layer."""

    def __init__(self, function: Callable[[Tensor], Tensor], name: str) -> None:
        super().__init__()
        self.function, self.name = function, name

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)

    def extra_repr(self) -> str:
        return self.name


@torch.no_grad()
def network(sizes: Sequence[int], activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with normal weights (variance 1 / inputs) and biases, activations between."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layer = nn.Linear(inputs, outputs, dtype=torch.float64)
        layer.weight.copy_(torch.randn(outputs, inputs) / math.sqrt(inputs))
        layer.bias.copy_(torch.randn(outputs))
        layers += [layer, activation()]
    return nn.Sequential(*layers[:-1])


def linears(net: nn.Module) -> list[nn.Linear]:
    """The linear layers, in order."""
    return [part for part in net.modules() if isinstance(part, nn.Linear)]


def twin(net: nn.Sequential) -> nn.Sequential:
    """A copy whose weights may be changed."""
    return copy.deepcopy(net).requires_grad_(False)


def trained(net: nn.Sequential, x: Tensor, y: Tensor, steps: int) -> nn.Sequential:
    """The network itself after steps of gradient descent on the squared error, rate 0.1."""
    net.requires_grad_(True)
    for _ in range(steps):
        slopes = torch.autograd.grad(F.mse_loss(net(x), y), list(net.parameters()))
        with torch.no_grad():
            for p, slope in zip(net.parameters(), slopes, strict=True):
                p.sub_(0.1 * slope)
    return net.requires_grad_(False)


def points(count: int, size: int) -> Tensor:
    """Normal inputs with standard deviation 3, so that activations are not nearly linear."""
    return 3 * torch.randn(count, size, dtype=torch.float64)


@torch.no_grad()
def gap(a: nn.Module, b: nn.Module, x: Tensor) -> float:
    """Largest difference of outputs."""
    return float((a(x) - b(x)).abs().max())


@torch.no_grad()
def rounding(net: nn.Sequential, x: Tensor) -> float:
    """The largest difference of outputs that rounding explains, for two networks of this size.

    A sum of n products is off by at most n eps times the sum of their sizes; sizes are propagated
    through the layers with absolute weights. Twice for rounded weights, twice for two networks;
    activations here have slopes of at most 1.2.
    """
    size, steps = x.abs(), 0
    for part in net:
        if isinstance(part, nn.Linear):
            size = size @ part.weight.abs().T + part.bias.abs()
            steps += part.in_features + 2
        else:
            size = 1.2 * size + float(part(torch.zeros(1, dtype=x.dtype)).abs())
    return 4 * EPS * steps * float(size.max())


@dataclass(frozen=True)
class OutputGap:
    """The largest difference of outputs, what rounding explains, and where it was seen."""

    seen: float
    allowed: float
    where: str

    def evidence(self) -> Evidence:
        text = f"{self.where}: outputs differ by at most {self.seen:.2g}"
        return Evidence(self.seen, self.allowed, f"{text} (rounding: {self.allowed:.1g})")


def compare(a: nn.Sequential, b: nn.Sequential, x: Tensor, where: str) -> OutputGap:
    """How far the outputs of b are from those of a, and what rounding explains."""
    return OutputGap(gap(a, b, x), max(rounding(a, x), rounding(b, x)), where)


def worst(gaps: Sequence[OutputGap]) -> OutputGap:
    """The gap that is furthest beyond rounding."""
    return max(gaps, key=lambda gap: gap.seen / gap.allowed)


def worst_of_each(gaps: Mapping[str, Sequence[OutputGap]]) -> dict[str, OutputGap]:
    """The worst gap of each statement."""
    return {statement: worst(own) for statement, own in gaps.items()}


def judged(text: str, key: str) -> Statement:
    """A statement about the entry ``key`` of a measured ``dict[str, OutputGap]``."""
    return Statement(text, lambda measured: measured[key].evidence())


_POOLS = ("max", "min", "mean")


class PooledRegions(nn.Module):
    """Pool(W x + b): one number for each region, which is a set of rows.

    ``regions`` are disjoint lists of rows; ``pool`` is "max", "min" or "mean".
    """

    def __init__(
        self, weight: Tensor, bias: Tensor, regions: Sequence[Sequence[int]], pool: str = "max"
    ) -> None:
        super().__init__()
        rows = [row for region in regions for row in region]
        if len(set(rows)) != len(rows) or not all(0 <= row < len(weight) for row in rows):
            raise ConfigError(
                f"regions {[list(region) for region in regions]} overlap or leave the rows 0 to "
                f"{len(weight) - 1}; each row may be in one region only"
            )
        if pool not in _POOLS:
            raise ConfigError(f"pool is {pool!r}; use one of {', '.join(_POOLS)}")
        if len(bias) != len(weight):
            raise ShapeError(f"bias has {len(bias)} entries, weight has {len(weight)} rows")
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)
        self.regions, self.pool = [list(region) for region in regions], pool

    def forward(self, x: Tensor) -> Tensor:  # [b, n] -> [b, regions]
        rows = F.linear(x, self.weight, self.bias)
        return torch.stack([self._pooled(rows[..., region]) for region in self.regions], -1)

    def _pooled(self, values: Tensor) -> Tensor:
        if self.pool == "mean":
            return values.mean(-1)
        return values.amax(-1) if self.pool == "max" else values.amin(-1)


def pooling_pair(
    network: PooledRegions, generator: torch.Generator
) -> tuple[PooledRegions, PooledRegions]:
    """The network, and one with its rows permuted at random inside each region.

    Printed: "(P W_2)_I equals (W_1)_I up to row permutations" for each region I, biases with them.
    """
    order = torch.arange(len(network.weight))
    for region in network.regions:
        order[region] = torch.tensor(region)[torch.randperm(len(region), generator=generator)]
    weight, bias = network.weight.detach(), network.bias.detach()
    moved = PooledRegions(weight[order], bias[order], network.regions, network.pool)
    return network, moved


class ResidualLayer(nn.Module):
    """x + F(x)."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        if out.shape != x.shape:
            raise ShapeError(
                f"F(x) has shape {list(out.shape)}, x has {list(x.shape)}; a residual layer adds "
                "them, so F must keep the shape"
            )
        return x + out


def residual_difference(a: nn.Module, b: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """F_1(x) - F_2(x), and the same between the residual layers x + F_1 and x + F_2.

    Printed: x + F_1 and x + F_2 are equivalent if and only if F_1 and F_2 are. The two differences
    are the same number: x cancels.
    """
    return a(x) - b(x), ResidualLayer(a)(x) - ResidualLayer(b)(x)


def attention_map(x: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Softmax(X W_Q W_K' X' / sqrt(d_k)) X W_V, softmax over each row.

    x [..., n, d], query and key [d, d_k], value [d, d_v]: [..., n, d_v].
    """
    if query.shape != key.shape:
        raise ShapeError(
            f"query is {list(query.shape)}, key is {list(key.shape)}; they need the same shape"
        )
    scores = (x @ query) @ (x @ key).transpose(-1, -2) / query.shape[1] ** 0.5
    return scores.softmax(-1) @ x @ value


def attention_pair(
    query: Tensor,
    key: Tensor,
    matrix: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Other query and key weights with the same attention map: W_Q A and W_K A^-T.

    The slides state this for permutation matrices A. It holds for any invertible A, since only
    W_Q W_K' matters and (W_Q A)(W_K A^-T)' = W_Q W_K'. Without a ``matrix``, A is the exponential
    of a random matrix, which is invertible.
    """
    if matrix is None:
        normal = torch.randn(query.shape[1], query.shape[1], generator=generator).to(query)
        matrix = torch.linalg.matrix_exp(normal / query.shape[1] ** 0.5)
    if matrix.shape != (query.shape[1],) * 2:
        raise ShapeError(
            f"the matrix is {list(matrix.shape)}, but queries have {query.shape[1]} entries"
        )
    inverse, failed = torch.linalg.inv_ex(matrix)
    if bool(failed):
        raise ConfigError("the matrix has no inverse; give an invertible one")
    return query @ matrix, key @ inverse.T


@torch.no_grad()
def outputs(sizes: Sequence[int], theta: Tensor, x: Tensor) -> Tensor:
    """ReLU networks with parameters theta [n, S] at inputs [p, d_0]: [n, p * outputs].

    One module, called with each row in place of its own weights and biases.
    """
    net = network(sizes)
    names = list(dict(net.named_parameters()))
    shapes = [p.shape for p in net.parameters()]
    parts = theta.split([shape.numel() for shape in shapes], 1)
    stacked = {
        name: part.reshape(-1, *shape)
        for name, part, shape in zip(names, parts, shapes, strict=True)
    }
    values = torch.vmap(lambda weights: functional_call(net, weights, (x,)))(stacked)
    return values.flatten(1)


def ball(count: int, size: int, radius: float) -> Tensor:
    """Inputs of 2-norm at most ``radius``: random ones, and those along the diagonal and axes."""
    inside = torch.randn(count, size, dtype=torch.float64)
    inside *= radius * torch.rand(count, 1, dtype=torch.float64) / inside.norm(dim=1, keepdim=True)
    diagonal = torch.full((1, size), radius / size**0.5, dtype=torch.float64)
    axes = radius * torch.eye(size, dtype=torch.float64)
    return torch.cat([inside, diagonal, -diagonal, axes, -axes])


def distances(values: Tensor) -> Tensor:
    """Largest difference of outputs between any two rows: [n, n]."""
    return torch.cdist(values, values, p=float("inf"))


def packing_size(apart: Tensor, radius: float) -> int:
    """Size of a greedy packing: members that are pairwise more than ``radius`` apart.

    No ball of half the radius holds two of them, so a cover with that radius needs as many.
    """
    free = torch.ones(len(apart), dtype=torch.bool)
    count = 0
    for member in range(len(apart)):
        if bool(free[member]):
            count += 1
            free &= apart[member] > radius
    return count


def cover_size(apart: Tensor, radius: float) -> int:
    """Size of the smallest set of members that has one within ``radius`` of each (Definition 2).

    All subsets are tried.
    """
    count = len(apart)
    near = [sum(1 << j for j in range(count) if float(apart[i, j]) <= radius) for i in range(count)]
    best = count
    for chosen in range(1, 1 << count):
        if chosen.bit_count() < best:
            covered = 0
            for i in range(count):
                if chosen >> i & 1:
                    covered |= near[i]
            if covered == (1 << count) - 1:
                best = chosen.bit_count()
    return best

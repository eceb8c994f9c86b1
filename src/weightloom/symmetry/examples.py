"""The examples of 002 beyond plain layers: pooling regions, residual layers, attention maps.

Each function returns two networks (or maps) that are equivalent although their weights differ.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weightloom.errors import ConfigError, ShapeError

__all__ = [
    "PooledRegions",
    "ResidualLayer",
    "attention_map",
    "attention_pair",
    "pooling_pair",
    "residual_difference",
]

_POOLS = ("max", "min", "mean")


class PooledRegions(nn.Module):
    """Pool(W x + b): one number for each region, a set of rows (002, permutation within regions).

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
    """The network and one whose rows are exchanged at random inside each region.

    002: "(P W_2)_I equals (W_1)_I up to row permutations" for each region I, biases with them.
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

    002: x + F_1 and x + F_2 are equivalent if and only if F_1 and F_2 are. The two differences are
    the same number: x cancels.
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

    002 states this for permutation matrices A; any invertible A will do, since only W_Q W_K'
    matters and (W_Q A)(W_K A^-T)' = W_Q W_K'. Without a ``matrix`` A is the exponential of a random
    matrix, which is invertible.
    """
    if matrix is None:
        drawn = torch.randn(query.shape[1], query.shape[1], generator=generator).to(query)
        matrix = torch.linalg.matrix_exp(drawn / query.shape[1] ** 0.5)
    if matrix.shape != (query.shape[1],) * 2:
        raise ShapeError(
            f"the matrix is {list(matrix.shape)}, but queries have {query.shape[1]} entries"
        )
    inverse, failed = torch.linalg.inv_ex(matrix)
    if bool(failed):
        raise ConfigError("the matrix has no inverse; any invertible matrix will do")
    return query @ matrix, key @ inverse.T

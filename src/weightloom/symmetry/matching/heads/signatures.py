"""Which head of b belongs to which head of a: random projections of what heads compute.

A head depends on Q^T K and O V alone. With a few random vectors X and Y, X^T Q^T K Y is a small
matrix that no map inside the head changes. It costs one product of each factor with a few vectors.
With RoPE, the product of each rotated plane is a complex number that rotates with the distance of
query and key; sums over planes with random phases take its place.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from weightloom.symmetry.matching.heads.factors import HeadFactors
from weightloom.symmetry.matching.keys import project, working

__all__ = ["HeadCandidates", "candidates", "signatures"]

_VECTORS = 4
_PHASES = 2  # sums over rotated planes, each with random phases


@dataclass(frozen=True)
class HeadCandidates:
    """Proposed partners: head i of a belongs to head ``heads[i]`` of b; groups likewise.

    ``near`` [groups, groups] (a, b): pairs of groups that the projections do not tell apart from
    partners. ``distances`` [heads, heads]: squared distances of signatures.
    """

    heads: Tensor
    groups: Tensor
    near: Tensor
    distances: Tensor

    def of_group(self, a: int, b: int) -> Tensor:
        """The heads of group b of the second network, in the order of those of group a."""
        shared = len(self.heads) // len(self.groups)
        block = self.distances[a * shared : (a + 1) * shared, b * shared : (b + 1) * shared]
        return b * shared + torch.as_tensor(linear_sum_assignment(block.numpy())[1])


def candidates(a: HeadFactors, b: HeadFactors, tolerance: float) -> HeadCandidates:
    """The assignment of heads and groups with the smallest sum of squared distances."""
    distances = torch.zeros(a.heads, a.heads, dtype=torch.float64)
    near = torch.ones(a.heads, a.heads, dtype=torch.bool)
    for (first, size_a), (second, size_b) in zip(signatures(a), signatures(b), strict=True):
        gap = torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist")
        gap = gap.nan_to_num(1e150)
        length = torch.maximum(first.norm(dim=1)[:, None], second.norm(dim=1))
        distances += (gap / length.nan_to_num(1.0).clamp_min(1e-300)).clamp_max(1e6).square()
        # Rounding moves a sum of d products by eps / 2 of their size / sqrt(d), and the sizes may
        # be larger than the sums. Four times that, or what the tolerance allows.
        noise = max(4 * a.eps, tolerance) * torch.maximum(size_a[:, None], size_b)
        near &= gap <= noise
    groups = a.groups
    blocks = distances.reshape(groups, a.shared, groups, a.shared).transpose(1, 2)
    costs = torch.stack([_costs(row) for row in blocks])
    order = torch.as_tensor(linear_sum_assignment(costs.numpy())[1])
    similar = near.reshape(groups, a.shared, groups, a.shared).any(3).all(1)
    result = HeadCandidates(torch.zeros(a.heads, dtype=torch.long), order, similar, distances)
    parts = [result.of_group(i, int(j)) for i, j in enumerate(order)]
    return HeadCandidates(torch.cat(parts), order, similar, distances)


def _costs(blocks: Tensor) -> Tensor:
    """The smallest sum of distances [groups] of the heads of one group and those of each other."""
    if blocks.shape[1] == 1:
        return blocks[:, 0, 0]
    sums = []
    for block in blocks.numpy():
        rows, columns = linear_sum_assignment(block)
        sums.append(float(block[rows, columns].sum()))
    return torch.tensor(sums, dtype=torch.float64)


def signatures(block: HeadFactors) -> list[tuple[Tensor, Tensor]]:
    """For Q^T K and O V: real signatures [heads, numbers], and the size of what was summed [heads].

    No permutation of heads and no map changes a head's row.
    """
    generator = torch.Generator().manual_seed(0)
    queries = _projected(block.query, block.query_bias, generator)
    keys = _projected(block.key, block.key_offset(), generator).repeat_interleave(block.shared, 0)
    values = _projected(block.value, None, generator).repeat_interleave(block.shared, 0)
    outputs = _projected(block.output.transpose(1, 2), None, generator)
    scores = _score_products(block, queries, keys, generator)
    return [(scores, _size(queries, keys)), (_flat(outputs.mT @ values), _size(outputs, values))]


def _score_products(
    block: HeadFactors, queries: Tensor, keys: Tensor, generator: torch.Generator
) -> Tensor:
    if block.rotary is None:
        return _flat(queries.mT @ keys)
    rest = block.rest()
    parts = [_flat(queries[:, rest].mT @ keys[:, rest])]
    first, second = block.rotary.t()
    rotated = [torch.complex(x[:, first], x[:, second]) for x in (queries, keys)]
    for _ in range(_PHASES):
        angles = 6.283185307179586 * torch.rand(len(first), 1, generator=generator).double()
        phases = torch.polar(torch.ones_like(angles), angles)
        parts.append(_flat(torch.view_as_real(rotated[0].mH @ (phases * rotated[1]))))
    return torch.cat(parts, 1)


def _projected(weight: Tensor, bias: Tensor | None, generator: torch.Generator) -> Tensor:
    """Blocks [heads, rows, columns] times random vectors, in float64: [heads, rows, vectors]."""
    probes = torch.randn(weight.shape[2], _VECTORS, generator=generator, dtype=torch.float64)
    extra = torch.randn(_VECTORS, generator=generator, dtype=torch.float64)
    rows = project(weight.reshape(-1, weight.shape[2]), probes.to(working(weight.dtype)))
    result = rows.reshape(*weight.shape[:2], _VECTORS)
    return result if bias is None else result + bias.double()[..., None] * extra


def _flat(products: Tensor) -> Tensor:
    return products.flatten(1)


def _size(x: Tensor, y: Tensor) -> Tensor:
    """Typical size of the sums of products of two projections [heads]."""
    return x.flatten(1).norm(dim=1) * y.flatten(1).norm(dim=1) / max(x.shape[1], 1) ** 0.5

"""The weights of one attention block, head by head, as the matching of heads reads them.

A head h that uses the keys and values of group g scores a query x against a key y by
(Q_h x + b_Q)^T R (K_g y + b_K), where R is the rotation for their distance (RoPE) or the identity,
and writes O_h (V_g y + b_V). So a block is made of products of *pairs of factors*: queries with
keys, values with outputs. Each pair may be multiplied by a matrix of its group and its inverse,

    Q_h -> A Q_h, K_g -> A^-T K_g        V_g -> B V_g, O_h -> O_h B^-1,

without any change. With RoPE, A must commute with the rotations: in each plane that is rotated it
is a rotation times a number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from weightloom.errors import ShapeError

__all__ = ["HeadFactors", "rotary_pairs"]


def rotary_pairs(dimension: int, rotated: int | None = None, interleaved: bool = False) -> Tensor:
    """The two coordinates of each plane that RoPE rotates [planes, 2].

    The first ``rotated`` of a head's coordinates (all of them by default) are rotated: i with
    i + rotated / 2 (Llama, GPT-NeoX), or 2 i with 2 i + 1 if they are ``interleaved`` (GPT-J).

    >>> rotary_pairs(6, rotated=4).tolist(), rotary_pairs(4, interleaved=True).tolist()
    ([[0, 2], [1, 3]], [[0, 1], [2, 3]])
    """
    rotated = dimension if rotated is None else rotated
    if rotated % 2 or not 0 < rotated <= dimension:
        raise ShapeError(
            f"{rotated} of {dimension} coordinates are rotated; an even number from 2 to "
            f"{dimension} is wanted"
        )
    every = torch.arange(rotated)
    return every.reshape(-1, 2) if interleaved else every.reshape(2, -1).t()


@dataclass(frozen=True)
class HeadFactors:
    """The weights of one attention block with H heads in G groups of H / G consecutive heads.

    ``query`` [H, d, E], ``key`` [G, d, E], ``value`` [G, c, E], ``output`` [H, F, c], biases
    ``query_bias`` [H, d], ``key_bias`` [G, d], ``value_bias`` [G, c], ``output_bias`` [F]; None
    for a bias that the block does not have. Queries and keys may read inputs of different sizes.
    ``rotary`` [planes, 2]: the coordinates that RoPE rotates together, see `rotary_pairs`.
    ``key_bias_cancels``: softmax runs over the keys of this block alone, so that what the key bias
    adds to all scores of a query has no effect (not so with add_zero_attn).

    >>> block = HeadFactors(*(torch.randn(4, 2, 8) for _ in range(3)), torch.randn(4, 8, 2))
    >>> block.heads, block.groups
    (4, 4)
    """

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    query_bias: Tensor | None = None
    key_bias: Tensor | None = None
    value_bias: Tensor | None = None
    output_bias: Tensor | None = None
    rotary: Tensor | None = None
    key_bias_cancels: bool = True

    def __post_init__(self) -> None:
        for name in ("query", "key", "value", "output"):
            if getattr(self, name).dim() != 3:
                shape = list(getattr(self, name).shape)
                raise ShapeError(f"{name} has shape {shape}; [heads, rows, columns] is wanted")
        heads, groups, (d, c) = len(self.query), len(self.key), (self.rows, self.value.shape[1])
        if groups == 0 or heads % groups:
            raise ShapeError(f"{heads} heads cannot share {groups} groups of keys equally")
        self._expect("key", (groups, d, None))
        self._expect("value", (groups, c, self.key.shape[2]))
        self._expect("output", (heads, None, c))
        self._expect("query_bias", (heads, d))
        self._expect("key_bias", (groups, d))
        self._expect("value_bias", (groups, c))
        self._expect("output_bias", (self.output.shape[1],))
        if self.rotary is not None:
            self._expect("rotary", (None, 2))
            flat = self.rotary.flatten()
            if len(flat.unique()) < len(flat) or not bool(((flat >= 0) & (flat < d)).all()):
                raise ShapeError(
                    f"rotary pairs {self.rotary.tolist()}: every coordinate of 0 to {d - 1} may be "
                    "in one pair"
                )

    def _expect(self, name: str, shape: tuple[int | None, ...]) -> None:
        tensor = getattr(self, name)
        if tensor is None:
            return
        fits = len(shape) == tensor.dim() and all(
            wanted in (None, size) for size, wanted in zip(tensor.shape, shape, strict=True)
        )
        if not fits:
            wanted_text = ", ".join("any" if size is None else str(size) for size in shape)
            raise ShapeError(
                f"{name} has shape {list(tensor.shape)}; [{wanted_text}] is wanted with "
                f"{len(self.query)} heads in {len(self.key)} groups"
            )

    @property
    def heads(self) -> int:
        """The number of heads H."""
        return len(self.query)

    @property
    def groups(self) -> int:
        """The number of groups G, each with keys and values of its own."""
        return len(self.key)

    @property
    def shared(self) -> int:
        """How many heads share a group."""
        return self.heads // self.groups

    @property
    def rows(self) -> int:
        """The number of coordinates d of a query."""
        return self.query.shape[1]

    @property
    def eps(self) -> float:
        """The spacing around 1 of the coarsest dtype."""
        tensors = (self.query, self.key, self.value, self.output)
        return max(torch.finfo(tensor.dtype).eps for tensor in tensors)

    @property
    def counts_key_bias(self) -> bool:
        """Whether some part of the key bias has an effect."""
        rotates = self.rotary is not None and len(self.rotary) > 0
        return self.key_bias is not None and (rotates or not self.key_bias_cancels)

    def rest(self) -> Tensor:
        """The coordinates of a query that are not rotated."""
        every = torch.ones(self.rows, dtype=torch.bool)
        if self.rotary is not None:
            every[self.rotary.flatten()] = False
        return every.nonzero().flatten()

    def key_offset(self) -> Tensor | None:
        """The part of the key bias that has an effect [G, d]; None if there is none.

        (q, b_K) is the same for all keys, unless a rotation that depends on the key acts on b_K.
        """
        if not self.counts_key_bias or self.key_bias is None:
            return None
        if not self.key_bias_cancels:
            return self.key_bias
        return self.key_bias.index_fill(1, self.rest(), 0)

    def queries_and_keys(self, groups: Tensor, heads: Tensor) -> tuple[Tensor, Tensor]:
        """Factors of some groups in float64: [n, H / G, d, E + 1] and [n, 1, d, E + 1].

        ``heads`` [n, H / G]: their heads, in any order. The last column is the bias (zero where
        there is none, or where it has no effect).
        """
        left = _joined(self.query, self.query_bias, heads.flatten())
        right = _joined(self.key, self.key_offset(), groups)
        return left.unflatten(0, heads.shape), right.unsqueeze(1)

    def values_and_outputs(self, groups: Tensor, heads: Tensor) -> tuple[Tensor, Tensor]:
        """Factors of some groups in float64: [n, 1, c, E + 1] and [n, H / G, c, F]."""
        left = _joined(self.value, self.value_bias, groups)
        # Contiguous before and after: a third of the time of one strided copy.
        right = self.output[heads.flatten()].contiguous().transpose(1, 2).contiguous()
        return left.unsqueeze(1), right.to(torch.float64).unflatten(0, heads.shape)

    def map(self, function: Callable[[Tensor], Tensor]) -> HeadFactors:
        """The block with a function applied to all weights and biases."""
        weights = ("query", "key", "value", "output")
        names = [*weights, *(f"{name}_bias" for name in weights)]
        values = ((name, getattr(self, name)) for name in names)
        changed: dict[str, Any] = {name: function(x) for name, x in values if x is not None}
        return replace(self, **changed)


def _joined(weight: Tensor, bias: Tensor | None, index: Tensor) -> Tensor:
    """Some blocks of a weight in float64, with the bias as last column (zero if there is none)."""
    shape = (len(index), *weight.shape[1:-1], weight.shape[-1] + 1)
    result = torch.empty(shape, dtype=torch.float64)
    result[..., :-1] = weight[index]
    result[..., -1] = 0.0 if bias is None else bias[index]
    return result

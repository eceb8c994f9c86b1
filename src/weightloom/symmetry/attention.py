"""The symmetries inside attention: exchanges of heads, and any invertible maps in each of them.

Head h computes softmax(q k^T / sqrt(d)) v with q = W_Q x + b_Q, and so on. q -> A q, k -> A^-T k
leaves q^T k as it was, for any invertible A [d, d]; v -> B v is undone by W_O -> W_O B^-1. (002
states permutations of the d columns; they are a special case.) What cannot be changed this way are
the two products below, head by head, up to the order of heads.

Two symmetries are not in this group: the key bias adds the same number to all scores of a query, so
softmax forgets it; and W_O b_V may move into b_O. `weights_that_count` removes both.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from weightloom.symmetry.spec import Attention, Element

__all__ = ["query_key", "split", "transform", "value_output", "weights_that_count"]


def split(tensors: Mapping[str, Tensor], spec: Attention) -> dict[str, Tensor]:
    """Queries, keys and values [heads, d, E + 1] (the bias is the last column), the output
    projection [heads, E, d] and its bias [E], without biases as zeros."""
    heads, d = spec.heads, spec.head_dim
    weight = tensors[spec.in_weight]
    bias = weight.new_zeros(len(weight)) if spec.in_bias is None else tensors[spec.in_bias]
    together = torch.cat((weight, bias[:, None]), 1).reshape(3, heads, d, -1)
    out = tensors[spec.out_weight]
    out_bias = out.new_zeros(len(out)) if spec.out_bias is None else tensors[spec.out_bias]
    return {
        "query": together[0], "key": together[1], "value": together[2],
        "out": out.reshape(-1, heads, d).transpose(0, 1), "bias": out_bias,
    }  # fmt: skip


def query_key(tensors: Mapping[str, Tensor], spec: Attention) -> Tensor:
    """(W_Q, b_Q)^T (W_K, b_K) [heads, E + 1, E + 1]: the scores as a bilinear form of (x, 1)."""
    parts = split(tensors, spec)
    return parts["query"].transpose(1, 2) @ parts["key"]


def value_output(tensors: Mapping[str, Tensor], spec: Attention) -> Tensor:
    """W_O (W_V, b_V) [heads, E, E + 1]: what a head writes about the position it looks at."""
    parts = split(tensors, spec)
    return parts["out"] @ parts["value"]


def weights_that_count(tensors: Mapping[str, Tensor], spec: Attention) -> tuple[Tensor, Tensor]:
    """`query_key` without its last column (the key bias, which softmax forgets), and `value_output`
    without biases; the bias of the whole layer is b_O + sum_h W_O b_V. [heads, E + 1, E],
    [heads, E, E]. With add_zero_attn the key bias does count."""
    return query_key(tensors, spec)[..., :-1], value_output(tensors, spec)[..., :-1]


def transform(tensors: dict[str, Tensor], spec: Attention, element: Element) -> None:
    """Replaces the tensors of one attention layer by those that an element gives, in the dict.

    New head h is old head permutation[h], then q -> A q, k -> A^-T k, v -> B v, W_O -> W_O B^-1.
    Products are in float64; an exchange alone is exact.
    """
    order = element.permutation.get(spec.head_space)
    a, b = element.maps.get(spec.query_map), element.maps.get(spec.value_map)
    rows = [None, None, None] if a is None else [a, torch.linalg.inv(a).transpose(1, 2), None]
    rows[2] = b
    for name in (spec.in_weight, spec.in_bias):
        if name is not None:
            tensors[name] = _rows(tensors[name], spec, order, rows)
    out = tensors[spec.out_weight]
    blocks = out.reshape(-1, spec.heads, spec.head_dim)
    blocks = blocks if order is None else blocks[:, order.to(out.device)]
    if b is not None:
        inverse = torch.linalg.inv(b).to(out.device)
        blocks = torch.einsum("ehd,hdc->ehc", blocks.to(inverse.dtype), inverse).to(out.dtype)
    tensors[spec.out_weight] = blocks.reshape(out.shape)


def _rows(
    tensor: Tensor, spec: Attention, order: Tensor | None, maps: list[Tensor | None]
) -> Tensor:
    blocks = tensor.reshape(3, spec.heads, spec.head_dim, -1)
    blocks = blocks if order is None else blocks[:, order.to(tensor.device)]
    parts = []
    for part, matrix in zip(blocks, maps, strict=True):
        if matrix is not None:
            there = matrix.to(part.device)
            part = (there @ part.to(there.dtype)).to(tensor.dtype)
        parts.append(part)
    return torch.stack(parts).reshape(tensor.shape)

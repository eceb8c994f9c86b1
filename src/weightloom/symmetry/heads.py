"""The heads of attention: their weights, what their function depends on, and how they move.

Head h computes softmax(q k^T / sqrt(d)) v with q = W_Q x + b_Q, and so on. q -> A q, k -> A^-T k
leaves q^T k unchanged for any invertible A [d, d]; v -> B v is undone by W_O -> W_O B^-1.
(functional-equivalence states permutations of the d columns, a special case.) Invariant are the two
products `query_key` and `value_output`, head by head, up to the order of heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from weightloom.symmetry.spec import Attention, Element, Projection

__all__ = [
    "head_invariants",
    "in_new_order",
    "keeps_groups",
    "keeps_pairs",
    "permuted_heads",
    "query_key",
    "random_heads",
    "random_maps",
    "split_heads",
    "transform_heads",
    "value_output",
]


def split_heads(tensors: Mapping[str, Tensor], spec: Attention) -> dict[str, Tensor]:
    """The weights of an attention layer, head by head.

    "query" [heads, d, E + 1], "key" and "value" [kv_heads, d, E + 1] with the bias as the last
    column, "out" is the output projection [heads, E, d], "bias" its bias [E]. Missing biases are
    zeros.
    """
    d = spec.head_dim
    parts = {
        name: _with_bias(tensors, part, count * d).unflatten(0, (count, d))
        for name, part, count in (
            ("query", spec.query, spec.heads),
            ("key", spec.key, spec.kv_heads),
            ("value", spec.value, spec.kv_heads),
        )
    }
    out = spec.output.rows(tensors[spec.output.weight], spec.heads * d)
    parts["out"] = out.unflatten(0, (spec.heads, d)).transpose(1, 2)
    name = spec.output.bias
    parts["bias"] = out.new_zeros(out.shape[1]) if name is None else tensors[name]
    return parts


def _with_bias(tensors: Mapping[str, Tensor], part: Projection, size: int) -> Tensor:
    weight = part.rows(tensors[part.weight], size)
    bias = weight.new_zeros(size) if part.bias is None else part.rows(tensors[part.bias], size)
    return torch.cat((weight, bias[:, None]), 1)


def query_key(tensors: Mapping[str, Tensor], spec: Attention) -> Tensor:
    """(W_Q, b_Q)^T (W_K, b_K) [heads, E + 1, E + 1]: the scores as a bilinear form of (x, 1).

    With rotary embeddings: at equal positions.
    """
    parts = split_heads(tensors, spec)
    key = parts["key"].repeat_interleave(spec.group, 0)
    return parts["query"].transpose(1, 2) @ key


def value_output(tensors: Mapping[str, Tensor], spec: Attention) -> Tensor:
    """W_O (W_V, b_V) [heads, E, E + 1]: what a head outputs for a position it attends to."""
    parts = split_heads(tensors, spec)
    return parts["out"] @ parts["value"].repeat_interleave(spec.group, 0)


def head_invariants(tensors: Mapping[str, Tensor], spec: Attention) -> tuple[Tensor, Tensor]:
    """What the function of each head depends on: [heads, E + 1, E] and [heads, E, E].

    `query_key` without its last column (the key bias, which softmax ignores; with add_zero_attn it
    does matter), and `value_output` without the bias (the bias of the whole layer is
    b_O + sum_h W_O b_V).
    """
    return query_key(tensors, spec)[..., :-1], value_output(tensors, spec)[..., :-1]


def transform_heads(tensors: dict[str, Tensor], spec: Attention, element: Element) -> None:
    """Applies an element to the tensors of one attention layer, in place in the dict.

    New head h is old head permutation[h], then q -> A q, k -> A^-T k, v -> B v, W_O -> W_O B^-1.
    Products are in float64; a permutation alone is exact.
    """
    order = element.permutation.get(spec.head_space)
    groups = None if order is None else order[:: spec.group] // spec.group
    a, b = element.maps.get(spec.query_map), element.maps.get(spec.value_map)
    for_query = None if a is None else a.repeat_interleave(spec.group, 0)
    for_key = None if a is None else torch.linalg.inv(a).transpose(1, 2)
    for_output = None if b is None else torch.linalg.inv(b).transpose(1, 2)
    for_output = None if for_output is None else for_output.repeat_interleave(spec.group, 0)
    for part, count, heads, matrices in (
        (spec.query, spec.heads, order, for_query),
        (spec.key, spec.kv_heads, groups, for_key),
        (spec.value, spec.kv_heads, groups, b),
        (replace(spec.output, bias=None), spec.heads, order, for_output),
    ):
        for name in (part.weight, part.bias):
            if name is not None:
                sizes = (count, spec.head_dim)
                tensors[name] = _transform_rows(tensors[name], part, sizes, heads, matrices)


def permuted_heads(name: str, tensor: Tensor, spec: Attention, order: Tensor) -> Tensor:
    """The tensor of this name with the heads in it permuted; others are returned as given."""
    groups = order[:: spec.group] // spec.group
    for part, count, heads in (
        (spec.query, spec.heads, order),
        (spec.key, spec.kv_heads, groups),
        (spec.value, spec.kv_heads, groups),
        (replace(spec.output, bias=None), spec.heads, order),
    ):
        if name in (part.weight, part.bias):
            tensor = _transform_rows(tensor, part, (count, spec.head_dim), heads, None)
    return tensor


def _transform_rows(
    tensor: Tensor,
    part: Projection,
    sizes: tuple[int, int],
    order: Tensor | None,
    matrices: Tensor | None,
) -> Tensor:
    """The heads of one projection, permuted and multiplied by a matrix each."""
    size = sizes[0] * sizes[1]
    blocks = part.rows(tensor, size).unflatten(0, sizes)
    blocks = blocks if order is None else blocks[order.to(tensor.device)]
    if matrices is not None:
        matrices = matrices.to(tensor.device)
        flat = blocks.flatten(2) if blocks.dim() > 2 else blocks[..., None]
        blocks = (matrices @ flat.to(matrices.dtype)).to(tensor.dtype).reshape(blocks.shape)
    result = tensor.clone()
    part.rows(result, size).copy_(blocks.flatten(0, 1))
    return result


def random_heads(spec: Attention, generator: torch.Generator | None) -> Tensor:
    """A uniform permutation of the heads that keeps groups together [heads]."""
    if not spec.movable:
        return torch.arange(spec.heads)
    groups = torch.randperm(spec.kv_heads, generator=generator)
    inside = [torch.randperm(spec.group, generator=generator) for _ in groups]
    return torch.cat([g * spec.group + order for g, order in zip(groups, inside, strict=True)])


def random_maps(
    spec: Attention, scales: tuple[float, float], generator: torch.Generator | None
) -> dict[str, Tensor]:
    """Random A and B [kv_heads, d, d]: U diag(s) V with orthogonal U and V and s from ``scales``.

    Their condition number is at most scales[1] / scales[0].
    """
    heads, d, (low, high) = spec.kv_heads, spec.head_dim, scales

    def positive(*shape: int) -> Tensor:
        uniform = torch.rand(*shape, generator=generator, dtype=torch.float64)
        return low * (high / low) ** uniform

    def orthogonal() -> Tensor:
        normal = torch.randn(heads, d, d, generator=generator, dtype=torch.float64)
        return torch.linalg.qr(normal).Q

    maps = {}
    for name in (spec.query_map, spec.value_map):
        left, right = orthogonal(), orthogonal()
        maps[name] = left * positive(heads, 1, d) @ right
    if spec.rotary is not None:
        turn = 2 * torch.pi * torch.rand(heads, d // 2, generator=generator, dtype=torch.float64)
        scale = positive(heads, d // 2)
        maps[spec.query_map] = _pair_maps(scale * turn.cos(), scale * turn.sin(), spec.rotary)
    return maps


def _pair_maps(cosines: Tensor, sines: Tensor, pairs: str) -> Tensor:
    """[[c, -s], [s, c]] for each pair, as matrices [heads, d, d]."""
    first, second = _pairs(2 * cosines.shape[1], pairs)
    maps = cosines.new_zeros(len(cosines), 2 * cosines.shape[1], 2 * cosines.shape[1])
    maps[:, first, first] = maps[:, second, second] = cosines
    maps[:, first, second], maps[:, second, first] = -sines, sines
    return maps


def _pairs(size: int, pairs: str) -> tuple[Tensor, Tensor]:
    """Indices of the first and second entries of all pairs."""
    index = torch.arange(size)
    halves = index.reshape(2, -1) if pairs == "half" else index.reshape(-1, 2).t()
    return halves[0], halves[1]


def keeps_groups(spec: Attention, order: Tensor) -> bool:
    """Whether a permutation of heads takes groups to groups, and moves only heads that may move."""
    if not spec.movable:
        return bool((order.cpu() == torch.arange(spec.heads)).all())
    groups = order.cpu().reshape(spec.kv_heads, spec.group) // spec.group
    return bool((groups == groups[:, :1]).all())


def keeps_pairs(spec: Attention, maps: Tensor) -> bool:
    """Whether matrices A commute with the rotations of a rotary embedding (up to rounding)."""
    if spec.rotary is None:
        return True
    first, second = _pairs(spec.head_dim, spec.rotary)
    kept = _pair_maps(maps[:, first, first], maps[:, second, first], spec.rotary)
    return bool(((maps - kept).abs() <= 1e-9 * maps.abs().amax()).all())


def in_new_order(maps: Tensor, order: Tensor) -> Tensor:
    """Maps of the heads of the keys in the order that a permutation of the heads gives them."""
    group = len(order) // len(maps)
    return maps[order[::group] // group]

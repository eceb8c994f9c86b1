"""Weight matching: permutations (and signs) by linear assignment, for networks that differ.

git re-basin (Ainsworth et al. 2023), Algorithm 1: space by space, the permutation with the largest
inner product of all weights around it, repeated until nothing improves.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from weightloom.errors import ShapeError
from weightloom.symmetry.group import move_axis
from weightloom.symmetry.heads import permuted_heads, split_heads
from weightloom.symmetry.spec import Attention, Axis, Element, Kind, Space, Spec

__all__ = ["assign", "weight_matching"]

Tensors = dict[str, Tensor]


def assign(scores: Tensor) -> Tensor:
    """Linear assignment: the column of each row [n], every column once, with the largest sum.

    >>> assign(torch.tensor([[1.0, 5.0], [0.0, 2.0]]))
    tensor([1, 0])
    """
    if scores.dim() != 2 or scores.shape[0] != scores.shape[1]:
        raise ShapeError(f"scores have shape {list(scores.shape)}; a square matrix is wanted")
    if not bool(torch.isfinite(scores).all()):
        raise ShapeError("scores hold NaN or infinity; the weights must be finite")
    _, columns = linear_sum_assignment(-scores.double().numpy())
    return torch.from_numpy(np.asarray(columns, dtype=np.int64))


def weight_matching(spec: Spec, a: Tensors, b: Tensors, sweeps: int = 50) -> Element:
    """The element of b that locally maximises the inner product of its weights with those of a."""
    element = Element()
    last = -float("inf")
    for _ in range(sweeps):
        total = 0.0
        for space in spec.spaces.values():
            order, factor, score = _match_space(spec, space, a, b, element)
            element.permutation[space.name] = order
            if factor is not None:
                element.factor[space.name] = factor
            total += score
        for attention in spec.attentions:
            order = _match_heads(spec, attention, a, b, element)
            element.permutation[attention.head_space] = order
        if total <= last + 1e-12 * abs(last):
            break
        last = total
    return element


def _match_space(
    spec: Spec, space: Space, a: Tensors, b: Tensors, element: Element
) -> tuple[Tensor, Tensor | None, float]:
    """Permutation and signs of one space with the largest score; the other spaces stay."""
    scores = {"out": torch.zeros(()), "in": torch.zeros(()), "fixed": torch.zeros(())}
    for axis in spec.axes_of(space.name):
        rows_a = _slices(a[axis.tensor], axis, space.size)
        moved = _moved(spec, axis.tensor, b[axis.tensor], element, axis.dim)
        scores[axis.side] = scores[axis.side] + rows_a @ _slices(moved, axis, space.size).t()
    size = torch.Size((space.size, space.size))
    out, others = scores["out"].expand(size), (scores["in"] + scores["fixed"]).expand(size)
    signs: Tensor | None = None
    if space.kind.signs:
        # A sign multiplies the incoming weights; for odd functions and sigmoids the outgoing ones
        # too. (The score leaves out the shift of the next bias for sigmoids.)
        even = space.kind in (Kind.EVEN, Kind.ABSOLUTE)
        signed = out if even else out + scores["in"]
        unsigned = others if even else scores["fixed"].expand(size)
        signs = torch.where(signed < 0, -1.0, 1.0).double()
        total = signed.abs() + unsigned
    else:
        total = out + others
    order = assign(total)
    rows = torch.arange(space.size)
    factor = None if signs is None else signs[rows, order]
    return order, factor, float(total[rows, order].double().sum())


def _slices(tensor: Tensor, axis: Axis, size: int) -> Tensor:
    return tensor.movedim(axis.dim, 0).reshape(size, -1)


def _moved(spec: Spec, name: str, tensor: Tensor, element: Element, skip: int | None) -> Tensor:
    """A tensor of b as the element moves it, except along the dimension ``skip``."""
    for axis in spec.axes_of_tensor(name):
        if axis.dim != skip:
            tensor = move_axis(tensor, axis, spec, element)
    for attention in spec.attentions:
        order = element.permutation.get(attention.head_space)
        if order is not None:
            tensor = permuted_heads(name, tensor, attention, order)
    return tensor


def _match_heads(
    spec: Spec, attention: Attention, a: Tensors, b: Tensors, element: Element
) -> Tensor:
    """The permutation of heads with the largest inner product; their maps stay as they are."""
    others = {k: v for k, v in element.permutation.items() if k != attention.head_space}
    rest = replace(element, permutation=others)
    moved = {name: _moved(spec, name, b[name], rest, None) for name in attention.tensors}
    parts_a, parts_b = split_heads(a, attention), split_heads(moved, attention)
    total = torch.zeros(attention.heads, attention.heads)
    for name in ("query", "key", "value", "out"):
        ours, theirs = (
            parts[name].repeat_interleave(attention.heads // len(parts[name]), 0).flatten(1)
            for parts in (parts_a, parts_b)
        )
        total = total + ours @ theirs.t()
    return _assign_in_groups(total, attention)


def _assign_in_groups(scores: Tensor, attention: Attention) -> Tensor:
    """The best permutation of heads that takes groups to groups."""
    count, size = attention.kv_heads, attention.group
    if not attention.movable:
        return torch.arange(attention.heads)
    blocks = scores.reshape(count, size, count, size).transpose(1, 2)
    inside = [[assign(blocks[i, j]) for j in range(count)] for i in range(count)]
    best = torch.tensor(
        [
            [float(blocks[i, j][torch.arange(size), inside[i][j]].sum()) for j in range(count)]
            for i in range(count)
        ]
    )
    groups = assign(best).tolist()
    return torch.cat([j * size + inside[i][j] for i, j in enumerate(groups)])

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
        if order is not None and name in _with_heads(attention):
            blocks = _blocks(tensor, attention, name)[order]
            tensor = blocks.movedim(0, 1).reshape(tensor.shape)
    return tensor


def _with_heads(attention: Attention) -> tuple[str | None, ...]:
    """The tensors that heads index."""
    return attention.in_weight, attention.in_bias, attention.out_weight


def _blocks(tensor: Tensor, attention: Attention, name: str) -> Tensor:
    """The entries of each head [heads, ...]."""
    sizes = (attention.heads, attention.head_dim)
    if name == attention.out_weight:
        return tensor.unflatten(1, sizes).movedim(1, 0)
    return tensor.unflatten(0, (3, *sizes)).movedim(1, 0)


def _match_heads(
    spec: Spec, attention: Attention, a: Tensors, b: Tensors, element: Element
) -> Tensor:
    """The permutation of heads with the largest inner product; their maps stay as they are."""
    others = {k: v for k, v in element.permutation.items() if k != attention.head_space}
    total = torch.zeros(attention.heads, attention.heads)
    for name in _with_heads(attention):
        if name is not None:
            heads_a = _blocks(a[name], attention, name).flatten(1)
            moved = _moved(spec, name, b[name], replace(element, permutation=others), None)
            total = total + heads_a @ _blocks(moved, attention, name).flatten(1).t()
    return assign(total)

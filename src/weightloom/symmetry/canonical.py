"""One representative for all exchanges of units: biases in descending order, as in 002."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from weightloom.symmetry.fingerprint import ranks_of
from weightloom.symmetry.group import apply, apply_to_tensors, compose, tensors_of
from weightloom.symmetry.read import read
from weightloom.symmetry.spec import Axis, Element, Space, Spec

__all__ = ["Canonical", "canonicalize"]

_LEADING = 8  # incoming weights compared for all units at once, before the rest is looked at


@dataclass(frozen=True)
class Canonical:
    """A network in canonical order.

    ``element``: what was applied to get it. ``smallest_gap``: the smallest difference of two
    neighbouring keys (biases) in any layer; where it is of the size of rounding errors, another
    copy may come out in another order, so never compare canonical forms of networks that
    were rounded differently (use `equivalent`). ``ties``: how many pairs of neighbours have
    exactly equal keys, and were ordered by what comes after the bias.
    """

    module: nn.Module
    element: Element
    smallest_gap: float
    ties: int


def canonicalize(module: nn.Module, scales: bool = False) -> Canonical:
    """The copy of a network whose hidden units have descending biases, layer by layer (002).

    002 leaves ties open. Here units with equal biases (or layers without biases) are ordered by
    their incoming weights, inputs in canonical order, the larger first weight first; then, for
    clones, by the colours of `fingerprint`, which look at the outgoing weights; units that are
    still equal can be swapped without a trace. So two copies that differ by exchanges have
    bitwise the same form. A space that several layers write has the key of the first of them. The
    order of the heads of attention is that of `fingerprint`. With ``scales``, scales and signs are
    fixed first (`normalize`).

    >>> net = nn.Sequential(nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> bias = canonicalize(net).module[0].bias
    >>> bool((bias[:-1] >= bias[1:]).all())
    True
    """
    first = Element()
    if scales:
        from weightloom.symmetry.normalize import normalize

        module, first = normalize(module)
    spec = read(module)
    tensors = tensors_of(module)
    colours = ranks_of(module)
    element, gap, ties = Element(), float("inf"), 0
    for space in spec.spaces.values():
        moved = apply_to_tensors(element, spec, tensors)
        order, keys = _order(spec, space, moved, colours[space.name])
        permutation = {**element.permutation, space.name: order}
        element = replace(element, permutation=permutation)
        if keys is not None and len(keys) > 1:
            steps = keys[order][:-1] - keys[order][1:]
            gap = min(gap, float(steps.min()))
            ties += int((steps == 0).sum())
    heads = {one.head_space: _by(colours[one.head_space]) for one in spec.attentions}
    element = replace(element, permutation={**element.permutation, **heads})
    result = apply(element, module, spec)
    return Canonical(result, compose(element, first), gap, ties)


def _by(ranks: np.ndarray) -> Tensor:
    return torch.from_numpy(np.argsort(ranks, kind="stable"))


def _order(
    spec: Spec, space: Space, tensors: dict[str, Tensor], colour: np.ndarray
) -> tuple[Tensor, Tensor | None]:
    """The canonical order of one space and its main key (None without biases)."""
    axes = spec.axes_of(space.name, "out")
    biases = [tensors[axis.tensor] for axis in axes if tensors[axis.tensor].dim() == 1]
    inner = {one.out_weight for one in spec.attentions}
    rows = [
        _rows(tensors[axis.tensor], axis, space.size)
        for axis in axes
        if tensors[axis.tensor].dim() > 1 and axis.tensor not in inner and _is_ordered(spec, axis)
    ]
    columns: list[np.ndarray] = [colour]
    full = torch.cat(rows, dim=1).double().numpy() if rows else None
    if full is not None:
        columns += [-full[:, place] for place in reversed(range(min(_LEADING, full.shape[1])))]
    key = biases[0].double() if biases else None
    if key is not None:
        columns.append(-key.numpy())
    order = np.lexsort(columns)
    if full is not None and full.shape[1] > _LEADING:
        order = _settle(order, columns[1:], full, colour)
    return torch.from_numpy(np.ascontiguousarray(order)), key


def _settle(
    order: np.ndarray, columns: list[np.ndarray], full: np.ndarray, colour: np.ndarray
) -> np.ndarray:
    """Runs of units that agree in all leading keys, ordered by all of their weights."""
    keys = np.stack(columns)[:, order]
    new = np.concatenate([[True], (keys[:, 1:] != keys[:, :-1]).any(0)])
    starts = np.append(np.where(new)[0], len(order))
    for start, stop in pairwise(starts):
        if stop - start > 1:
            run = order[start:stop]
            sort = sorted(run, key=lambda unit: ((-full[unit]).tolist(), colour[unit]))
            order[start:stop] = sort
    return order


def _rows(tensor: Tensor, axis: Axis, size: int) -> Tensor:
    return tensor.movedim(axis.dim, 0).reshape(size, -1)


def _is_ordered(spec: Spec, axis: Axis) -> bool:
    """Whether the other units of the tensor have their canonical order by now."""
    names = list(spec.spaces)
    others = (one for one in spec.axes_of_tensor(axis.tensor) if one.dim != axis.dim)
    return all(names.index(one.space) < names.index(axis.space) for one in others)

"""The end of a matching: classes that keys cannot tell apart, and the verdict on all entries."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from weightloom.symmetry.assignment import assign
from weightloom.symmetry.match import Pair
from weightloom.symmetry.match_heads import match_heads
from weightloom.symmetry.match_keys import NoMatchError
from weightloom.symmetry.match_verify import compare
from weightloom.symmetry.spec import Element, Spec

__all__ = ["Match", "is_plain", "match"]

_BUDGET = 128  # individualisations tried before the search gives up
_PAIRWISE = 512  # the largest class whose units are compared one by one


@dataclass(frozen=True)
class Match:
    """What a search for a group element found.

    ``same``: b moved by ``element`` is a, to the tolerance. ``deviation``: largest deviation of
    weights (infinite without an element), see `Comparison`. ``mismatch``: first difference.
    """

    same: bool
    element: Element | None
    deviation: float
    mismatch: str | None


def match(spec: Spec, a: dict[str, Tensor], b: dict[str, Tensor], tolerance: float) -> Match:
    """Searches the element that brings b to a; both networks have this spec and these shapes."""
    pair = Pair(spec, a, b, tolerance)
    try:
        pair.forward()
        pair.refine()
    except NoMatchError as error:
        return Match(False, None, float("inf"), str(error))
    return _search(pair, [_BUDGET])


def is_plain(spec: Spec, tensors: dict[str, Tensor]) -> bool:
    """Whether no unit is a clone (up to a factor), constant or without effect: nothing to reduce.

    False also where it is not sure.
    """
    pair = Pair(spec, tensors, tensors, 0.0)
    try:
        pair.forward()
    except NoMatchError:
        return False
    if pair.ties():
        return False
    for layer in spec.layers:
        if layer.kind in ("linear", "conv") and layer.weight is not None:
            weight = tensors[layer.weight]
            rows = weight.reshape(len(weight), -1)
            if layer.output is not None and not bool(rows.abs().amax(1).all()):
                return False
    for axis in (axis for axis in spec.axes if axis.side == "in" and axis.tensor not in pair.inner):
        if not bool(pair.key(axis, 0).any(1).all()):
            return False
    return True


def _search(pair: Pair, budget: list[int]) -> Match:
    """Tries the nearest exchange inside each class, then one unit after the other."""
    ties = pair.ties()
    leaf = _verdict(pair if not ties else _settled(pair))
    if leaf.same or not ties:
        return leaf
    name = ties[0]
    colours_a, colours_b = pair.colour[name]
    values, counts = torch.unique(colours_a, return_counts=True)
    colour = values[counts > 1][counts[counts > 1].argmin()]
    (mine,) = torch.where(colours_a == colour)
    for partner in torch.where(colours_b == colour)[0].tolist():
        if budget[0] <= 0:
            text = f"{leaf.mismatch} (the search among equal units stopped after {_BUDGET} trials)"
            return replace(leaf, mismatch=text)
        budget[0] -= 1
        branch = _copy(pair)
        branch.colour[name] = _single_out(colours_a, colours_b, mine, partner)
        try:
            branch.refine()
        except NoMatchError:
            continue
        found = _search(branch, budget)
        if found.same:
            return found
    return leaf


def _verdict(pair: Pair) -> Match:
    compared = compare(pair.spec, *pair.tensors, pair.element(), pair.tolerance)
    first, deviation = compared.first, compared.deviation
    element, head_deviation, attention = match_heads(pair, compared.element)
    if first is not None:
        place = f"{compared.tensor}{list(compared.index)}" if compared.tensor else first
        text = (
            f"tensor {first!r} deviates; the largest deviation is {deviation:.3g} at {place}, "
            f"the tolerance is {pair.tolerance:.3g} of the row's length"
        )
        return Match(False, element, max(deviation, head_deviation), text)
    if head_deviation > pair.tolerance:
        text = (
            f"attention layer {attention!r} deviates by {head_deviation:.3g}, the tolerance is "
            f"{pair.tolerance:.3g}"
        )
        return Match(False, element, max(deviation, head_deviation), text)
    return Match(True, element, max(deviation, head_deviation), None)


def _copy(pair: Pair) -> Pair:
    branch = Pair(pair.spec, *pair.tensors, pair.tolerance)
    branch.colour, branch.gauge = dict(pair.colour), dict(pair.gauge)
    return branch


def _single_out(a: Tensor, b: Tensor, mine: Tensor, partner: int) -> tuple[Tensor, Tensor]:
    """The first unit of a class of a and one partner get a colour of their own."""
    a, b = a.clone(), b.clone()
    a[mine[1:]] = mine[1]
    b[b == mine[0]] = mine[1]
    b[partner] = mine[0]
    return a, b


def _settled(pair: Pair) -> Pair:
    """All classes resolved: each unit goes with the nearest one of its class."""
    result = _copy(pair)
    for name in pair.ties():
        colours_a, colours_b = result.colour[name]
        a, b = colours_a.clone(), colours_b.clone()
        values, counts = torch.unique(colours_a, return_counts=True)
        for colour in values[counts > 1]:
            (mine,), (theirs,) = torch.where(a == colour), torch.where(b == colour)
            order = _nearest(result, name, mine, theirs)
            a[mine] = mine
            b[theirs[order]] = mine
        result.colour[name] = (a, b)
    return result


def _nearest(pair: Pair, name: str, mine: Tensor, theirs: Tensor) -> Tensor:
    """Which of ``theirs`` goes with each of ``mine``, by all weights that can be compared."""
    if len(mine) > _PAIRWISE:
        return torch.arange(len(mine))
    total = torch.zeros(len(mine), len(theirs), dtype=torch.float64)
    for axis in pair.spec.axes_of(name):
        if not pair.usable(axis):
            continue
        first, second = pair.slices(axis, 0, mine), pair.slices(axis, 1, theirs)
        scale = max(float(first.abs().max()), float(second.abs().max()), 1e-300)
        total += torch.cdist(first / scale, second / scale).square()
    return assign(-total)

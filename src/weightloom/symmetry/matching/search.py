"""Searches the group element that maps one network to another.

`NetworkPair` proposes: units with the same colour may be partners. Here ties (units that share a
colour) are searched, the heads of attention layers are matched, and all entries are compared.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from weightloom.symmetry.matching.assignment import assign
from weightloom.symmetry.matching.attention import match_attention
from weightloom.symmetry.matching.keys import NoMatchError
from weightloom.symmetry.matching.units import NetworkPair
from weightloom.symmetry.matching.verification import compare
from weightloom.symmetry.spec import Element, Spec

__all__ = ["Match", "is_plain", "match"]

_BUDGET = 128  # pairs of tied units that are tried before the search stops
_PAIRWISE = 512  # the largest class whose units are compared pair by pair


@dataclass(frozen=True)
class Match:
    """What a search for a group element found.

    ``same``: b moved by ``element`` is a, within the tolerance. ``deviation``: largest deviation of
    weights (infinite without an element), see `WeightComparison`. ``mismatch``: first difference.
    ``undecided``: why b may still be a, as far as rounding of ill-conditioned maps can tell.
    """

    same: bool
    element: Element | None
    deviation: float
    mismatch: str | None
    undecided: str | None = None


def match(
    spec: Spec,
    a: dict[str, Tensor],
    b: dict[str, Tensor],
    tolerance: float,
    sums: bool = False,
) -> Match:
    """Searches the element that maps b to a; both networks have this spec and the same shapes.

    ``tolerance`` is relative to the scale of a single weight, see `matching.verification`.
    ``sums``: something may have been added to biases (BatchNorm or units were folded into them).
    """
    pair = NetworkPair(spec, a, b, tolerance, sums)
    try:
        pair.forward()
        pair.refine()
    except NoMatchError as error:
        return Match(False, None, float("inf"), str(error))
    return _search(pair, [_BUDGET])


def is_plain(spec: Spec, tensors: dict[str, Tensor]) -> bool:
    """Whether no unit is a clone (up to a factor), constant or unread, so nothing can be reduced.

    False also where this is not certain.
    """
    pair = NetworkPair(spec, tensors, tensors, 0.0)
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


# -- ties ----------------------------------------------------------------------------------------
def _search(pair: NetworkPair, budget: list[int]) -> Match:
    """Tries the nearest permutation inside each class, then single pairs of units."""
    ties = pair.ties()
    leaf = _verdict(pair if not ties else _settled(pair))
    if leaf.same or not ties:
        return leaf
    name = ties[0]
    colours_a, colours_b = pair.colour[name]
    values, counts = torch.unique(colours_a, return_counts=True)
    colour = values[counts > 1][counts[counts > 1].argmin()]
    (units_a,) = torch.where(colours_a == colour)
    for partner in torch.where(colours_b == colour)[0].tolist():
        if budget[0] <= 0:
            text = f"{leaf.mismatch} (the search among equal units stopped after {_BUDGET} trials)"
            return replace(leaf, mismatch=text)
        budget[0] -= 1
        branch = _copy(pair)
        branch.colour[name] = _single_out(colours_a, colours_b, units_a, partner)
        try:
            branch.refine()
        except NoMatchError:
            continue
        result = _search(branch, budget)
        if result.same:
            return result
    return leaf


def _verdict(pair: NetworkPair) -> Match:
    """All entries compared, for colours without ties."""
    compared = compare(pair.spec, *pair.tensors, pair.element(), pair.tolerance, pair.sums)
    element, attention = match_attention(pair, compared.element)
    mismatch, undecided = None, attention.undecided
    if compared.first is not None:
        place = f"{compared.tensor}{list(compared.index)}" if compared.tensor else compared.first
        mismatch = (
            f"tensor {compared.first!r} deviates; the largest deviation is "
            f"{compared.deviation:.3g} at {place}, the tolerance is {pair.tolerance:.3g} of "
            "the weight's own scale"
        )
        undecided = None
    elif attention.deviation > pair.tolerance:
        mismatch = (
            f"attention layer {attention.name!r}: {attention.where} deviates by "
            f"{attention.deviation:.3g}, the tolerance is {pair.tolerance:.3g} of a weight's scale"
        )
    deviation = max(compared.deviation, attention.deviation)
    return Match(mismatch is None, element, deviation, mismatch, undecided)


def _copy(pair: NetworkPair) -> NetworkPair:
    branch = NetworkPair(pair.spec, *pair.tensors, pair.tolerance, pair.sums)
    branch.colour, branch.gauge = dict(pair.colour), dict(pair.gauge)
    return branch


def _single_out(a: Tensor, b: Tensor, units: Tensor, partner: int) -> tuple[Tensor, Tensor]:
    """The first of a's tied ``units`` and one partner in b get a colour of their own."""
    a, b = a.clone(), b.clone()
    a[units[1:]] = units[1]
    b[b == units[0]] = units[1]
    b[partner] = units[0]
    return a, b


def _settled(pair: NetworkPair) -> NetworkPair:
    """All ties resolved: each unit is paired with the nearest one of its class."""
    result = _copy(pair)
    for name in pair.ties():
        colours_a, colours_b = result.colour[name]
        a, b = colours_a.clone(), colours_b.clone()
        values, counts = torch.unique(colours_a, return_counts=True)
        for colour in values[counts > 1]:
            (units_a,), (units_b,) = torch.where(a == colour), torch.where(b == colour)
            order = _nearest(result, name, units_a, units_b)
            a[units_a] = units_a
            b[units_b[order]] = units_a
        result.colour[name] = (a, b)
    return result


def _nearest(pair: NetworkPair, name: str, units_a: Tensor, units_b: Tensor) -> Tensor:
    """Which of ``units_b`` belongs to each of ``units_a``, by all weights that are comparable."""
    if len(units_a) > _PAIRWISE:
        return torch.arange(len(units_a))
    total = torch.zeros(len(units_a), len(units_b), dtype=torch.float64)
    for axis in pair.spec.axes_of(name):
        if not pair.usable(axis):
            continue
        first, second = pair.slices(axis, 0, units_a), pair.slices(axis, 1, units_b)
        scale = max(float(first.abs().max()), float(second.abs().max()), 1e-300)
        total += torch.cdist(first / scale, second / scale).square()
    return assign(-total)

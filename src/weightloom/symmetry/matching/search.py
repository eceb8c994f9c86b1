"""Searches the group element that maps one network to another.

`NetworkPair` proposes: units with the same colour may be partners. Here ties (units that share a
colour) are searched, the heads of attention layers are matched, and all entries are compared.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from weightloom.symmetry.group import head_invariants, move_axis, split_heads
from weightloom.symmetry.matching.assignment import assign
from weightloom.symmetry.matching.keys import NoMatchError
from weightloom.symmetry.matching.units import NetworkPair
from weightloom.symmetry.matching.verification import compare
from weightloom.symmetry.spec import Attention, Element, Spec

__all__ = ["Match", "is_plain", "match", "match_heads", "solve_map"]

_BUDGET = 128  # pairs of tied units that are tried before the search stops
_PAIRWISE = 512  # the largest class whose units are compared pair by pair


@dataclass(frozen=True)
class Match:
    """What a search for a group element found.

    ``same``: b moved by ``element`` is a, within the tolerance. ``deviation``: largest deviation of
    weights (infinite without an element), see `WeightComparison`. ``mismatch``: first difference.
    """

    same: bool
    element: Element | None
    deviation: float
    mismatch: str | None


def match(spec: Spec, a: dict[str, Tensor], b: dict[str, Tensor], tolerance: float) -> Match:
    """Searches the element that maps b to a; both networks have this spec and the same shapes."""
    pair = NetworkPair(spec, a, b, tolerance)
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
    compared = compare(pair.spec, *pair.tensors, pair.element(), pair.tolerance)
    element, head_deviation, attention = match_heads(pair, compared.element)
    mismatch = None
    if compared.first is not None:
        place = f"{compared.tensor}{list(compared.index)}" if compared.tensor else compared.first
        mismatch = (
            f"tensor {compared.first!r} deviates; the largest deviation is "
            f"{compared.deviation:.3g} at {place}, the tolerance is {pair.tolerance:.3g} of the "
            "row's length"
        )
    elif head_deviation > pair.tolerance:
        mismatch = (
            f"attention layer {attention!r} deviates by {head_deviation:.3g}, the tolerance is "
            f"{pair.tolerance:.3g}"
        )
    return Match(mismatch is None, element, max(compared.deviation, head_deviation), mismatch)


def _copy(pair: NetworkPair) -> NetworkPair:
    branch = NetworkPair(pair.spec, *pair.tensors, pair.tolerance)
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


# -- attention -----------------------------------------------------------------------------------
def match_heads(pair: NetworkPair, element: Element) -> tuple[Element, float, str | None]:
    """The element with heads and maps, the largest deviation of attention layers, and where it is.

    Heads are compared by what their function depends on, (W_Q, b_Q)^T W_K and W_O W_V, see
    `head_invariants`. Deviations are relative to the product of the norms of the two factors.
    """
    element = replace(element, permutation=dict(element.permutation), maps=dict(element.maps))
    worst, where = 0.0, None
    for attention in pair.spec.attentions:
        a, b = (_attention_tensors(pair, attention, side, element) for side in (0, 1))
        deviation = _match_layer(attention, a, b, element)
        if deviation > worst or deviation != deviation:
            worst = deviation if deviation == deviation else float("inf")
            where = attention.name
    return element, worst, where


def _attention_tensors(
    pair: NetworkPair, attention: Attention, side: int, element: Element
) -> dict[str, Tensor]:
    """The tensors in float64; those of b with the units around them in a's order."""
    result = {}
    for name in attention.tensors:
        tensor = pair.tensors[side][name].double()
        for axis in pair.spec.axes_of_tensor(name) if side else ():
            tensor = move_axis(tensor, axis, pair.spec, element)
        result[name] = tensor
    return result


def _match_layer(
    attention: Attention, a: dict[str, Tensor], b: dict[str, Tensor], element: Element
) -> float:
    """Writes the heads and maps of one layer into the element; returns the deviation."""
    invariants = [head_invariants(tensors, attention) for tensors in (a, b)]
    parts = [split_heads(tensors, attention) for tensors in (a, b)]
    sizes = [_factor_norms(part) for part in parts]
    gaps = torch.zeros(attention.heads, attention.heads, dtype=torch.float64)
    worst = torch.zeros_like(gaps)
    for own_a, own_b, size_a, size_b in zip(*invariants, *sizes, strict=True):
        for head in range(attention.heads):
            gap = (own_b - own_a[head]).flatten(1)
            scale = torch.maximum(size_a[head], size_b).clamp_min(1e-300)
            gaps[head] += gap.norm(dim=1) / scale
            worst[head] = torch.maximum(worst[head], gap.abs().amax(1) / scale)
    order = assign(-gaps.nan_to_num(1e300, posinf=1e300))
    element.permutation[attention.head_space] = order
    _write_maps(
        attention, parts[0], {k: v[order] for k, v in parts[1].items() if k != "bias"}, element
    )
    deviation = float(worst.gather(1, order[:, None]).max())
    biases = [part["bias"] + (part["out"] @ part["value"][..., -1:]).sum((0, 2)) for part in parts]
    lengths = [size[1].sum() + part["bias"].norm() for size, part in zip(sizes, parts, strict=True)]
    scale = torch.maximum(lengths[0], lengths[1])
    return max(deviation, float((biases[0] - biases[1]).abs().max() / scale.clamp_min(1e-300)))


def _write_maps(
    attention: Attention, a: dict[str, Tensor], b: dict[str, Tensor], element: Element
) -> None:
    """The matrices A and B that map the heads of b, already in a's order, to those of a."""
    element.maps[attention.query_map] = solve_map(
        a["query"], b["query"], a["key"][..., :-1], b["key"][..., :-1]
    )
    element.maps[attention.value_map] = solve_map(
        a["value"][..., :-1],
        b["value"][..., :-1],
        a["out"].transpose(1, 2),
        b["out"].transpose(1, 2),
    )


def _factor_norms(part: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Products of the norms of query and key, of output and value, for each head [heads]."""
    norms = {name: part[name].flatten(1).norm(dim=1) for name in ("query", "key", "value", "out")}
    return norms["query"] * norms["key"], norms["out"] * norms["value"]


def solve_map(to: Tensor, given: Tensor, other_to: Tensor, other_given: Tensor) -> Tensor:
    """Matrices A [heads, d, d] with A given = to and A^-T other_given = other_to, least squares.

    The second equation is A^T other_to = other_given, which is linear in A as well. The normal
    equations of both, A G + H A = C with G = given given^T and H = other_to other_to^T, are solved
    in the eigenvectors of G and H, so one of the two factors may be rank-deficient. In directions
    that neither of them has, A is free and set to the identity.
    """
    G, H = given @ given.transpose(1, 2), other_to @ other_to.transpose(1, 2)
    C = to @ given.transpose(1, 2) + other_to @ other_given.transpose(1, 2)
    g, U = torch.linalg.eigh(G)
    h, V = torch.linalg.eigh(H)
    total = h[:, :, None] + g[:, None, :]
    known = total > 1e-12 * total.amax((1, 2), keepdim=True)
    rotated = V.transpose(1, 2) @ C @ U
    free = V.transpose(1, 2) @ U
    return V @ torch.where(known, rotated / total.clamp_min(1e-300), free) @ U.transpose(1, 2)

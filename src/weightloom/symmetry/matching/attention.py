"""The attention layers of two networks, given the permutation of the units around them.

`factors_of` is the only place that knows where a layer keeps its weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from weightloom.symmetry.group import move, move_axis
from weightloom.symmetry.matching.heads.factors import HeadFactors, rotary_pairs
from weightloom.symmetry.matching.heads.matcher import match_heads
from weightloom.symmetry.matching.units import NetworkPair
from weightloom.symmetry.spec import Attention, Axis, Element

__all__ = ["AttentionDeviation", "factors_of", "match_attention"]


@dataclass(frozen=True)
class AttentionDeviation:
    """The largest deviation of all attention layers, and in which layer and weight it is.

    ``undecided``: why a layer can be called neither the same nor different, or None.
    """

    deviation: float
    name: str | None
    where: str
    undecided: str | None


def factors_of(attention: Attention, tensors: Mapping[str, Tensor]) -> HeadFactors:
    """The weights of a layer head by head, as views of its tensors."""
    d, count = attention.head_dim, attention.kv_heads
    parts: dict[str, Any] = {}
    for name, place, heads in (
        ("query", attention.query, attention.heads),
        ("key", attention.key, count),
        ("value", attention.value, count),
    ):
        for end, tensor in (("", place.weight), ("_bias", place.bias)):
            if tensor is not None:
                rows = place.rows(tensors[tensor], heads * d)
                parts[name + end] = rows.unflatten(0, (heads, d))
    output = attention.output.rows(tensors[attention.output.weight], attention.heads * d)
    parts["output"] = output.unflatten(0, (attention.heads, d)).transpose(1, 2)
    if attention.output.bias is not None:
        parts["output_bias"] = tensors[attention.output.bias]
    rotary = None
    if attention.rotary is not None:
        rotary = rotary_pairs(d, interleaved=attention.rotary == "interleaved")
    return HeadFactors(**parts, rotary=rotary)


def match_attention(pair: NetworkPair, element: Element) -> tuple[Element, AttentionDeviation]:
    """The element with the heads and maps of all attention layers, and their deviation."""
    element = replace(element, permutation=dict(element.permutation), maps=dict(element.maps))
    worst, rank = AttentionDeviation(0.0, None, "", None), (0, -1.0)
    for attention in pair.spec.attentions:
        a = factors_of(attention, pair.tensors[0])
        b = factors_of(attention, _moved(pair, attention, element))
        found = match_heads(a, b, pair.tolerance, movable=attention.movable)
        element.permutation[attention.head_space] = found.heads
        element.maps[attention.query_map] = found.query_map
        element.maps[attention.value_map] = found.value_map
        # A layer that differs counts for more than one that cannot be decided.
        own = (0 if found.same else 1 if found.undecided else 2, found.deviation)
        if own > rank:
            layer = (attention.name, found.where, found.undecided)
            worst, rank = AttentionDeviation(found.deviation, *layer), own
    return element, worst


def _moved(pair: NetworkPair, attention: Attention, element: Element) -> dict[str, Tensor]:
    """The tensors of b with the units around them in the order and on the scale of a.

    Permutations are exact; factors are applied in float64.
    """
    result = {}
    for name in attention.tensors:
        tensor = pair.tensors[1][name]
        if any(_scales(axis.space, axis, element) for axis in pair.spec.axes_of_tensor(name)):
            tensor = tensor.double()
        for axis in pair.spec.axes_of_tensor(name):
            tensor = move_axis(tensor, axis, pair.spec, element)
        for gain in pair.spec.gains:
            for axis in gain.axes:
                if axis.tensor == name and _scales(gain.name, axis, element):
                    tensor = move(tensor.double(), axis, None, element.factor[gain.name])
        result[name] = tensor
    return result


def _scales(name: str, axis: Axis, element: Element) -> bool:
    factor = element.factor.get(name)
    return axis.side != "fixed" and factor is not None and not bool((factor == 1).all())

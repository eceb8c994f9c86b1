"""Elements that may bring one network close to another, by weights and by activations."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, replace

from torch import Tensor, nn

from weightloom.networks.layers import BATCH_NORMS
from weightloom.symmetry.aligning.activations import activation_matching, correlations
from weightloom.symmetry.aligning.averaging import working_tensors
from weightloom.symmetry.aligning.batches import DataBatches
from weightloom.symmetry.canonical import normal_element
from weightloom.symmetry.group import apply_to_tensors, compose, invert
from weightloom.symmetry.matching.assignment import weight_matching
from weightloom.symmetry.spec import Element, Kind, Spec

__all__ = [
    "METHODS",
    "Proposals",
    "Variant",
    "candidates",
    "refined",
    "without_scales_before_norms",
]

METHODS = {
    "weights": ("weights", "normalized weights"),
    "activations": ("activations", "refined activations"),
}
"""What `align` may be asked for, and the candidates that belong to it."""

Tensors = dict[str, Tensor]
Variant = tuple[str, int]
"""the name of a method, and a number where it has several results"""

_ORDERS = 3  # in which weight matching takes the spaces; each ends in a local optimum of its own


@dataclass(frozen=True)
class Proposals:
    """Elements by method and variant, and the spaces whose units were not seen on the data."""

    elements: dict[Variant, Element]
    unseen: tuple[str, ...] = ()


def candidates(
    a: nn.Module,
    b: nn.Module,
    spec: Spec,
    method: str | None,
    batches: DataBatches | None,
    sweeps: int,
) -> Proposals:
    """Elements that may bring b close to a, by the names in `METHODS`."""
    tensors = working_tensors(a, b)
    allowed = without_scales_before_norms(spec, a)
    elements: dict[Variant, Element] = {}
    if method in (None, "weights"):
        elements |= _by_weights(allowed, tensors[0], tensors[1], sweeps)
    if method == "weights" or batches is None:
        return Proposals(elements)
    seen = correlations([a], b, allowed, batches, "matching")
    unseen = seen.unseen(allowed)
    # All places together, and values after the activation alone: neither is always better.
    for variant, places in enumerate((seen, seen.after())):
        element = activation_matching(allowed, places)
        left = {*unseen, *places.unseen(allowed)}
        # Heads, and spaces that were not seen, by weights; the others stay.
        element = refined(allowed, tensors[0], tensors[1], element, sweeps, left)
        elements["activations", variant] = element
        element = refined(allowed, tensors[0], tensors[1], element, sweeps)
        elements["refined activations", variant] = element
    return Proposals(elements, unseen)


def _by_weights(spec: Spec, a: Tensors, b: Tensors, sweeps: int) -> dict[Variant, Element]:
    """Weight matching in several orders of the spaces; and of networks with fixed scales."""
    elements: dict[Variant, Element] = {}
    for variant, names in enumerate(_orders(list(spec.spaces))):
        ordered = replace(spec, spaces={name: spec.spaces[name] for name in names})
        elements["weights", variant] = weight_matching(ordered, a, b, sweeps)
    if any(space.kind.scales or space.kind.signs for space in spec.spaces.values()):
        elements["normalized weights", 0] = _normalized(spec, a, b, sweeps)
    return elements


def _orders(names: list[str]) -> list[list[str]]:
    """The order of execution, its reverse, and random ones; always the same."""
    generator = random.Random(0)
    orders = [names, names[::-1]]
    while len(orders) < _ORDERS:
        orders.append(generator.sample(names, len(names)))
    return [order for place, order in enumerate(orders) if order not in orders[:place]]


def refined(
    spec: Spec,
    a: Tensors,
    b: Tensors,
    start: Element,
    sweeps: int,
    spaces: Collection[str] | None = None,
) -> Element:
    """Weight matching that starts at an element; ``spaces``: those that may change, and heads."""
    moved = apply_to_tensors(start, spec, b)
    if spaces is not None:
        spec = replace(spec, spaces={name: s for name, s in spec.spaces.items() if name in spaces})
    if not spec.spaces and not spec.attentions:
        return start
    return compose(weight_matching(spec, a, moved, sweeps), start)


def _normalized(spec: Spec, a: Tensors, b: Tensors, sweeps: int) -> Element:
    """Weight matching after scales and signs of both networks are fixed, then the scales of a."""
    to_a, to_b = normal_element(spec, a).element, normal_element(spec, b).element
    normal_a, normal_b = apply_to_tensors(to_a, spec, a), apply_to_tensors(to_b, spec, b)
    element = weight_matching(spec, normal_a, normal_b, sweeps)
    return compose(invert(to_a), compose(element, to_b))


def without_scales_before_norms(spec: Spec, module: nn.Module) -> Spec:
    """The spec without scales of units that go through BatchNorm.

    A factor multiplies a layer's weights and BatchNorm's mean and bias, but not its gain and
    variance, so the variance no longer is that of what BatchNorm reads. The function is the same,
    until the statistics are measured again: `repair` would take the factor out.
    """
    normed = {
        f"{name}.{key}" if name else key
        for name, layer in module.named_modules()
        if isinstance(layer, BATCH_NORMS)
        for key in ("running_mean", "running_var", "weight", "bias")
    }
    smaller = {Kind.SCALE: Kind.PERMUTE, Kind.FREE: Kind.SIGN, Kind.ABSOLUTE: Kind.EVEN}
    spaces = dict(spec.spaces)
    for axis in spec.axes:
        if axis.tensor in normed:
            space = spaces[axis.space]
            spaces[axis.space] = replace(space, kind=smaller.get(space.kind, space.kind))
    return replace(spec, spaces=spaces)

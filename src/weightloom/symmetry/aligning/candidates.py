"""Elements that may bring one network close to another, by weights and by activations."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor, nn

from weightloom.networks.layers import BATCH_NORMS
from weightloom.symmetry.aligning.activations import activation_matching, correlations
from weightloom.symmetry.aligning.averaging import working_tensors
from weightloom.symmetry.aligning.batches import Batches
from weightloom.symmetry.canonical import normal_element
from weightloom.symmetry.group import apply_to_tensors, compose, invert
from weightloom.symmetry.matching.assignment import weight_matching
from weightloom.symmetry.spec import Element, Kind, Spec

__all__ = ["METHODS", "Candidates", "candidates", "refined", "without_scales_before_norms"]

METHODS = {
    "weights": ("weights", "normalized weights"),
    "activations": ("activations", "refined activations"),
}
"""What `align` may be asked for, and the candidates that belong to it."""

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Candidates:
    """Elements by name, and the spaces whose units were not seen on the data."""

    elements: dict[str, Element]
    unseen: tuple[str, ...] = ()


def candidates(
    a: nn.Module,
    b: nn.Module,
    spec: Spec,
    method: str | None,
    batches: Batches | None,
    sweeps: int,
) -> Candidates:
    """Elements that may bring b close to a, by the names in `METHODS`."""
    tensors_a, tensors_b = working_tensors(a, b)
    allowed = without_scales_before_norms(spec, a)
    elements: dict[str, Element] = {}
    if method in (None, "weights"):
        elements["weights"] = weight_matching(allowed, tensors_a, tensors_b, sweeps)
        if any(s.kind.scales or s.kind.signs for s in allowed.spaces.values()):
            elements["normalized weights"] = _normalized(allowed, tensors_a, tensors_b, sweeps)
    if method == "weights" or batches is None:
        return Candidates(elements)
    seen = correlations([a], b, allowed, batches, "matching")
    element = activation_matching(allowed, seen)
    # Heads, and spaces that were not seen, by weights; the others stay.
    left = replace(allowed, spaces={name: allowed.spaces[name] for name in seen.unseen(allowed)})
    element = refined(left, tensors_a, tensors_b, element, sweeps)
    elements["activations"] = element
    elements["refined activations"] = refined(allowed, tensors_a, tensors_b, element, sweeps)
    return Candidates(elements, tuple(left.spaces))


def refined(spec: Spec, a: Tensors, b: Tensors, start: Element, sweeps: int) -> Element:
    """Weight matching that starts at an element."""
    if not spec.spaces and not spec.attentions:
        return start
    moved = apply_to_tensors(start, spec, b)
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

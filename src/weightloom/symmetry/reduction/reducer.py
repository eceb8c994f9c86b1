"""Lossless reduction: the same function with fewer hidden units."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weightloom.errors import ConfigError
from weightloom.networks.finiteness import require_finite
from weightloom.networks.graph import Graph
from weightloom.networks.layers import Affine
from weightloom.symmetry.folding import folded
from weightloom.symmetry.probes import deviation_of
from weightloom.symmetry.reading.reader import trace
from weightloom.symmetry.reduction.clones import rounding
from weightloom.symmetry.reduction.intervals import Box
from weightloom.symmetry.reduction.removable import (
    ReducibleNetwork,
    RemovableUnit,
    find_removable,
    find_unread,
    is_placeholder,
)

__all__ = ["Reduced", "Removal", "reduce", "reduced", "remove_units"]


@dataclass(frozen=True)
class Removal:
    """One unit that was removed, and why. Indices are those of the network that was given."""

    layer: str
    """the space of the unit: the first layer that writes it"""
    unit: int
    reason: str
    """"zero", "constant", "saturated", "clone", "scaled clone", "mirrored clone", "always on" """
    into: int | None = None
    """the unit that took over its outgoing weights, if one did"""
    factor: float = 0.0
    """its value was this many times the value of ``into``"""

    def __str__(self) -> str:
        text = _TEXTS[self.reason].format(value=self.factor)
        merged = "" if self.into is None else f"; its outgoing weights went to unit {self.into}"
        return f"layer {self.layer!r}, unit {self.unit}: {text}{merged}"


_TEXTS = {
    "zero": "no layer reads it (outgoing weights are zero)",
    "constant": "constant (no incoming weights), folded into the next bias",
    "saturated": "constant for every input, folded into the next bias",
    "clone": "same incoming weights as another unit",
    "scaled clone": "incoming weights are a multiple of another unit's, {value:g} times its value",
    "mirrored clone": "incoming weights are opposite to another unit's",
    "always on": "never switched off, and parallel to another such unit",
}


@dataclass(frozen=True)
class Reduced:
    """The result of `reduce`: a network with fewer units that computes the same function."""

    module: nn.Module
    log: tuple[Removal, ...]
    """what was removed, in order"""
    kept: dict[str, Tensor]
    """for each space, the old indices of the units that remain"""
    notes: tuple[str, ...]
    """what could not be reduced, and why"""
    deviation: float | None
    """largest difference of outputs on random inputs, relative to the largest output (in float64
    for up to a million parameters); None if no input was given and none could be guessed"""

    @property
    def removed(self) -> int:
        """How many units were removed."""
        return len(self.log)

    def __str__(self) -> str:
        return "\n".join([*map(str, self.log), *self.notes]) or "nothing to remove"


def reduce(
    module: nn.Module,
    box: Box | None = None,
    tolerance: float = 0.0,
    example: Tensor | None = None,
) -> Reduced:
    """A smaller network that computes the same function, without zero, constant or clone units.

    A unit is removed if

    - no layer reads it: its outgoing weights are zero (modularity, Def. 4, for hidden units
      only: columns of the input and rows of the output stay);
    - it is constant: it has no incoming weights, or its activation has one value only (a ReLU of
      something never positive). The value is folded into the next bias, which is added if missing;
    - it is a clone of another unit (modularity, Def. 3): equal incoming weights, or a positive
      multiple for ReLU-like activations, or the opposite for odd, even and sigmoid-like ones. The
      outgoing weights are added, with the factor.

    This is repeated until nothing changes, since each removal can make others possible.

    ``box`` = (low, high), numbers or one for each feature (channel), bounds the inputs. ReLU units
    that are never on inside it are constants; units that are always on and parallel to each other
    (w and c w, with any biases) are merged. The function is kept inside the box only.

    ``tolerance`` (relative, 2-norm of incoming weights; entries of outgoing ones) also removes
    units that are almost clones or almost unread. Outputs then change, see ``deviation``. At 0
    clones are exactly equal, and multiples equal up to the rounding of a rescaling.

    Units of a convolution are its channels. A constant channel cannot be folded into a convolution
    that pads with zeros: such channels are merged into one, which stays, with a note. Layers whose
    units depend on each other (norms, attention, softmax, depthwise convolutions) and layers that
    are used several times stay as they are, with a note. BatchNorm is folded into its layer first.
    If all units of a layer could be removed, one without weights stays. The module given is not
    changed.

    >>> net = nn.Sequential(nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> with torch.no_grad():
    ...     _ = net[0].weight.copy_(torch.tensor([[1.0], [2.0], [0.0]]))
    ...     _ = net[0].bias.copy_(torch.tensor([1.0, 2.0, 3.0]))
    >>> smaller = reduce(net)
    >>> smaller.module[0].out_features
    1
    >>> print(smaller.log[0])
    layer '0', unit 2: constant (no incoming weights), folded into the next bias
    >>> print(smaller.log[1].reason, smaller.log[1].factor)
    scaled clone 2.0
    """
    if not 0 <= tolerance < 1:
        raise ConfigError(f"tolerance is {tolerance}; it is relative, give 0 <= tolerance < 1")
    require_finite(module)
    graph = trace(module)
    small, log, kept, notes = reduced(graph, box, tolerance)
    deviation: float | None = 0.0
    if log:
        deviation = deviation_of(module, small.module, box, example)
    return Reduced(small.module, tuple(log), kept, tuple(notes), deviation)


def reduced(
    graph: Graph, box: Box | None = None, tolerance: float = 0.0
) -> tuple[Graph, list[Removal], dict[str, Tensor], list[str]]:
    """The graph of a smaller copy; what was removed, what remains in each space, and notes."""
    small = folded(graph)
    if small is graph:
        small = graph.of_copy(copy.deepcopy(graph.module))
    return small, *_remove_all(small, box, tolerance)


def _remove_all(
    graph: Graph, box: Box | None, tolerance: float
) -> tuple[list[Removal], dict[str, Tensor], list[str]]:
    """Removes units, in place, until nothing changes.

    Unread units from the last layer to the first, then constants and clones from the first to the
    last.
    """
    work = ReducibleNetwork(graph, box)
    units = {name: list(range(space.size)) for name, space in work.spec.spaces.items()}
    notes = {f"space {name!r} was not reduced: {why}": None for name, why in work.blocked.items()}
    log: list[Removal] = []
    while True:
        changed = False
        free = [name for name in work.spec.spaces if name not in work.blocked]
        for name in reversed(free):
            unread = find_unread(work, name, tolerance)
            log += _remove(work, name, unread, units)
            changed = changed or bool(unread)
        stuck: list[str] = []
        for name in free:
            removable, remarks = find_removable(work, name, tolerance)
            stuck += remarks
            log += _remove(work, name, removable, units)
            changed = changed or bool(removable)
        if not changed:
            empty = [
                f"layer {name!r}: no unit is needed; one without weights stays"
                for name in free
                if is_placeholder(work, name)
            ]
            kept = {name: torch.tensor(left) for name, left in units.items()}
            return log, kept, [*notes, *stuck, *empty]
        work = ReducibleNetwork(graph, box)


def _remove(
    work: ReducibleNetwork, space: str, removable: list[RemovableUnit], units: dict[str, list[int]]
) -> list[Removal]:
    """Removes units and returns the log, with the indices of the network that was given."""
    if not removable:
        return []
    old = units[space]
    kept = remove_units(work, space, removable)
    units[space] = [old[unit] for unit in kept]
    return [
        Removal(
            space,
            old[removed.unit],
            removed.reason,
            None if removed.into is None else old[removed.into],
            removed.factor,
        )
        for removed in removable
    ]


def remove_units(work: ReducibleNetwork, space: str, removable: list[RemovableUnit]) -> list[int]:
    """Removes units from the layers that write and read a space, in place; returns the rest.

    If none would remain, the first one stays without any weights. It keeps its bias, so that its
    activation is evaluated at a value that it has been evaluated at before.
    """
    size = work.size(space)
    gone = {removed.unit for removed in removable}
    remaining = [unit for unit in range(size) if unit not in gone]
    placeholder = not remaining
    keep = torch.tensor(remaining or [0])
    for name, layer in work.consumers(space).items():
        repeat = work.repeat(space, name)
        blocks = layer.weight.detach().reshape(layer.weight.shape[0], size, -1).clone()
        _fold_constants(layer, blocks, removable, name)
        _merge_clones(blocks, removable)
        blocks = blocks[:, keep] * (0.0 if placeholder else 1.0)
        shape = (len(blocks), len(keep) * repeat, *layer.weight.shape[2:])
        set_weight(layer, blocks.reshape(shape))
    for layer in work.producers(space):
        rows = layer.weight.detach()[keep]
        set_weight(layer, torch.zeros_like(rows) if placeholder else rows)
        if layer.bias is not None:
            set_bias(layer, layer.bias.detach()[keep])
    work.changed()
    return keep.tolist()


def _fold_constants(
    layer: Affine, blocks: Tensor, removable: list[RemovableUnit], name: str
) -> None:
    """Adds shift * (sum of a unit's outgoing weights) to the bias; adds a bias if there is none."""
    shifted = [removed for removed in removable if removed.shifts.get(name)]
    if not shifted:
        return
    sums = blocks[:, [removed.unit for removed in shifted]].double().sum(2)
    values = torch.tensor([removed.shifts[name] for removed in shifted], dtype=torch.float64)
    bias = layer.bias.detach().double() if layer.bias is not None else 0.0
    set_bias(layer, bias + sums @ values)


def _merge_clones(blocks: Tensor, removable: list[RemovableUnit]) -> None:
    """Adds factor * (outgoing weights of a clone) to those of the original, in place.

    What cancels up to rounding becomes zero, as for clones with opposite outgoing weights.
    """
    by_target: dict[int, list[RemovableUnit]] = {}
    for removed in removable:
        if removed.into is not None:
            by_target.setdefault(removed.into, []).append(removed)
    for target, group in by_target.items():
        total = blocks[:, target].double()
        size = total.abs()
        for removed in group:
            part = removed.factor * blocks[:, removed.unit].double()
            total, size = total + part, size + part.abs()
        total[total.abs() <= rounding(blocks.dtype) * size] = 0.0
        blocks[:, target] = total.to(blocks.dtype)


def set_weight(layer: Affine, weight: Tensor) -> None:
    """Replaces a weight and updates the sizes that the layer stores."""
    layer.weight = _parameter(weight, layer.weight)
    if isinstance(layer, nn.Linear):
        layer.out_features, layer.in_features = weight.shape
    else:
        layer.out_channels, layer.in_channels = weight.shape[:2]


def set_bias(layer: Affine, bias: Tensor) -> None:
    layer.bias = _parameter(bias.to(layer.weight.dtype), layer.weight)


def _parameter(values: Tensor, like: Tensor) -> nn.Parameter:
    return nn.Parameter(values.contiguous(), requires_grad=like.requires_grad)

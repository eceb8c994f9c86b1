"""Which hidden units can be removed from a network; a network without any is normal.

Normal networks: modularity, Definitions 3 to 5.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn

from weightloom.errors import UnsupportedModuleError
from weightloom.networks.finiteness import require_finite, require_real
from weightloom.networks.graph import Graph, Node, NodeKind
from weightloom.networks.layers import AFFINE, Affine
from weightloom.symmetry.folding import folded
from weightloom.symmetry.reading.layers import pads_with_zeros
from weightloom.symmetry.reading.reader import read_graph, trace
from weightloom.symmetry.reduction.clones import Clone, find_clones
from weightloom.symmetry.reduction.intervals import Box, Interval, intervals
from weightloom.symmetry.spec import Kind, Spec

__all__ = [
    "Normality",
    "ReducibleNetwork",
    "RemovableUnit",
    "can_shift",
    "find_removable",
    "find_unread",
    "is_normal",
    "is_placeholder",
]


@dataclass(frozen=True)
class RemovableUnit:
    """A unit whose value is factor * (value of ``into``) + shift, or just the shift.

    ``shifts`` has one shift for each layer that reads the unit. ``factor`` is that of the values;
    the factor of the incoming weights may have another sign (even activations).
    """

    unit: int
    reason: str
    into: int | None = None
    factor: float = 0.0
    shifts: dict[str, float] = field(default_factory=dict)


class ReducibleNetwork:
    """A network with its spec and intervals; layers may be changed in place, the graph stays."""

    def __init__(self, graph: Graph, box: Box | None = None) -> None:
        if graph.exported:
            raise UnsupportedModuleError(
                f"the network ({type(graph.module).__name__}) is read from its operations, and "
                "units are removed from networks of known layers only"
            )
        self.graph, self.box = graph, box
        self.spec = read_graph(graph)
        self.blocked = _blocked(graph, self.spec)
        self._seen: dict[str, Interval | None] | None = None

    def changed(self) -> None:
        """Forgets what depends on the weights."""
        self._seen = None

    def reads(self, layer: str) -> Interval | None:
        """Intervals of the inputs of a layer, one for each of its columns."""
        if self._seen is None:
            self._seen = intervals(self.graph, self.box)
        return self._seen.get(layer)

    def layer(self, name: str) -> Affine:
        layer = self.graph.module.get_submodule(name)
        if not isinstance(layer, AFFINE):
            raise UnsupportedModuleError(f"layer {name!r} is {type(layer).__name__}, not affine")
        return layer

    def producers(self, space: str) -> list[Affine]:
        return [self.layer(layer.name) for layer in self.spec.producers(space)]

    def consumers(self, space: str) -> dict[str, Affine]:
        return {layer.name: self.layer(layer.name) for layer in self.spec.consumers(space)}

    def size(self, space: str) -> int:
        return len(self.producers(space)[0].weight)

    def repeat(self, space: str, consumer: str) -> int:
        """How many columns of a reading layer each unit has."""
        return self.layer(consumer).weight.shape[1] // self.size(space)


def _blocked(graph: Graph, spec: Spec) -> dict[str, str]:
    """Spaces from which no unit can be removed, and why."""
    reasons: dict[str, str] = {}
    calls = Counter(node.target for node in graph.calls())
    tensors = Counter(name for layer in spec.layers for name in (layer.weight, layer.bias))
    mixed = _normalised_together(graph)
    known = dict(graph.module.named_modules())
    for space in spec.spaces:
        for layer in (*spec.producers(space), *spec.consumers(space)):
            shared = (tensors[name] > 1 for name in (layer.weight, layer.bias) if name is not None)
            if layer.kind not in ("linear", "conv") or not isinstance(
                known.get(layer.name), AFFINE
            ):
                reasons[space] = f"layer {layer.name!r} ({layer.kind}) couples its units"
            elif calls[layer.name] > 1 or any(shared):
                reasons[space] = f"layer {layer.name!r} is used more than once"
            elif layer.name in mixed and layer.output == space:
                reasons[space] = f"a softmax after layer {layer.name!r} runs over its units"
        if not spec.producers(space) or not spec.consumers(space):
            reasons[space] = "no layer writes it, or none reads it"
    return reasons


def _normalised_together(graph: Graph) -> set[str]:
    """Layers whose units meet in a softmax before the next layer."""
    origin: dict[Node, set[str]] = {}
    mixed: set[str] = set()
    for node in graph.nodes:
        origin[node] = set().union(*(origin[source] for source in node.inputs))
        title = node.title
        if node.kind is NodeKind.MODULE:
            layer = graph.layer(node)
            title = type(layer).__name__.lower()
            if isinstance(layer, AFFINE):
                origin[node] = {node.target}
        if title in ("softmax", "log_softmax", "logsoftmax"):
            mixed |= origin[node]
    return mixed


def find_unread(work: ReducibleNetwork, space: str, tolerance: float) -> list[RemovableUnit]:
    """Units that no layer reads: all outgoing weights are zero."""
    unread = torch.ones(work.size(space), dtype=torch.bool)
    for name, layer in work.consumers(space).items():
        largest = _largest(layer.weight.detach(), work.repeat(space, name))
        unread &= largest <= tolerance * (largest.max() if len(largest) else 0.0)
    if is_placeholder(work, space):
        return []
    return [RemovableUnit(unit, "zero") for unit in torch.nonzero(unread).flatten().tolist()]


def is_placeholder(work: ReducibleNetwork, space: str) -> bool:
    """Whether a space has a single unit without any weights: it cannot become smaller."""
    if work.size(space) != 1:
        return False
    layers = (*work.producers(space), *work.consumers(space).values())
    return not any(bool(layer.weight.detach().any()) for layer in layers)


def find_removable(
    work: ReducibleNetwork, space: str, tolerance: float
) -> tuple[list[RemovableUnit], list[str]]:
    """Units that can be removed, and notes on constants that have to stay."""
    removable = find_unread(work, space, tolerance)
    constants, kept = _constants(work, space, {removed.unit for removed in removable})
    removable += constants
    notes = [
        f"layer {space!r}, unit {unit}: constant, but the zeros around the input of the next "
        "convolution would change, so it stays"
        for unit in kept
    ]
    gone = {removed.unit for removed in removable} | set(kept)
    rest = torch.tensor([u for u in range(work.size(space)) if u not in gone], dtype=torch.int64)
    clones = _clones(work, space, rest, tolerance)
    return removable + (clones or _parallel(work, space, rest, tolerance)), notes


def _largest(weight: Tensor, repeat: int) -> Tensor:
    """Largest absolute entry of each unit's columns in a weight [out, units * repeat, ...]."""
    rows = weight.flatten(1)
    # Two plain reductions are many times as fast as a norm over the first dimension.
    return torch.maximum(rows.amax(0), -rows.amin(0)).reshape(weight.shape[1] // repeat, -1).amax(1)


def _constants(
    work: ReducibleNetwork, space: str, gone: set[int]
) -> tuple[list[RemovableUnit], list[int]]:
    """Constant units that a bias can absorb, and constant units that stay."""
    reads = {name: work.reads(name) for name in work.consumers(space)}
    if any(interval is None for interval in reads.values()) or is_placeholder(work, space):
        return [], []
    size = work.size(space)
    constant = torch.ones(size, dtype=torch.bool)
    values: dict[str, list[float]] = {}
    for name, interval in reads.items():
        if interval is None or len(interval.low) % max(size, 1):
            return [], []
        constant &= interval.point.reshape(size, -1).all(1)
        values[name] = interval.low.reshape(size, -1)[:, 0].tolist()
    idle = _without_inputs(work, space)
    removable, stuck = [], []
    for unit in torch.nonzero(constant).flatten().tolist():
        if unit in gone:
            continue
        shifts = {name: own[unit] for name, own in values.items()}
        if can_shift(work, shifts):
            reason = "constant" if bool(idle[unit]) else "saturated"
            removable.append(RemovableUnit(unit, reason, shifts=shifts))
        else:
            stuck.append(unit)
    return removable + _merge_constants(stuck, values), stuck[:1] + _not_multiples(stuck, values)


def _without_inputs(work: ReducibleNetwork, space: str) -> Tensor:
    """Units without incoming weights."""
    idle = torch.ones(work.size(space), dtype=torch.bool)
    for layer in work.producers(space):
        rows = layer.weight.detach().flatten(1)
        if rows.shape[1]:
            idle &= (rows.amax(1) == 0) & (rows.amin(1) == 0)
    return idle


def can_shift(work: ReducibleNetwork, shifts: dict[str, float]) -> bool:
    """Whether the biases can absorb these shifts (zeros at the border are not shifted)."""
    return all(
        value == 0 or not pads_with_zeros(work.layer(name)) for name, value in shifts.items()
    )


def _ratio(unit: int, of: int, values: dict[str, list[float]]) -> float | None:
    """c with (value of unit) = c * (value of the other) for all layers that read them, or None."""
    ratios = {own[unit] / own[of] if own[of] else None for own in values.values()}
    return ratios.pop() if len(ratios) == 1 else None


def _merge_constants(stuck: list[int], values: dict[str, list[float]]) -> list[RemovableUnit]:
    """Merges constant channels into the first one, of which they are multiples."""
    ratios = ((unit, _ratio(unit, stuck[0], values)) for unit in stuck[1:])
    return [RemovableUnit(unit, "constant", stuck[0], c) for unit, c in ratios if c is not None]


def _not_multiples(stuck: list[int], values: dict[str, list[float]]) -> list[int]:
    return [unit for unit in stuck[1:] if _ratio(unit, stuck[0], values) is None]


def _clones(
    work: ReducibleNetwork, space: str, rest: Tensor, tolerance: float
) -> list[RemovableUnit]:
    """Units whose incoming weights are those of another one times an allowed factor."""
    own = work.spec.spaces[space]
    weight, bias = _incoming(work, space, rest)
    removable = []
    for clone in find_clones(weight, bias, own.kind, tolerance):
        factor = float(own.kind.outgoing(torch.tensor(clone.factor, dtype=torch.float64)))
        shift = own.constant if own.kind is Kind.FLIP and clone.factor < 0 else 0.0
        shifts = dict.fromkeys(work.consumers(space), shift) if shift else {}
        removable.append(_removable(clone, rest, _reason(clone.factor), factor, shifts))
    return removable


def _reason(factor: float) -> str:
    if factor == 1:
        return "clone"
    return "scaled clone" if factor > 0 else "mirrored clone"


def _removable(
    clone: Clone, units: Tensor, reason: str, factor: float, shifts: dict[str, float]
) -> RemovableUnit:
    return RemovableUnit(int(units[clone.unit]), reason, int(units[clone.of]), factor, shifts)


def _incoming(work: ReducibleNetwork, space: str, units: Tensor) -> tuple[Tensor, Tensor | None]:
    """Incoming weights [units, k] of these units, from all layers that write them, and biases."""
    layers = work.producers(space)
    everything = len(units) == work.size(space)
    weights = [layer.weight.detach().flatten(1) for layer in layers]
    biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
    if len(layers) > 1:
        weights = [torch.cat([*weights, *(bias[:, None] for bias in biases)], 1)]
        biases = []
    weight = weights[0] if everything else weights[0][units]
    bias = biases[0] if biases else None
    return weight, bias if bias is None or everything else bias[units]


def _parallel(
    work: ReducibleNetwork, space: str, rest: Tensor, tolerance: float
) -> list[RemovableUnit]:
    """Units that are always on (or have no activation) and have parallel incoming weights.

    They are c w x + b_i and w x + b_j, so one of them is c times the other plus b_i - c b_j.
    """
    reads = [work.reads(name) for name in work.consumers(space)]
    layers = work.producers(space)
    if len(layers) != 1 or not len(rest):
        return []
    linear = torch.ones(work.size(space), dtype=torch.bool)
    for interval in reads:
        if interval is None or not bool(interval.linear.any()):
            return []
        linear &= interval.linear.reshape(len(linear), -1).all(1)
    units = rest[linear[rest]]
    weight, bias = _incoming(work, space, units)
    removable = []
    for clone in find_clones(weight, None, Kind.FREE, tolerance):
        shift = 0.0
        if bias is not None:
            shift = float(bias[clone.unit].double() - clone.factor * bias[clone.of].double())
        shifts = dict.fromkeys(work.consumers(space), shift)
        if can_shift(work, shifts):
            removable.append(_removable(clone, units, "always on", clone.factor, shifts))
    return removable


Unit = tuple[str, int]
CloneUnit = tuple[str, int, int]


@dataclass(frozen=True)
class Normality:
    """What keeps a network from being normal; true if nothing does.

    Units are (layer, unit), clones (layer, unit, the unit that they are a clone of).
    """

    zero: tuple[Unit, ...] = ()
    """no outgoing weights"""
    constant: tuple[Unit, ...] = ()
    """one value for every input: no incoming weights, or an activation that never changes"""
    clone: tuple[CloneUnit, ...] = ()
    """incoming weights and bias equal to another unit's"""
    scaled: tuple[CloneUnit, ...] = ()
    """a positive multiple of another unit's, where the activation allows it"""
    mirrored: tuple[CloneUnit, ...] = ()
    """a negative multiple (opposite) of another unit's, where the activation allows it"""
    parallel: tuple[CloneUnit, ...] = ()
    """always on (or without activation), and parallel to another such unit; biases differ"""
    notes: tuple[str, ...] = ()
    """what was not examined or cannot be removed; does not count"""

    def __bool__(self) -> bool:
        return not any(getattr(self, entry.name) for entry in fields(self) if entry.name != "notes")

    def __str__(self) -> str:
        lines = [] if self else ["not normal:"]
        for entry in fields(self)[:-1]:
            for layer, unit, *of in getattr(self, entry.name):
                lines.append(f"layer {layer!r}, unit {unit}: {_description(entry.name, of)}")
        return "\n".join([*lines, *self.notes]) or "normal"


# The field of `Normality` for each reason.
_FIELDS = {
    "zero": "zero",
    "constant": "constant",
    "saturated": "constant",
    "clone": "clone",
    "scaled clone": "scaled",
    "mirrored clone": "mirrored",
    "always on": "parallel",
}


def is_normal(module: nn.Module, box: Box | None = None, tolerance: float = 0.0) -> Normality:
    """Whether no hidden unit can be removed: there are no zero, constant or clone units.

    Definition 5 of modularity, with three corrections: columns of the input and rows of the output
    do not count (Def. 4 prints "each matrix"), clones may be scaled or mirrored where the
    activation allows it, and a layer of a single unit without any weights is as small as a layer
    can be. The answer lists what is removable at once; after that more may be, see `reduce`, whose
    results are normal. ``box`` and ``tolerance`` are those of `reduce`. Takes a few passes over the
    weights.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    >>> bool(is_normal(net))
    True
    >>> _ = net[0].weight.data[2].copy_(-net[0].weight.data[0])
    >>> _ = net[0].bias.data[2].copy_(-net[0].bias.data[0])
    >>> is_normal(net).mirrored
    (('0', 2, 0),)
    """
    require_finite(module)
    require_real(module)
    work = ReducibleNetwork(folded(trace(module)), box)
    units: dict[str, list[Any]] = {}
    notes = [f"space {name!r} was not examined: {why}" for name, why in work.blocked.items()]
    for space in work.spec.spaces:
        if space not in work.blocked:
            removable, remarks = find_removable(work, space, tolerance)
            notes += remarks
            for removed in removable:
                units.setdefault(_FIELDS[removed.reason], []).append(_entry(space, removed))
    lists = {name: tuple(entries) for name, entries in units.items()}
    return Normality(**lists, notes=tuple(notes))


def _entry(space: str, removed: RemovableUnit) -> Unit | CloneUnit:
    return (space, removed.unit) if removed.into is None else (space, removed.unit, removed.into)


def _description(name: str, of: list[int]) -> str:
    if not of:
        return name
    return f"{name if name == 'clone' else f'{name} clone'} of unit {of[0]}"

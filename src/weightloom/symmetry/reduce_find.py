"""Which hidden units a network can do without, and what has to be done with their weights."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx, nn

from weightloom.errors import UnsupportedModuleError
from weightloom.symmetry.read import read, trace
from weightloom.symmetry.reduce_clones import Twin, find_twins
from weightloom.symmetry.reduce_intervals import Interval, pads_with_zeros
from weightloom.symmetry.reduce_walk import AFFINE, Affine, Box, intervals
from weightloom.symmetry.spec import Kind, Spec

__all__ = ["Action", "Work", "find", "find_silent", "is_placeholder"]


@dataclass(frozen=True)
class Action:
    """One unit that can go: its value is factor * (value of ``into``) + shift, or just the shift.

    ``shifts`` has one shift for each layer that reads the unit. ``factor`` applies to values; that
    of the incoming weights may differ in sign (even activations).
    """

    unit: int
    reason: str
    into: int | None = None
    factor: float = 0.0
    shifts: dict[str, float] = field(default_factory=dict)


class Work:
    """A network with what was read from it; the layers may be changed, the graph stays."""

    def __init__(self, module: nn.Module, box: Box | None = None) -> None:
        self.module, self.box = module, box
        self.spec: Spec = read(module)
        self.graph = _graph(module)
        self.blocked = _blocked(self.module, self.spec, self.graph)
        self._seen: dict[str, Interval | None] | None = None

    def changed(self) -> None:
        """Forget what depends on the weights."""
        self._seen = None

    def reads(self, layer: str) -> Interval | None:
        """Intervals of what a layer reads, one for each of its columns."""
        if self._seen is None:
            self._seen = intervals(self.graph, self.module, self.box)
        return self._seen.get(layer)

    def layer(self, name: str) -> Affine:
        found = self.module.get_submodule(name)
        if not isinstance(found, AFFINE):
            raise UnsupportedModuleError(f"layer {name!r} is {type(found).__name__}, not affine")
        return found

    def producers(self, space: str) -> list[Affine]:
        return [self.layer(one.name) for one in self.spec.producers(space)]

    def consumers(self, space: str) -> dict[str, Affine]:
        return {one.name: self.layer(one.name) for one in self.spec.consumers(space)}

    def size(self, space: str) -> int:
        return len(self.producers(space)[0].weight)

    def repeat(self, space: str, consumer: str) -> int:
        """Columns of a reading layer for each unit."""
        return self.layer(consumer).weight.shape[1] // self.size(space)


def _graph(module: nn.Module) -> fx.Graph | None:
    """The graph, or None where the module is itself one layer that torch.fx cannot look into."""
    try:
        return trace(module)
    except UnsupportedModuleError:
        return None


def _blocked(module: nn.Module, spec: Spec, graph: fx.Graph | None) -> dict[str, str]:
    """Spaces that must stay as they are, and why."""
    found: dict[str, str] = {}
    nodes = [] if graph is None else list(graph.nodes)
    calls = Counter(str(node.target) for node in nodes if node.op == "call_module")
    tensors = Counter(one for layer in spec.layers for one in (layer.weight, layer.bias))
    mixed = _normalised_together(module, nodes)
    known = dict(module.named_modules())
    for space in spec.spaces:
        for layer in (*spec.producers(space), *spec.consumers(space)):
            shared = (tensors[one] > 1 for one in (layer.weight, layer.bias) if one is not None)
            if layer.kind not in ("linear", "conv") or not isinstance(
                known.get(layer.name), AFFINE
            ):
                found[space] = f"layer {layer.name!r} ({layer.kind}) binds its units together"
            elif calls[layer.name] > 1 or any(shared):
                found[space] = f"layer {layer.name!r} is used more than once"
            elif layer.name in mixed and layer.output == space:
                found[space] = f"a softmax after layer {layer.name!r} runs over its units"
        if not spec.producers(space) or not spec.consumers(space):
            found[space] = "no layer writes it, or none reads it"
    return found


def _normalised_together(module: nn.Module, nodes: list[fx.Node]) -> set[str]:
    """Layers whose units meet in a softmax before the next layer."""
    origin: dict[fx.Node, set[str]] = {}
    found: set[str] = set()
    for node in nodes:
        origin[node] = set().union(*(origin[one] for one in node.all_input_nodes))
        title = str(getattr(node.target, "__name__", node.target))
        if node.op == "call_module":
            layer = module.get_submodule(str(node.target))
            title = type(layer).__name__.lower()
            if isinstance(layer, AFFINE):
                origin[node] = {str(node.target)}
        if title in ("softmax", "log_softmax", "logsoftmax"):
            found |= origin[node]
    return found


def find_silent(work: Work, space: str, tolerance: float) -> list[Action]:
    """Units that no layer listens to: all outgoing weights zero."""
    silent = torch.ones(work.size(space), dtype=torch.bool)
    for name, layer in work.consumers(space).items():
        largest = _largest(layer.weight.detach(), work.repeat(space, name))
        silent &= largest <= tolerance * (largest.max() if len(largest) else 0.0)
    if is_placeholder(work, space):
        return []
    return [Action(unit, "zero") for unit in torch.nonzero(silent).flatten().tolist()]


def is_placeholder(work: Work, space: str) -> bool:
    """Whether the only unit of a space has no weights at all: nothing smaller is left."""
    if work.size(space) != 1:
        return False
    layers = (*work.producers(space), *work.consumers(space).values())
    return not any(bool(layer.weight.detach().any()) for layer in layers)


def find(work: Work, space: str, tolerance: float) -> tuple[list[Action], list[str]]:
    """Units that can go, and notes on constants that have to stay."""
    actions = find_silent(work, space, tolerance)
    constants, kept = _constants(work, space, {one.unit for one in actions})
    actions += constants
    notes = [
        f"layer {space!r}, unit {unit}: constant, but the zeros around the input of the next "
        "convolution would change, so it stays"
        for unit in kept
    ]
    gone = {one.unit for one in actions} | set(kept)
    rest = torch.tensor([u for u in range(work.size(space)) if u not in gone], dtype=torch.int64)
    clones = _clones(work, space, rest, tolerance)
    return actions + (clones or _parallel(work, space, rest, tolerance)), notes


def _largest(weight: Tensor, repeat: int) -> Tensor:
    """Largest absolute entry of each unit's columns in a weight [out, units * repeat, ...]."""
    rows = weight.flatten(1)
    # Two plain reductions are many times as fast as a norm over the first dimension.
    return torch.maximum(rows.amax(0), -rows.amin(0)).reshape(weight.shape[1] // repeat, -1).amax(1)


def _constants(work: Work, space: str, gone: set[int]) -> tuple[list[Action], list[int]]:
    """Constant units, and those of them that no bias can take over."""
    reads = {name: work.reads(name) for name in work.consumers(space)}
    if any(one is None for one in reads.values()) or is_placeholder(work, space):
        return [], []
    size = work.size(space)
    constant = torch.ones(size, dtype=torch.bool)
    values: dict[str, list[float]] = {}
    for name, seen in reads.items():
        if seen is None or len(seen.low) % max(size, 1):
            return [], []
        constant &= seen.point.reshape(size, -1).all(1)
        values[name] = seen.low.reshape(size, -1)[:, 0].tolist()
    idle = _idle(work, space)
    found, stuck = [], []
    for unit in torch.nonzero(constant).flatten().tolist():
        if unit in gone:
            continue
        shifts = {name: own[unit] for name, own in values.items()}
        if _can_shift(work, shifts):
            reason = "constant" if bool(idle[unit]) else "saturated"
            found.append(Action(unit, reason, shifts=shifts))
        else:
            stuck.append(unit)
    return found + _merge_constants(stuck, values), stuck[:1] + _unlike(stuck, values)


def _idle(work: Work, space: str) -> Tensor:
    """Units without incoming weights."""
    idle = torch.ones(work.size(space), dtype=torch.bool)
    for layer in work.producers(space):
        rows = layer.weight.detach().flatten(1)
        if rows.shape[1]:
            idle &= (rows.amax(1) == 0) & (rows.amin(1) == 0)
    return idle


def _can_shift(work: Work, shifts: dict[str, float]) -> bool:
    """Whether each layer's bias can take these shifts (zeros at the border get none)."""
    return all(
        value == 0 or not pads_with_zeros(work.layer(name)) for name, value in shifts.items()
    )


def _ratio(unit: int, of: int, values: dict[str, list[float]]) -> float | None:
    """c with (value of unit) = c * (value of the other) wherever they are read; None if none is."""
    ratios = {own[unit] / own[of] if own[of] else None for own in values.values()}
    return ratios.pop() if len(ratios) == 1 else None


def _merge_constants(stuck: list[int], values: dict[str, list[float]]) -> list[Action]:
    """One constant channel is enough: the others are multiples of it."""
    ratios = ((unit, _ratio(unit, stuck[0], values)) for unit in stuck[1:])
    return [Action(unit, "constant", stuck[0], c) for unit, c in ratios if c is not None]


def _unlike(stuck: list[int], values: dict[str, list[float]]) -> list[int]:
    return [unit for unit in stuck[1:] if _ratio(unit, stuck[0], values) is None]


def _clones(work: Work, space: str, rest: Tensor, tolerance: float) -> list[Action]:
    """Units whose incoming weights are those of another one times an allowed factor."""
    own = work.spec.spaces[space]
    weight, bias = _incoming(work, space, rest)
    found = []
    for twin in find_twins(weight, bias, own.kind, tolerance):
        factor = float(own.kind.outgoing(torch.tensor(twin.factor, dtype=torch.float64)))
        shift = own.constant if own.kind is Kind.FLIP and twin.factor < 0 else 0.0
        shifts = dict.fromkeys(work.consumers(space), shift) if shift else {}
        found.append(_action(twin, rest, _reason(twin.factor), factor, shifts))
    return found


def _reason(factor: float) -> str:
    if factor == 1:
        return "clone"
    return "scaled clone" if factor > 0 else "mirrored clone"


def _action(
    twin: Twin, units: Tensor, reason: str, factor: float, shifts: dict[str, float]
) -> Action:
    return Action(int(units[twin.unit]), reason, int(units[twin.of]), factor, shifts)


def _incoming(work: Work, space: str, units: Tensor) -> tuple[Tensor, Tensor | None]:
    """Incoming weights [units, k] of these units from all layers that write them, and biases."""
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


def _parallel(work: Work, space: str, rest: Tensor, tolerance: float) -> list[Action]:
    """Units that are always on (or have no activation) and have parallel incoming weights.

    They are c w x + b_i and w x + b_j, so one of them is c times the other plus b_i - c b_j.
    """
    seen = [work.reads(name) for name in work.consumers(space)]
    layers = work.producers(space)
    if len(layers) != 1 or not len(rest):
        return []
    straight = torch.ones(work.size(space), dtype=torch.bool)
    for one in seen:
        if one is None or not bool(one.linear.any()):
            return []
        straight &= one.linear.reshape(len(straight), -1).all(1)
    units = rest[straight[rest]]
    weight, bias = _incoming(work, space, units)
    found = []
    for twin in find_twins(weight, None, Kind.FREE, tolerance):
        shift = 0.0
        if bias is not None:
            shift = float(bias[twin.unit].double() - twin.factor * bias[twin.of].double())
        shifts = dict.fromkeys(work.consumers(space), shift)
        if _can_shift(work, shifts):
            found.append(_action(twin, units, "always on", twin.factor, shifts))
    return found

"""Looks for a group element that maps one network to another, and checks every weight."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from weightloom.errors import UnsupportedModuleError
from weightloom.networks import ExampleCall, difference, operations_of
from weightloom.networks.graph import Graph
from weightloom.symmetry.folding import folded
from weightloom.symmetry.group import apply_to_tensors, tensors_of
from weightloom.symmetry.matching.search import Match, is_plain
from weightloom.symmetry.matching.search import match as match_tensors
from weightloom.symmetry.reading.labels.rules import FROZEN
from weightloom.symmetry.reading.reader import read, read_graph, trace
from weightloom.symmetry.reduction.reducer import reduced
from weightloom.symmetry.spec import Element, Spec
from weightloom.symmetry.verdict.running import Arguments
from weightloom.symmetry.verdict.weights import counters, floors, largest_gap, smallest_size

__all__ = [
    "Networks",
    "WeightEvidence",
    "architecture_mismatch",
    "compare_weights",
    "find_element",
    "graphs_differ",
    "without_redundant_units",
]


@dataclass(frozen=True)
class WeightEvidence:
    """What the weights of two networks show."""

    agree: bool
    """``element`` maps every weight of b to its partner in a"""
    element: Element | None
    deviation: float
    mismatch: str | None = None
    """the first difference; None if there is none, or nothing could be read"""
    unread: str | None = None
    """why no symmetry could be looked for"""
    reduced: bool = False


@dataclass(frozen=True)
class Networks:
    """Two networks as they were read, with BatchNorm folded."""

    graphs: tuple[Graph, Graph]
    specs: tuple[Spec, Spec]

    @property
    def modules(self) -> tuple[nn.Module, nn.Module]:
        return self.graphs[0].module, self.graphs[1].module


def compare_weights(
    a: nn.Module, b: nn.Module, code: str | None, limit: float, call: Arguments | None
) -> tuple[WeightEvidence, Networks | None]:
    """The weights as they are, if the code is the same; else up to a group element.

    ``code``: why the code is not known to be the same, see `code_difference`. ``call``: an example
    of what both networks take, for those that are read on one. Each network is traced once, and
    once more as operations if units are multiplied: the scales of gates are known there only.
    """
    if code is None:
        evidence = _checked((a, b), Element(), None, limit, sums=False)
        if evidence.agree:
            return evidence, None
    try:
        inputs = _example(call)
        graphs = folded(trace(a, inputs)), folded(trace(b, inputs))
        networks = Networks(graphs, (read_graph(graphs[0]), read_graph(graphs[1])))
    except UnsupportedModuleError as error:
        return WeightEvidence(False, None, float("inf"), None, str(error)), None
    merged = graphs[0].module is not a or graphs[1].module is not b
    evidence = _matched(networks, limit, merged)
    if not evidence.agree and all(map(_multiplies, graphs)):
        finer = _by_operations(a, b, limit, inputs)
        evidence, networks = finer or (evidence, networks)
    if not evidence.agree and (kept := _kept_in_order(graphs[0])):
        evidence = replace(evidence, mismatch=f"{evidence.mismatch}; {kept}")
    return evidence, networks


def _multiplies(graph: Graph) -> bool:
    """Whether layers were read and two values are multiplied, as in a gated unit."""
    return not graph.exported and any(
        node.title in ("mul", "mul_", "multiply") and len(node.inputs) > 1 for node in graph.nodes
    )


def _by_operations(
    a: nn.Module, b: nn.Module, limit: float, inputs: ExampleCall | None
) -> tuple[WeightEvidence, Networks] | None:
    """The element that is found where both networks are read as operations; None if none is."""
    try:
        graphs = folded(operations_of(a, inputs)), folded(operations_of(b, inputs))
        networks = Networks(graphs, (read_graph(graphs[0]), read_graph(graphs[1])))
    except UnsupportedModuleError:
        return None
    merged = graphs[0].module is not a or graphs[1].module is not b
    evidence = _matched(networks, limit, merged)
    return (evidence, networks) if evidence.agree else None


def _kept_in_order(graph: Graph) -> str | None:
    """The operations whose units no symmetry moves because no rule knows what they would do."""
    frozen = {
        f"{node.operation} at {node.where!r}" if node.where else node.operation
        for node in graph.nodes
        if node.operation in FROZEN
    }
    if not frozen:
        return None
    return f"no symmetry is known for what {', '.join(sorted(frozen)[:4])} reads and writes"


def without_redundant_units(
    networks: Networks, limit: float
) -> tuple[WeightEvidence, Networks] | None:
    """The same without clones and dead units; None if there are none or it does not help."""
    pairs = zip(networks.modules, networks.specs, strict=True)
    if all(is_plain(spec, tensors_of(module)) for module, spec in pairs):
        return None  # a few passes over the weights; `reduced` takes much longer
    try:
        (small_a, removed_a, *_), (small_b, removed_b, *_) = map(reduced, networks.graphs)
    except UnsupportedModuleError:
        return None
    if not removed_a and not removed_b:
        return None
    small = Networks((small_a, small_b), (read_graph(small_a), read_graph(small_b)))
    evidence = _matched(small, limit, sums=True)
    return (replace(evidence, reduced=True), small) if evidence.agree else None


def _matched(networks: Networks, limit: float, sums: bool) -> WeightEvidence:
    match = find_element(*networks.modules, limit, *networks.specs, sums=sums)
    if not match.same or match.element is None:
        text = match.mismatch or match.undecided
        return WeightEvidence(False, match.element, match.deviation, text)
    if match.undecided:
        return WeightEvidence(False, match.element, match.deviation, match.undecided)
    return _checked(networks.modules, match.element, networks.specs[0], limit, sums)


def graphs_differ(networks: Networks, call: Arguments | None) -> str | None:
    """Why the computations around the weights are not known to be the same; None: they are.

    ``call`` is an example of what both networks take, which reading every operation needs.
    """
    try:
        return difference(*(operations_of(module, _example(call)) for module in networks.modules))
    except UnsupportedModuleError as error:
        return str(error)


def _example(call: Arguments | None) -> ExampleCall | None:
    return None if call is None else ExampleCall(call.args, call.kwargs)


def _checked(
    modules: tuple[nn.Module, nn.Module],
    element: Element,
    spec: Spec | None,
    limit: float,
    sums: bool,
) -> WeightEvidence:
    """Every weight of a against b with the element applied, independently of the search."""
    skipped = counters(modules[0])
    a, b = (
        {name: _wide(t) for name, t in tensors_of(module).items() if name not in skipped}
        for module in modules
    )
    moved = b if spec is None else apply_to_tensors(element, spec, b)
    least, silent = floors(a, spec, element, sums)
    compared = {name: tensor for name, tensor in a.items() if name not in silent}
    gap = largest_gap(compared, moved, least, limit, smallest_size(*modules))
    return WeightEvidence(not gap.exceeds, element, gap.deviation, gap.in_words(limit))


def _wide(tensor: Tensor) -> Tensor:
    """Half precision as float32, so that moving weights does not round them again."""
    return tensor.float() if tensor.is_floating_point() and tensor.dtype.itemsize < 4 else tensor


# -- the search ----------------------------------------------------------------------------------
def find_element(
    a: nn.Module,
    b: nn.Module,
    tolerance: float,
    spec: Spec | None = None,
    other: Spec | None = None,
    *,
    sums: bool = False,
) -> Match:
    """The element that maps b to a, without reduction or probes.

    ``spec`` of a and ``other`` of b save reading the networks again. ``sums``: see `match_tensors`.
    """
    spec = read(a) if spec is None else spec
    other = read(b) if other is None else other
    mismatch = architecture_mismatch(a, b, spec, other)
    if mismatch is not None:
        return Match(False, None, float("inf"), mismatch)
    tensors_a, tensors_b = _without_constants(tensors_of(a), tensors_of(b), spec)
    tensors_b = {name: t.to(tensors_a[name].dtype) for name, t in tensors_b.items()}
    return match_tensors(spec, tensors_a, tensors_b, tolerance, sums)


def _without_constants(
    a: dict[str, Tensor], b: dict[str, Tensor], spec: Spec
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Leaves out tensors that no unit indexes and that are equal: masks, which hold -inf."""
    known = {axis.tensor for axis in spec.axes}
    known |= {name for layer in spec.layers for name in (layer.weight, layer.bias) if name}
    known |= {name for attention in spec.attentions for name in attention.tensors}
    constant = {name for name in a if name not in known and torch.equal(a[name], b[name])}
    kept_a, kept_b = ({n: t for n, t in x.items() if n not in constant} for x in (a, b))
    return kept_a, kept_b


def architecture_mismatch(a: nn.Module, b: nn.Module, spec: Spec, other: Spec) -> str | None:
    """The first difference that is not a weight, or None."""
    shapes = [{n: tuple(t.shape) for n, t in tensors_of(network).items()} for network in (a, b)]
    for name in [*shapes[0], *shapes[1]]:
        if name not in shapes[0] or name not in shapes[1]:
            return f"tensor {name!r} is in one network only"
        if shapes[0][name] != shapes[1][name]:
            return f"tensor {name!r} has shapes {shapes[0][name]} and {shapes[1][name]}"
    for layer_a, layer_b in zip(spec.layers, other.layers, strict=False):
        if layer_a.activation != layer_b.activation:
            return (
                f"layer {layer_a.name!r} is followed by {layer_a.activation} in one network and by "
                f"{layer_b.activation} in the other"
            )
        if layer_a != layer_b:
            return f"layer {layer_a.name!r} differs: {layer_a} and {layer_b}"
    if spec != other:
        return "the layers are connected or activated in different ways"
    modules_b = dict(b.named_modules())
    for name, module in a.named_modules():
        twin = modules_b.get(name)
        settings = _settings(module)
        if twin is None or settings is None or isinstance(module, (nn.Dropout, nn.Identity)):
            continue
        if type(module) is type(twin) and settings != _settings(twin):
            return f"layer {name!r} is {module} in one network and {twin} in the other"
    return None


def _settings(module: nn.Module) -> str | None:
    """The settings of a layer that its function depends on; None for a layer with children."""
    if next(module.children(), None) is not None:
        return None
    return module.extra_repr().replace(", inplace=True", "").replace("inplace=True", "")

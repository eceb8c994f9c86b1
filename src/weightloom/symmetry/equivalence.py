"""Are two networks the same function? Decided from the weights, with a certificate."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from weightloom.errors import ConfigError, UnsupportedModuleError
from weightloom.networks.graph import Graph
from weightloom.symmetry.folding import folded
from weightloom.symmetry.group import tensors_of
from weightloom.symmetry.matching.search import Match, is_plain
from weightloom.symmetry.matching.search import match as match_tensors
from weightloom.symmetry.probes import output_deviation
from weightloom.symmetry.reading.reader import read, read_graph, trace
from weightloom.symmetry.reduction.reducer import reduced
from weightloom.symmetry.spec import Element, Spec

__all__ = [
    "Equivalence",
    "architecture_mismatch",
    "default_tolerance",
    "equivalent",
    "find_element",
]


@dataclass(frozen=True)
class Equivalence:
    """The verdict of `equivalent`; true if the networks are the same.

    ``element``: the group element that maps b to a (``apply(element, b)`` has the weights of a). If
    the networks differ: the nearest element that was found, or None. ``weight_deviation``: the
    largest |difference of two weights| relative to the 2-norm of the weight's row (with the bias),
    after the element was applied; infinite if units have no partner. ``output_deviation``: the
    largest difference of outputs on ``probes`` random inputs, relative to the largest output; None
    if the network could not be run. ``mismatch``: the first difference, in words. ``reduced``:
    whether clones or dead units had to be removed first; the element then maps
    ``reduce(b).module`` to ``reduce(a).module``.
    """

    same: bool
    element: Element | None
    weight_deviation: float
    output_deviation: float | None
    mismatch: str | None
    tolerance: float
    probes: int = 0
    reduced: bool = False

    def __bool__(self) -> bool:
        return self.same

    def __str__(self) -> str:
        outputs = "not run" if self.output_deviation is None else f"{self.output_deviation:.3g}"
        verdict = "the same function" if self.same else f"different: {self.mismatch}"
        return (
            f"{verdict} (weights deviate by {self.weight_deviation:.3g}, tolerance "
            f"{self.tolerance:.3g}; outputs on {self.probes} probes by {outputs})"
        )


def equivalent(
    a: nn.Module,
    b: nn.Module,
    tolerance: float | None = None,
    probes: int | None = None,
    *,
    inputs: Tensor | None = None,
    reduce: bool = True,
) -> Equivalence:
    """Whether two networks compute the same function because a symmetry maps one to the other.

    Units are matched layer by layer by random projections of their incoming weights, up to the
    factors that the activation allows (functional-equivalence: permutations, positive scales,
    signs; modularity, Section 2.2: for normal networks with general activations there are no
    others). Then all entries are compared. If that fails and ``reduce`` is true, clones and dead
    units are removed and the rest is compared again. Outputs on probe inputs (``inputs``, or random
    ones) are a second, independent check: they must agree to the square root of the tolerance.

    ``tolerance`` is relative to the length of a row of weights, see `default_tolerance`.

    >>> from weightloom.symmetry import random_equivalent
    >>> net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 2))
    >>> bool(equivalent(net, random_equivalent(net)))
    True
    >>> bool(equivalent(net, nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 2))))
    False
    """
    if tolerance is not None and not 0 <= tolerance < 1:
        raise ConfigError(f"tolerance is {tolerance}; a number in [0, 1) is wanted")
    given = a, b
    graphs = folded(trace(a)), folded(trace(b))
    a, b = (graph.module for graph in graphs)
    limit = default_tolerance(a, b) if tolerance is None else float(tolerance)
    specs = read_graph(graphs[0]), read_graph(graphs[1])
    sums = a is not given[0] or b is not given[1]  # BatchNorm was folded into biases
    match, is_reduced = find_element(a, b, limit, *specs, sums=sums), False
    if not match.same and reduce:
        smaller = _reduced(graphs, specs)
        if smaller is not None:
            small_a, small_b = smaller
            second_match = find_element(
                *(small_a.module, small_b.module, limit),
                *(read_graph(small_a), read_graph(small_b)),
                sums=True,
            )
            is_reduced = second_match.same
            match = second_match if is_reduced else match
    outputs, count = output_deviation(a, b, specs[0], probes, inputs)
    if match.same and outputs is not None and outputs > max(limit, 1e-16) ** 0.5:
        mismatch = (
            f"the weights agree, but outputs on probe inputs deviate by {outputs:.3g}: the "
            "networks differ in something that is not a weight"
        )
        match = replace(match, same=False, mismatch=mismatch)
    return Equivalence(
        *(match.same, match.element, match.deviation, outputs, match.mismatch),
        *(limit, count, is_reduced),
    )


def default_tolerance(*modules: nn.Module) -> float:
    """32 times the spacing of the coarsest dtype around 1: 3.8e-6 in float32, 7.1e-15 in float64.

    A group element rounds each weight twice (one product, one quotient), each time by at most half
    a spacing of the weight; the scales that undo it add about as much again. So one element moves a
    weight by less than 3 of its spacings, which is less than 3 spacings of its row's length.
    Matrices with condition numbers up to 4 (heads) and a hundred elements in a row (errors grow
    with the square root) stay within 32. Depth does not matter: scales are found layer by layer.
    Half precision is too coarse for 32 spacings: 4, enough for one element.
    """
    dtypes = {p.dtype for module in modules for p in module.parameters() if p.is_floating_point()}
    eps = max((torch.finfo(dtype).eps for dtype in dtypes), default=2.0**-52)
    return (4 if eps > 1e-4 else 32) * eps


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
    tensors_a = tensors_of(a)
    tensors_b = {name: t.to(tensors_a[name].dtype) for name, t in tensors_of(b).items()}
    return match_tensors(spec, tensors_a, tensors_b, tolerance, sums)


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


def _reduced(graphs: tuple[Graph, Graph], specs: tuple[Spec, Spec]) -> tuple[Graph, Graph] | None:
    """Both networks without clones and dead units; None if there are none, or it is unknown."""
    if all(is_plain(s, tensors_of(g.module)) for g, s in zip(graphs, specs, strict=True)):
        return None  # a few passes over the weights; `reduced` takes much longer
    try:
        (small_a, removed_a, *_), (small_b, removed_b, *_) = reduced(graphs[0]), reduced(graphs[1])
    except UnsupportedModuleError:
        return None
    return (small_a, small_b) if removed_a or removed_b else None

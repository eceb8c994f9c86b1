"""Do the weights that deviate change the function, where all outputs agree up to rounding?

A changed weight may move the outputs by less than rounding of all weights together explains: one
query of a freshly initialised transformer, say. So the weights that deviate are looked at alone.
b, mapped onto a, is a with these weights replaced, up to rounding of the others. Replacing them in
a itself leaves no rounding of the others to explain anything: what is left is the effect of the
replaced weights, beside that of rounding them, measured as in `weightloom.symmetry.verdict.outputs`
with only these weights moved. If b is a rounded copy of a under a symmetry that was not found, the
replaced weights belong together, and the difference stays below that.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weightloom.errors import UnsupportedModuleError
from weightloom.symmetry.group import apply_to_tensors, tensors_of
from weightloom.symmetry.spec import Element
from weightloom.symmetry.verdict.elements import Networks, WeightEvidence
from weightloom.symmetry.verdict.evidence import Outputs
from weightloom.symmetry.verdict.inputs import make_probes
from weightloom.symmetry.verdict.outputs import compare_outputs, measure
from weightloom.symmetry.verdict.running import LARGE, Arguments, RunError, Runner
from weightloom.symmetry.verdict.weights import counters

__all__ = ["effect_of_deviating_weights"]

_ROWS, _ROWS_LARGE = 64, 8


def effect_of_deviating_weights(
    modules: tuple[nn.Module, nn.Module],
    networks: Networks | None,
    weights: WeightEvidence,
    unit: float,
    tolerances: tuple[float, float | None],
    given: list[Arguments] | None,
) -> Outputs | None:
    """How far the weights that deviate move the outputs of the first network.

    ``tolerances``: of weights, and the one for outputs that was asked for. None if the weights of
    the two networks cannot be put side by side, or the network cannot be run.
    """
    a, b = modules if networks is None else networks.modules
    pairs = _side_by_side(a, b, networks, weights.element)
    if pairs is None:
        return None
    limit, tolerance = tolerances
    places = {name: _deviates(*pair, limit) for name, pair in pairs.items()}
    places = {name: place for name, place in places.items() if bool(place.any())}
    if not places:
        return None
    replaced = {name: torch.where(places[name], pairs[name][1], pairs[name][0]) for name in places}
    try:
        runner = Runner(a)
        rows = _ROWS if runner.size <= LARGE else _ROWS_LARGE
        probes = make_probes(a, rows, runner) if given is None else given
        first = measure(runner.restricted(places), probes, unit, tolerance)
        second = measure(Runner(a).replaced(replaced).restricted(places), probes, unit, tolerance)
    except (RunError, UnsupportedModuleError):
        return None
    return Outputs(compare_outputs(first, second, probes), example=probes[0])


def _side_by_side(
    a: nn.Module, b: nn.Module, networks: Networks | None, element: Element | None
) -> dict[str, tuple[Tensor, Tensor]] | None:
    """Each number of a beside its partner in b, in float64; None if names or shapes differ."""
    first, second = _numbers(a), _numbers(b)
    if {name: t.shape for name, t in first.items()} != {n: t.shape for n, t in second.items()}:
        return None
    if networks is not None and element is not None:
        second = apply_to_tensors(element, networks.specs[0], second)
    return {name: (tensor, second[name]) for name, tensor in first.items()}


def _numbers(module: nn.Module) -> dict[str, Tensor]:
    skipped = counters(module)
    return {
        name: tensor.detach().double()
        for name, tensor in tensors_of(module).items()
        if tensor.is_floating_point() and name not in skipped
    }


def _deviates(a: Tensor, b: Tensor, limit: float) -> Tensor:
    """Which entries deviate by more than the tolerance, relative to their own size."""
    size = torch.maximum(a.abs(), b.abs())
    return ~((a == b) | ((a - b).abs() <= limit * size))

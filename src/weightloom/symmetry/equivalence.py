"""Are two networks the same function? Decided from the weights, with a certificate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from weightloom.errors import ConfigError
from weightloom.networks.examples import evaluating
from weightloom.networks.finiteness import require_finite
from weightloom.symmetry.spec import Element
from weightloom.symmetry.verdict.answer import Equivalence
from weightloom.symmetry.verdict.complete import decide_completely
from weightloom.symmetry.verdict.deviating import effect_of_deviating_weights
from weightloom.symmetry.verdict.elements import (
    WeightEvidence,
    architecture_mismatch,
    compare_weights,
    find_element,
    graphs_differ,
    without_redundant_units,
)
from weightloom.symmetry.verdict.evidence import Outputs, listed, run_both, search_difference
from weightloom.symmetry.verdict.twins import code_difference, same_bits
from weightloom.symmetry.verdict.weights import unit_roundoff, weight_tolerance

__all__ = [
    "Equivalence",
    "architecture_mismatch",
    "default_tolerance",
    "equivalent",
    "find_element",
]


def equivalent(
    a: nn.Module,
    b: nn.Module,
    tolerance: float | None = None,
    probes: int | None = None,
    *,
    inputs: Any = None,
    reduce: bool = True,
) -> Equivalence:
    """Whether two networks compute the same function: "same", "different" or "undecided".

    *Same*: a symmetry maps b to a (functional-equivalence: permutations, positive scales, signs;
    modularity, Section 2.2: for normal networks with general activations there are no others), the
    rest of the computation is the same, every weight agrees within ``tolerance`` relative to its
    own size, and so do the outputs on probes. Or both run the same code on the same tensors, bit
    for bit. If units have no partner and ``reduce`` is true, clones and dead units are removed.
    Networks with one hidden layer of piecewise linear units need no symmetry: their functions have
    a normal form (`weightloom.symmetry.piecewise`).

    *Different*: outputs differ on a probe by more than rounding of the weights explains; ``probe``
    is that input. How much that is: `weightloom.symmetry.verdict.outputs`.

    *Undecided*: everything else, and ``missing`` says what would be needed.

    The networks are compared in eval mode, and are left in the mode that they were in.

    ``inputs`` are what the outputs are compared on: a tensor, a tuple of arguments or a dict of
    keyword arguments, or a list of such calls; by default about ``probes`` inputs that fit the
    layers or the configuration. ``tolerance``: see `default_tolerance`.

    >>> from weightloom.symmetry import random_equivalent
    >>> net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 2))
    >>> equivalent(net, random_equivalent(net)).answer
    'same'
    >>> other = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 2))
    >>> verdict = equivalent(net, other)
    >>> verdict.answer, verdict.probe.shape[-1], verdict.probe_deviation > verdict.probe_noise
    ('different', 3, True)
    """
    if tolerance is not None and not 0 <= tolerance < 1:
        raise ConfigError(f"tolerance is {tolerance}; a number in [0, 1) is wanted")
    require_finite(a, b)
    unit = unit_roundoff(a, b)
    limit = weight_tolerance(unit) if tolerance is None else float(tolerance)
    code = code_difference(a, b)
    if code is None and same_bits(a, b):
        return Equivalence("same", Element(), 0.0, None, None, None, limit)
    with evaluating(a), evaluating(b):
        return _compared(a, b, code, (unit, limit, tolerance), probes, inputs, reduce)


def _compared(
    a: nn.Module,
    b: nn.Module,
    code: str | None,
    tolerances: tuple[float, float, float | None],
    probes: int | None,
    inputs: Any,
    reduce: bool,
) -> Equivalence:
    """The verdict on networks in eval mode that are not the same bits in the same code.

    ``tolerances``: unit roundoff, that of weights, and the one that was asked for.
    """
    unit, limit, tolerance = tolerances
    outputs = run_both(a, b, unit, tolerance, probes, inputs)
    weights, networks = compare_weights(a, b, code, limit, outputs.example)
    if reduce and not weights.agree and networks is not None and not outputs.differ:
        weights, networks = without_redundant_units(networks, limit) or (weights, networks)
    if not weights.agree and outputs.agree and probes is None and inputs is None:
        outputs = search_difference(a, b, unit, tolerance) or outputs
    if not weights.agree and outputs.agree:
        evidence, witness = decide_completely(a, b, tolerance)
        if evidence is not None:
            weights, code = evidence, None  # every operation was read
        elif witness is not None:
            there = run_both(a, b, unit, tolerance, probes, witness)
            outputs = there if there.differ else outputs
    if not weights.agree and outputs.agree:
        given = None if inputs is None else listed(inputs)
        limits = (limit, tolerance)
        effect = effect_of_deviating_weights((a, b), networks, weights, unit, limits, given)
        outputs = effect if effect is not None and effect.differ else outputs
    graphs = code
    if weights.agree and code is not None and networks is not None:
        graphs = graphs_differ(networks, outputs.example)
    return _verdict(weights, graphs, outputs, limit)


def default_tolerance(*modules: nn.Module) -> float:
    """How far a weight may be from its partner, relative to its own size, in these dtypes.

    3.8e-6 in float32, 7.1e-15 in float64, 0.002 in float16 and 0.016 in bfloat16. See
    `weightloom.symmetry.verdict.weights.weight_tolerance`.
    """
    return weight_tolerance(unit_roundoff(*modules))


# -- the verdict ---------------------------------------------------------------------------------
def _verdict(
    weights: WeightEvidence, graphs: str | None, outputs: Outputs, limit: float
) -> Equivalence:
    gap = outputs.gap
    differ = outputs.differ
    missing = None if differ or outputs.domains else _missing(weights, graphs, outputs)
    answer = "different" if differ or outputs.domains else "undecided" if missing else "same"
    verdict = Equivalence(
        answer,
        weights.element,
        weights.deviation,
        None if gap is None else gap.relative,
        None if answer == "same" else _mismatch(weights, graphs, outputs),
        missing,
        limit,
        0 if gap is None else gap.rows,
        weights.reduced,
    )
    if gap is None or not differ or gap.probe is None:
        return verdict
    return replace(
        verdict, probe=gap.probe.plain, probe_deviation=gap.difference, probe_noise=gap.noise
    )


def _mismatch(weights: WeightEvidence, graphs: str | None, outputs: Outputs) -> str | None:
    """The first difference of the weights, else of the computations, else of the outputs."""
    if weights.mismatch is not None or outputs.domains is not None:
        return weights.mismatch or outputs.domains
    gap = outputs.gap
    if gap is None or not gap.beyond_rounding:
        return graphs
    outside = (
        f"outputs differ by {gap.difference:.3g} on a probe, and rounding of the weights explains "
        f"{gap.noise:.3g}"
    )
    if graphs is not None:
        return f"{graphs}; {outside}"
    if weights.agree:
        return f"the weights agree, but {outside}: they differ in something that is not a weight"
    return outside


def _missing(weights: WeightEvidence, graphs: str | None, outputs: Outputs) -> str | None:
    """What would be needed for an answer, where the outputs show no difference."""
    missing = [weights.unread] if weights.unread and not weights.agree else []
    if graphs is not None and (weights.agree or weights.unread):
        missing.append(f"computations that are known to be the same ({graphs})")
    gap = outputs.gap
    if gap is None:
        missing.append(str(outputs.missing))
    elif gap.blind is not None:
        missing.append(gap.blind)
    if not weights.agree and not weights.unread:
        agree = "" if gap is None else f", though outputs on {gap.rows} probes agree"
        missing.append(f"a symmetry that maps one to the other{agree} ({weights.mismatch})")
    return "; ".join(missing) or None

"""The known verdict on each claim of functional-equivalence: a change is noticed."""

import pytest

from weightloom_papers.claims import HOLDS, HOLDS_AS_CORRECTED, check
from weightloom_papers.functional_equivalence.claims import CLAIMS

CORRECTED = {
    "functional-equivalence/shapes",
    "functional-equivalence/scaling-piecewise-linear",
    "functional-equivalence/permutation",
    "functional-equivalence/permutation-deep",
    "functional-equivalence/leaky-slopes",
    "functional-equivalence/representatives-unique",
    "functional-equivalence/volume-vanishes",
    "functional-equivalence/theorem3",
    "functional-equivalence/theorem4",
    "functional-equivalence/range-deep",
    "functional-equivalence/discount",
    "functional-equivalence/depth-adds",
    "functional-equivalence/covering-order",
    "functional-equivalence/comparison",
    "functional-equivalence/comparison-depth",
    "functional-equivalence/stochastic-error",
    "functional-equivalence/stochastic-error-fast",
    "functional-equivalence/stochastic-error-radius",
    "functional-equivalence/theorem5",
    "functional-equivalence/distinct-copies",
    "functional-equivalence/pooling",
    "functional-equivalence/attention",
}


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_verdict(claim):
    result = check(claim, "quick")
    wanted = HOLDS_AS_CORRECTED if claim.name in CORRECTED else HOLDS
    assert result.verdict == wanted, (result.problem, result.printed_evidence)
    assert (claim.corrected is not None) == (claim.name in CORRECTED)

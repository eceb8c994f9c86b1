"""What came of each claim of 002, so that a change of the library or of a check is noticed."""

import pytest

from weightloom.verify import HOLDS, HOLDS_AS_CORRECTED, check
from weightloom.verify.equivalence import CLAIMS

CORRECTED = {
    "002/shapes", "002/scaling-piecewise-linear", "002/permutation", "002/permutation-deep",
    "002/leaky-slopes", "002/representatives-unique", "002/volume-vanishes", "002/theorem3",
    "002/theorem4", "002/range-deep", "002/discount", "002/depth-adds", "002/covering-order",
    "002/comparison", "002/comparison-depth", "002/stochastic-error", "002/stochastic-error-fast",
    "002/stochastic-error-radius", "002/theorem5", "002/distinct-copies", "002/pooling",
    "002/attention",
}  # fmt: skip


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_verdict(claim):
    found = check(claim, "quick")
    wanted = HOLDS_AS_CORRECTED if claim.name in CORRECTED else HOLDS
    assert found.verdict == wanted, (found.problem, found.printed_evidence)
    assert (claim.corrected is not None) == (claim.name in CORRECTED)

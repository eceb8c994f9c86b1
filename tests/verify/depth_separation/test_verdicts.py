"""What came of each claim of 003, so that a change of the library or of a check is noticed."""

import pytest

from weightloom.verify import HOLDS, HOLDS_AS_CORRECTED, check
from weightloom.verify.depth_separation import CLAIMS

CORRECTED = {
    "003/depth3-definition", "003/lipschitz-width-proof", "003/inner-product-width",
    "003/depth3-width", "003/proof-first-line", "003/main-theorem",
}  # fmt: skip


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_verdict(claim):
    found = check(claim, "quick")
    wanted = HOLDS_AS_CORRECTED if claim.name in CORRECTED else HOLDS
    assert found.verdict == wanted, (found.problem, found.printed_evidence)
    assert (claim.corrected is not None) == (claim.name in CORRECTED)

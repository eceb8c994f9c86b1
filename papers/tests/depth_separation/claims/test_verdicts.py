"""The known verdict on each claim of depth-separation: a change is noticed."""

import pytest

from weightloom_papers.claims import HOLDS, HOLDS_AS_CORRECTED, check
from weightloom_papers.depth_separation.claims import CLAIMS

CORRECTED = {
    "depth-separation/depth3-definition",
    "depth-separation/lipschitz-width-proof",
    "depth-separation/inner-product-width",
    "depth-separation/depth3-width",
    "depth-separation/proof-first-line",
    "depth-separation/main-theorem",
}


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_verdict(claim):
    result = check(claim, "quick")
    wanted = HOLDS_AS_CORRECTED if claim.name in CORRECTED else HOLDS
    assert result.verdict == wanted, (result.problem, result.printed_evidence)
    assert (claim.corrected is not None) == (claim.name in CORRECTED)

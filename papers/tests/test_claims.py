"""What holds for every registered claim; the numbers behind each are tested in the folders."""

import pytest

from weightloom_papers.catalogue import CATALOGUE, CLAIMS
from weightloom_papers.claims import measure


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_a_claim_is_checked_and_could_have_failed(claim):
    """One measurement: right statements are judged by it, and a wrong one is refused by it."""
    measured = measure(claim, "quick")
    printed = claim.printed.judge(measured)
    corrected = claim.corrected.judge(measured) if claim.corrected else None
    assert all(evidence.at for evidence in (printed, corrected) if evidence)
    assert claim.verdict(printed, corrected) == claim.expected, (printed, corrected)
    wrong = claim.wrong.judge(measured)
    assert wrong.finite, wrong
    assert wrong.seen > wrong.allowed, wrong


def test_names_are_unique():
    names = [claim.name for claim in CLAIMS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("paper", CATALOGUE)
def test_nothing_of_the_catalogue_is_left_out(paper):
    covered = {item for claim in CLAIMS if claim.paper == paper for item in claim.items}
    assert covered == set(CATALOGUE[paper])

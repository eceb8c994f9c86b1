"""The page of the documentation: made from the file beside it, about the claims that there are."""

from pathlib import Path

from weightloom.verify import CLAIMS, PAPERS, load, markdown

DOCS = Path(__file__).parent.parent.parent / "docs"
AGAIN = (
    "make both again with `weightloom verify --json docs/verified.json --markdown docs/verified.md`"
)


def registered():
    return [
        (c.name, c.place, c.items, c.printed.text, c.corrected and c.corrected.text, c.expected)
        for c in CLAIMS
    ]


def test_the_file_lists_exactly_the_registered_claims():
    record = load(DOCS / "verified.json")
    listed = [
        (r.name, r.place, r.items, r.printed, r.corrected, r.expected) for r in record.results
    ]
    assert listed == registered(), AGAIN


def test_the_file_is_of_a_whole_run_with_the_known_verdicts():
    record = load(DOCS / "verified.json")
    assert record.complete
    assert record.size == "full"
    assert [r.name for r in record.results if not r.ok] == [], AGAIN


def test_the_page_is_what_the_file_gives():
    page = (DOCS / "verified.md").read_text(encoding="utf-8")
    assert page == markdown(load(DOCS / "verified.json"), PAPERS), AGAIN

"""docs/papers/verified.md: written from the JSON file beside it, about the registered claims."""

from pathlib import Path

from weightloom_papers.catalogue import CLAIMS
from weightloom_papers.records import load, markdown

DOCS = Path(__file__).parents[2] / "docs" / "papers"
AGAIN = (
    "write both again with `weightloom verify --json docs/papers/verified.json "
    "--markdown docs/papers/verified.md`"
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
    assert page == markdown(load(DOCS / "verified.json")), AGAIN

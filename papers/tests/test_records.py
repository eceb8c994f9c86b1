"""Results as a file and as a page."""

import json
import math
import re

import pytest

from papers.tests.toys import BROKEN, CORRECTED, FAILING, HOLDING, toy
from weightloom.errors import OutputError
from weightloom_papers.claims import PaperClaim, check, measure
from weightloom_papers.errors import StoreError
from weightloom_papers.records import VerifyRecord, load, markdown, save, write

MADE_WITH = {
    "commit": "0123456789abcdef", "dirty": True, "weightloom": "0.1", "torch": "2.13",
    "python": "3.12", "cpu": "a processor", "threads": 1,
}  # fmt: skip


def record(*claims, wanted=None):
    results = [check(claim, "quick") for claim in claims]
    return VerifyRecord("quick", wanted or len(claims), "2026-01-02T03:04:05Z", MADE_WITH, results)


def test_verdicts():
    results = record(HOLDING, CORRECTED, FAILING, BROKEN).results
    assert [r.verdict for r in results] == ["holds", "holds as corrected", "fails", "error"]
    assert [r.ok for r in results] == [True, True, True, False]
    assert results[3].problem.startswith("RuntimeError: no such network (broken, line ")
    assert results[3].evidence is None
    assert (results[0].evidence.allowed, results[1].evidence.allowed) == (3, 2)
    assert results[0].counterexample is None
    assert results[1].counterexample.allowed == 1


def test_measuring_leaves_the_generator_alone():
    import torch

    claim = toy("modularity/random", 3)
    object.__setattr__(claim, "measure", lambda size: torch.rand(()).item())
    before = torch.random.get_rng_state()
    first = measure(claim)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(3)
    assert measure(claim) == first


def test_claims_that_cannot_be():
    with pytest.raises(ValueError, match="claim name 'signs': wanted '<paper>/<slug>'"):
        toy("signs", 1)
    with pytest.raises(ValueError, match="claim modularity/x: known='maybe'; wanted 'holds'"):
        toy("modularity/x", 1, known="maybe")


def test_there_and_back(tmp_path):
    path = tmp_path / "found.json"
    strange = [toy("modularity/nan", 3, number=math.nan), toy("modularity/inf", 3, number=math.inf)]
    written = record(HOLDING, CORRECTED, BROKEN, *strange)
    save(written, path)
    text = path.read_text()
    assert "NaN" not in text
    assert json.loads(text)["claims"][3]["printed_evidence"]["seen"] == "nan"
    again = load(path)
    assert repr(again) == repr(written)  # by text: NaN is not equal to itself
    assert [p.name for p in tmp_path.iterdir()] == ["found.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": 1, "claims": [3]}'])
def test_other_files_are_refused(tmp_path, text):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(StoreError, match=r"other.json cannot be read as results of `weightloom"):
        load(path)


def test_a_newer_format_is_refused(tmp_path):
    path = tmp_path / "new.json"
    path.write_text('{"format": 9}')
    with pytest.raises(StoreError, match="has format 9, and this version reads 1; write it again"):
        load(path)


def test_what_was_there_stays_until_the_new_is_whole(tmp_path, monkeypatch):
    path = tmp_path / "page.md"
    write("old", path)
    with pytest.raises(UnicodeEncodeError):
        write("half \ud800", path)
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(OutputError, match="cannot be written"):
        write("text", tmp_path / "none" / "page.md")


def test_the_page():
    page = markdown(record(HOLDING, CORRECTED, FAILING, BROKEN, wanted=5))
    assert "commit 0123456789ab with changes. **Unfinished**: 5 claims were asked for." in page
    modularity = "| modularity: On the Modularity of Hypernetworks (Galanti and Wolf 2020) | 2 | "
    assert f"{modularity}1 holds, 1 holds as corrected | " in page
    infinite = "On Infinite-Width Hypernetworks (Littwin, Galanti, Wolf and Yang 2020)"
    assert f"| infinite-width: {infinite} | 2 | 1 fails, 1 ended with an error | " in page
    assert page.partition("## Not as printed\n\n")[2].splitlines()[2:4] == [
        "| [modularity/corrected](#modularitycorrected) | Theorem 1 | the number is at most 2 |",
        "| [infinite-width/failing](#infinite-widthfailing) | Theorem 1 | not as printed |",
    ]
    assert "## infinite-width: On Infinite-Width Hypernetworks" in page
    section = page.partition("### modularity/corrected")[2].partition("\n##")[0]
    assert section.startswith("\n\nTheorem 1. **holds as corrected**, in ")
    assert re.findall(r"^- (.*)$", section, re.MULTILINE) == [
        "printed: the number is at most 1",
        "corrected: the number is at most 2",
        "measured: the number, which was 2.0 (seen 2, allowed 2)",
        "against the printed statement: the number, which was 2.0 (seen 2, allowed 1)",
    ]
    broken = page.partition("### infinite-width/broken")[2]
    assert "- error: RuntimeError: no such network (broken, line" in broken
    assert "- measured" not in broken


def test_without_slips_there_is_no_table_of_them():
    assert "Not as printed" not in markdown(record(HOLDING))


def test_formulas_stay_as_they_are():
    claim = HOLDING
    marks = PaperClaim(
        claim.name, claim.place, (1,), claim.measure,
        type(claim.printed)("|x_1|*|y_2| < `a` [b] \\ #", claim.printed.judge), claim.wrong,
    )  # fmt: skip
    page = markdown(record(marks))
    assert "- printed: &#124;x\\_1&#124;\\*&#124;y\\_2&#124; &lt; \\`a\\` \\[b\\] \\\\ \\#" in page

"""``weightloom verify``."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from papers.tests.toys import BROKEN, CORRECTED, FAILING, HOLDING, SURPRISING, toy
from weightloom.cli import main
from weightloom_papers import catalogue
from weightloom_papers.claims import PaperClaim
from weightloom_papers.records import load, markdown

GOOD = (HOLDING, CORRECTED, FAILING)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(catalogue, "CLAIMS", GOOD)


def names(path):
    return [row["name"] for row in json.loads(Path(path).read_text())["claims"]]


def test_all_claims(capsys):
    assert main(["verify", "--quick"]) == 0  # what is known to fail is a finding
    out, err = capsys.readouterr()
    assert "modularity: On the Modularity of Hypernetworks\n\nclaim " in out
    row = next(line for line in out.splitlines() if line.startswith("holding "))
    evidence = r"the number, which was 2.0 \(seen 2, allowed 3\)"
    assert re.fullmatch(rf"holding +Theorem 1 +holds +{evidence} +\d+\.\d\d", row)
    assert "modularity  1 holds, 1 holds as corrected (" in out
    assert "infinite-width  1 fails (" in out
    assert "all  1 holds, 1 holds as corrected, 1 fails (" in out
    assert "3 of 3 claims" in err


def test_statements_of_what_does_not_hold(capsys):
    main(["verify", "--quick", "--quiet"])
    out, err = capsys.readouterr()
    assert err == ""
    corrected = (
        "modularity/corrected (Theorem 1): holds as corrected\n"
        "  printed    the number is at most 1\n"
        "  against it the number, which was 2.0 (seen 2, allowed 1)\n"
        "  corrected  the number is at most 2\n"
        "  measured   the number, which was 2.0 (seen 2, allowed 2)\n"
    )
    assert corrected in out
    assert "modularity/holding (Theorem 1): holds\n" not in out
    main(["verify", "--quick", "--quiet", "--full-text"])
    out = capsys.readouterr().out
    assert "modularity/holding (Theorem 1): holds\n  printed    the number is at most 3\n" in out


def test_errors_and_surprises(capsys, monkeypatch):
    monkeypatch.setattr(catalogue, "CLAIMS", (*GOOD, BROKEN))
    assert main(["verify", "--quiet"]) == 1
    out = capsys.readouterr().out
    assert "  error      RuntimeError: no such network (broken, line" in out
    assert "infinite-width  1 fails, 1 ended with an error (" in out
    assert "not as known: infinite-width/broken: error, was holds" in out
    monkeypatch.setattr(catalogue, "CLAIMS", (*GOOD, SURPRISING))
    assert main(["verify", "--quiet"]) == 1
    out = capsys.readouterr().out
    assert "infinite-width/surprising (Theorem 1): fails; known: holds\n" in out
    assert "not as known: infinite-width/surprising: fails, was holds" in out


def test_files(capsys):
    options = ["--json", "new/found.json", "--markdown", "page.md", "--quiet", "--quick"]
    assert main(["verify", *options]) == 0
    assert "written: new/found.json\nwritten: page.md\n" in capsys.readouterr().out
    record = load(Path("new/found.json"))
    assert record.complete
    assert record.size == "quick"
    assert set(record.provenance) >= {"commit", "dirty", "torch", "weightloom", "cpu", "threads"}
    assert names("new/found.json") == [claim.name for claim in GOOD]
    assert Path("page.md").read_text() == markdown(record)


def test_ctrl_c_keeps_what_was_decided(capsys, monkeypatch):
    seen = []

    def stopped(size):
        seen.extend(names("found.json"))  # already whole while the next one is under way
        raise KeyboardInterrupt

    place, printed, wrong = "p. 1", HOLDING.printed, HOLDING.wrong
    last = PaperClaim("infinite-width/last", place, (1,), stopped, printed, wrong)
    monkeypatch.setattr(catalogue, "CLAIMS", (*GOOD, last))
    options = ["--json", "found.json", "--markdown", "page.md"]
    assert main(["verify", *options, "--quiet"]) == 130
    out = capsys.readouterr().out
    assert seen == names("found.json") == [claim.name for claim in GOOD]
    assert not json.loads(Path("found.json").read_text())["complete"]
    assert "**Unfinished**: 4 claims were asked for" in Path("page.md").read_text()
    assert "unfinished: 3 of 4 claims were decided" in out
    assert "Stopped; the results so far are above and in the files" in out


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["modularity/holding"], ["modularity/holding"]),
        (["holding"], ["modularity/holding"]),
        (["*ing"], ["modularity/holding", "infinite-width/failing"]),
        (["failing", "modularity/c*"], ["modularity/corrected", "infinite-width/failing"]),
        (["--paper", "modularity"], ["modularity/holding", "modularity/corrected"]),
        (["--paper", "infinite-width"], ["infinite-width/failing"]),
        (["--paper", "infinite-width", "modularity", "--quiet"], [claim.name for claim in GOOD]),
        (
            ["holding", "--paper", "infinite-width"],
            ["modularity/holding", "infinite-width/failing"],
        ),
    ],
)
def test_choosing(arguments, wanted):
    assert main(["verify", *arguments, "--json", "found.json"]) == 0
    assert names("found.json") == wanted


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["modularity/holdin"], "no claim 'modularity/holdin'; did you mean modularity/holding"),
        (["correctd"], "no claim 'correctd'; did you mean modularity/corrected? `weightloom"),
        (["modularity"], "modularity is a paper: 'modularity/*' or --paper modularity takes all"),
        (["zzz"], "there is no claim 'zzz'; `weightloom verify --list` shows all 3"),
        (["--paper", "modulrity"], "there is no paper 'modulrity'; did you mean modularity?"),
        (["--paper", "001"], "no paper '001'; The papers are modularity, infinite-width, func"),
        (["--json", "taken"], "--json taken is a folder, and the name of a file is wanted"),
        (["--markdown", "file/page.md"], "--markdown file/page.md: the folder file is a file"),
    ],
)
def test_errors_before_anything_is_checked(capsys, arguments, message):
    Path("taken").mkdir()
    Path("file").write_text("mine")
    assert main(["verify", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("weightloom: error: ")
    assert message in err


def test_list(capsys):
    assert main(["verify", "--list"]) == 0
    out = capsys.readouterr().out
    assert "infinite-width/failing (Theorem 1; fails)\n  the number is at most 1\n" in out
    assert out.endswith("\n3 claims\n")
    assert os.listdir() == []


@pytest.mark.parametrize("columns", [60, 80, 100, 160])
def test_everything_fits(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    name, place = "depth-separation/" + "quite-" * 8 + "long", "Theorem 12, " * 4
    long = toy(name, 1, known="fails", place=place)
    monkeypatch.setattr(catalogue, "CLAIMS", (*GOOD, long))
    assert main(["verify", "--quiet", "--full-text"]) == 0
    table = capsys.readouterr().out.partition("\nmodularity/holding (")[0]
    assert max(map(len, table.splitlines())) <= columns
    assert "".join(line[: columns // 3] for line in table.splitlines() if "quite" in line)


def test_help_teaches(capsys):
    with pytest.raises(SystemExit):
        main(["verify", "--help"])
    out = capsys.readouterr().out
    for topic in ("verdicts:", "what it writes:", "exit status:", "examples:", "Ctrl-C"):
        assert topic in out
    for option in ("--paper", "--quick", "--list", "--json", "--markdown", "--full-text"):
        assert option in out
    assert max(map(len, out.splitlines())) <= 100

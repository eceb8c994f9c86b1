"""``weightloom verify``."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.verify.toys import BROKEN, CORRECTED, FAILING, HOLDING, SURPRISING, toy
from weightloom import verify
from weightloom.cli import main

GOOD = (HOLDING, CORRECTED, FAILING)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(verify, "CLAIMS", GOOD)


def names(path):
    return [row["name"] for row in json.loads(Path(path).read_text())["claims"]]


def test_all_claims(capsys):
    assert main(["verify", "--quick"]) == 0  # what is known to fail is a finding
    out, err = capsys.readouterr()
    assert "000: On the Modularity of Hypernetworks\n\nclaim " in out
    row = next(line for line in out.splitlines() if line.startswith("000/holding"))
    said = r"the number, which was 2.0 \(seen 2, allowed 3\)"
    assert re.fullmatch(rf"000/holding +Theorem 1 +holds +{said} +\d+\.\d\d", row)
    assert "000  1 holds, 1 holds as corrected (" in out
    assert "001  1 fails (" in out
    assert "all  1 holds, 1 holds as corrected, 1 fails (" in out
    assert "3 of 3 claims" in err


def test_statements_of_what_does_not_hold(capsys):
    main(["verify", "--quick", "--quiet"])
    out, err = capsys.readouterr()
    assert err == ""
    corrected = (
        "000/corrected (Theorem 1): holds as corrected\n"
        "  printed    the number is at most 1\n"
        "  against it the number, which was 2.0 (seen 2, allowed 1)\n"
        "  corrected  the number is at most 2\n"
        "  measured   the number, which was 2.0 (seen 2, allowed 2)\n"
    )
    assert corrected in out
    assert "000/holding (Theorem 1): holds\n" not in out
    main(["verify", "--quick", "--quiet", "--full-text"])
    out = capsys.readouterr().out
    assert "000/holding (Theorem 1): holds\n  printed    the number is at most 3\n" in out


def test_errors_and_surprises(capsys, monkeypatch):
    monkeypatch.setattr(verify, "CLAIMS", (*GOOD, BROKEN))
    assert main(["verify", "--quiet"]) == 1
    out = capsys.readouterr().out
    assert "  error      RuntimeError: no such network (broken, line" in out
    assert "001  1 fails, 1 ended with an error (" in out
    assert "not as known: 001/broken: error, was holds" in out
    monkeypatch.setattr(verify, "CLAIMS", (*GOOD, SURPRISING))
    assert main(["verify", "--quiet"]) == 1
    out = capsys.readouterr().out
    assert "001/surprising (Theorem 1): fails; known: holds\n" in out
    assert "not as known: 001/surprising: fails, was holds" in out


def test_files(capsys):
    options = ["--json", "new/found.json", "--markdown", "page.md", "--quiet", "--quick"]
    assert main(["verify", *options]) == 0
    assert "written: new/found.json\nwritten: page.md\n" in capsys.readouterr().out
    record = verify.load(Path("new/found.json"))
    assert record.complete
    assert record.size == "quick"
    assert set(record.provenance) >= {"commit", "dirty", "torch", "weightloom", "cpu", "threads"}
    assert names("new/found.json") == [claim.name for claim in GOOD]
    assert Path("page.md").read_text() == verify.markdown(record, verify.PAPERS)


def test_ctrl_c_keeps_what_was_decided(capsys, monkeypatch):
    seen = []

    def stopped(size):
        seen.extend(names("found.json"))  # already whole while the next one is under way
        raise KeyboardInterrupt

    last = verify.Claim("001/last", "p. 1", (1,), stopped, HOLDING.printed, HOLDING.wrong)
    monkeypatch.setattr(verify, "CLAIMS", (*GOOD, last))
    options = ["--json", "found.json", "--markdown", "page.md"]
    assert main(["verify", *options, "--quiet"]) == 130
    out = capsys.readouterr().out
    assert seen == names("found.json") == [claim.name for claim in GOOD]
    assert not json.loads(Path("found.json").read_text())["complete"]
    assert "**Unfinished**: 4 claims were asked for" in Path("page.md").read_text()
    assert "unfinished: 3 of 4 claims were decided" in out
    assert "Stopped; what was decided is above and in the files" in out


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["000/holding"], ["000/holding"]),
        (["holding"], ["000/holding"]),
        (["*ing"], ["000/holding", "001/failing"]),
        (["001/failing", "000/c*"], ["000/corrected", "001/failing"]),
        (["--paper", "000"], ["000/holding", "000/corrected"]),
        (["--paper", "infinite-width"], ["001/failing"]),
        (["--paper", "001", "000", "--quiet"], [claim.name for claim in GOOD]),
        (["holding", "--paper", "001"], ["000/holding", "001/failing"]),
    ],
)
def test_choosing(arguments, wanted):
    assert main(["verify", *arguments, "--json", "found.json"]) == 0
    assert names("found.json") == wanted


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["000/holdin"], "there is no claim '000/holdin'; did you mean 000/holding"),
        (["correctd"], "there is no claim 'correctd'; did you mean 000/corrected? `weightloom"),
        (["zzz"], "there is no claim 'zzz'; `weightloom verify --list` shows all 3"),
        (["--paper", "modulrity"], "no claim of a paper 'modulrity'; did you mean modularity?"),
        (["--paper", "007"], "The papers are modularity (000), infinite-width (001)"),
        (["--json", "taken"], "--json taken is a folder, and the name of a file is wanted"),
        (["--markdown", "file/page.md"], "--markdown file/page.md: the folder file is a file"),
    ],
)
def test_complaints_before_anything_is_checked(capsys, arguments, message):
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
    assert "001/failing (Theorem 1; fails)\n  the number is at most 1\n" in out
    assert out.endswith("\n3 claims\n")
    assert os.listdir() == []


@pytest.mark.parametrize("columns", [60, 80, 100, 160])
def test_everything_fits(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    long = toy("003/" + "quite-" * 8 + "long", 1, known="fails", place="Theorem 12, " * 4)
    monkeypatch.setattr(verify, "CLAIMS", (*GOOD, long))
    assert main(["verify", "--quiet", "--full-text"]) == 0
    table = capsys.readouterr().out.partition("\n000/holding (")[0]
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

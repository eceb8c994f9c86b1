"""The list of commands: quick to print, with those of other packages, with hints for typos."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugins import COMMAND, install
from tests.plugins import alone as alone
from tests.test_import import HEAVY
from weightloom.cli import commands, main

LISTED = [*commands.LIBRARY, *commands.OF_PAPERS]


def weightloom(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command line in a new process; the last line of its output names heavy modules."""
    code = f"""
import sys
{"" if path is None else f"sys.path.insert(0, {str(path)!r})"}
from weightloom.cli import main
try:
    status = main({list(arguments)!r})
except SystemExit as stop:
    status = stop.code
print("heavy:", [name for name in {HEAVY!r} if name in sys.modules])
sys.exit(status)
"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--help"], 0),
        (["--version"], 0),
        ([], 2),
        (["dmeo"], 2),
        (["--no-such-option"], 2),
        (["demo", "--epochs", "many"], 2),
        (["completion", "bash"], 0),
        (["completion", "zsh"], 0),
        (["completion", "fish"], 0),
        *(([name, "--help"], 0) for name in commands.LIBRARY),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_answers_that_need_no_torch(arguments: list[str], status: int) -> None:
    done = weightloom(*arguments)
    assert done.stdout.splitlines()[-1] == "heavy: []"
    assert done.returncode == status
    assert "Traceback" not in done.stderr


def test_the_check_sees_torch(tmp_path: Path) -> None:
    done = weightloom("inspect", str(tmp_path / "none.safetensors"))
    assert "torch" in done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("typed", "meant"), [("dmeo", "demo"), ("inspct", "inspect"), ("verfy", "verify")]
)
def test_typos(typed: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([typed]) == 2
    err = capsys.readouterr().err
    assert err.startswith(
        f"weightloom: error: there is no command {typed!r}; did you mean {meant}? "
    )


def test_a_word_that_is_near_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["xyzzy"]) == 2
    err = capsys.readouterr().err
    assert "there is no command 'xyzzy'; `weightloom --help` lists all" in err
    assert "did you mean" not in err


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    listed = [line.split()[0] for line in out.splitlines() if line.startswith("  ")]
    assert listed[: len(LISTED)] == LISTED
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", commands.OF_PAPERS)
def test_commands_of_a_package_that_is_missing(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name, "--quick"]) == 2
    assert capsys.readouterr().err == (
        f"weightloom: error: {name!r} comes with the package weightloom-papers: "
        f"pip install weightloom-papers\n"
    )


@pytest.mark.usefixtures("alone")
def test_help_without_the_papers(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    out = capsys.readouterr().out
    assert "with weightloom-papers (pip install weightloom-papers):\n  reproduce " in out
    assert main(["verfy"]) == 2
    assert "did you mean verify?" in capsys.readouterr().err


ENTRIES = "[weightloom.commands]\nhello = hello_command\nbroken = broken_command\ndemo = broken\n"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    install(tmp_path, ENTRIES, hello_command=COMMAND, broken_command="import no_such_package")
    return tmp_path


def test_commands_of_other_packages(installed: Path) -> None:
    done = weightloom("hello", "you", path=installed)
    assert done.stdout.splitlines() == ["hello you", "heavy: []"]
    assert done.returncode == 3
    helped = weightloom("hello", "--help", path=installed)
    assert "examples: weightloom hello you" in helped.stdout


def test_help_has_the_commands_of_other_packages(installed: Path) -> None:
    out = weightloom("--help", path=installed).stdout
    assert "of other packages:\n" in out
    assert "  hello       say hello to somebody\n" in out
    assert "  broken      " in out  # a package that cannot be imported does not hide the others
    assert "demo        train a hypernetwork" in out  # nobody replaces the library's own


def test_a_command_that_cannot_be_imported(installed: Path) -> None:
    done = weightloom("broken", path=installed)
    assert done.returncode == 2
    assert "'broken' comes from broken_command, which cannot be imported here" in done.stderr
    assert "No module named 'no_such_package'" in done.stderr


def test_only_the_chosen_command_is_imported() -> None:
    code = (
        "import sys\nfrom weightloom.cli import main\n"
        "try:\n    main(['size', '--help'])\nexcept SystemExit:\n    pass\n"
        "print([n for n in sys.modules if n.startswith('weightloom.cli.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1]
    assert "weightloom.cli.size" in loaded
    assert "weightloom.cli.demo" not in loaded
    assert "weightloom.cli.serve" not in loaded


def completed(*words: str) -> list[str]:
    """What bash offers for the last of ``words``."""
    script = subprocess.run(
        [sys.executable, "-m", "weightloom", "completion", "bash"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    quoted = " ".join(f"'{word}'" for word in words)
    ask = f"""{script}
COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}
COMP_LINE="${{COMP_WORDS[*]}}"; COMP_POINT=${{#COMP_LINE}}
_shtab_weightloom weightloom '{words[-1]}' '{words[-2]}'
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=False)
    return sorted(word.strip() for word in done.stdout.splitlines() if word.strip())


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_completes() -> None:
    assert completed("weightloom", "de") == ["demo"]
    assert completed("weightloom", "demo", "--ep") == ["--epochs"]
    assert completed("weightloom", "completion", "") == ["bash", "fish", "zsh"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_have_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for name in commands.LIBRARY:
        assert name in script
    assert "input-shape" in script


def test_an_unknown_shell(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["completion", "cmd"])
    assert stop.value.code == 2
    assert "invalid choice: 'cmd'" in capsys.readouterr().err


@pytest.mark.usefixtures("alone")
def test_calibration_needs_the_papers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["size", "--m1", "1", "--m2", "1", "--eps", "0.1"]
    assert main([*arguments, "--calibrate", "--store", str(tmp_path / "results.sqlite")]) == 2
    captured = capsys.readouterr()
    assert "measured constants come with the package weightloom-papers" in captured.err
    assert "or leave out --calibrate" in captured.err
    assert captured.out == ""  # no number that could be taken for a measured one
    assert main(arguments) == 0
    assert "it is 1 here" in capsys.readouterr().out

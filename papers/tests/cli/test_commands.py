"""The papers' commands inside ``weightloom``: listed, quick to explain, completed by the shell."""

from __future__ import annotations

import shutil

import pytest
from tests.cli.test_commands import completed, weightloom

from weightloom.cli import commands, main


def test_this_package_brings_the_announced_commands():
    assert set(commands.names()) >= set(commands.OF_PAPERS)


@pytest.mark.parametrize("name", commands.OF_PAPERS)
def test_help_needs_no_torch(name):
    done = weightloom(name, "--help")
    assert done.stdout.splitlines()[-1] == "heavy: []"
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


def test_help_asks_for_no_installation(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "with weightloom-papers:\n  reproduce " in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_completes_options_of_the_papers():
    assert completed("weightloom", "reproduce", "--scale", "l") == ["laptop"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_have_the_commands(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for name in commands.OF_PAPERS:
        assert name in script

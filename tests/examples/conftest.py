"""Each example is run once in a process, as a script; tests share what it printed and wrote."""

import runpy
import sys

import pytest

from tests.examples.scripts import EXAMPLES, NOWHERE, USES_IMAGES


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    """No window; and the small digits, whatever images this machine has."""
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.delenv("WEIGHTLOOM_DATA", raising=False)


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    """name -> (what it printed, the folder it wrote to): each example run once, as a script."""
    outputs = {}

    def run(name, monkeypatch, capsys):
        if name not in outputs:
            out = tmp_path_factory.mktemp(name)
            arguments = ["--smoke", "--out", str(out)]
            arguments += ["--data-dir", str(NOWHERE)] if name in USES_IMAGES else []
            monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
            runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
            outputs[name] = capsys.readouterr().out, out
        return outputs[name]

    return run


@pytest.fixture
def run(results, monkeypatch, capsys):
    return lambda name: results(name, monkeypatch, capsys)

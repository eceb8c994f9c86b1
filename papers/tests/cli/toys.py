"""The commands of the lab with toys in place of the experiments."""

from __future__ import annotations

import pytest

from papers.tests.lab.toy import Quick, Toy


@pytest.fixture
def toys(tmp_path, monkeypatch):
    """Two toys that the command line knows, in an empty working directory."""
    log = tmp_path / "log"
    known = {"toy": Toy(log=log), "quick": Quick(log=log)}
    monkeypatch.setattr("weightloom_papers.experiments.all_experiments", lambda: known)
    monkeypatch.chdir(tmp_path)
    return known

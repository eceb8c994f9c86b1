"""The tasks of benchmarks/start.py: with the default start, diagnose has no warning."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from weightloom.data import MissingDataError

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from start_suite.health import STAGES, check, render
from start_suite.tasks import TASKS, load


@pytest.mark.parametrize("name", TASKS)
def test_tasks_with_the_default_start_have_no_warning(name: str) -> None:
    """Adam at 1e-3, before training and after 20 steps."""
    try:
        problem = load(name)
    except MissingDataError as error:
        pytest.skip(str(error))
    checkups = check(name, problem, "weightloom")
    assert [checkup.trained for checkup in checkups] == list(STAGES)
    assert {checkup.trained: checkup.warnings for checkup in checkups if checkup.warnings} == {}


def test_a_task_with_the_old_default_has_a_warning() -> None:
    checkups = check("textures", load("textures"), "hyperfan_in")
    assert re.search(r"too far.*Leave init out", checkups[0].warnings[0])
    assert "1 of 2 diagnoses have warnings" in render(checkups)

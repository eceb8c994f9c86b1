"""The registry of experiments: imported when used, each complete enough for the lab."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from weightloom_papers import experiments
from weightloom_papers.lab import SCALES, Experiment, wanted

NAMES = list(experiments.all_experiments())


def test_names_are_known_before_anything_is_imported():
    code = """
import sys
from weightloom_papers.experiments import all_experiments
list(all_experiments())
left = [n for n in sys.modules if n.startswith("weightloom_papers.modularity.experiments.")]
assert left == [], left
assert "matplotlib" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_experiments_are_made_once_and_when_asked_for(monkeypatch):
    monkeypatch.setattr(experiments, "_PLACES", {"toy": "papers.tests.lab.toy:Toy"})
    known = experiments.all_experiments()
    assert list(known) == ["toy"]
    assert known["toy"] is known["toy"]
    assert known["toy"].title == "a toy"
    with pytest.raises(KeyError):
        known["gone"]


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_is_complete(name):
    experiment = experiments.all_experiments()[name]
    assert isinstance(experiment, Experiment)
    assert experiment.name == name
    assert experiment.title
    assert experiment.claim.endswith(".")
    assert experiment.paper
    assert experiment.seconds_per_cost > 0
    pickle.loads(pickle.dumps(experiment))  # workers get a copy
    sizes = []
    for scale in SCALES:
        runs = wanted(experiment, scale)
        sizes.append(sum(experiment.cost(run) for run in runs))
        assert all(experiment.cost(run) > 0 for run in runs)
        assert all(isinstance(experiment.group(run), str) for run in runs)
    assert sizes == sorted(sizes)
    assert experiment.size_limit() >= 1

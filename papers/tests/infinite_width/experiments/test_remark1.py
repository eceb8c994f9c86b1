"""Remark 1: true steps and their series, exponents with the learning rate, and verdicts."""

from __future__ import annotations

import math
import pickle

import pytest

from weightloom_papers.experiments import all_experiments
from weightloom_papers.infinite_width.experiments.remark1.analysis import (
    families,
    shifted,
    verdicts,
)
from weightloom_papers.infinite_width.experiments.remark1.experiment import POWERS, Remark1, measure
from weightloom_papers.infinite_width.experiments.thm1.experiment import ORDERS
from weightloom_papers.lab import SCALES, Outcome, Result, Run, Workspace, wanted
from weightloom_papers.lab.statistics import Slope


def config(setting, width=16, draws=6, check=False):
    return {
        "setting": setting, "width": width, "layers": 4, "draws": draws, "powers": list(POWERS),
        "check": check,
    }  # fmt: skip


@pytest.mark.parametrize("scale", SCALES)
def test_runs_are_complete_and_unique(scale):
    experiment = all_experiments()["infinite-width/remark1"]
    runs = wanted(experiment, scale)
    assert all(experiment.cost(run) > 0 for run in runs)
    assert pickle.loads(pickle.dumps(experiment)).runs(scale) == runs


def test_smooth_steps_are_their_series():
    """The remainder is a true step's, the series is arithmetic: they agree where both apply."""
    run = Run("infinite-width/remark1", config("tanh", width=64, draws=5, check=True), 0)
    ((_, outcome),) = Remark1().execute([run], Workspace())
    assert outcome.metrics["disagreement"] < 1e-8
    rest, series = outcome.curves["rest 0.0"][1], outcome.curves["series 0.0"][1]
    assert rest == pytest.approx(series, abs=0.25 * max(map(abs, series)))
    assert max(map(abs, rest)) > 0.005
    assert measure(run).curves == outcome.curves
    for power in POWERS:
        step = -(64.0**power)
        expected = [
            sum(step**r * outcome.curves[str(r)][1][draw] / math.factorial(r) for r in (2, 3, 4))
            for draw in range(5)
        ]
        assert outcome.curves[f"series {power}"][1] == pytest.approx(expected, rel=1e-9)


def fake(setting, width, rule, rest=1.0, draws=20):
    curves = {}
    noise = [(1 + 0.01 * k) * (-1) ** k for k in range(draws)]
    steps = list(range(draws))
    for r in ORDERS:
        curves[str(r)] = (steps, [n * float(width) ** rule(setting, r) for n in noise])
    for power in POWERS:
        curves[f"series {power}"] = (steps, noise)
        curves[f"rest {power}"] = (steps, [rest * n for n in noise])
    outcome = Outcome("done", {"disagreement": math.nan}, curves)
    return Result(Run("infinite-width/remark1", config(setting, width, draws), 0), outcome)


def fakes(rule, relu_rest=3.0, tanh_rest=1.0):
    return [
        fake(setting, width, rule, rest)
        for setting, rest in (("relu", relu_rest), ("tanh", tanh_rest))
        for width in (10, 100, 1000)
    ]


def truth(setting, r):
    return 1 - r if setting == "relu" else -(r // 2)


def words(results):
    return [verdict.verdict for verdict in verdicts(results)]


def test_every_verdict_can_differ():
    assert words(fakes(truth)) == [
        "holds", "fails", "holds", "holds", "fails", "fails", "holds", "fails", "holds",
    ]  # fmt: skip
    remark = words(fakes(lambda setting, r: 1 - r, relu_rest=1.0, tanh_rest=3.0))
    assert remark == [
        "holds", "holds", "fails", "holds", "holds", "fails", "holds", "holds", "fails",
    ]  # fmt: skip
    flat = words(fakes(lambda setting, r: 0))
    assert [flat[0], flat[3], flat[6]] == ["fails"] * 3
    assert words(fakes(lambda setting, r: -2 * r))[5] == "holds"
    assert words([]) == ["no data"] * 9


def test_the_learning_rate_adds_its_power():
    slope = shifted(Slope(-1.0, 0.1, 0.0, 4), 3, 0.5)
    assert (slope.value, slope.margin) == (0.5, 0.1)
    assert shifted(None, 3, 0.5) is None


def test_medians_are_of_sizes():
    (family, _) = families(fakes(truth))
    assert family.medians("1") == pytest.approx([1.1, 1.1, 1.1])


def test_table_and_figure_from_results_alone():
    pytest.importorskip("matplotlib")
    experiment = Remark1()
    table = experiment.table(fakes(truth))
    assert len(table.rows) == 2 * (4 + 2 * len(POWERS))
    assert "(B.2: o(n)): FAILS" in table.text()
    (figure,) = experiment.figures(fakes(truth)).values()
    assert len(figure.axes) == 3
    assert experiment.figures([]) == {}
    assert "NO DATA" in experiment.table([]).text()

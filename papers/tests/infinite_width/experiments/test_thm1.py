"""Theorem 1: exponents from draws, and verdicts."""

from __future__ import annotations

import math
import pickle

import pytest
import torch

from weightloom_papers.experiments import all_experiments
from weightloom_papers.infinite_width.experiments.thm1.analysis import (
    exponent,
    exponent_smooth_f,
    is_rate,
    median_slope,
    rates,
    verdicts,
)
from weightloom_papers.infinite_width.experiments.thm1.experiment import (
    ORDERS,
    SETTINGS,
    Thm1,
    measure,
)
from weightloom_papers.lab import SCALES, Outcome, Result, Run, Workspace, wanted
from weightloom_papers.lab.statistics import Slope


def config(setting="relu", depth=2, layers=2, width=8, draws=3, check=False):
    return {
        "setting": setting, "depth": depth, "layers": layers, "width": width, "draws": draws,
        "check": check,
    }  # fmt: skip


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("scale", SCALES)
def test_runs_are_complete_and_unique(scale):
    experiment = all_experiments()["infinite-width/thm1"]
    runs = wanted(experiment, scale)
    assert {run.config["depth"] for run in runs} == {1, 2, 3}
    # Every order must be able to be other than 0: K^(r) = 0 for r > L H.
    assert all(run.config["depth"] * run.config["layers"] >= max(ORDERS) for run in runs)
    assert all(experiment.cost(run) > 0 for run in runs)
    assert pickle.loads(pickle.dumps(experiment)).runs(scale) == runs


def test_a_run_is_the_same_each_time_and_checks_itself():
    run = Run("infinite-width/thm1", config("smooth g", check=True), 0)
    ((_, first),) = Thm1().execute([run], Workspace())
    assert first.curves == measure(run).curves
    assert first.metrics["disagreement"] < 1e-10
    other = Run("infinite-width/thm1", config("smooth g"), 1)
    assert math.isnan(measure(other).metrics["disagreement"])
    assert measure(other).curves["same 1"] != first.curves["same 1"]


@pytest.mark.parametrize(("depth", "expected"), [(1, [0, -1, -1, -2]), (2, [0, 0, -1, -1])])
def test_exponents_of_smooth_f(depth, expected):
    """By enumerating the distributions of r derivatives over H factors."""

    def best(left, factors):
        if factors == 0:
            return 0 if left == 0 else -math.inf
        return max(-(a // 2) + best(left - a, factors - 1) for a in range(left + 1))

    assert [exponent_smooth_f(depth, r) for r in ORDERS] == expected
    assert [best(r, depth) for r in ORDERS] == expected


def test_median_slope_finds_the_slope_and_its_spread():
    widths = [10, 100, 1000]
    draws = [(torch.randn(400, generator=seeded(n)).exp() / n**1.5).tolist() for n in widths]
    slope = median_slope(widths, draws)
    assert abs(slope.value + 1.5) < 2 * slope.margin
    # Median of lognormal: standard error sqrt(pi/2) / sqrt 400 / ln 10 in log10 at each width.
    expected = 1.96 * math.sqrt(math.pi / 2 / 400) / math.log(10) / math.sqrt(2)
    assert slope.margin == pytest.approx(expected, rel=0.35)
    assert median_slope(widths, [[0.0] * 3, [1.0] * 3, [1.0] * 3]) is None
    assert median_slope([10], [[1.0]]) is None


def test_is_rate():
    assert is_rate(Slope(-1.1, 0.1, 0, 4), -1) == "holds"
    assert is_rate(Slope(-1.6, 0.1, 0, 4), -1) == "fails"
    assert is_rate(Slope(-1.3, 0.3, 0, 4), -1) == "holds"
    assert is_rate(Slope(-1.5, 0.3, 0, 4), -1) == "unclear"
    assert is_rate(Slope(-1.0, 0.6, 0, 4), -1) == "unclear"
    assert is_rate(None, -1) == "no data"
    assert is_rate(Slope(-1.0, math.nan, 0, 2), -1) == "unclear"


def fakes(rule, settings=tuple(SETTINGS), disagreement=1e-12, apart=0):
    """Results with |K^(r)| = n^rule(setting, H, r), with a little noise."""
    results = []
    for setting in settings:
        for depth, layers in ((1, 4), (2, 2)):
            for width in (10, 100):
                draws = 20
                curves = {}
                for pair in ("same", "other"):
                    for r in ORDERS:
                        size = float(width) ** rule(setting, depth, r)
                        values = [size * (1 + 0.01 * k) * (-1) ** k for k in range(draws)]
                        values[:apart] = [0.0] * apart
                        curves[f"{pair} {r}"] = (list(range(draws)), values)
                    paths = [float(k >= apart) for k in range(draws)]
                    curves[f"{pair} path"] = (list(range(draws)), paths)
                run = Run("infinite-width/thm1", config(setting, depth, layers, width, draws), 0)
                results.append(Result(run, Outcome("done", {"disagreement": disagreement}, curves)))
    return results


def truth(setting, depth, r):
    if setting == "smooth g" and depth > 1:
        return 0
    return exponent_smooth_f(depth, r) if setting == "smooth f" else exponent(depth, r)


def words(results):
    return [verdict.verdict for verdict in verdicts(results)]


def test_verdicts():
    expected = ["holds", "holds", "holds", "fails", "holds", "fails", "holds", "holds"]
    assert words(fakes(truth)) == expected
    theorem = words(fakes(lambda setting, depth, r: exponent(depth, r)))
    assert theorem == ["holds"] * 4 + ["fails", "holds", "fails", "holds"]
    assert words(fakes(lambda setting, depth, r: 0))[:3] == ["fails"] * 3
    assert words(fakes(truth, disagreement=0.1))[-1] == "fails"
    assert words([]) == ["no data"] * 8


def test_zeros_are_counted_and_left_out():
    (rate, *_) = rates(fakes(truth, ("relu",), apart=8))
    assert rate.zeros == rate.apart == pytest.approx(0.4)
    assert min(rate.medians) > 0
    assert len(rate.everyone[0]) == 20
    assert len(rate.draws[0]) == 12


def test_table_and_figure_from_results_alone():
    pytest.importorskip("matplotlib")
    experiment = Thm1()
    table = experiment.table(fakes(truth))
    assert len(table.rows) == 4 * 2 * 2 * 4
    assert "smooth g, which the setup allows: FAILS" in table.text()
    (figure,) = experiment.figures(fakes(truth, ("relu", "smooth g"))).values()
    assert len(figure.axes) == 4
    assert experiment.figures([]) == {}
    assert "NO DATA" in experiment.table([]).text()

"""Figure 4: learning rates, and claims about those at which networks learn."""

from __future__ import annotations

import math
import pickle

import pytest

from weightloom_papers.experiments import all_experiments
from weightloom_papers.infinite_width.experiments.rotations.analysis import rate_verdicts
from weightloom_papers.infinite_width.experiments.rotations.experiment import RotationRates
from weightloom_papers.lab import SCALES, Outcome, Result, Run, wanted


def fake(accuracy, seeds=3):
    results = []
    for rate in (1e-6, 1e-3, 1e-2, 1.0):
        for width in (50, 200):
            for depth in (3, 8):
                for seed in range(seeds):
                    config = {"images": "mnist", "init": "default", "depth": depth, "width": width,
                              "learning_rate": rate, "epochs": 4, "f_width": 9, "f_depth": 4,
                              "batch_size": 100, "train_images": 50}  # fmt: skip
                    value = accuracy(rate, width, depth)
                    lost = math.isnan(value)
                    value += 0.002 * (seed + width % 3)
                    metrics = {"accuracy": value, "mean_accuracy": value, "chance": 0.13,
                               "generated": 5, "digits": 0.0}  # fmt: skip
                    outcome = Outcome("diverged" if lost else "done", metrics)
                    results.append(Result(Run("infinite-width/fig4", config, seed), outcome))
    return results


def learns(rate, width, depth):
    """Nothing at the smallest rate, divergence at the largest."""
    if rate == 1.0:
        return math.nan
    return 0.1 if rate < 1e-4 else 0.5 + width / 1000 - depth / 100


def words(results):
    return [verdict.verdict for verdict in rate_verdicts(results)]


@pytest.mark.parametrize("scale", SCALES[:2])
def test_runs_are_complete_and_unique(scale):
    experiment = all_experiments()["infinite-width/fig4"]
    runs = wanted(experiment, scale)
    assert all(experiment.cost(run) > 0 for run in runs)
    assert pickle.loads(pickle.dumps(experiment)).runs(scale) == runs


def test_paper_scale_is_the_papers():
    runs = RotationRates().runs("paper")
    rates = sorted({run.config["learning_rate"] for run in runs})
    assert rates == pytest.approx([10.0 ** (j - 7) for j in range(8)])
    assert {run.config["width"] for run in runs} == {50, 100, 200}
    assert {run.config["depth"] for run in runs} == {3, 6, 8}
    assert {run.config["epochs"] for run in runs} == {40}
    assert len({run.seed for run in runs}) == 100


def test_laptop_fits_in_20_minutes_by_its_own_estimate():
    experiment = RotationRates()
    assert sum(experiment.cost(run) for run in experiment.runs("laptop")) < 20 * 60


def test_rates_are_not_mixed_in_a_group():
    experiment = RotationRates()
    runs = experiment.runs("laptop")
    rates = {}
    for run in runs:
        rates.setdefault(experiment.group(run), set()).add(run.config["learning_rate"])
    assert all(len(each) == 1 for each in rates.values())


def test_claims_look_only_where_something_is_learned():
    verdicts = rate_verdicts(fake(learns))
    assert [verdict.verdict for verdict in verdicts] == ["holds", "holds"]
    assert "rate 0.001" in verdicts[0].evidence
    assert "1e-06" not in verdicts[0].evidence
    assert "rate 1:" not in verdicts[0].evidence


def test_every_verdict_can_differ():
    one_bad = fake(lambda r, w, d: learns(r, w, d) - (w / 600 if r == 1e-2 else 0))
    assert words(one_bad) == ["fails", "holds"]
    deeper = fake(lambda r, w, d: learns(r, w, d) + (d / 30 if r == 1e-3 else 0))
    assert words(deeper) == ["holds", "fails"]
    assert words(fake(learns, seeds=1)) == ["unclear", "unclear"]
    nothing = rate_verdicts(fake(lambda r, w, d: 0.1))
    assert [verdict.verdict for verdict in nothing] == ["no data", "no data"]
    assert "nothing was learned" in nothing[0].evidence
    # Narrow networks that learn where wide ones diverge are a failure of the claim.
    lost = fake(lambda r, w, d: math.nan if w == 200 and r == 1e-2 else learns(r, w, d))
    assert words(lost)[0] == "fails"


def test_table_and_figure_from_results_alone():
    pytest.importorskip("matplotlib")
    experiment = RotationRates()
    table = experiment.table(fake(learns))
    assert len(table.rows) == 16
    assert "a wider g ends higher at every rate at which networks learn: HOLDS" in table.text()
    (figure,) = experiment.figures(fake(learns)).values()
    assert len(figure.axes) == 2
    assert all(axes.get_xscale() == "log" for axes in figure.axes)
    crosses = [line for line in figure.axes[0].lines if line.get_marker() == "x"]
    assert len(crosses) == 2  # both widths at the largest rate
    assert experiment.figures([]) == {}

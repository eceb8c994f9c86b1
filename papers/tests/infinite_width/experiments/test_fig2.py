"""Figure 2: runs, verdicts in both directions, and a small group of runs."""

from __future__ import annotations

import math
import pickle

import pytest

from weightloom_papers.experiments import all_experiments
from weightloom_papers.infinite_width.experiments.rotations.analysis import epoch_verdicts
from weightloom_papers.infinite_width.experiments.rotations.experiment import (
    FIG2_PAPER,
    STACK_PARAMETERS,
    Rotations,
)
from weightloom_papers.lab import SCALES, Outcome, Result, Run, Workspace, wanted

TINY = {
    "sets": ("mnist",), "widths": (3, 9), "depths": (3,), "inits": ("default",), "rates": (0.05,),
    "seeds": 2, "side": 4, "train_images": 40, "test_images": 30, "epochs": 2, "batch_size": 20,
    "f_width": 6, "f_depth": 3,
}  # fmt: skip


def fake(
    accuracy, images="mnist", inits=("default",), digits=0.0, seeds=3, name="infinite-width/fig2"
):
    """``accuracy(width, depth, rate)`` with a little noise, for widths 10, 100 and depths 3, 8."""
    results = []
    for init in inits:
        for width in (10, 50, 100):
            for depth in (3, 8):
                for seed in range(seeds):
                    config = {"images": images, "init": init, "depth": depth, "width": width,
                              "learning_rate": 0.01, "epochs": 2, "f_width": 9, "f_depth": 4,
                              "batch_size": 100, "train_images": 50}  # fmt: skip
                    value = accuracy(width, depth) + 0.002 * (seed + width % 3)
                    metrics = {"accuracy": value, "mean_accuracy": value - 0.05, "chance": 0.13,
                               "generated": 5, "digits": digits}  # fmt: skip
                    curves = {"accuracy": ([1, 2], [value - 0.1, value])}
                    results.append(
                        Result(Run(name, config, seed), Outcome("done", metrics, curves))
                    )
    return results


def words(results):
    return [verdict.verdict for verdict in epoch_verdicts(results)]


@pytest.mark.parametrize("scale", SCALES[:2])
def test_runs_are_complete_and_unique(scale):
    experiment = all_experiments()["infinite-width/fig2"]
    runs = wanted(experiment, scale)
    assert {run.config["images"] for run in runs} == {"mnist", "cifar10"}
    assert all(experiment.cost(run) > 0 for run in runs)
    assert pickle.loads(pickle.dumps(experiment)).runs(scale) == runs


def test_paper_scale_is_the_papers():
    runs = Rotations().runs("paper")
    assert len(runs) == 2 * 2 * 3 * 3 * 100  # sets, initialisations, widths, depths, runs
    for run in runs:
        config = run.config
        assert (config["f_depth"], config["f_width"], config["batch_size"]) == (4, 200, 100)
        assert (config["epochs"], config["learning_rate"]) == (100, 0.01)
        assert config["train_images"] == 10_000
        assert config["width"] in FIG2_PAPER["widths"][config["images"]]
        assert config["side"] == {"mnist": 28, "cifar10": 32}[config["images"]]


def test_laptop_fits_in_25_minutes_by_its_own_estimate():
    experiment = Rotations()
    assert sum(experiment.cost(run) for run in experiment.runs("laptop")) < 25 * 60


def test_groups_differ_in_seed_alone_and_stay_small():
    experiment = Rotations()
    runs = experiment.runs("paper")
    groups = {}
    for run in runs:
        groups.setdefault(experiment.group(run), []).append(run)
    for group in groups.values():
        assert len({str(sorted(run.config.items())) for run in group}) == 1
    wide = [r for r in runs if r.config["width"] == 300 and r.config["depth"] == 8]
    assert all(len(groups[experiment.group(run)]) == 1 for run in wide)  # 293 million each
    narrow = next(r for r in runs if r.config["width"] == 10)
    size = len(groups[experiment.group(narrow)])
    assert size > 1
    assert size * 200 * 784 * 10 <= STACK_PARAMETERS


def test_results_that_support_the_claims():
    assert words(fake(lambda width, depth: 0.3 + width / 500 - depth / 100)) == ["holds"] * 2


def test_every_verdict_can_differ():
    assert words(fake(lambda width, depth: 0.6 - width / 500 - depth / 100)) == ["fails", "holds"]
    assert words(fake(lambda width, depth: 0.3 + width / 500 + depth / 100)) == ["holds", "fails"]
    # One depth at which a wider g is slower is enough.
    mixed = fake(lambda width, depth: 0.5 + (1 if depth == 3 else -1) * width / 500)
    assert words(mixed)[0] == "fails"
    assert words(fake(lambda width, depth: 0.3 + width / 500, seeds=1)) == ["unclear"] * 2
    # At the level of the commonest class a difference says nothing.
    assert words(fake(lambda width, depth: 0.08 + width / 5000)) == ["unclear"] * 2
    assert words([]) == []


def test_sets_and_initialisations_are_judged_separately():
    good = fake(lambda width, depth: 0.3 + width / 500 - depth / 100)
    bad = fake(lambda width, depth: 0.6 - width / 500, images="cifar10", inits=("hyperfan_in",))
    verdicts = epoch_verdicts([*good, *bad])
    assert [verdict.claim.split(":")[0] for verdict in verdicts[::2]] == [
        "CIFAR-10, hyperfan_in initialisation",
        "MNIST, default initialisation",
    ]
    assert [verdict.verdict for verdict in verdicts] == ["fails", "fails", "holds", "holds"]
    assert "depth 3, width 100 over 10: 0.18" in verdicts[2].evidence


def test_diverged_runs_count_with_the_accuracy_of_chance():
    results = fake(lambda width, depth: 0.3 + width / 500 - depth / 100)
    for result in results:
        if result.run.config["width"] == 100:
            result.outcome.metrics["mean_accuracy"] = math.nan
            result.outcome.status = "diverged"
    assert words(results)[0] == "fails"


def test_table_and_figure_from_results_alone():
    pytest.importorskip("matplotlib")
    experiment = Rotations()
    results = fake(lambda width, depth: 0.3 + width / 500 - depth / 100, digits=1.0)
    results[0].outcome.status = "diverged"
    results[0].outcome.metrics["accuracy"] = math.nan
    table = experiment.table(results)
    assert len(table.rows) == 6
    text = table.text()
    assert "digits (no MNIST), default initialisation: a wider g trains faster: HOLDS" in text
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert (row["seeds"], row["diverged"], row["digits instead"]) == (3, 1, "yes")
    (figure,) = experiment.figures(results).values()
    assert len(figure.axes) == 2
    assert "digits (no MNIST)" in figure.axes[0].get_title()
    assert len(figure.axes[0].get_legend().get_texts()) == 3
    assert experiment.figures([]) == {}
    for result in results[:9]:
        result.run.config["learning_rate"] = 0.5
        result.run.config["init"] = "ntk"
    (figure,) = experiment.figures(results).values()
    captions = " ".join(" ".join(text.get_text().split()) for text in figure.texts)
    assert "learning rate 0.01 (default) and 0.5 (ntk)" in captions


def test_a_small_group_runs_on_digits_and_reports_it(tmp_path):
    experiment = Rotations(**TINY)
    runs = experiment.runs("smoke")
    assert len(runs) == 4
    group = [run for run in runs if experiment.group(run) == experiment.group(runs[0])]
    done = list(experiment.execute(group, Workspace(data_dir=tmp_path)))
    assert [run for run, _ in done] == group
    for _, outcome in done:
        assert outcome.status == "done"
        assert outcome.metrics["digits"] == 1.0
        assert 0.0 <= outcome.metrics["accuracy"] <= 1.0
        assert outcome.metrics["steps"] == 4
        assert outcome.metrics["generated"] == 16 * 3 + 9 + 36 + 2 * 3 + 12  # 8 x 8 means to 4 x 4
        assert outcome.curves["accuracy"][0] == [2, 4]
    assert done[0][1].metrics["train_loss"] != done[1][1].metrics["train_loss"]


def test_sets_and_initialisations_may_have_choices_of_their_own():
    experiment = Rotations(
        **{**TINY, "sets": ("mnist", "cifar10"), "inits": ("default", "ntk")}
        | {
            "widths": {"mnist": (3,), "cifar10": (5, 6)},
            "rates": {"default": (0.1,), "ntk": (9.0,)},
        }
    )
    combinations = {
        (run.config["images"], run.config["init"], run.config["width"], run.config["learning_rate"])
        for run in experiment.runs("laptop")
    }
    assert combinations == {
        (images, init, width, {"default": 0.1, "ntk": 9.0}[init])
        for images, width in (("mnist", 3), ("cifar10", 5), ("cifar10", 6))
        for init in ("default", "ntk")
    }


def test_unknown_choices():
    with pytest.raises(ValueError, match=r"fig2 was given width; what can be chosen is .*widths"):
        Rotations(width=3)

"""Table 1: its runs and methods, its numbers and its verdicts."""

from __future__ import annotations

import math
import pickle

import pytest

from papers.tests.infinite_width.experiments.test_images import DATA
from weightloom.errors import ConfigError
from weightloom_papers.experiments import all_experiments
from weightloom_papers.infinite_width.experiments.images import TASKS, set_name
from weightloom_papers.infinite_width.experiments.table1.analysis import (
    averaging,
    compared,
    entries,
    verdicts,
)
from weightloom_papers.infinite_width.experiments.table1.experiment import (
    METHODS,
    VARIATIONS,
    Table1,
    feature_scale,
    measure,
)
from weightloom_papers.lab import SCALES, Outcome, Result, Run, wanted
from weightloom_papers.lab.drawing import style

# -- the experiment --------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", ["infinite-width/table1", "infinite-width/fig3"])
def test_runs_are_complete_and_unique(name: str, scale: str) -> None:
    experiment = all_experiments()[name]
    runs = wanted(experiment, scale)
    assert all(experiment.cost(run) > 0 for run in runs)
    assert pickle.loads(pickle.dumps(experiment)).runs(scale) == runs
    if name == "infinite-width/table1":
        assert {(run.config["method"], run.config["task"]) for run in runs} == {
            (method, task) for method in METHODS for task in TASKS
        }


def test_the_paper_scale_is_the_papers() -> None:
    runs = [run for run in Table1().runs("paper") if run.config["vary"] is None]
    assert {run.config["images"] for run in runs} == {50, 100, 200, 500}
    kernels = [run for run in runs if run.config["method"] == "HK20"]
    assert {run.config["subsets"] for run in kernels} == {10}
    assert {run.config["ridge"] for run in kernels} == {1e-3}
    assert len({run.seed for run in kernels}) == 20
    varied = {run.config["vary"] for run in Table1().runs("laptop")}
    assert varied == {None, *VARIATIONS}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_its_error(method: str) -> None:
    base = next(r for r in Table1().runs("smoke") if r.config["method"] == method)
    config = {**base.config, "images": 10, "tests": 4}
    config |= {"steps": 3} if "steps" in config else {}
    config |= {"test_pixels": 9} if "test_pixels" in config else {}
    first, again = (measure(config, 0, DATA) for _ in range(2))
    assert first.status == "done"
    assert first.metrics == again.metrics
    assert first.metrics["mse"] != measure(config, 1, DATA).metrics["mse"]
    assert {"mse", "mean_image", "mean_pixel", "side"} <= set(first.metrics)


def test_unknown_method() -> None:
    with pytest.raises(ConfigError, match="method is 'RBF'; wanted one of HK20, NNGP20"):
        measure({"method": "RBF"}, 0, DATA)
    assert feature_scale(28) == 10.0


# -- numbers and verdicts --------------------------------------------------------------------------


def fake(method: str, task: str, images: int, seed: int, mse: float, **extra: float) -> Result:
    config = {"method": method, "task": task, "images": images, "tests": 5, "vary": None}
    config |= {"subsets": 10} if method.endswith("20") else {}
    metrics = {
        "mse": mse, "side": 28.0, "mean_image": 0.07, "mean_pixel": 0.1, "mean_image_hidden": 0.08,
        "mse_hidden": mse * 1.5, **extra,
    }  # fmt: skip
    curves = {"mse": ([1, 2], [extra.get("mse_single", mse), mse])}
    return Result(Run("infinite-width/table1", config, seed), Outcome("done", metrics, curves))


def fakes(**levels: float) -> list[Result]:
    """Errors of each method around its level; methods on the same images share a factor."""
    results = []
    for task in TASKS:
        for images in (50, 100):
            for seed in range(3):
                factor = 1 + 0.1 * (seed - 1)
                for number, (method, level) in enumerate(levels.items()):
                    noise = 1 + 0.004 * (-1) ** (seed + number)
                    single = {"mse_single": 0.06 * factor * noise} if method[-2:] == "20" else {}
                    value = level * factor * noise
                    results.append(fake(method, task, images, seed, value, **single))
    return results


AS_PRINTED = {"HK20": 0.05, "NNGP20": 0.045, "HN20": 0.1, "HK": 0.03, "NNGP": 0.02, "HN": 0.05}
OPPOSITE = {"HK20": 0.05, "NNGP20": 0.055, "HN20": 0.03, "HK": 0.1, "NNGP": 0.2, "HN": 0.02}


def test_verdicts_come_out_either_way() -> None:
    assert {each.verdict for each in verdicts(fakes(**AS_PRINTED))} == {"holds"}
    assert {each.verdict for each in verdicts(fakes(**OPPOSITE))} == {"fails"}
    assert {each.verdict for each in verdicts([])} == {"no data"}
    single = [
        result
        for result in fakes(**AS_PRINTED)
        if result.run.seed == 0 and result.run.config["images"] == 50
    ]
    assert "unclear" in {each.verdict for each in verdicts(single)}


def test_one_task_against_the_other_fails_consistency() -> None:
    mixed = [
        fake(method, task, 50, seed, level * (1 + 0.01 * seed * (method == "HK20")))
        for task in TASKS
        for seed in range(3)
        for method, level in (("HK20", 0.05), ("NNGP20", 0.04 if task == TASKS[0] else 0.06))
    ]
    claim = verdicts(mixed)[2]
    assert (claim.verdict, claim.claim) == (
        "fails", "the NNGP consistently beats the hyperkernel (20 pixels)",
    )  # fmt: skip


def test_entries_by_hand() -> None:
    results = [
        fake("HK20", TASKS[0], 50, s, v, mse_single=0.06) for s, v in enumerate((0.05, 0.06))
    ]
    (entry,) = entries(results)
    assert entry.mse == pytest.approx(0.055)
    assert entry.standard_error == pytest.approx(0.005)
    assert (entry.printed, entry.count, entry.single) == (0.055, 2, pytest.approx(0.06))
    assert math.isnan(entries(results[:1])[0].standard_error)
    ratio = compared([*results, fake("NNGP20", TASKS[0], 50, 0, 0.025)], "NNGP20", "HK20")
    assert ratio.value == pytest.approx(math.log(0.5))
    assert ratio.count == 1  # seed 1 has no partner


def test_averaging_compares_gains() -> None:
    results = [
        fake("HK20", TASKS[0], 50, 0, 0.05, mse_single=0.06),
        fake("NNGP20", TASKS[0], 50, 0, 0.04, mse_single=0.06),
    ]
    assert averaging(results).value == pytest.approx(math.log(0.8))


def test_image_sets_are_distinguished() -> None:
    small = fake("HK20", TASKS[0], 50, 0, 0.5, side=8.0)
    large = fake("HK20", TASKS[0], 50, 1, 0.05)
    assert entries([small, large])[0].mse == pytest.approx(0.05)
    assert "digits (8 x 8)" in set_name([small])
    assert set_name([large]) == "MNIST"
    assert "digits" in Table1().table([small]).text()


def test_figure_and_table_are_drawn_from_results_alone() -> None:
    results = fakes(**AS_PRINTED)
    varied = fake("HK20", TASKS[0], 100, 0, 0.07)
    config = {**varied.run.config, "vary": "finer features"}
    results.append(Result(Run("infinite-width/table1", config, 0), varied.outcome))
    with style():
        (figure,) = Table1().figures(results).values()
        assert Table1().figures([]) == {}
    titles = [panel.get_title() for panel in figure.axes]
    assert titles[2] == "inpainting: the hidden half alone"
    text = Table1().table(results).text()
    assert "0.055" in text  # the paper's
    assert "finer features (100 images, 10 draws): representation HK20 0.0700" in text
    assert "HOLDS" in text
    assert len(Table1().table(results).rows) == 2 * 6 * 2  # the variation is not in the table

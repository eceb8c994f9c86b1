"""The experiment ``scale``: the posterior against dense algebra, slopes and verdicts."""

from __future__ import annotations

import math
import pickle

import pytest
import torch

from papers.tests.infinite_width.experiments.test_images import DATA, SIDE
from weightloom.kernels import FourierFeatures
from weightloom_papers.experiments import all_experiments
from weightloom_papers.infinite_width.experiments.images import (
    TASKS,
    coordinates,
    kernel_of,
    sample_images,
    seen_by,
)
from weightloom_papers.infinite_width.experiments.scale.analysis import sizes, slope_of, verdicts
from weightloom_papers.infinite_width.experiments.scale.experiment import (
    ScaleExperiment,
    coverage,
    measure,
    relative_errors,
)
from weightloom_papers.lab import SCALES, Outcome, Result, Run, wanted
from weightloom_papers.lab.drawing import style


def test_coverage_of_what_is_normal() -> None:
    residual = 3 * torch.randn(40_000, generator=torch.Generator().manual_seed(0))
    metrics = coverage(residual, torch.tensor(3.0))
    for level in (0.5, 0.8, 0.95):
        spread = math.sqrt(level * (1 - level) / 40_000)
        assert abs(metrics[f"inside_{round(100 * level)}"] - level) < 4 * spread
    assert coverage(residual, torch.tensor(1.0))["inside_95"] < 0.6


def test_relative_errors_by_hand() -> None:
    residual = torch.tensor([[3.0, -4.0, 0.5]])
    metrics = relative_errors(
        residual, torch.tensor([[1.0, 2.0, 2.0]]), torch.tensor([[1, 0.03, 0]])
    )
    assert metrics["relative_ink"] == pytest.approx(math.sqrt((9 + 4) / 2))
    assert metrics["relative_paper"] == pytest.approx(0.25)


@pytest.mark.parametrize("task", TASKS)
def test_the_posterior_is_the_dense_one(task: str) -> None:
    metrics = measure({"task": task, "images": 6, "tests": 3}, 0, DATA).metrics
    sample = sample_images(DATA, task, 6, 3, 0)
    features = FourierFeatures(scale=metrics["chosen_scale"], period=float(SIDE))
    kernel, places = kernel_of("nngp", features), coordinates(SIDE).double()
    (x, z), (x2, z2) = (
        (seen_by(sample, rows, True).double().repeat_interleave(SIDE**2, 0), places.repeat(n, 1))
        for rows, n in ((sample.train, 6), (sample.test, 3))
    )
    ridge = metrics["chosen_ridge"]
    y, truth = sample.train.double().flatten(), sample.test.double().flatten()
    matrix = kernel(x, z) + ridge * torch.eye(len(y)).double()
    cross, inverse = kernel(x2, z2, x, z), torch.linalg.inv(matrix)
    mean = cross @ inverse @ y
    variance = kernel(x2, z2).diagonal() - (cross @ inverse * cross).sum(1) + ridge
    growth = float(y @ inverse @ y) / len(y)
    assert metrics["growth"] == pytest.approx(growth, rel=1e-5)
    assert metrics["mse"] == pytest.approx(float((mean - truth).square().mean()), rel=1e-5)
    assert metrics["deviation"] == pytest.approx(float(variance.mean().sqrt()), rel=1e-5)
    near = 2.5 / len(truth)  # a pixel or two may be on the edge of an interval
    for name, factor in (("inside_50", 1.0), ("scaled_inside_50", math.sqrt(growth))):
        expected = coverage(mean - truth, variance.sqrt() * factor)["inside_50"]
        assert metrics[name] == pytest.approx(expected, abs=near)
    assert metrics["equations"] == 6 * SIDE**2
    assert metrics["seconds_fit"] > 0


@pytest.mark.parametrize("scale", SCALES)
def test_runs_are_complete_and_unique(scale: str) -> None:
    experiment = all_experiments()["infinite-width/scale"]
    runs = wanted(experiment, scale)
    assert {run.config["task"] for run in runs} == set(TASKS)
    assert pickle.loads(pickle.dumps(experiment)).runs(scale) == runs
    assert all(experiment.cost(run) > 0 for run in runs)


def fake(task: str, images: int, seed: int, mse: float, inside: float, side: int = 28) -> Result:
    metrics = {
        "mse": mse, "side": float(side), "mean_image": 0.07, "mean_pixel": 0.1, "growth": 1.0,
        "relative_ink": 0.5, "relative_paper": 0.1,
        "equations": images * 784.0, "seconds_fit": (images / 100) ** 3, "peak_bytes": 1e8 * images,
    }  # fmt: skip
    for prefix in ("", "scaled_"):
        metrics |= {f"{prefix}inside_{p}": p / 100 + inside for p in (50, 80, 95)}
    config = {"task": task, "images": images, "tests": 5}
    return Result(Run("infinite-width/scale", config, seed), Outcome("done", metrics))


def fakes(power: float, inside: float, most: int = 800) -> list[Result]:
    return [
        fake(task, n, seed, 0.05 * (n / 100) ** power * (1 + 0.01 * (-1) ** (seed + n)), inside)
        for task in TASKS
        for n in (100, 200, 401, 800)
        if n <= most
        for seed in range(2)
    ]


def test_verdicts_come_out_either_way() -> None:
    assert [each.verdict for each in verdicts(fakes(-0.5, 0.01))] == ["holds"] * 4
    worse = [fake(task, n, s, 0.01 * n, -0.3) for task in TASKS for n in (3, 6, 12) for s in (0, 1)]
    assert [each.verdict for each in verdicts(worse)] == ["fails"] * 4
    assert [each.verdict for each in verdicts([])] == ["no data"] * 4
    assert verdicts(fakes(0.0, 0.0))[0].verdict == "unclear"


def test_slopes_and_rows_by_hand() -> None:
    results = fakes(-0.5, 0.0)
    assert slope_of(results, "mse").value == pytest.approx(-0.5, abs=0.02)
    assert slope_of(results, "seconds_fit", least=200).value == pytest.approx(3.0)
    rows = sizes([*results, fake(TASKS[0], 50, 0, 0.5, 0.0, side=8)])
    assert [row.images for row in rows if row.task == TASKS[0]] == [100, 200, 401, 800]
    assert rows[0].metrics["mse"] == pytest.approx(0.05)
    assert rows[0].standard_error == pytest.approx(0.05 * 0.01)


def test_figure_and_table_are_drawn_from_results_alone() -> None:
    with style():
        (figure,) = ScaleExperiment().figures(fakes(-0.5, 0.0)).values()
        assert ScaleExperiment().figures([]) == {}
    assert len(figure.axes) == 4
    text = ScaleExperiment().table(fakes(-0.5, 0.0)).text()
    assert "slope 3" in text
    assert "MNIST" in text

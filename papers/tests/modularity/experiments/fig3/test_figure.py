"""The figures of Section 6 from made-up results: their contents, and incomplete results."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest

from papers.tests.modularity.experiments.fig3.fakes import fakes, paper_like
from weightloom_papers.lab import Result
from weightloom_papers.lab.drawing import style
from weightloom_papers.modularity.experiments.fig3.experiment import Fig3a, Fig3d
from weightloom_papers.modularity.experiments.fig3_robust.experiment import Fig3Robust


def figures_of(experiment: Any, results: list[Result]) -> Any:
    with style():
        return experiment.figures(results)


def texts(figure: Any) -> list[str]:
    """Every string on a figure."""
    strings = [text.get_text() for text in figure.texts]
    for axes in figure.axes:
        strings += [text.get_text() for text in axes.texts] + [axes.get_title()]
    return strings


def heights(axes: Any, colour: str, marker: str) -> list[float]:
    """The values of the line with markers in this colour."""
    for line in axes.lines:
        if line.get_color() == colour and line.get_marker() == marker and line.get_ls() == "-":
            return list(line.get_ydata())
    raise AssertionError("no such line")


BLUE, ORANGE = "#0072B2", "#D55E00"


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return fakes(Fig3a().runs("laptop"), paper_like)


def test_raw_and_relative_errors_are_both_there(results: list[Result]) -> None:
    figure = figures_of(Fig3a(), results)[""]
    raw, scaled = figure.axes[1], figure.axes[3]  # the PyTorch column
    assert raw.get_title().startswith("PyTorch default targets (variance 0.0")
    assert figure.axes[0].get_title().startswith("He uniform targets, as printed (variance ")
    hyper = [
        r
        for r in results
        if r.run.config["target_init"] == "pytorch" and r.run.config["model"] == "hypernetwork"
    ]
    for axes, name in ((raw, "test_mse"), (scaled, "test_mse_over_variance")):
        expected = [
            sum(r.outcome.metrics[name] for r in hyper if r.run.config["depth"] == depth) / 3
            for depth in range(2, 10)
        ]
        assert heights(axes, BLUE, "o") == pytest.approx(expected)
    assert "1.0: predicts the mean" in texts(figure)
    assert any(list(line.get_ydata()) == [1.0, 1.0] for line in scaled.lines)


def test_diverged_runs_are_counted_in_the_figure(results: list[Result]) -> None:
    figure = figures_of(Fig3a(), results)[""]
    he, torch_like = figure.axes[0], figure.axes[1]
    assert {"3/3", "1/3"} <= {text.get_text() for text in he.texts}
    assert not any("/3" in text.get_text() for text in torch_like.texts)
    assert math.isnan(heights(he, BLUE, "o")[0])  # no mean of nothing


def test_captions_carry_the_claim(results: list[Result]) -> None:
    for figure in (figures_of(Fig3a(), results)[""], figures_of(Fig3Robust(), robust())[""]):
        words = " ".join(" ".join(texts(figure)).split())
        assert "The paper says: From three layers on the hypernetwork" in words
    words = " ".join(" ".join(texts(figures_of(Fig3a(), results)[""])).split())
    assert "SGD with learning rate 0.01" in words
    assert "over 3 repetitions" in words


def test_epochs_begin_before_training(results: list[Result]) -> None:
    figure = figures_of(Fig3a(), results)["-epochs"]
    panel = figure.axes[4]  # PyTorch targets, depth 2
    assert panel.get_title() == "PyTorch default, depth 2"
    line = next(line for line in panel.lines if line.get_color() == ORANGE)
    assert list(line.get_xdata()) == list(range(7))
    start = [
        r.outcome.metrics["initial_test_mse_over_variance"]
        for r in results
        if (r.run.config["target_init"], r.run.config["model"], r.run.config["depth"])
        == ("pytorch", "embedding", 2)
    ]
    assert line.get_ydata()[0] == pytest.approx(sum(start) / 3)
    assert "3/3 diverged" in {text.get_text() for text in figure.axes[0].texts}


def robust() -> list[Result]:
    return fakes(Fig3Robust().runs("laptop"), paper_like)


def test_figure_of_conclusions() -> None:
    figure = figures_of(Fig3Robust(), robust())["-conclusions"]
    words = [text.get_text() for text in figure.axes[0].texts]
    # 8 settings; no wide hypernetworks at this scale, so 6 of the 7 columns
    assert len(words) == 8 * 6
    assert "holds" in words
    assert "fails" in words
    assert any(word.startswith("1.4") for word in words)  # the best error, where it is the answer


def always_diverges(config: dict[str, Any], seed: int) -> float:
    return math.nan


@pytest.mark.parametrize("experiment", [Fig3d(), Fig3Robust()])
@pytest.mark.parametrize("case", ["none", "one model", "one run", "all diverged"])
def test_incomplete_and_diverged_results(experiment: Any, case: str) -> None:
    runs = experiment.runs("smoke")
    if case == "none":
        runs = []
    elif case == "one model":
        runs = [run for run in runs if run.config["model"] == "hypernetwork"]
    elif case == "one run":
        runs = runs[:1]
    results = fakes(runs, always_diverges if case == "all diverged" else paper_like)
    for figure in figures_of(experiment, results).values():
        figure.savefig(io.BytesIO(), dpi=20)  # lays out and draws everything
        if case == "none":
            assert "no finished runs yet" in texts(figure)

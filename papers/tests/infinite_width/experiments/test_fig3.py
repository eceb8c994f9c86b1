"""Figure 3: the images of a small run, its figure and its table."""

from __future__ import annotations

import pytest
import torch

from papers.tests.infinite_width.experiments.test_images import DATA
from weightloom_papers.infinite_width.experiments.fig3.experiment import (
    ROWS,
    InfiniteFig3,
    measure,
)
from weightloom_papers.infinite_width.experiments.images import sample_images
from weightloom_papers.lab import Result, Run
from weightloom_papers.lab.drawing import style


def test_figure_from_a_small_run() -> None:
    config = {"images": 12, "shown": 3, "steps": 3, "rates": [1e-2]}
    outcome = measure(config, 0, DATA)
    sample = sample_images(DATA, "inpainting", 12, 3, 0)
    rows = {name: torch.tensor(curve[1]).view(3, -1) for name, curve in outcome.curves.items()}
    assert set(rows) == set(ROWS)
    assert not rows["seen"][:, sample.hidden].any()
    error = (rows["nngp"] - sample.test).square()[:, sample.hidden].mean()
    assert outcome.metrics["nngp_hidden"] == pytest.approx(float(error), rel=1e-2, abs=1e-5)
    assert rows["deviation"].min() >= 0
    result = Result(Run("infinite-width/fig3", config, 0), outcome)
    experiment = InfiniteFig3()
    with style():
        (figure,) = experiment.figures([result]).values()
        assert experiment.figures([]) == {}
    assert len(figure.axes) == 3 * len(ROWS)
    assert "hidden half" in experiment.table([result]).text()

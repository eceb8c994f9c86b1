"""The figure of ``fig5``: accuracy and loss over width, in each setting."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import geometric_mean
from typing import TYPE_CHECKING

from weightloom_papers.infinite_width.experiments.fig5.analysis import (
    SETTING_NAMES,
    in_setting,
    wide_verdicts,
)
from weightloom_papers.infinite_width.experiments.fig5.experiment import SETTINGS
from weightloom_papers.infinite_width.experiments.rotations.analysis import by, value_of
from weightloom_papers.lab import Result
from weightloom_papers.lab.drawing import COLOURS, GREY, MARKERS, caption, new_figure, plain_ticks
from weightloom_papers.lab.statistics import deviation
from weightloom_papers.lab.verdicts import in_short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_wide"]


def draw_wide(results: Sequence[Result]) -> Mapping[str, Figure]:
    """Two panels; nothing if there are no results."""
    if not results:
        return {}
    figure, axes = new_figure(1, 2, size=(5.2, 3.8))
    for k, setting in enumerate(SETTINGS):
        group = in_setting(results, setting)
        if group:
            _accuracy(axes[0], group, k, SETTING_NAMES[setting])
            _loss(axes[1], group, k)
    metrics, config = results[0].outcome.metrics, results[0].run.config
    axes[0].axhline(metrics["chance"], color=GREY, ls="--", lw=1.0)
    axes[0].set_ylim(0.0, 1.02)
    axes[0].set_ylabel("test accuracy")
    axes[1].set_yscale("log")
    axes[1].set_ylabel("test loss / loss of knowing nothing")
    axes[1].axhline(1.0, color=GREY, ls="--", lw=1.0)
    for panel in axes:
        panel.set_xscale("log")
        panel.set_xlabel("width n (learning rate sqrt(n))")
        plain_ticks(panel.xaxis)
    figure.legend(loc="outside upper center", ncols=2)
    images = "scikit-learn's digits (no MNIST was found)" if metrics["digits"] > 0 else "MNIST"
    caption(
        figure,
        f"One hidden layer of n units on {images}, {config['train_images']:,} images, "
        f"{config['epochs']} epochs of SGD with batches of {config['batch_size']}; mean and "
        f"standard deviation over seeds, dots are single runs; losses: geometric mean. They are "
        f"relative to those of a network that knows nothing (log 10, and 0.09 for the squared "
        f"error). A run whose loss is no longer a number is drawn at the accuracy of the commonest "
        f"class (dashed) and has no loss. {in_short(wide_verdicts(results))}",
    )
    return {"": figure}


def _accuracy(panel: Axes, group: Sequence[Result], k: int, label: str) -> None:
    points = by(group, "width")
    places = [width * 1.06 ** (k - 1) for (width,) in points]
    values = [[value_of(result, "accuracy") for result in each] for each in points.values()]
    _line(panel, places, values, k, label)


def _loss(panel: Axes, group: Sequence[Result], k: int) -> None:
    unit = math.log(10.0) if group[0].run.config["objective"] == "cross_entropy" else 0.09
    places, values = [], []
    for (width,), each in by(group, "width").items():
        losses = [result.outcome.metrics["test_loss"] / unit for result in each]
        good = [loss for loss in losses if math.isfinite(loss) and loss > 0]
        if good:
            places.append(width * 1.06 ** (k - 1))
            values.append(good)
    if places:
        _line(panel, places, values, k, None)


def _line(
    panel: Axes,
    places: Sequence[float],
    values: Sequence[Sequence[float]],
    k: int,
    label: str | None,
) -> None:
    """Means with deviations; for losses (no label), geometric means without deviations."""
    logs = label is None
    means = [geometric_mean(each) if logs else sum(each) / len(each) for each in values]
    panel.errorbar(
        places,
        means,
        yerr=None if logs else [deviation(each) for each in values],
        color=COLOURS[k],
        marker=MARKERS[k],
        label=label,
    )
    for place, each in zip(places, values, strict=True):
        panel.plot([place] * len(each), each, ".", color=COLOURS[k], ms=5, alpha=0.6)

"""The figures of ``fig2`` and ``fig4``: accuracy over epochs, and over the learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from weightloom_papers.infinite_width.experiments.rotations.analysis import (
    by,
    epoch_verdicts,
    rate_verdicts,
    setting_name,
    value_of,
)
from weightloom_papers.lab import Result
from weightloom_papers.lab.drawing import COLOURS, GREY, MARKERS, caption, new_figure
from weightloom_papers.lab.statistics import Mean, deviation, mean_of
from weightloom_papers.lab.verdicts import in_short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_epochs", "draw_rates"]


def draw_epochs(results: Sequence[Result]) -> Mapping[str, Figure]:
    """Accuracy over epochs; one row for each set and initialisation, one column for each depth."""
    if not results:
        return {}
    figure = _panels(results, _epoch_panel, "epoch")
    config = results[0].run.config
    caption(
        figure,
        f"Test accuracy over epochs; mean and standard deviation over seeds. g is as deep as the "
        f"title says and as wide as the colour says; f has {config['f_depth']} layers and is "
        f"{config['f_width']} wide; SGD, batches of {config['batch_size']}, learning rate "
        f"{_rates(results)}; {config['train_images']:,} images. Dashed: always saying the "
        f"commonest class. {in_short(epoch_verdicts(results))}",
    )
    return {"": figure}


def draw_rates(results: Sequence[Result]) -> Mapping[str, Figure]:
    """Accuracy at the end over the learning rate."""
    if not results:
        return {}
    figure = _panels(results, _rate_panel, "learning rate")
    config = results[0].run.config
    caption(
        figure,
        f"Test accuracy after {config['epochs']} epochs of {config['train_images']:,} images; mean "
        f"and standard deviation over seeds. A cross says that all runs there diverged; where some "
        f"did, they count as knowing nothing. Dashed: always saying the commonest class. "
        f"{in_short(rate_verdicts(results))}",
    )
    return {"": figure}


def _panels(
    results: Sequence[Result], draw: Callable[[Axes, Sequence[Result], str, int], None], x: str
) -> Figure:
    rows = by(results, "images", "init")
    depths = [depth for (depth,) in by(results, "depth")]
    figure, axes = new_figure(len(rows), len(depths), size=(4.0, 3.1), sharex=True, sharey="row")
    for i, ((images, init), group) in enumerate(rows.items()):
        name = setting_name(images, init, group)
        for j, depth in enumerate(depths):
            panel = axes[i * len(depths) + j]
            here = [result for result in group if result.run.config["depth"] == depth]
            panel.set_title(f"{name}\n{depth} layers in g", size=10)
            for k, ((width,), each) in enumerate(by(here, "width").items()):
                draw(panel, each, f"width {width}", k)
            if here:
                panel.axhline(here[0].outcome.metrics["chance"], color=GREY, ls="--", lw=1.0)
                panel.legend(loc="best", fontsize=9)
            panel.set_xlabel(x)
        axes[i * len(depths)].set_ylabel("test accuracy")
    return figure


def _epoch_panel(panel: Axes, group: Sequence[Result], label: str, k: int) -> None:
    epochs = int(group[0].run.config["epochs"])
    ends: list[Mean] = []
    for epoch in range(epochs):
        values = [_after(result, epoch) for result in group]
        mean = mean_of(values)
        if mean is not None:
            ends.append(mean)
    spread = [deviation([_after(result, epoch) for result in group]) for epoch in range(epochs)]
    places = [epoch + 1 + 0.08 * (k - 1) for epoch in range(epochs)]
    panel.errorbar(
        places,
        [end.value for end in ends],
        yerr=spread,
        color=COLOURS[k % len(COLOURS)],
        marker=MARKERS[k % len(MARKERS)],
        markersize=3.5,
        linewidth=1.4,
        elinewidth=0.8,
        capsize=1.5,
        label=label,
    )


def _rate_panel(panel: Axes, group: Sequence[Result], label: str, k: int) -> None:
    rates = by(group, "learning_rate")
    places = [rate * 1.12 ** (k - 1) for (rate,) in rates]
    values = [[value_of(result, "accuracy") for result in each] for each in rates.values()]
    colour = COLOURS[k % len(COLOURS)]
    panel.set_xscale("log")
    panel.errorbar(
        places,
        [sum(each) / len(each) for each in values],
        yerr=[deviation(each) for each in values],
        color=colour,
        marker=MARKERS[k % len(MARKERS)],
        markersize=4.5,
        linewidth=1.4,
        label=label,
    )
    for place, each in zip(places, rates.values(), strict=True):
        if all(result.outcome.status == "diverged" for result in each):
            height = each[0].outcome.metrics["chance"]
            panel.plot(place, height, "x", color=colour, ms=10, mew=2)


def _rates(results: Sequence[Result]) -> str:
    """The learning rate, or the rate of each initialisation."""
    rates = [rate for (rate,) in by(results, "learning_rate")]
    if len(rates) == 1:
        return f"{rates[0]:g}"
    return " and ".join(f"{rate:g} ({init})" for init, rate in by(results, "init", "learning_rate"))


def _after(result: Result, epoch: int) -> float:
    """Accuracy after ``epoch`` + 1 epochs; that of the most frequent class once diverged."""
    _, values = result.outcome.curves.get("accuracy", ([], []))
    good = epoch < len(values) and math.isfinite(values[epoch])
    return values[epoch] if good else result.outcome.metrics["chance"]

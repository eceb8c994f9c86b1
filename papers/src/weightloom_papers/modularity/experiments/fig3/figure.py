"""The figures of ``fig3a`` to ``fig3f``, and the parts that ``fig3-robust`` shares with them.

Errors are drawn raw and over the variance of the target.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from weightloom_papers.lab import Experiment, Result
from weightloom_papers.lab.drawing import BLACK, COLOURS, MARKERS, caption, new_figure, plain_ticks
from weightloom_papers.modularity.experiments.fig3.analysis import (
    INIT_NAMES,
    RepetitionSummary,
    after_epoch,
    by,
    comparable,
    epochs_of,
    left_out,
    ratio,
    summarise,
)
from weightloom_papers.modularity.experiments.fig3.models import EMBEDDING, HYPER

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

__all__ = [
    "DARK",
    "NAMES",
    "OPTIMISERS",
    "STYLE",
    "draw_epochs",
    "draw_sweep",
    "empty",
    "error_ticks",
    "headroom",
    "legend_of_models",
    "mark_diverged",
    "mean_line",
    "raw_axis",
    "with_spread",
]


NAMES = {HYPER: "hypernetwork", EMBEDDING: "embedding method"}
STYLE = {HYPER: (COLOURS[0], MARKERS[0]), EMBEDDING: (COLOURS[1], MARKERS[1])}
OPTIMISERS = {"sgd": "SGD", "adam": "Adam"}
DARK = "#444444"
CROSS, MEAN = "diverged", "mean"  # ids of artists, used by `headroom`


def with_spread(
    axes: Axes, places: Sequence[float], ends: Sequence[RepetitionSummary], colour: str, marker: str
) -> None:
    """Means joined by a line, every run as a dot, the standard deviation as bars."""
    means = [end.mean for end in ends]
    # On a logarithmic axis a bar may not reach zero: it ends at the smallest run instead.
    low = [min(_or_zero(e.deviation), e.mean - min(e.values)) if e.values else 0.0 for e in ends]
    high = [_or_zero(e.deviation) for e in ends]
    axes.errorbar(places, means, [low, high], color=colour, marker=marker, markersize=5)
    for place, end in zip(places, ends, strict=True):
        faint = min(0.5, 5.0 / max(1, len(end.values)))
        axes.plot([place] * len(end.values), end.values, ".", color=colour, alpha=faint, ms=4)


def mark_diverged(
    axes: Axes,
    places: Sequence[float],
    ends: Sequence[RepetitionSummary],
    colour: str,
    height: float,
) -> None:
    """Draw a cross near the top for each point where runs diverged, with their number.

    Call `headroom` after everything is drawn, to make room for the crosses.
    """
    top = axes.get_xaxis_transform()  # x in data, y as a share of the height
    for place, end in zip(places, ends, strict=True):
        if end.diverged:
            axes.plot([place], [height], "x", color=colour, transform=top, ms=7, mew=2, gid=CROSS)
            axes.annotate(
                f"{end.diverged}/{end.runs}",
                (place, height),
                xycoords=top,
                xytext=(6, 0),
                textcoords="offset points",
                color=colour,
                fontsize=9,
                va="center",
            )


def headroom(*panels: Axes) -> None:
    """Extend the y axis that ``panels`` share, so that 1.0 and the crosses are visible.

    Call it after everything is drawn.
    """
    marks = {line.get_gid() for axes in panels for line in axes.lines}
    low, high = panels[0].get_ylim()
    if MEAN in marks:
        # Room for the label below the line, whatever the range is.
        low, high = min(low, 0.75, max(high, 1.1) ** -0.12), max(high, 1.1)
    if CROSS in marks:
        high = low * (high / low) ** 1.18
    panels[0].set_ylim(low, high)


def mean_line(axes: Axes, name: bool = True) -> None:
    """The line at 1.0, with a label at its right end."""
    axes.axhline(1.0, color="#333333", linewidth=1.2, gid=MEAN)
    if name:
        axes.annotate(
            "1.0: predicts the mean",
            (1.0, 1.0),
            xycoords=axes.get_yaxis_transform(),
            xytext=(-2, -4),
            textcoords="offset points",
            ha="right",
            va="top",
            fontsize=9,
            color="#333333",
        )


def error_ticks(axis: Axis) -> None:
    """Tick labels such as 0.02 (not 2 x 10^-2), more than one in a decade."""
    plain_ticks(axis, wide=math.inf, form="g")


def raw_axis(axes: Axes, group: Sequence[Result]) -> None:
    """A second y axis on the right, in raw errors."""
    variance = summarise(r.outcome.metrics["target_variance"] for r in group).mean
    functions: Any = (lambda y: y * variance, lambda y: y / variance)
    right = axes.secondary_yaxis("right", functions=functions)
    error_ticks(right.yaxis)
    right.set_ylabel("test MSE")


def legend_of_models(markers: bool = True) -> tuple[list[Any], list[str]]:
    """Handles and labels of the two models and of the crosses."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=colour, marker=marker if markers else "")
        for colour, marker in STYLE.values()
    ]
    handles.append(Line2D([], [], color=DARK, marker="x", mew=2, ls=""))
    return handles, [*(NAMES[model] for model in STYLE), "diverged runs"]


def empty(experiment: Experiment) -> Figure:
    """A figure for an experiment without results."""
    figure, (axes,) = new_figure()
    axes.set_axis_off()
    axes.text(0.5, 0.5, "no finished runs yet", ha="center", va="center")
    caption(figure, f"{experiment.title} (paper {experiment.paper}).")
    return figure


def _or_zero(value: float) -> float:
    return value if math.isfinite(value) else 0.0


PRINTED = (0.01, 0.05)  # the range of errors in the paper's Figure 3
X_LABEL = {
    "depth": "layers (weight matrices) of f and e",
    "width": "width of features and embedding",
}


def draw_sweep(experiment: Any, results: Sequence[Result]) -> Figure:
    """Test error over depth or width: raw above, over the target's variance below."""
    kept = comparable(results)
    panels = by(kept, "target_init")
    if not panels:
        return empty(experiment)
    last = epochs_of(kept)
    figure, axes = new_figure(2, len(panels), size=(5.4, 3.9), sharex=True)
    for column, ((init,), group) in enumerate(panels.items()):
        raw, scaled = axes[column], axes[len(panels) + column]
        raw.set_title(_title(init, group))
        _sweep_panel(raw, group, experiment.sweep, last, lambda result, mse: mse)
        raw.axhspan(*PRINTED, color=BLACK, alpha=0.06, linewidth=0, zorder=0)
        _sweep_panel(scaled, group, experiment.sweep, last, ratio)
        mean_line(scaled)
        headroom(raw)
        headroom(scaled)
        scaled.set_xlabel(X_LABEL[experiment.sweep])
        scaled.set_xticks(sorted({result.run.config[experiment.sweep] for result in group}))
    axes[0].set_ylabel("test MSE")
    axes[len(panels)].set_ylabel("test MSE / variance of target")
    figure.legend(*_legend(last), loc="outside upper center", ncols=4)
    caption(figure, _sweep_caption(experiment, results, kept))
    return figure


def _title(init: str, group: Sequence[Result]) -> str:
    variance = summarise(result.outcome.metrics["target_variance"] for result in group).mean
    printed = ", as printed" if init == "he_uniform" else ""
    return f"{INIT_NAMES.get(init, init)} targets{printed} (variance {variance:.2g})"


def _sweep_panel(
    axes: Axes,
    group: Sequence[Result],
    sweep: str,
    last: int,
    scale: Callable[[Result, float], float],
) -> None:
    """Both models: untrained, after one epoch and at the end."""
    axes.set_yscale("log")
    error_ticks(axes.yaxis)
    for shift, model in ((-0.1, HYPER), (0.1, EMBEDDING)):
        points = by([r for r in group if r.run.config["model"] == model], sweep)
        xs = [point for (point,) in points]
        unit = xs[1] - xs[0] if len(xs) > 1 else 1
        places = [x + shift * unit for x in xs]
        colour, marker = STYLE[model]
        for epoch, dash in ((0, ":"), (1, "--")):
            middle = [
                summarise(scale(r, after_epoch(r, epoch)) for r in each).mean
                for each in points.values()
            ]
            if epoch < last:
                axes.plot(places, middle, dash, color=colour, linewidth=1.1, alpha=0.75)
        ends = [
            summarise(scale(r, r.outcome.metrics["test_mse"]) for r in each)
            for each in points.values()
        ]
        with_spread(axes, places, ends, colour, marker)
        mark_diverged(axes, places, ends, colour, 0.97 if model == HYPER else 0.89)


def _legend(last: int) -> tuple[list[Any], list[str]]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles, labels = legend_of_models()
    lines: list[tuple[Any, str]] = [("-", f"after {last} epochs" if last != 1 else "after 1 epoch")]
    lines += [("--", "after 1 epoch")] if last > 1 else []
    lines += [(":", "before training")]
    handles += [Line2D([], [], color=DARK, linestyle=dash) for dash, _ in lines]
    labels += [text for _, text in lines]
    return [*handles, Patch(color=BLACK, alpha=0.06)], [*labels, "range of the paper's figure"]


def _sweep_caption(experiment: Any, results: Sequence[Result], kept: Sequence[Result]) -> str:
    config = kept[0].run.config
    seeds = len({result.run.seed for result in kept})
    text = (
        f"{experiment.title} (paper {experiment.paper}). The paper says: {experiment.claim} "
        f"Shown: d = {config['d']}, {config['train_pairs']:,} training pairs, "
        f"{OPTIMISERS.get(config['optimiser'], config['optimiser'])} with learning rate "
        f"{config['learning_rate']:g}, models with {config['model_init']} initialisation. Mean and "
        f"standard deviation over {seeds} repetitions; dots are single runs; a cross with 2/3 says "
        f"that 2 of 3 runs diverged, which the mean leaves out. Above 1.0 in the lower row a model "
        f"does worse than the constant that predicts the mean; the dotted line is where it started."
    )
    return " ".join([text, *left_out(results, kept)])


def draw_epochs(experiment: Any, results: Sequence[Result]) -> Figure:
    """Test error over epochs at up to four points of the sweep, from the untrained model on."""
    kept = comparable(results)
    rows = by(kept, "target_init")
    if not rows:
        return empty(experiment)
    points = _selection(sorted({result.run.config[experiment.sweep] for result in kept}))
    last = epochs_of(kept)
    figure, axes = new_figure(len(rows), len(points), size=(3.3, 3.1), sharex=True, sharey="row")
    for i, ((init,), group) in enumerate(rows.items()):
        for j, point in enumerate(points):
            panel = axes[i * len(points) + j]
            here = [r for r in group if r.run.config[experiment.sweep] == point]
            _epoch_panel(panel, here, last)
            mean_line(panel, name=j == 0)
            panel.set_title(f"{INIT_NAMES.get(init, init)}, {experiment.sweep} {point}", size=10)
        headroom(axes[i * len(points)])
        raw_axis(axes[(i + 1) * len(points) - 1], group)
        axes[i * len(points)].set_ylabel("test MSE / variance")
    for panel in axes[-len(points) :]:
        panel.set_xlabel("epoch")
    figure.legend(*legend_of_models(markers=False), loc="outside upper center", ncols=3)
    caption(
        figure,
        f"{experiment.title} (paper {experiment.paper}): test error over epochs; epoch 0 is the "
        f"untrained model. Left axis: over the variance of the target, 1.0 predicts the mean; "
        f"right axis: raw MSE at the mean variance of the targets. Lines are means, bands reach "
        f"from the lowest to the highest run; a cross is the last error of a run that diverged.",
    )
    return figure


def _epoch_panel(axes: Axes, group: Sequence[Result], last: int) -> None:
    axes.set_yscale("log")
    error_ticks(axes.yaxis)
    for height, model in ((0.98, HYPER), (0.88, EMBEDDING)):
        colour = STYLE[model][0]
        runs = [result for result in group if result.run.config["model"] == model]
        ends = [summarise(ratio(r, after_epoch(r, e)) for r in runs) for e in range(last + 1)]
        known = [(epoch, end) for epoch, end in enumerate(ends) if end.values]
        epochs = [epoch for epoch, _ in known]
        axes.plot(epochs, [end.mean for _, end in known], color=colour, label=NAMES[model])
        low, high = [min(e.values) for _, e in known], [max(e.values) for _, e in known]
        axes.fill_between(epochs, low, high, color=colour, alpha=0.18, linewidth=0)
        lost = [result for result in runs if result.outcome.status == "diverged"]
        for result in lost:
            values = [ratio(result, after_epoch(result, epoch)) for epoch in range(last + 1)]
            place = max((e for e, value in enumerate(values) if value == value), default=0)
            axes.plot(place, values[place], "x", color=colour, ms=7, mew=2)
        if lost:
            text = f"{len(lost)}/{len(runs)} diverged"
            axes.text(0.98, height, text, color=colour, size=9, ha="right", va="top",
                      transform=axes.transAxes)  # fmt: skip


def _selection(points: Sequence[int]) -> list[int]:
    """Both ends and two in between."""
    if len(points) <= 4:
        return list(points)
    shares = (0, 1 / 7, 3 / 7, 1)
    return list(dict.fromkeys(points[round(share * (len(points) - 1))] for share in shares))

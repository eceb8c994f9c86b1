"""The figures of ``fig3-robust``: errors in every setting, and verdicts on the conclusions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weightloom_papers.lab import Experiment, Result
from weightloom_papers.lab.drawing import COLOURS, caption, new_figure
from weightloom_papers.lab.verdicts import FAILS, HOLDS, NO_DATA, UNCLEAR
from weightloom_papers.modularity.experiments.fig3.analysis import (
    INIT_NAMES,
    by,
    comparable,
    left_out,
    summarise,
)
from weightloom_papers.modularity.experiments.fig3.conclusions import (
    CLAIMS,
    SELECTED,
    SETTING,
    VARIED,
    findings,
    select_rates,
)
from weightloom_papers.modularity.experiments.fig3.figure import (
    OPTIMISERS,
    STYLE,
    empty,
    error_ticks,
    headroom,
    legend_of_models,
    mark_diverged,
    mean_line,
    raw_axis,
    with_spread,
)
from weightloom_papers.modularity.experiments.fig3.models import HYPER

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_conclusions", "draw_settings"]

VERDICTS = {
    HOLDS: (COLOURS[0], "white"),
    FAILS: (COLOURS[1], "white"),
    UNCLEAR: ("#dddddd", "#333333"),
    NO_DATA: ("#ffffff", "#999999"),
}
SHORT = {
    "1": "hyper beats\nembedding,\ndepth ≥ 3",
    "2": "hyper improves\nwith depth",
    "3": "embedding\nnot improved\nby depth",
    "4e": "width helps\nembedding\nlittle",
    "4h": "width helps\nhyper\nlittle",
    "learned h": "hyper\nbelow 1.0",
    "learned e": "embedding\nbelow 1.0",
}


def draw_settings(experiment: Experiment, results: Sequence[Result]) -> Figure:
    """Error over depth at the learning rate chosen on validation data; a row for each target."""
    kept = comparable(results, VARIED)
    chosen = [r for r in select_rates(kept) if r.run.config["width"] == r.run.config["hidden"]]
    rows = by(chosen, *SETTING[:2])
    columns = by(chosen, *SETTING[2:])
    if not rows:
        return empty(experiment)
    several = len(by(chosen, "family")) > 1
    figure, axes = new_figure(len(rows), len(columns), size=(3.4, 3.1), sharex=True, sharey="row")
    for i, (target, row) in enumerate(rows.items()):
        for j, models in enumerate(columns):
            panel = axes[i * len(columns) + j]
            _depth_panel(panel, [r for r in row if _models(r) == models])
            mean_line(panel, name=j == 0)
            panel.set_title("\n".join(_names((*target, *models), several)), fontsize=10)
        axes[i * len(columns)].set_ylabel("test MSE / variance")
        headroom(*axes[i * len(columns) : (i + 1) * len(columns)])
        raw_axis(axes[(i + 1) * len(columns) - 1], row)
    for panel in axes[-len(columns) :]:
        panel.set_xlabel("layers of f and e")
        panel.set_xticks(sorted({result.run.config["depth"] for result in chosen}))
    figure.legend(*legend_of_models(), loc="outside upper center", ncols=3)
    caption(figure, _caption(experiment, results, kept))
    return figure


def _models(result: Result) -> tuple[str, ...]:
    return tuple(result.run.config[name] for name in SETTING[2:])


def _depth_panel(axes: Axes, group: Sequence[Result]) -> None:
    axes.set_yscale("log")
    error_ticks(axes.yaxis)
    for shift, model in zip((-0.08, 0.08), STYLE, strict=True):
        points = by([r for r in group if r.run.config["model"] == model], "depth")
        ends = [summarise(r.outcome.metrics[SELECTED] for r in each) for each in points.values()]
        places = [depth + shift for (depth,) in points]
        with_spread(axes, places, ends, *STYLE[model])
        mark_diverged(axes, places, ends, STYLE[model][0], 0.97 if model == HYPER else 0.88)


def _caption(experiment: Experiment, results: Sequence[Result], kept: Sequence[Result]) -> str:
    config = kept[0].run.config
    seeds = len({result.run.seed for result in kept})
    capped = sum(1 for r in select_rates(kept) if r.outcome.status == "done")
    text = (
        f"{experiment.title} (paper {experiment.paper}). The paper says: {experiment.claim} "
        f"Shown: d = {config['d']}, {config['train_pairs']:,} pairs, test error over the variance "
        f"of the target (right axis: raw MSE at the mean variance) where the validation error was "
        f"lowest, for the learning rate with the lowest validation error; mean and standard "
        f"deviation over {seeds} repetitions, dots are single runs. Runs stop when the validation "
        f"error has not fallen by {config['min_improvement']:.0%} in {config['patience']} epochs; "
        f"{capped} of the runs shown were still falling at the limit of {config['epochs']} epochs."
    )
    return " ".join([text, *left_out(results, kept)])


def draw_conclusions(experiment: Experiment, results: Sequence[Result]) -> Figure:
    """A table of claims and settings: what holds, fails or is unclear."""
    verdicts = findings(results)
    settings = list(dict.fromkeys(finding.setting for finding in verdicts))
    if not settings:
        return empty(experiment)
    claims = [c for c in CLAIMS if any(f.claim == c and f.verdict != NO_DATA for f in verdicts)]
    figure, (axes,) = new_figure(size=(1.3 * len(claims) + 3.4, 1.4 + 0.42 * len(settings)))
    for finding in verdicts:
        if finding.claim not in claims:
            continue
        x, y = claims.index(finding.claim), settings.index(finding.setting)
        back, ink = VERDICTS[finding.verdict]
        axes.fill_between([x + 0.03, x + 0.97], y + 0.05, y + 0.95, color=back, linewidth=0)
        axes.text(x + 0.5, y + 0.5, _cell(finding.verdict, finding.evidence), color=ink,
                  ha="center", va="center", fontsize=9)  # fmt: skip
    axes.set_xlim(0, len(claims))
    axes.set_ylim(len(settings), 0)
    axes.set_xticks([i + 0.5 for i in range(len(claims))], [SHORT[claim] for claim in claims])
    several = len({setting[0] for setting in settings}) > 1
    names = [", ".join(_names(setting, several)) for setting in settings]
    axes.set_yticks([i + 0.5 for i in range(len(settings))], names)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    caption(
        figure,
        f"{experiment.title} (paper {experiment.paper}). Each row is a way to fill in what the "
        f"paper leaves open; learning rate and epoch were chosen on validation data. Holds and "
        f"fails are outside a 95 percent confidence interval over repetitions. The last two "
        f"columns show the best error over the variance of the target (1.0 predicts the mean): "
        f"where both are at 1.0 or above, the other columns compare models that have learned "
        f"nothing. The numbers behind every cell are in the table of this experiment.",
    )
    return figure


def _cell(verdict: str, evidence: str) -> str:
    if evidence.startswith("best "):
        return evidence.split()[1]
    return verdict


def _names(setting: Sequence[str], several: bool) -> tuple[str, str]:
    """The target and the models of a setting, in words."""
    family, target, model, optimiser = setting
    name = f"{INIT_NAMES.get(target, target)} targets"
    kind = f"{family.replace('_', ' ')}, " if several else ""
    return kind + name, f"{model} models, {OPTIMISERS.get(optimiser, optimiser)}"

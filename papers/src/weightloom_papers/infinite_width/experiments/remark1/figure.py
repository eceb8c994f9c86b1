"""The figure of ``remark1``: sizes of terms, which learning rates they allow, and true steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from weightloom_papers.infinite_width.experiments.remark1.analysis import (
    HIGHER,
    Family,
    families,
    shifted,
    verdicts,
)
from weightloom_papers.lab import Result
from weightloom_papers.lab.drawing import (
    BLACK,
    COLOURS,
    GREY,
    MARKERS,
    caption,
    double_log,
    new_figure,
)
from weightloom_papers.lab.verdicts import in_short, slope_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_remark1"]

NAMES = {"relu": "ReLU", "tanh": "tanh"}
STYLES = {"relu": "-", "tanh": (0, (4, 3))}
FILLS = {"relu": "full", "tanh": "none"}


def draw_remark1(results: Sequence[Result]) -> Mapping[str, Figure]:
    """Three panels; nothing if there are no results."""
    every = families(results)
    if not every:
        return {}
    figure, (sizes, rates, steps) = new_figure(1, 3, size=(5.0, 4.6))
    _sizes(sizes, every)
    _rates(rates, every)
    _steps(steps, every)
    draws = max(len(values) for values in every[0].curves["1"])
    caption(
        figure,
        f"Ordinary networks with four layers and one output, {draws} draws for each width; solid: "
        "ReLU, dashed: tanh. Left: median of |K^(r)|, for a step on another example. Middle: "
        "exponent of the r-th term mu^r K^(r) / r! for mu = n^a; terms below zero vanish with "
        "width. Right: what a true step adds to the linear term for mu = 1, and (grey) what terms "
        "2 to 4 say it should be.",
    )
    caption(figure, in_short(verdicts(results)))
    return {"": figure}


def _sizes(panel: Axes, every: Sequence[Family]) -> None:
    for family in every:
        for number, r in enumerate(HIGHER):
            panel.plot(
                family.widths,
                family.medians(str(r)),
                color=COLOURS[number],
                marker=MARKERS[number],
                fillstyle=FILLS[family.setting],
                linestyle=STYLES[family.setting],
                label=f"{NAMES[family.setting]}, r = {r}: {slope_text(family.slope(str(r)))}",
            )
    double_log(panel, "width n", "median |K^(r)|", "terms of the series")
    low, high = panel.get_ylim()
    panel.set_ylim(low / (high / low) ** 0.75, high)  # room for the legend
    panel.legend(loc="lower left", fontsize=9)


def _rates(panel: Axes, every: Sequence[Family]) -> None:
    powers = [0.0, 1.0]
    for family in every:
        for number, r in enumerate(HIGHER):
            slopes = [shifted(family.slope(str(r)), r, a) for a in powers]
            values = [slope.value for slope in slopes if slope is not None]
            if len(values) == len(powers):
                panel.plot(
                    powers, values, color=COLOURS[number], linestyle=STYLES[family.setting],
                    label=f"{NAMES[family.setting]}, r = {r}",
                )  # fmt: skip
    panel.axhline(0.0, color=BLACK, linewidth=1.2)
    for a, text in ((1 / 3, "1/3"), (0.5, "1/2: Remark 1")):
        panel.axvline(a, color=GREY, linewidth=1.0, linestyle=":")
        panel.text(a + 0.01, -2.9, text, color=GREY, fontsize=9, rotation=90, va="bottom")
    panel.set_ylim(-3.2, 2.6)
    panel.set_xlabel("a, learning rate n^a")
    panel.set_ylabel("exponent of the r-th term")
    panel.set_title("which learning rates are small")
    panel.legend(loc="upper left", fontsize=9)


def _steps(panel: Axes, every: Sequence[Family]) -> None:
    for number, family in enumerate(every):
        panel.plot(
            family.widths,
            family.medians("rest 0.0"),
            color=COLOURS[number],
            marker=MARKERS[number],
            fillstyle=FILLS[family.setting],
            linestyle=STYLES[family.setting],
            label=f"{NAMES[family.setting]}: {slope_text(family.slope('rest 0.0'))}",
        )
        panel.plot(
            family.widths,
            family.medians("series 0.0"),
            color=GREY,
            linestyle=STYLES[family.setting],
            linewidth=1.2,
            label=f"{NAMES[family.setting]}, terms 2 to 4: "
            f"{slope_text(family.slope('series 0.0'))}",
        )
    double_log(panel, "width n", "median |remainder|", "a true step, learning rate 1")
    low, high = panel.get_ylim()
    panel.set_ylim(low / (high / low) ** 0.6, high)
    panel.legend(loc="lower left", fontsize=9)

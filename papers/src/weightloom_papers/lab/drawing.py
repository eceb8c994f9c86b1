"""What figures of all experiments share: the style of `weightloom.plotting`, axes, fitted lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from weightloom import plotting
from weightloom.plotting import (
    BLACK,
    COLOURS,
    GREY,
    MARKERS,
    caption,
    captioned,
    new_figure,
    save,
    style,
)
from weightloom_papers.lab.statistics import Slope

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

__all__ = [
    # figures
    "new_figure", "style", "caption", "captioned", "save", "require_matplotlib",
    # colours and markers
    "BLACK", "COLOURS", "GREY", "MARKERS",
    # axes and lines
    "double_log", "plain_ticks", "fitted",
]  # fmt: skip


def require_matplotlib() -> None:
    """Report a missing matplotlib before hours of training."""
    plotting.require_matplotlib("leave the figures out with --no-figures")


def double_log(panel: Axes, x: str, y: str, title: str) -> None:
    """Make both axes logarithmic, with labels. Call it after everything is drawn."""
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xlabel(x)
    panel.set_ylabel(y)
    panel.set_title(title)
    plain_ticks(panel.xaxis)


def plain_ticks(axis: Axis, *, wide: float = 90.0, form: str = ",.5g") -> None:
    """Ticks 10, 100, 1,000 instead of powers; also 2 and 5 on ranges of at most ``wide``."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = sorted(axis.get_view_interval())
    axis.set_major_locator(LogLocator(subs=(1.0,) if high / low > wide else (1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: format(value, form)))
    axis.set_minor_locator(NullLocator())


def fitted(panel: Axes, x: Sequence[float], slope: Slope | None, colour: str) -> None:
    """The line of a fit of log10 y against log10 x, over the range of x."""
    if slope is None:
        return
    ends = [min(x), max(x)]
    line = [10 ** (slope.intercept + slope.value * math.log10(end)) for end in ends]
    panel.plot(ends, line, color=colour, linewidth=1.0)

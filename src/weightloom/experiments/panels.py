"""What figures of several experiments share: logarithmic axes, the line of a fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from weightloom.lab.intervals import Slope

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

__all__ = ["GREY", "double_log", "fitted", "plain_ticks"]

GREY = "#777777"


def double_log(panel: Axes, x: str, y: str, title: str) -> None:
    """Both axes logarithmic, with labels; to be called once everything is drawn."""
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xlabel(x)
    panel.set_ylabel(y)
    panel.set_title(title)
    plain_ticks(panel.xaxis)


def plain_ticks(axis: Axis) -> None:
    """10, 100, 1,000 instead of powers; 1, 2, 5 between if the range is short."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = sorted(axis.get_view_interval())
    axis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 90 else (1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.5g}"))
    axis.set_minor_locator(NullLocator())


def fitted(panel: Axes, x: Sequence[float], slope: Slope | None, colour: str) -> None:
    """The line of a fit of log10 y against log10 x, over the range of x."""
    if slope is None:
        return
    ends = [min(x), max(x)]
    line = [10 ** (slope.intercept + slope.value * math.log10(end)) for end in ends]
    panel.plot(ends, line, color=colour, linewidth=1.0)

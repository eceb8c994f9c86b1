"""Pictures for the page: tiny PNGs of digits, and curves as SVG that takes the page's colours."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from weightloom.errors import MissingDependencyError
from weightloom.experiments.demo.measure import Contender

__all__ = ["curves", "picture", "require_matplotlib"]

# matplotlib knows no CSS: it draws in these colours, which are then replaced by the page's own.
_INK = "#010203"
_GRID = "#010204"
_LINES = ("#010205", "#010206")
_CSS = {
    _INK: "currentColor",
    _GRID: "var(--line)",
    _LINES[0]: "var(--hyper)",
    _LINES[1]: "var(--rival)",
}


# matplotlib signs its pictures with its name and address unless told not to.
_UNSIGNED: Any = {"Software": None}


def require_matplotlib() -> None:
    """Raise now what drawing would raise later, after minutes of training."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            f"the report's pictures need matplotlib, which cannot be imported here ({error}); "
            f"pip install 'weightloom[demo]'"
        ) from error


def picture(values: Tensor, side: int) -> str:
    """One image [side^2] of brightness, ink on white, as a PNG in a data URI.

    One image pixel is one PNG pixel; the page enlarges it without smoothing, so that what is seen
    is what was computed. Values outside [0, 1] are cut.
    """
    from matplotlib.image import imsave

    file = io.BytesIO()
    array = values.detach().reshape(side, side).clamp(0, 1).numpy()
    imsave(file, array, cmap="gray_r", vmin=0, vmax=1, format="png", metadata=_UNSIGNED)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def curves(contenders: Sequence[Contender[Any]], variance: float) -> str:
    """Error over epochs as an SVG element: solid held-out, dashed training."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    style: Any = {"svg.fonttype": "none", "svg.hashsalt": "weightloom", "font.size": 11.5}
    with rc_context(style):
        figure = Figure(figsize=(5.8, 3.4), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        for contender, colour in zip(contenders, _LINES, strict=False):
            _curve(axes, contender.history.evaluation, variance, colour, "-", 2.0)
            _curve(axes, contender.history.train, variance, colour, (0, (2, 2)), 1.2)
        axes.set_yscale("log")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("epoch", color=_INK)
        axes.set_ylabel("MSE / variance", color=_INK)
        axes.grid(True, color=_GRID, linewidth=0.8)
        axes.tick_params(which="both", colors=_INK)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(_INK)
        file = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    return _adopt(file.getvalue())


def _curve(
    axes: Any, values: list[float], variance: float, colour: str, dash: Any, width: float
) -> None:
    epochs = range(1, len(values) + 1)
    marker = "o" if len(values) < 3 else ""  # a line needs two points to be seen
    ratios = [value / variance for value in values]
    axes.plot(epochs, ratios, color=colour, linestyle=dash, linewidth=width, marker=marker)


def _adopt(svg: str) -> str:
    """The <svg> element alone, sized by its container, in the page's colours and font."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    for drawn, wanted in _CSS.items():
        svg = svg.replace(drawn, wanted)
    return re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", svg)

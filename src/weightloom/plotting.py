"""The style of weightloom's figures: readable, colour-blind safe, reproducible byte for byte.

The caller's matplotlib settings are not changed: figures are created without pyplot, so no backend
is chosen, and the style applies inside `style()` only. Matplotlib is imported when first needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weightloom.errors import MissingDependencyError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "BLACK",
    "COLOURS",
    "GREY",
    "MARKERS",
    "caption",
    "captioned",
    "new_figure",
    "require_matplotlib",
    "save",
    "style",
]

#: The palette of Okabe and Ito for all common kinds of colour blindness, darker colours first,
#: without yellow, which is hard to see on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
#: For what is not data: guides and bounds.
GREY, BLACK = "#777777", "#000000"
#: Used together with colours, because figures are also printed in grey.
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

_CAPTION = "weightloom-caption"
_CAPTION_SIZE = 10.0  # points
_LINE = 1.35  # height of a line of the caption, in font sizes
_MARGIN = 0.12  # inches around the caption
_HINTING = 0.97  # outlines may fill this share of a line: letters snapped to pixels are wider

_STYLE: dict[str, Any] = {
    "font.size": 11.0,
    "axes.titlesize": 12.0,
    "axes.labelsize": 11.0,
    "xtick.labelsize": 10.0,
    "ytick.labelsize": 10.0,
    "legend.fontsize": 10.0,
    "legend.frameon": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
    "errorbar.capsize": 3.0,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "figure.constrained_layout.use": True,
    "svg.hashsalt": "weightloom",
    "svg.fonttype": "path",
}


def require_matplotlib(otherwise: str) -> None:
    """Raise if matplotlib is missing; ``otherwise`` ends the message: how to go on without it."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            f"figures need matplotlib, which cannot be imported here ({error}); "
            f"pip install 'weightloom[plot]', or {otherwise}"
        ) from error


@contextmanager
def style() -> Iterator[None]:
    """Apply weightloom's style inside the ``with`` block; the caller's settings return after it."""
    from cycler import cycler
    from matplotlib import rc_context

    settings: Any = {**_STYLE, "axes.prop_cycle": cycler(color=COLOURS)}
    with rc_context(settings):
        yield


def new_figure(
    rows: int = 1, columns: int = 1, *, size: tuple[float, float] = (5.6, 4.0), **options: Any
) -> tuple[Figure, list[Axes]]:
    """A figure and its axes, row by row; ``size`` is that of one panel, in inches.

    ``options`` go to ``Figure.subplots`` (``sharex``, ``sharey``, ``width_ratios``, ...). Artists
    take their style when they are created, so draw inside a `style()` block.
    """
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, list(axes.flat)


def caption(figure: Figure, text: str) -> None:
    """Put ``text`` under the axes, as wide as the figure. The figure grows, not the axes.

    A second call adds a paragraph.
    """
    old = _caption_of(figure)
    paragraphs = [*(old.weightloom_paragraphs if old is not None else []), text]
    old_height = old.weightloom_height if old is not None else 0.0
    if old is not None:
        old.remove()
    width, height = figure.get_size_inches()
    axes_height = height - old_height
    lines = [line for paragraph in paragraphs for line in _wrap(paragraph, width - 2 * _MARGIN)]
    needed = 2 * _MARGIN + len(lines) * _CAPTION_SIZE * _LINE / 72
    total = axes_height + needed
    figure.set_size_inches(width, total)
    engine: Any = figure.get_layout_engine()
    if engine is not None:
        engine.set(rect=(0, needed / total, 1, axes_height / total))
    artist: Any = figure.text(
        _MARGIN / width,
        _MARGIN / total,
        "\n".join(lines),
        fontsize=_CAPTION_SIZE,
        linespacing=_LINE,
        verticalalignment="bottom",
        color="#333333",
        gid=_CAPTION,
        parse_math=False,
    )
    artist.weightloom_paragraphs, artist.weightloom_height = paragraphs, needed


def captioned(figure: Figure, text: str) -> bool:
    """Whether the caption of ``figure`` already contains ``text``."""
    old = _caption_of(figure)
    paragraphs = old.weightloom_paragraphs if old is not None else []
    return " ".join(text.split()) in " ".join(" ".join(paragraphs).split())


def save(figure: Figure, path: Path) -> list[Path]:
    """Write ``path``.png (150 dpi) and ``path``.svg; equal figures give equal bytes."""
    png, svg = path.with_name(path.name + ".png"), path.with_name(path.name + ".svg")
    with style():
        figure.savefig(png, dpi=150, metadata={"Software": None})
        figure.savefig(svg, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return [png, svg]


def _caption_of(figure: Figure) -> Any:
    return next((text for text in figure.texts if text.get_gid() == _CAPTION), None)


def _wrap(text: str, inches: float) -> list[str]:
    """Lines of at most ``inches``, as the font measures them; a longer word gets its own line."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=_CAPTION_SIZE)

    def fits(line: str) -> bool:
        width: float = text_to_path.get_text_width_height_descent(line, font, ismath=False)[0]
        return width <= inches * 72 * _HINTING

    lines: list[str] = []
    for word in text.split():
        if lines and fits(f"{lines[-1]} {word}"):
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines

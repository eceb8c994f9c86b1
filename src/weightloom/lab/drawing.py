"""The house style of figures: readable, colour-blind safe, the same file each time it is drawn.

Nothing here touches the reader's matplotlib: figures are made without pyplot, so no backend is
chosen, and the style holds inside `style()` alone.
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
    "COLOURS",
    "MARKERS",
    "caption",
    "captioned",
    "new_figure",
    "require_matplotlib",
    "save",
    "style",
]

#: Told apart by people with any common colour blindness (Okabe and Ito), the darker ones first.
#: Yellow is left out: on white it cannot be seen.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
#: Beside colours, because figures are printed in grey too.
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

_CAPTION = "weightloom-caption"
_CAPTION_SIZE = 10.0  # points
_LINE = 1.35  # height of a line of the caption, in font sizes
_MARGIN = 0.12  # inches around the caption
_HINTING = 0.97  # letters snapped to pixels take up to this much more room than their outlines

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


def require_matplotlib() -> None:
    """Raise now what drawing would raise later, after hours of training."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            f"figures need matplotlib, which cannot be imported here ({error}); "
            "pip install 'weightloom[plot]', or leave the figures out with --no-figures"
        ) from error


@contextmanager
def style() -> Iterator[None]:
    """The house style inside the ``with`` block; the caller's own settings after it."""
    from cycler import cycler
    from matplotlib import rc_context

    settings: Any = {**_STYLE, "axes.prop_cycle": cycler(color=COLOURS)}
    with rc_context(settings):
        yield


def new_figure(
    rows: int = 1, columns: int = 1, *, size: tuple[float, float] = (5.6, 4.0), **options: Any
) -> tuple[Figure, list[Axes]]:
    """A figure and its axes, row by row; ``size`` is the inches of one panel.

    ``options`` go to ``Figure.subplots`` (``sharex``, ``sharey``, ``width_ratios``, ...). Style is
    fixed when things are made: draw inside the same `style()` block, as ``Experiment.figures`` is.
    """
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, list(axes.flat)


def caption(figure: Figure, text: str) -> None:
    """Put ``text`` under the axes, as wide as the figure; the figure grows, the axes do not shrink.

    Called again, it adds a paragraph: first what the experiment says, then what the lab adds.
    """
    old = _caption_of(figure)
    paragraphs = [*(old.weightloom_paragraphs if old is not None else []), text]
    taken = old.weightloom_height if old is not None else 0.0
    if old is not None:
        old.remove()
    width, height = figure.get_size_inches()
    axes_height = height - taken
    lines = [line for each in paragraphs for line in _wrap(each, width - 2 * _MARGIN)]
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
    """Whether the caption of ``figure`` says ``text`` already."""
    old = _caption_of(figure)
    paragraphs = old.weightloom_paragraphs if old is not None else []
    return " ".join(text.split()) in " ".join(" ".join(paragraphs).split())


def save(figure: Figure, path: Path) -> list[Path]:
    """Write ``figure`` as ``path`` with .png (150 dpi) and .svg; equal figures, equal bytes."""
    png, svg = path.with_name(path.name + ".png"), path.with_name(path.name + ".svg")
    with style():
        figure.savefig(png, dpi=150, metadata={"Software": None})
        figure.savefig(svg, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return [png, svg]


def _caption_of(figure: Figure) -> Any:
    return next((text for text in figure.texts if text.get_gid() == _CAPTION), None)


def _wrap(text: str, inches: float) -> list[str]:
    """Lines of at most ``inches`` by the font's own measure; a longer word has its line alone."""
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

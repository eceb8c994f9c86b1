"""Pictures for the report: digits as small PNGs, learning curves as SVG in the page's colours.

What the page shows is computed here, as labelled rows of pictures; the HTML is in the template.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from weightloom.data import pixel_centres
from weightloom.demo.training import Contender, DemoResult, draw
from weightloom.errors import MissingDependencyError
from weightloom.hyper import EmbeddingNetwork, HyperNetwork

__all__ = [
    "FINE",
    "PAIR",
    "STEPS",
    "PictureRow",
    "between_embeddings",
    "between_networks",
    "learning_curves",
    "hardest",
    "interpolation",
    "picture",
    "reconstructions",
    "require_matplotlib",
    "super_resolution",
]

FINE = 4  # how many times more pixels on a side
PAIR = (3, 8)  # the two digits that are interpolated between
STEPS = 9

# matplotlib knows no CSS: it draws in these colours, which are then replaced by the page's own.
_INK = "#010203"
_GRID = "#010204"
_LINES = ("#010205", "#010206", "#010207")
_CSS = {
    _INK: "currentColor",
    _GRID: "var(--line)",
    _LINES[0]: "var(--hyper)",
    _LINES[1]: "var(--film)",
    _LINES[2]: "var(--rival)",
}

# Without this matplotlib writes its name and address into every picture.
_UNSIGNED: Any = {"Software": None}


def require_matplotlib() -> None:
    """Raise before training the error that drawing would raise after it."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            f"the report's pictures need matplotlib, which cannot be imported here ({error}); "
            f"pip install 'weightloom[demo]'"
        ) from error


# -- rows of pictures: what each network draws ---------------------------------------------------


@dataclass(frozen=True)
class PictureRow:
    """A labelled strip of pictures: (data URI, alternative text)."""

    label: str
    pictures: list[tuple[str, str]]


def reconstructions(result: DemoResult, rows: Sequence[int]) -> list[PictureRow]:
    """Truth and what each network draws, at the 8 x 8 pixel centres, of these held-out images."""
    side, data = result.data.side, result.data
    strips = {"truth": data.held_out} | {c.name: c.drawn for c in result.contenders}
    return [
        PictureRow(label, [(picture(images[i], side), _alt(result, i, label)) for i in rows])
        for label, images in strips.items()
    ]


def hardest(result: DemoResult, count: int = 10) -> list[int]:
    """The held-out images on which the hypernetwork errs most, worst first."""
    return result.hyper.errors.argsort(descending=True)[:count].tolist()


def super_resolution(result: DemoResult, rows: Sequence[int]) -> list[PictureRow]:
    """The same networks at four times the resolution, beside the image and its interpolation."""
    data = result.data
    side = data.side * FINE
    images = data.held_out[list(rows)]
    fine = _bicubic(images, data.side).clamp(0, 1)
    strips = [("truth, 8 x 8 pixels", images, data.side), ("bicubic interpolation", fine, side)]
    strips += [(c.name, draw(c.model, images, side), side) for c in result.contenders]
    return [
        PictureRow(
            label,
            [
                (picture(image, width), _alt(result, i, f"{label}, {width} by {width}"))
                for i, image in zip(rows, drawn, strict=True)
            ],
        )
        for label, drawn, width in strips
    ]


def interpolation(result: DemoResult) -> list[PictureRow]:
    """From one held-out image to another in several spaces, drawn at 32 x 32 pixels."""
    data = result.data
    first, last = (data.held_out[data.held_out_labels.tolist().index(digit)] for digit in PAIR)
    side = data.side * FINE
    blend = torch.lerp(first, last, _shares()[:, None])
    hyper = result.hyper.model
    strips = [
        ("pixels cross-faded, no network (bicubic)", _bicubic(blend, data.side)),
        ("hypernetwork, condition space: cross-faded images encoded", draw(hyper, blend, side)),
        (
            "hypernetwork, feature space: a straight line between two generated networks",
            between_networks(hyper, first, last, side),
        ),
    ]
    if result.film is not None:
        label = "FiLM network, feature space: a straight line between two modulations"
        strips.append((label, between_networks(result.film.model, first, last, side)))
    if result.embedding is not None:
        label = "embedding network, feature space: a straight line between two embeddings"
        strips.append((label, between_embeddings(result.embedding.model, first, last, side)))
    return [
        PictureRow(
            label,
            [
                (
                    picture(image, side),
                    f"{label}: {share:.0%} of the way from {PAIR[0]} to {PAIR[1]}",
                )
                for image, share in zip(drawn, _shares().tolist(), strict=True)
            ],
        )
        for label, drawn in strips
    ]


@torch.no_grad()
def between_networks(hyper: HyperNetwork, first: Tensor, last: Tensor, side: int) -> Tensor:
    """What networks on the straight line between those of two conditions draw: [STEPS, side^2].

    The line is between generated weights; of a FiLM network these are scales and shifts.
    """
    ends = hyper.weights(torch.stack([first, last]))
    shares = _shares()
    between = {
        name: torch.lerp(value[:1], value[1:], shares.view(-1, *[1] * (value.dim() - 1)))
        for name, value in ends.items()
    }
    drawn: Tensor = hyper.run(pixel_centres(side).expand(STEPS, -1, -1), between)
    return drawn.squeeze(-1)


@torch.no_grad()
def between_embeddings(rival: EmbeddingNetwork, first: Tensor, last: Tensor, side: int) -> Tensor:
    """What the embedding network draws for embeddings on the line between two: [STEPS, side^2]."""
    ends = rival.encoder(torch.stack([first, last]))
    embeddings = torch.lerp(ends[:1], ends[1:], _shares()[:, None])
    points = pixel_centres(side).expand(STEPS, -1, -1)
    joined = torch.cat([points, embeddings[:, None].expand(-1, points.shape[1], -1)], dim=-1)
    drawn: Tensor = rival.predictor(joined)
    return drawn.squeeze(-1)


def _shares() -> Tensor:
    """How far along the line each step is."""
    return torch.linspace(0.0, 1.0, STEPS)


def _bicubic(images: Tensor, side: int) -> Tensor:
    grids = images.reshape(-1, 1, side, side)
    return F.interpolate(grids, scale_factor=FINE, mode="bicubic").flatten(1)


def _alt(result: DemoResult, row: int, label: str) -> str:
    """The alternative text of a held-out image."""
    return f"Held-out digit {int(result.data.held_out_labels[row])}: {label}"


# -- one picture, and the learning curves ---------------------------------------------------------


def picture(values: Tensor, side: int) -> str:
    """One image [side^2] of brightness, ink on white, as a PNG in a data URI.

    One image pixel is one PNG pixel; the page enlarges it without smoothing, so that what is seen
    is what was computed. Values are clipped to [0, 1].
    """
    from matplotlib.image import imsave

    file = io.BytesIO()
    array = values.detach().reshape(side, side).clamp(0, 1).numpy()
    imsave(file, array, cmap="gray_r", vmin=0, vmax=1, format="png", metadata=_UNSIGNED)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def learning_curves(contenders: Sequence[Contender[Any]], variance: float) -> str:
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
    return _embeddable(file.getvalue())


def _curve(
    axes: Any, values: list[float], variance: float, colour: str, dash: Any, width: float
) -> None:
    epochs = range(1, len(values) + 1)
    marker = "o" if len(values) < 3 else ""  # a line needs two points to be seen
    ratios = [value / variance for value in values]
    axes.plot(epochs, ratios, color=colour, linestyle=dash, linewidth=width, marker=marker)


def _embeddable(svg: str) -> str:
    """The <svg> element alone, sized by its container, in the page's colours and font."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    for colour, css in _CSS.items():
        svg = svg.replace(colour, css)
    return re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", svg)

"""What the page shows, as plain rows of pictures: no HTML here, and no numbers invented there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from weightloom.data import pixel_centres
from weightloom.experiments.demo.figures import picture
from weightloom.experiments.demo.measure import draw
from weightloom.experiments.demo.run import Result
from weightloom.models import EmbeddingNetwork, HyperNetwork

__all__ = [
    "FINE",
    "PAIR",
    "STEPS",
    "Row",
    "between_embeddings",
    "between_networks",
    "hardest",
    "interpolation",
    "reconstructions",
    "super_resolution",
]

FINE = 4  # how many times more pixels on a side
PAIR = (3, 8)  # the two digits that are interpolated between
STEPS = 9


@dataclass(frozen=True)
class Row:
    """A labelled strip of pictures: (data URI, alternative text)."""

    label: str
    pictures: list[tuple[str, str]]


def reconstructions(result: Result, rows: Sequence[int]) -> list[Row]:
    """Truth and what each network draws, at the 8 x 8 pixel centres, of these held-out images."""
    side, data = result.data.side, result.data
    strips = {"truth": data.held_out} | {one.name: one.drawn for one in result.contenders}
    return [
        Row(label, [(picture(images[i], side), _alt(result, i, label)) for i in rows])
        for label, images in strips.items()
    ]


def hardest(result: Result, count: int = 10) -> list[int]:
    """The held-out images on which the hypernetwork errs most, worst first."""
    return result.hyper.errors.argsort(descending=True)[:count].tolist()


def super_resolution(result: Result, rows: Sequence[int]) -> list[Row]:
    """The same networks sampled four times as finely, beside two roads without a network."""
    data = result.data
    side = data.side * FINE
    images = data.held_out[list(rows)]
    fine = _bicubic(images, data.side).clamp(0, 1)
    strips = [("truth, 8 x 8 pixels", images, data.side), ("bicubic interpolation", fine, side)]
    strips += [(one.name, draw(one.model, images, side), side) for one in result.contenders]
    return [
        Row(
            label,
            [
                (picture(image, across), _alt(result, i, f"{label}, {across} by {across}"))
                for i, image in zip(rows, drawn, strict=True)
            ],
        )
        for label, drawn, across in strips
    ]


def interpolation(result: Result) -> list[Row]:
    """From one held-out image to another in several spaces, drawn at 32 x 32 pixels."""
    data = result.data
    first, last = (data.held_out[data.held_out_labels.tolist().index(digit)] for digit in PAIR)
    side = data.side * FINE
    blend = torch.lerp(first, last, _weights()[:, None])
    hyper = result.hyper.model
    strips = [
        ("pixels cross-faded, no network (bicubic)", _bicubic(blend, data.side)),
        ("hypernetwork, condition space: cross-faded images encoded", draw(hyper, blend, side)),
        (
            "hypernetwork, feature space: a straight line between two generated networks",
            between_networks(hyper, first, last, side),
        ),
    ]
    if result.rival is not None:
        rival = result.rival.model
        strips.append(
            (
                "embedding network, feature space: a straight line between two embeddings",
                between_embeddings(rival, first, last, side),
            )
        )
    return [
        Row(
            label,
            [
                (
                    picture(image, side),
                    f"{label}: {share:.0%} of the way from {PAIR[0]} to {PAIR[1]}",
                )
                for image, share in zip(drawn, _weights().tolist(), strict=True)
            ],
        )
        for label, drawn in strips
    ]


@torch.no_grad()
def between_networks(hyper: HyperNetwork, first: Tensor, last: Tensor, side: int) -> Tensor:
    """Drawn by networks on the straight line between those of two conditions: [STEPS, side^2].

    The head is affine, so a straight line between features is a straight line between weights.
    """
    ends = hyper.weights(torch.stack([first, last]))
    shares = _weights()
    between = {
        name: torch.lerp(value[:1], value[1:], shares.view(-1, *[1] * (value.dim() - 1)))
        for name, value in ends.items()
    }
    drawn: Tensor = hyper.run(pixel_centres(side).expand(STEPS, -1, -1), between)
    return drawn.squeeze(-1)


@torch.no_grad()
def between_embeddings(rival: EmbeddingNetwork, first: Tensor, last: Tensor, side: int) -> Tensor:
    """Drawn by the embedding network from embeddings on the line between two: [STEPS, side^2]."""
    ends = rival.encoder(torch.stack([first, last]))
    embeddings = torch.lerp(ends[:1], ends[1:], _weights()[:, None])
    points = pixel_centres(side).expand(STEPS, -1, -1)
    joined = torch.cat([points, embeddings[:, None].expand(-1, points.shape[1], -1)], dim=-1)
    drawn: Tensor = rival.predictor(joined)
    return drawn.squeeze(-1)


def _weights() -> Tensor:
    return torch.linspace(0.0, 1.0, STEPS)


def _bicubic(images: Tensor, side: int) -> Tensor:
    grids = images.reshape(-1, 1, side, side)
    return F.interpolate(grids, scale_factor=FINE, mode="bicubic").flatten(1)


def _alt(result: Result, row: int, label: str) -> str:
    return f"Held-out digit {int(result.data.held_out_labels[row])}: {label}"

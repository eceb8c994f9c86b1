"""A hypernetwork that sees part of a digit and writes a network that draws it all.

The primary is the demo's coordinate network, a point (x, y) to brightness. The condition is the
image with its unseen pixels at 0, and beside it the mask: 128 numbers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from weightloom import training
from weightloom.data import pixel_centres
from weightloom.errors import CheckpointError, ConfigError
from weightloom.experiments.completion.digits import PARTS, SIDE, digits, seen_pixels
from weightloom.experiments.demo import coordinate_network
from weightloom.experiments.demo.run import Shifted
from weightloom.models import HyperNetwork, export, load, mlp
from weightloom.training import Member, Split

__all__ = ["FORMATS", "completion_network", "draw", "generated", "prepare", "ready"]

PIXELS = SIDE * SIDE
WIDTH = 256
FORMATS = (".safetensors", ".onnx")


class Masked(nn.Module):
    """[image, mask] with the image's seen pixels centred; unseen ones are 0."""

    mean: Tensor

    def __init__(self, images: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", images.mean())

    def forward(self, condition: Tensor) -> Tensor:
        image, mask = condition.split(PIXELS, dim=-1)
        return torch.cat([2 * (image - self.mean) * mask, mask - 0.5], dim=-1)


class SeenInPart:
    """A batch for training: images moved by parts of a pixel, each seen in a random part."""

    def __init__(self) -> None:
        self.shifted = Shifted(SIDE)
        self.masks = torch.stack([seen_pixels(part) for part in PARTS])

    def __call__(
        self, inputs: tuple[Tensor, ...], target: Tensor, generator: torch.Generator
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        (points, images), targets = self.shifted(inputs, target, generator)
        chosen = torch.randint(len(self.masks), (len(images),), generator=generator)
        masks = self.masks[chosen]
        return (points, torch.cat([images * masks, masks], dim=-1)), targets


def completion_network() -> HyperNetwork:
    """The untrained hypernetwork; the same one each time."""
    images = digits().train
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = mlp([2 * PIXELS, WIDTH, WIDTH], activation="silu", last_activation=True)
        encoder = nn.Sequential(Masked(images), *layers)
        examples = torch.cat([images, torch.ones_like(images)], dim=-1)
        return HyperNetwork(coordinate_network(), encoder, init="primary", calibration=examples)


def ready(path: Path) -> bool:
    """Whether a usable network is in the cache; one that is damaged is as good as none."""
    try:
        _read(path)
    except CheckpointError:
        return False
    return True


def prepare(path: Path, epochs: int, report: Callable[[tuple[float, float]], None]) -> float:
    """Train the network into ``path``, unless it is there; its held-out error over the variance.

    ``report`` gets (share of the work that is done, held-out error over the variance).
    """
    data = digits()
    masks = torch.stack([seen_pixels(PARTS[i % len(PARTS)]) for i in range(len(data.held_out))])
    conditions = torch.cat([data.held_out * masks, masks], dim=-1)
    points = pixel_centres(SIDE).expand(len(conditions), -1, -1)
    variance = data.held_out.var(correction=0).item()
    held_out = Split((points, conditions), data.held_out)
    if ready(path):
        model = _read(path)
        with torch.no_grad():
            drawn = model(points, conditions).squeeze(-1)
        return (drawn - data.held_out).square().mean().item() / variance
    model = completion_network()
    member = Member(
        model,
        train=Split((data.train,), data.train),
        held_out={"held out": held_out},
        augment=SeenInPart(),
    )
    # At the demo's rate of 1e-2 the networks went black for good after some 20 epochs.
    settings = training.Settings(
        epochs=epochs,
        batch_size=64,
        learning_rate=3e-3,
        optimiser="adam",
        schedule="cosine",
        clip_norm=1.0,
    )
    done = 0
    ratio = float("nan")

    def on_evaluation(step: int, values: list[dict[str, float]]) -> None:
        nonlocal done, ratio
        done += 1
        ratio = values[0]["held out"] / variance
        report((min(1.0, done / epochs), ratio))

    training.train([member], settings, on_evaluation=on_evaluation)
    path.parent.mkdir(parents=True, exist_ok=True)
    export(model, path)
    return ratio


@lru_cache(maxsize=2)
def _read_once(path: Path, changed: int) -> HyperNetwork:
    model = completion_network()
    load(model, path)
    for name, value in model.state_dict().items():
        if not bool(torch.isfinite(value).all()):
            raise CheckpointError(f"{name} in {path} holds NaN or infinity; delete the file")
    return model.eval()


def _read(path: Path) -> HyperNetwork:
    try:
        changed = path.stat().st_mtime_ns
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    return _read_once(path, changed)


def _trained(path: Path) -> HyperNetwork:
    if not path.exists():
        raise ConfigError("the hypernetwork is still being trained; ask again when it is done")
    return _read(path)


@torch.no_grad()
def draw(path: Path, seen: Tensor, mask: Tensor, side: int) -> Tensor:
    """What the network that is written for this drawing shows, [side^2], in (0, 1)."""
    hyper = _trained(path)
    drawn: Tensor = hyper(pixel_centres(side), torch.cat([seen, mask]))
    return drawn.squeeze(-1)


@torch.no_grad()
def generated(path: Path, seen: Tensor, mask: Tensor, suffix: str) -> bytes:
    """The network that is written for this drawing, as a file."""
    if suffix not in FORMATS:
        raise ConfigError(f"the format {suffix!r} was asked for; there are {', '.join(FORMATS)}")
    network = _trained(path).materialize(torch.cat([seen, mask]))
    with tempfile.TemporaryDirectory(prefix="weightloom-draw-") as folder:
        file = export(network, Path(folder) / f"network{suffix}", pixel_centres(SIDE))
        return file.read_bytes()

"""A hypernetwork that sees part of a digit and writes a network that draws the whole digit.

The primary is the demo's coordinate network, a point (x, y) to brightness. The condition is the
image with its hidden pixels at 0, followed by the mask: 128 numbers.
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
from weightloom.demo import coordinate_network
from weightloom.demo.completion.kernel import PARTS, SIDE, digits, seen_pixels
from weightloom.demo.training import Shifted
from weightloom.errors import CheckpointError, ConfigError
from weightloom.hyper import HyperNetwork, export, load, mlp
from weightloom.training import Member, Split

__all__ = ["FORMATS", "completion_network", "draw", "generated", "prepare", "ready"]

PIXELS = SIDE * SIDE
WIDTH = 256
FORMATS = (".safetensors", ".onnx")


class MaskedImage(nn.Module):
    """[image, mask] with the visible pixels of the image centred; hidden ones are 0."""

    mean: Tensor

    def __init__(self, images: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", images.mean())

    def forward(self, condition: Tensor) -> Tensor:
        image, mask = condition.split(PIXELS, dim=-1)
        return torch.cat([2 * (image - self.mean) * mask, mask - 0.5], dim=-1)


class PartlyHidden:
    """Augmentation: images shifted by parts of a pixel, each visible in a random part."""

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
    """The untrained hypernetwork; the same in every call."""
    images = digits().train
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = mlp([2 * PIXELS, WIDTH, WIDTH], activation="silu", last_activation=True)
        encoder = nn.Sequential(MaskedImage(images), *layers)
        return HyperNetwork(coordinate_network(), encoder)


def ready(path: Path) -> bool:
    """Whether ``path`` holds a usable network; a damaged file counts as none."""
    try:
        _read(path)
    except CheckpointError:
        return False
    return True


def prepare(path: Path, epochs: int, report: Callable[[tuple[float, float]], None]) -> float:
    """Train the network into ``path``, unless it is there; its held-out error over the variance.

    ``report`` gets (share of the work that is done, held-out error over the variance).
    """
    held_out = _held_out()
    variance = held_out.target.var(correction=0).item()
    if ready(path):
        with torch.no_grad():
            drawn = _read(path)(*held_out.inputs).squeeze(-1)
        return (drawn - held_out.target).square().mean().item() / variance
    model, images = completion_network(), digits().train
    member = Member(
        model,
        train=Split((images,), images),
        held_out={"held out": held_out},
        augment=PartlyHidden(),
    )
    done = 0
    ratio = float("nan")

    def on_evaluation(step: int, values: list[dict[str, float]]) -> None:
        nonlocal done, ratio
        done += 1
        ratio = values[0]["held out"] / variance
        report((min(1.0, done / epochs), ratio))

    training.train([member], _settings(epochs), on_evaluation=on_evaluation)
    path.parent.mkdir(parents=True, exist_ok=True)
    export(model, path)
    return ratio


def _held_out() -> Split:
    """The held-out digits; the visible part changes from one to the next."""
    images = digits().held_out
    masks = torch.stack([seen_pixels(PARTS[i % len(PARTS)]) for i in range(len(images))])
    conditions = torch.cat([images * masks, masks], dim=-1)
    return Split((pixel_centres(SIDE).expand(len(conditions), -1, -1), conditions), images)


def _settings(epochs: int) -> training.Settings:
    return training.Settings(
        epochs=epochs,
        batch_size=64,
        learning_rate=1e-2,
        optimiser="adam",
        schedule="cosine",
    )


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
    """What the generated network of this drawing shows, [side^2], in (0, 1)."""
    hyper = _trained(path)
    drawn: Tensor = hyper(pixel_centres(side), torch.cat([seen, mask]))
    return drawn.squeeze(-1)


@torch.no_grad()
def generated(path: Path, seen: Tensor, mask: Tensor, suffix: str) -> bytes:
    """The generated network of this drawing, as the bytes of a file."""
    if suffix not in FORMATS:
        raise ConfigError(
            f"the format {suffix!r} was asked for; choose one of {', '.join(FORMATS)}"
        )
    network = _trained(path).materialize(torch.cat([seen, mask]))
    with tempfile.TemporaryDirectory(prefix="weightloom-draw-") as folder:
        file = export(network, Path(folder) / f"network{suffix}", pixel_centres(SIDE))
        return file.read_bytes()

"""A hypernetwork trained on the same images, with a fair chance.

f has two hidden layers of 200 neurons, g one of 50, the architecture whose limit the kernels are;
hyperfan-in initialisation, Adam with several learning rates at once, a fifth of the training images
for validation: the learning rate and the moment to stop are those that are best on it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weightloom.experiments.infinite_width.protocol import (
    PIXELS,
    Draw,
    coordinates,
    draw_pixels,
    scores,
    seen_by,
)
from weightloom.kernels import FourierFeatures
from weightloom.models import HyperNetwork, mlp
from weightloom.training import Member, Report, Settings, Split, train

__all__ = ["Trained", "train_hypernetwork"]

_FEATURES, _WIDTHS, _HIDDEN = 64, (200, 200), 50
_BATCH = 20
_LOOKS = 20  # evaluations during training


@dataclass(frozen=True)
class Trained:
    """What came of it: test errors at the best moment, and the network at the end."""

    model: HyperNetwork
    places: Tensor  # [P, features]
    metrics: dict[str, float]

    def predict(self, seen: Tensor) -> Tensor:
        """All pixels of images of which f sees ``seen`` [m, P]: [m, P]."""
        with torch.no_grad():
            output: Tensor = self.model(self.places.expand(len(seen), -1, -1), seen)
        return output[..., 0]


def train_hypernetwork(draw: Draw, config: Mapping[str, Any], seed: int) -> Trained:
    """``subsets`` draws of 20 pixels for each image, all that Eq. 19's predictor sees; 0: all."""
    generator = torch.Generator().manual_seed(seed + 1_000_003)
    features = FourierFeatures(scale=config["scale"] / draw.side, count=_FEATURES, seed=seed)
    places = features.transform(coordinates(draw.side))
    everywhere = torch.arange(draw.side**2).expand(len(draw.train), -1)
    drawn = [
        draw_pixels(len(draw.train), draw.side**2, PIXELS, generator)
        for _ in range(config["subsets"])
    ]
    pixels = torch.cat(drawn, dim=1) if drawn else everywhere
    seen = seen_by(draw, draw.train, normalise=True)
    kept = max(1, len(draw.train) // 5)
    validation = _split(places, seen[:kept], draw.train[:kept], pixels[:kept])
    learned = _split(places, seen[kept:], draw.train[kept:], pixels[kept:])
    held_out = {"validation": validation, **_tests(draw, places)}
    epochs = max(1, math.ceil(config["steps"] * _BATCH / len(learned)))
    steps = epochs * math.ceil(len(learned) / min(_BATCH, len(learned)))
    settings = Settings(
        epochs=epochs,
        batch_size=_BATCH,
        optimiser="adam",
        schedule="cosine",
        evaluate_every=max(1, steps // _LOOKS),
    )
    models = [_model(places.shape[1], seen.shape[1], seed) for _ in config["rates"]]
    members = [
        Member(model, learned, held_out, seed=seed, learning_rate=rate)
        for model, rate in zip(models, config["rates"], strict=True)
    ]
    best, metrics = _best(train(members, settings))
    baselines = scores(draw.test, draw)  # its "mse" is 0 here: replaced
    metrics["rate"] = float(config["rates"][best])
    return Trained(models[best], places, {**baselines, **metrics})


def _model(features: int, pixels: int, seed: int) -> HyperNetwork:
    torch.manual_seed(seed)
    encoder = mlp([pixels, *_WIDTHS], last_activation=True)
    return HyperNetwork(mlp([features, _HIDDEN, 1]), encoder, init="hyperfan_in")


def _split(places: Tensor, seen: Tensor, images: Tensor, pixels: Tensor) -> Split:
    return Split((places[pixels], seen), images.gather(1, pixels)[..., None])


def _tests(draw: Draw, places: Tensor) -> dict[str, Split]:
    """The test images at every pixel, and at those that f did not see."""
    seen = seen_by(draw, draw.test, normalise=True)
    at = {"mse": torch.arange(draw.side**2)}
    if bool(draw.hidden.any()):
        at["mse_hidden"] = draw.hidden.nonzero()[:, 0]
    return {
        name: _split(places, seen, draw.test, pixels.expand(len(seen), -1))
        for name, pixels in at.items()
    }


def _best(reports: Sequence[Report]) -> tuple[int, dict[str, float]]:
    """Which member was best on validation images at any time, and its test errors then."""
    looks = [
        (value, number, place)
        for number, report in enumerate(reports)
        for place, value in enumerate(report.curves["validation"][1])
        if math.isfinite(value)
    ]
    if not looks:
        return 0, {"mse": math.nan}
    value, number, place = min(looks)
    curves = reports[number].curves
    found = {
        "validation": value,
        "stopped": curves["validation"][0][place] / max(1, reports[number].steps),
        "mse": curves["mse"][1][place],
    }
    if "mse_hidden" in curves:
        found["mse_hidden"] = curves["mse_hidden"][1][place]
    return number, found

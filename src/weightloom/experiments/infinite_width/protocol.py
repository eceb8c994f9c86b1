"""Images as functions of their pixels' places: the data, the baselines and the two protocols.

The paper's protocol ("On Infinite-Width Hypernetworks", Section 5.3 and A.2): every training image
is seen at 20 random pixels, kernel ridge regression with 1e-3 on those points, with random Fourier
features of the place; that is done for ten draws of the pixels, and the ten predictions are
averaged (Eq. 19). Ours: every pixel of every training image, on a torus, where the system falls
apart into one for each frequency; scale and ridge are chosen on training images alone.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weightloom.data import ImageSet, load_mnist_or_digits
from weightloom.errors import ConfigError
from weightloom.kernels import FourierFeatures, HyperKernel, HyperKernelRegressor, Tower

__all__ = [
    "PIXELS", "TASKS", "Draw", "coordinates", "draw_images", "draw_pixels", "image_set",
    "every_pixel", "kernel_of", "on_every_pixel", "on_random_pixels", "scores", "seen_by", "tuned",
]  # fmt: skip

TASKS = ("representation", "inpainting")
PIXELS = 20
_FEATURES = 256
#: Training images are drawn from so many, test images from the first so many of the test set.
_POOL, _TEST_POOL = 10_000, 2_000
#: Images that scale and ridge are chosen on: more change nothing but the time.
_TUNE = 100
#: Candidates, in 1 / pixels, and ridges.
_SCALES, _RIDGES = (0.35, 0.5, 0.7), (1e-3, 1e-2)


@dataclass(frozen=True)
class Draw:
    """Training and test images of one repetition, [n, P] and [m, P]; ``hidden`` [P] from f."""

    train: Tensor
    test: Tensor
    hidden: Tensor
    side: int


@functools.lru_cache(maxsize=2)
def image_set(folder: Path | None) -> ImageSet:
    """MNIST or the digits, read once in a process."""
    return load_mnist_or_digits(folder, train=_POOL, test=_TEST_POOL)


def draw_images(data: ImageSet, task: str, images: int, tests: int, seed: int) -> Draw:
    """``images`` to learn from and ``tests`` to test on. In inpainting f sees the upper half only.

    The same seed gives the same images for both tasks, and fewer images are the first of more: what
    is compared differs in one thing.
    """
    if task not in TASKS:
        raise ConfigError(f"task is {task!r}; wanted one of {', '.join(TASKS)}")
    if images > len(data.train) or tests > len(data.test):
        raise ConfigError(
            f"{images} training and {tests} test images are wanted, {data.source} has "
            f"{len(data.train)} and {len(data.test)}"
        )
    generator = torch.Generator().manual_seed(seed)
    train = torch.randperm(len(data.train), generator=generator)[:images]
    test = torch.randperm(len(data.test), generator=generator)[:tests]
    rows = torch.arange(data.side**2) // data.side
    hidden = (rows >= data.side // 2) & (task == "inpainting")
    return Draw(data.train[train], data.test[test], hidden, data.side)


def seen_by(draw: Draw, images: Tensor, normalise: bool) -> Tensor:
    """What f sees: the part that is not hidden; with ``normalise`` of length sqrt(P)."""
    seen = images * ~draw.hidden
    if not normalise:
        return seen
    return seen * math.sqrt(seen.shape[1]) / seen.norm(dim=1, keepdim=True).clamp(min=1e-6)


def coordinates(side: int) -> Tensor:
    """(row, column) of every pixel, in pixels: [P, 2]."""
    axis = torch.arange(side, dtype=torch.float32)
    return torch.cartesian_prod(axis, axis)


def draw_pixels(
    images: int, pixels: int, count: int, generator: torch.Generator, same: bool = False
) -> Tensor:
    """``count`` different pixels for each image, [images, count]; ``same``: for all of them."""
    if same:
        return torch.randperm(pixels, generator=generator)[:count].expand(images, -1)
    return torch.rand(images, pixels, generator=generator).argsort(dim=1)[:, :count]


def scores(prediction: Tensor, draw: Draw, pixels: Tensor | None = None) -> dict[str, float]:
    """Mean squared errors on the test images, beside those of the mean image and the mean pixel.

    ``prediction`` [m, P], or [m, q] at ``pixels`` [m, q]. "_hidden": on the hidden half alone.
    """
    if pixels is None:
        pixels = torch.arange(draw.test.shape[1]).expand(len(draw.test), -1)
    truth, hidden = draw.test.gather(1, pixels), draw.hidden[pixels]
    guesses = {
        "mse": prediction.to(truth),
        "mean_image": draw.train.mean(dim=0)[pixels],
        "mean_pixel": draw.train.mean().expand_as(truth),
    }
    found = {"side": float(draw.side)}
    for name, guess in guesses.items():
        errors = (guess - truth).square()
        found[name] = float(errors.mean())
        if bool(hidden.any()):
            found[f"{name}_hidden"] = float(errors[hidden].mean())
    return found


def kernel_of(kind: str, features: FourierFeatures) -> HyperKernel:
    """f has two hidden layers, g has one (A.2)."""
    return HyperKernel(Tower(depth=3), Tower(depth=2), kind=kind, features=features)


def on_random_pixels(
    draw: Draw, config: Mapping[str, Any], seed: int
) -> tuple[dict[str, float], list[float]]:
    """The paper's protocol: errors of the averaged prediction, and after each subset added.

    Errors are taken at ``test_pixels`` random pixels of every test image: the mean over all of
    them, up to chance, at a fraction of the time.
    """
    generator = torch.Generator().manual_seed(seed + 1_000_003)
    normalise, subsets = bool(config["normalise"]), int(config["subsets"])
    scale = config["scale"] / draw.side
    features = FourierFeatures(scale=scale, count=_FEATURES, seed=seed)
    kernel, places = kernel_of(config["kind"], features), coordinates(draw.side)
    asked = draw_pixels(len(draw.test), draw.side**2, config["test_pixels"], generator)
    query = (
        seen_by(draw, draw.test, normalise).repeat_interleave(asked.shape[1], 0),
        places[asked.flatten()],
    )
    seen = seen_by(draw, draw.train, normalise).repeat_interleave(PIXELS, 0)
    total, history = torch.zeros(asked.shape), []
    for done in range(1, subsets + 1):
        same = config["pixels"] == "same"
        pixels = draw_pixels(len(draw.train), draw.side**2, PIXELS, generator, same)
        model = HyperKernelRegressor(kernel, ridge=config["ridge"])
        model.fit((seen, places[pixels.flatten()]), draw.train.gather(1, pixels).flatten())
        total += model.predict(query).view_as(total)
        history.append(scores(total / done, draw, asked)["mse"])
    return scores(total / subsets, draw, asked), history


def tuned(draw: Draw, kind: str) -> tuple[HyperKernelRegressor, dict[str, float]]:
    """A model for every pixel on a torus, fitted to 100 training images at most, and its numbers.

    Scale and ridge are chosen on those images: for the NNGP by marginal likelihood; for the
    hyperkernel, which is no prior, by leaving out pixels.
    """
    kernel = kernel_of(kind, FourierFeatures(scale=_SCALES[0], period=float(draw.side)))
    model = HyperKernelRegressor(kernel, ridge=_RIDGES[0])
    (seen, places), values = every_pixel(draw)
    report = model.tune(
        (seen[:_TUNE], places),
        values[:_TUNE],
        objective="marginal_likelihood" if kind == "nngp" else "leave_one_out",
        search={"kernel__features__scale": _SCALES, "ridge": _RIDGES},
        refine=False,
    )
    best = report.best.parameters
    scale, ridge = float(best["kernel__features__scale"]), float(best["ridge"])
    return model, {"chosen_scale": scale, "chosen_ridge": ridge}


def every_pixel(draw: Draw) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """The training images as a grid: ((what f sees, places), values), in float64."""
    seen = seen_by(draw, draw.train, normalise=True).double()
    return (seen, coordinates(draw.side).double()), draw.train.double()


def on_every_pixel(draw: Draw, kind: str) -> tuple[HyperKernelRegressor, dict[str, float]]:
    """Our protocol: the `tuned` model fitted to all training images, and its scale and ridge."""
    model, chosen = tuned(draw, kind)
    if len(draw.train) > _TUNE:
        model.fit(*every_pixel(draw))
    return model, chosen

"""Images as functions of pixel positions: what ``table1``, ``fig3`` and ``scale`` share.

Section 5.3 and A.2 of "On Infinite-Width Hypernetworks": f gets an image (or a part of it), g the
position of a pixel, and the output is the pixel's brightness. Images are MNIST, or scikit-learn's
digits where MNIST is missing.

- The paper's protocol (`on_random_pixels`): each training image is known at 20 random pixels.
  Kernel regression with ridge 1e-3 and random Fourier features of the position is repeated for ten
  draws of the pixels, and the ten predictions are averaged (Eq. 19).
- Our protocol (`on_every_pixel`): every pixel of every training image, on a torus, where the system
  splits into one for each frequency. Scale and ridge are chosen on training images alone.
- A trained hypernetwork (`train_hypernetwork`): f has two hidden layers of 200 neurons, g one of
  50, the architecture whose limit the kernels are. Hyperfan-in initialisation, Adam with several
  learning rates at once. A fifth of the training images is held out for validation, which selects
  the learning rate and the number of steps.
"""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weightloom.data import ImageSet, has_images, load_mnist_or_digits
from weightloom.errors import ConfigError
from weightloom.hyper import HyperNetwork, mlp
from weightloom.kernels import FourierFeatures, HyperKernel, HyperKernelRegressor, Tower
from weightloom.training import Member, Report, Settings, Split, train
from weightloom_papers.lab import Experiment, Outcome, Result, Run, Workspace

__all__ = [
    # Data
    "TASKS", "PIXELS", "ImageSample", "image_set", "sample_images", "sample_pixels", "seen_by",
    "coordinates", "scores",
    # Kernel regression
    "kernel_of", "on_random_pixels", "tuned", "every_pixel", "on_every_pixel",
    # A trained hypernetwork
    "TrainedNetwork", "train_hypernetwork",
    # The experiments' base class, and their results
    "OnDigits", "of_one_set", "set_name",
]  # fmt: skip

TASKS = ("representation", "inpainting")
PIXELS = 20
_FEATURES = 256
#: Training and test images are sampled from this many of the training and the test set.
_POOL, _TEST_POOL = 10_000, 2_000
#: Images on which scale and ridge are chosen: more of them change nothing but the time.
_TUNE = 100
#: Candidate scales, in 1 / pixels, and ridges.
_SCALES, _RIDGES = (0.35, 0.5, 0.7), (1e-3, 1e-2)


@dataclass(frozen=True)
class ImageSample:
    """Training and test images of one repetition, [n, P] and [m, P]; ``hidden`` [P] from f."""

    train: Tensor
    test: Tensor
    hidden: Tensor
    side: int


@functools.lru_cache(maxsize=2)
def image_set(folder: Path | None) -> ImageSet:
    """MNIST or the digits, loaded once per process."""
    return load_mnist_or_digits(folder, train=_POOL, test=_TEST_POOL)


def sample_images(data: ImageSet, task: str, images: int, tests: int, seed: int) -> ImageSample:
    """``images`` random training images and ``tests`` test images; inpainting hides the lower half.

    A seed gives the same images for both tasks, and a smaller number of images is the beginning of
    a larger one, so that compared runs differ in one thing only.
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
    return ImageSample(data.train[train], data.test[test], hidden, data.side)


def seen_by(sample: ImageSample, images: Tensor, normalise: bool) -> Tensor:
    """The input of f: the images without the hidden part; with ``normalise`` of norm sqrt(P)."""
    seen = images * ~sample.hidden
    if not normalise:
        return seen
    return seen * math.sqrt(seen.shape[1]) / seen.norm(dim=1, keepdim=True).clamp(min=1e-6)


def coordinates(side: int) -> Tensor:
    """(row, column) of every pixel, in pixels: [P, 2]."""
    axis = torch.arange(side, dtype=torch.float32)
    return torch.cartesian_prod(axis, axis)


def sample_pixels(
    images: int, pixels: int, count: int, generator: torch.Generator, same: bool = False
) -> Tensor:
    """``count`` different pixels for each image, [images, count]; ``same``: for all of them."""
    if same:
        return torch.randperm(pixels, generator=generator)[:count].expand(images, -1)
    return torch.rand(images, pixels, generator=generator).argsort(dim=1)[:, :count]


def scores(
    prediction: Tensor, sample: ImageSample, pixels: Tensor | None = None
) -> dict[str, float]:
    """Mean squared errors on the test images, beside those of the mean image and the mean pixel.

    ``prediction`` [m, P], or [m, q] at ``pixels`` [m, q]. "_hidden": on the hidden half alone.
    """
    if pixels is None:
        pixels = torch.arange(sample.test.shape[1]).expand(len(sample.test), -1)
    truth, hidden = sample.test.gather(1, pixels), sample.hidden[pixels]
    guesses = {
        "mse": prediction.to(truth),
        "mean_image": sample.train.mean(dim=0)[pixels],
        "mean_pixel": sample.train.mean().expand_as(truth),
    }
    metrics = {"side": float(sample.side)}
    for name, guess in guesses.items():
        errors = (guess - truth).square()
        metrics[name] = float(errors.mean())
        if bool(hidden.any()):
            metrics[f"{name}_hidden"] = float(errors[hidden].mean())
    return metrics


def kernel_of(kind: str, features: FourierFeatures) -> HyperKernel:
    """f has two hidden layers, g has one (A.2)."""
    return HyperKernel(Tower(depth=3), Tower(depth=2), kind=kind, features=features)


def on_random_pixels(
    sample: ImageSample, config: Mapping[str, Any], seed: int
) -> tuple[dict[str, float], list[float]]:
    """The paper's protocol: errors of the averaged prediction, and its MSE after each subset.

    Errors are evaluated at ``test_pixels`` random pixels of every test image, an estimate of the
    mean over all pixels at a fraction of the time.
    """
    generator = torch.Generator().manual_seed(seed + 1_000_003)
    normalise, subsets = bool(config["normalise"]), int(config["subsets"])
    scale = config["scale"] / sample.side
    features = FourierFeatures(scale=scale, count=_FEATURES, seed=seed)
    kernel, places = kernel_of(config["kind"], features), coordinates(sample.side)
    tested = sample_pixels(len(sample.test), sample.side**2, config["test_pixels"], generator)
    query = (
        seen_by(sample, sample.test, normalise).repeat_interleave(tested.shape[1], 0),
        places[tested.flatten()],
    )
    seen = seen_by(sample, sample.train, normalise).repeat_interleave(PIXELS, 0)
    total, history = torch.zeros(tested.shape), []
    for done in range(1, subsets + 1):
        same = config["pixels"] == "same"
        pixels = sample_pixels(len(sample.train), sample.side**2, PIXELS, generator, same)
        model = HyperKernelRegressor(kernel, ridge=config["ridge"])
        model.fit((seen, places[pixels.flatten()]), sample.train.gather(1, pixels).flatten())
        total += model.predict(query).view_as(total)
        history.append(scores(total / done, sample, tested)["mse"])
    return scores(total / subsets, sample, tested), history


def tuned(sample: ImageSample, kind: str) -> tuple[HyperKernelRegressor, dict[str, float]]:
    """A model for every pixel on a torus, fitted to at most 100 training images; scale and ridge.

    They are chosen on those images: for the NNGP by marginal likelihood, for the hyperkernel, which
    is not a prior, by leaving out pixels.
    """
    kernel = kernel_of(kind, FourierFeatures(scale=_SCALES[0], period=float(sample.side)))
    model = HyperKernelRegressor(kernel, ridge=_RIDGES[0])
    (seen, places), values = every_pixel(sample)
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


def every_pixel(sample: ImageSample) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """The training images as a grid: ((inputs of f, positions), values), in float64."""
    seen = seen_by(sample, sample.train, normalise=True).double()
    return (seen, coordinates(sample.side).double()), sample.train.double()


def on_every_pixel(sample: ImageSample, kind: str) -> tuple[HyperKernelRegressor, dict[str, float]]:
    """Our protocol: the `tuned` model fitted to all training images, and its scale and ridge."""
    model, chosen = tuned(sample, kind)
    if len(sample.train) > _TUNE:
        model.fit(*every_pixel(sample))
    return model, chosen


# -- a trained hypernetwork ------------------------------------------------------------------------

_NETWORK_FEATURES, _WIDTHS, _HIDDEN = 64, (200, 200), 50
_BATCH = 20
_EVALUATIONS = 20  # during training


@dataclass(frozen=True)
class TrainedNetwork:
    """A network at the end of training; ``metrics`` are its errors at the best validation step."""

    model: HyperNetwork
    places: Tensor  # [P, features]
    metrics: dict[str, float]

    def predict(self, seen: Tensor) -> Tensor:
        """All pixels of the images whose visible parts are ``seen``: [m, P] -> [m, P]."""
        with torch.no_grad():
            output: Tensor = self.model(self.places.expand(len(seen), -1, -1), seen)
        return output[..., 0]


def train_hypernetwork(sample: ImageSample, config: Mapping[str, Any], seed: int) -> TrainedNetwork:
    """Train on ``subsets`` draws of 20 pixels of each image, the data of Eq. 19; 0: every pixel."""
    generator = torch.Generator().manual_seed(seed + 1_000_003)
    features = FourierFeatures(
        scale=config["scale"] / sample.side, count=_NETWORK_FEATURES, seed=seed
    )
    places = features.transform(coordinates(sample.side))
    everywhere = torch.arange(sample.side**2).expand(len(sample.train), -1)
    subsets = [
        sample_pixels(len(sample.train), sample.side**2, PIXELS, generator)
        for _ in range(config["subsets"])
    ]
    pixels = torch.cat(subsets, dim=1) if subsets else everywhere
    seen = seen_by(sample, sample.train, normalise=True)
    kept = max(1, len(sample.train) // 5)
    validation = _split(places, seen[:kept], sample.train[:kept], pixels[:kept])
    learned = _split(places, seen[kept:], sample.train[kept:], pixels[kept:])
    held_out = {"validation": validation, **_tests(sample, places)}
    epochs = max(1, math.ceil(config["steps"] * _BATCH / len(learned)))
    steps = epochs * math.ceil(len(learned) / min(_BATCH, len(learned)))
    settings = Settings(
        epochs=epochs,
        batch_size=_BATCH,
        optimiser="adam",
        schedule="cosine",
        evaluate_every=max(1, steps // _EVALUATIONS),
    )
    models = [_model(places.shape[1], seen.shape[1], seed) for _ in config["rates"]]
    members = [
        Member(model, learned, held_out, seed=seed, learning_rate=rate)
        for model, rate in zip(models, config["rates"], strict=True)
    ]
    best, metrics = _best(train(members, settings))
    baselines = scores(sample.test, sample)  # its "mse" of 0 is replaced below
    metrics["rate"] = float(config["rates"][best])
    return TrainedNetwork(models[best], places, {**baselines, **metrics})


def _model(features: int, pixels: int, seed: int) -> HyperNetwork:
    torch.manual_seed(seed)
    encoder = mlp([pixels, *_WIDTHS], last_activation=True)
    return HyperNetwork(mlp([features, _HIDDEN, 1]), encoder, init="hyperfan_in")


def _split(places: Tensor, seen: Tensor, images: Tensor, pixels: Tensor) -> Split:
    return Split((places[pixels], seen), images.gather(1, pixels)[..., None])


def _tests(sample: ImageSample, places: Tensor) -> dict[str, Split]:
    """The test images at every pixel, and at those hidden from f."""
    seen = seen_by(sample, sample.test, normalise=True)
    at = {"mse": torch.arange(sample.side**2)}
    if bool(sample.hidden.any()):
        at["mse_hidden"] = sample.hidden.nonzero()[:, 0]
    return {
        name: _split(places, seen, sample.test, pixels.expand(len(seen), -1))
        for name, pixels in at.items()
    }


def _best(reports: Sequence[Report]) -> tuple[int, dict[str, float]]:
    """The member with the lowest validation error at any evaluation, and its errors there."""
    evaluations = [
        (value, number, place)
        for number, report in enumerate(reports)
        for place, value in enumerate(report.curves["validation"][1])
        if math.isfinite(value)
    ]
    if not evaluations:
        return 0, {"mse": math.nan}
    value, number, place = min(evaluations)
    curves = reports[number].curves
    metrics = {
        "validation": value,
        "stopped": curves["validation"][0][place] / max(1, reports[number].steps),
        "mse": curves["mse"][1][place],
    }
    if "mse_hidden" in curves:
        metrics["mse_hidden"] = curves["mse_hidden"][1][place]
    return number, metrics


# -- experiments -----------------------------------------------------------------------------------


class OnDigits(Experiment):
    """An experiment with one measurement for each run, all on the same set of images."""

    @abstractmethod
    def measure_run(self, run: Run, data: ImageSet) -> Outcome:
        """The outcome of ``run`` on ``data``."""

    def stand_in(self, run: Run, data_dir: Path | None) -> bool:
        """Whether digits replace MNIST."""
        return not has_images("mnist", data_dir)

    def execute(self, runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
        data = image_set(workspace.data_dir)
        for run in runs:
            yield run, self.measure_run(run, data)


def of_one_set(results: Sequence[Result]) -> list[Result]:
    """Finished results; those of MNIST where a store also has results of the small digits."""
    done = [result for result in results if result.outcome.status == "done"]
    side = max((result.outcome.metrics["side"] for result in done), default=0.0)
    return [result for result in done if result.outcome.metrics["side"] == side]


def set_name(results: Sequence[Result]) -> str:
    """The image set of the results, known from its side."""
    sides = sorted({int(result.outcome.metrics.get("side", 0)) for result in results})
    names = {28: "MNIST", 8: "scikit-learn's digits (8 x 8), as MNIST was not found"}
    return " and ".join(names.get(side, f"images of side {side}") for side in sides) or "no images"

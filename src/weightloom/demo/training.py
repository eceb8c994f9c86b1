"""Train the three networks on the digits and measure them on held-out images."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from tqdm import tqdm

from weightloom import training
from weightloom.data import ImageSplit, load_digits, pixel_centres, shift
from weightloom.demo.networks import embedding_network, film_network, hypernetwork
from weightloom.hyper import EmbeddingNetwork, FiLMNetwork, HyperNetwork, count_parameters
from weightloom.training import Member, Report, Split, train

__all__ = [
    "Baseline",
    "Contender",
    "DemoHistory",
    "DemoResult",
    "DemoSettings",
    "Shifted",
    "baselines",
    "draw",
    "run_demo",
    "squared_errors",
]

LEARNING_RATE = 1e-2
BATCH = 64
REACH = 0.5  # training images are moved by up to this many pixels
EPOCHS = 150
SMOKE_EPOCHS = 3

Model = TypeVar("Model", bound=nn.Module)

HYPER = "hypernetwork"
FILM = "FiLM network"
EMBEDDED = "embedding network"
HELD_OUT = "held out"


@dataclass(frozen=True)
class DemoSettings:
    """What the user may choose. ``epochs`` None: 150, or 3 with ``smoke``.

    One thread by default: the networks are small, and on a busy machine two threads were seen to be
    forty times slower, because each waited for the other.
    """

    epochs: int | None = None
    seed: int = 0
    threads: int = 1
    smoke: bool = False

    @property
    def rounds(self) -> int:
        """How many epochs each network is trained for."""
        return self.epochs or (SMOKE_EPOCHS if self.smoke else EPOCHS)


@dataclass(frozen=True)
class Baseline:
    """A guess that ignores the condition."""

    name: str
    mse: float
    ratio: float


@dataclass(frozen=True)
class DemoHistory:
    """How training went. Each curve has one entry per finished epoch."""

    epochs: int  # asked for
    train: list[float] = field(default_factory=list)  # mean loss over the epoch's batches
    evaluation: list[float] = field(default_factory=list)  # held-out MSE after it
    seconds: float = 0.0  # of training steps, without evaluations
    interrupted: bool = False

    @property
    def done(self) -> int:
        """How many epochs were finished."""
        return len(self.train)


@dataclass(frozen=True)
class Contender(Generic[Model]):
    """A trained network and its errors on the held-out images."""

    name: str
    model: Model
    primary: int  # N_g or N_q
    trainable: int
    history: DemoHistory
    drawn: Tensor  # [n, 64]: its brightness at the pixel centres of each held-out image
    errors: Tensor  # [n]: mean squared error of each image
    ratio: float  # MSE over the variance of the held-out pixels

    @property
    def mse(self) -> float:
        return self.errors.mean().item()

    @property
    def stopped_early(self) -> bool:
        return self.history.interrupted


@dataclass(frozen=True)
class DemoResult:
    """Everything the table and the report are made from."""

    settings: DemoSettings
    data: ImageSplit
    hyper: Contender[HyperNetwork]
    film: Contender[FiLMNetwork] | None  # None: training was stopped before its turn
    embedding: Contender[EmbeddingNetwork] | None
    sizes: dict[str, dict[str, int]]
    """of every network by its name, also of those that were not trained"""
    baselines: list[Baseline]
    threads: int
    seconds: float

    @property
    def contenders(self) -> list[Contender[Any]]:
        """Those that were trained, the hypernetwork first."""
        trained = (self.hyper, self.film, self.embedding)
        return [contender for contender in trained if contender is not None]

    @property
    def untrained(self) -> list[str]:
        """Names of the networks whose turn did not come."""
        return [name for name in self.sizes if name not in {c.name for c in self.contenders}]

    @property
    def variance(self) -> float:
        """Of all held-out pixels around their mean: the MSE of the best single brightness."""
        return _variance(self.data)

    @property
    def interrupted(self) -> bool:
        return any(contender.stopped_early for contender in self.contenders)


class Shifted:
    """Augmentation: each image of a batch [b, 64] is shifted by a random part of a pixel.

    The condition is the shifted image. For the first half of a batch it is the target too, at the
    pixel centres. For the other half the target is the original image, at the places its pixels
    moved to. From these points, which lie off the grid, the networks learn what is between the
    pixels. Without them the error at the 64 centres halves, and networks ripple in between.
    """

    def __init__(self, side: int) -> None:
        self.centres = pixel_centres(side)
        self.pixel = 2.0 / side

    def __call__(
        self, inputs: tuple[Tensor, ...], target: Tensor, generator: torch.Generator
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """Returns (points [b, 64, 2], conditions [b, 64]) and the targets [b, 64] at the points."""
        (images,) = inputs
        by = torch.rand(len(images), 2, generator=generator) * (2 * REACH) - REACH
        moved = shift(images, by)
        half = len(images) // 2
        offsets = torch.cat([torch.zeros(half, 2), by[half:] * self.pixel])
        targets = torch.cat([moved[:half], images[half:]])
        return (self.centres + offsets[:, None], moved), targets


def run_demo(
    settings: DemoSettings,
    *,
    log: Callable[[str], None] = lambda text: None,
    progress: bool = False,
) -> DemoResult:
    """Train the hypernetwork, then its rivals; measure all of them on the held-out images.

    The same settings give the same numbers on the same machine. The caller's random state and
    thread count are restored. Ctrl-C ends training, and what was learned by then is measured.
    """
    started = time.perf_counter()
    before = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            return _run(settings, log, progress, started)
    finally:
        torch.set_num_threads(before)


def _run(
    settings: DemoSettings, log: Callable[[str], None], progress: bool, started: float
) -> DemoResult:
    data = load_digits()
    hyper = hypernetwork(data.train, settings.seed)
    own = count_parameters(hyper)
    goal = own["primary"], own["trainable"]
    film = film_network(data.train, *goal, settings.seed)
    embedding = embedding_network(data.train, *goal, settings.seed)
    sizes = {HYPER: own, FILM: count_parameters(film), EMBEDDED: count_parameters(embedding)}
    log(
        f"Handwritten digits, {data.side} x {data.side} pixels: {len(data.train)} images to learn "
        f"from, {len(data.held_out)} held out.\n"
        f"Networks of equal size ({_listed(sizes, 'primary')} weights for each point; trainable in "
        f"all: {_listed(sizes, 'trainable')})."
    )
    first = _contender(HYPER, hyper, data, settings, log, progress)
    second = third = None
    if not first.stopped_early:
        second = _contender(FILM, film, data, settings, log, progress)
    if second is not None and not second.stopped_early:
        third = _contender(EMBEDDED, embedding, data, settings, log, progress)
    return DemoResult(
        settings=settings,
        data=data,
        hyper=first,
        film=second,
        embedding=third,
        sizes=sizes,
        baselines=baselines(data),
        threads=torch.get_num_threads(),
        seconds=time.perf_counter() - started,
    )


def _listed(sizes: dict[str, dict[str, int]], what: str) -> str:
    *first, last = (f"{counts[what]:,}" for counts in sizes.values())
    return f"{', '.join(first)} and {last}"


def _contender(
    name: str,
    model: Model,
    data: ImageSplit,
    settings: DemoSettings,
    log: Callable[[str], None],
    progress: bool,
) -> Contender[Model]:
    """Train one network, with the same batches and steps as the others, and measure it."""
    history = _train(name, model, data, settings, progress)
    if history.interrupted:
        log(
            f"Stopped after {history.done} of {history.epochs} epochs of the {name}. What was "
            f"learned is kept: measuring it and writing the report (Ctrl-C again quits)."
        )
    drawn = draw(model, data.held_out, data.side)
    errors = squared_errors(drawn, data.held_out)
    sizes = count_parameters(model)
    ratio = errors.mean().item() / _variance(data)
    return Contender(
        name, model, sizes["primary"], sizes["trainable"], history, drawn, errors, ratio
    )


def _train(
    name: str, model: nn.Module, data: ImageSplit, settings: DemoSettings, progress: bool
) -> DemoHistory:
    variance = _variance(data)
    points = pixel_centres(data.side).expand(len(data.held_out), -1, -1)
    member = Member(
        model,
        train=Split((data.train,), data.train),
        held_out={HELD_OUT: Split((points, data.held_out), data.held_out)},
        seed=settings.seed,
        augment=Shifted(data.side),
    )
    # A log file gets a line every few seconds instead of ten a second.
    pause = 0.1 if sys.stderr.isatty() else 10.0
    with tqdm(
        total=settings.rounds,
        desc=f"{name:<17}",
        unit="epoch",
        disable=not progress,
        mininterval=pause,
    ) as bar:

        def on_evaluation(step: int, values: list[dict[str, float]]) -> None:
            ratio = values[0][HELD_OUT] / variance
            bar.set_postfix_str(f"held-out MSE/variance {ratio:.4f}", refresh=False)
            bar.update()

        (report,) = train([member], _training(settings), on_evaluation=on_evaluation)
    return _history(report, settings)


def _training(settings: DemoSettings) -> training.Settings:
    return training.Settings(
        epochs=settings.rounds,
        batch_size=BATCH,
        learning_rate=LEARNING_RATE,
        optimiser="adam",
        schedule="cosine",
    )


def _history(report: Report, settings: DemoSettings) -> DemoHistory:
    (_, train), (_, held_out) = (report.curves.get(name, ([], [])) for name in ("train", HELD_OUT))
    stopped = report.status == "interrupted"
    return DemoHistory(settings.rounds, train, held_out, report.seconds, stopped)


# -- measuring -----------------------------------------------------------------------------------


@torch.no_grad()
def draw(model: nn.Module, conditions: Tensor, side: int) -> Tensor:
    """The networks of these conditions [b, 64], at side x side pixel centres: [b, side^2].

    Leaves the model in evaluation mode.
    """
    model.eval()
    points = pixel_centres(side).expand(len(conditions), -1, -1)
    drawn: Tensor = model(points, conditions)
    return drawn.squeeze(-1)


def squared_errors(drawn: Tensor, images: Tensor) -> Tensor:
    """Mean squared error of each image: [n]."""
    return (drawn - images).square().mean(dim=1)


def baselines(data: ImageSplit) -> list[Baseline]:
    """The mean training image for every image, and the mean training brightness for every pixel."""
    variance = _variance(data)
    guesses = {
        "mean image": data.train.mean(dim=0),
        "mean brightness": data.train.mean(),
    }
    rows = []
    for name, guess in guesses.items():
        mse = squared_errors(guess.expand_as(data.held_out), data.held_out).mean().item()
        rows.append(Baseline(name, mse, mse / variance))
    return rows


def _variance(data: ImageSplit) -> float:
    """Of all held-out pixels around their mean: the MSE of the best single brightness."""
    return data.held_out.var(correction=0).item()

"""Train both networks on the digits and measure them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from tqdm import tqdm

from weightloom import training
from weightloom.data import ImageSplit, load_digits, pixel_centres, shift
from weightloom.experiments.demo.measure import (
    Baseline,
    Contender,
    History,
    baselines,
    draw,
    squared_errors,
)
from weightloom.experiments.demo.networks import embedding_network, hypernetwork
from weightloom.models import EmbeddingNetwork, HyperNetwork, count_parameters
from weightloom.training import Member, Report, Split, train

__all__ = ["Result", "Settings", "Shifted", "run_demo"]

LEARNING_RATE = 1e-2
BATCH = 64
REACH = 0.5  # training images are moved by up to this many pixels
EPOCHS = 200
SMOKE_EPOCHS = 3

Model = TypeVar("Model", HyperNetwork, EmbeddingNetwork)

HYPER = "hypernetwork"
EMBEDDED = "embedding network"
HELD_OUT = "held out"


@dataclass(frozen=True)
class Settings:
    """What the user may choose. ``epochs`` None: as many as the size of the run wants.

    One thread by default: the networks are small, and two threads that wait for each other on a
    busy machine were seen to be forty times slower.
    """

    epochs: int | None = None
    seed: int = 0
    threads: int = 1
    smoke: bool = False

    @property
    def rounds(self) -> int:
        return self.epochs or (SMOKE_EPOCHS if self.smoke else EPOCHS)


@dataclass(frozen=True)
class Result:
    """Everything the table and the page are made from."""

    settings: Settings
    data: ImageSplit
    hyper: Contender[HyperNetwork]
    rival: Contender[EmbeddingNetwork] | None  # None: training was stopped before its turn
    rival_sizes: dict[str, int]
    baselines: list[Baseline]
    threads: int
    seconds: float

    @property
    def contenders(self) -> list[Contender[Any]]:
        return [self.hyper] if self.rival is None else [self.hyper, self.rival]

    @property
    def variance(self) -> float:
        """Of all held-out pixels around their mean: the MSE of the best single brightness."""
        return self.data.held_out.var(correction=0).item()

    @property
    def interrupted(self) -> bool:
        return any(contender.stopped_early for contender in self.contenders)


class Shifted:
    """A batch of images [b, 64], each moved by a new part of a pixel.

    The condition is the moved image. For the first half of a batch so is the target, at the pixel
    centres. For the other half the target is the image as it was, at the places its pixels were
    moved to: that is how something is learned about the plane between the pixels, from pixel
    values alone. Without it the error at the 64 centres halves, and networks ripple in between.
    """

    def __init__(self, side: int) -> None:
        self.centres = pixel_centres(side)
        self.pixel = 2.0 / side

    def __call__(
        self, inputs: tuple[Tensor, ...], target: Tensor, generator: torch.Generator
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """((points [b, 64, 2], conditions [b, 64]), targets [b, 64]): draw these there."""
        (images,) = inputs
        by = torch.rand(len(images), 2, generator=generator) * (2 * REACH) - REACH
        moved = shift(images, by)
        half = len(images) // 2
        offsets = torch.cat([torch.zeros(half, 2), by[half:] * self.pixel])
        targets = torch.cat([moved[:half], images[half:]])
        return (self.centres + offsets[:, None], moved), targets


def run_demo(
    settings: Settings,
    *,
    say: Callable[[str], None] = lambda text: None,
    bars: bool = False,
) -> Result:
    """Train the hypernetwork, then its rival; measure both on the held-out images.

    The same settings give the same numbers on the same machine; the caller's random state and
    thread count are as before afterwards. Ctrl-C in training ends training, and what there is by
    then is measured.
    """
    started = time.perf_counter()
    before = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            return _run(settings, say, bars, started)
    finally:
        torch.set_num_threads(before)


def _run(settings: Settings, say: Callable[[str], None], bars: bool, started: float) -> Result:
    data = load_digits()
    hyper = hypernetwork(data.train)
    wanted = count_parameters(hyper)
    rival = embedding_network(data.train, wanted["primary"], wanted["trainable"])
    got = count_parameters(rival)
    say(
        f"Handwritten digits, {data.side} x {data.side} pixels: {len(data.train)} images to learn "
        f"from, {len(data.held_out)} held out.\n"
        f"Primary networks of equal size: N_g = {wanted['primary']}, N_q = {got['primary']} "
        f"(trainable in all: {wanted['trainable']:,} and {got['trainable']:,})."
    )
    first = _contender(HYPER, hyper, data, settings, say, bars)
    second = None
    if not first.stopped_early:
        second = _contender(EMBEDDED, rival, data, settings, say, bars)
    return Result(
        settings=settings,
        data=data,
        hyper=first,
        rival=second,
        rival_sizes=got,
        baselines=baselines(data),
        threads=torch.get_num_threads(),
        seconds=time.perf_counter() - started,
    )


def _training(settings: Settings) -> training.Settings:
    return training.Settings(
        epochs=settings.rounds,
        batch_size=BATCH,
        learning_rate=LEARNING_RATE,
        optimiser="adam",
        schedule="cosine",
    )


def _history(report: Report, settings: Settings) -> History:
    (_, train), (_, held_out) = (report.curves.get(name, ([], [])) for name in ("train", HELD_OUT))
    stopped = report.status == "interrupted"
    return History(settings.rounds, train, held_out, report.seconds, stopped)


def _contender(
    name: str,
    model: Model,
    data: ImageSplit,
    settings: Settings,
    say: Callable[[str], None],
    bars: bool,
) -> Contender[Model]:
    """Train one network, with the same batches and steps as the other, and measure it."""
    variance = data.held_out.var(correction=0).item()
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
        total=settings.rounds, desc=f"{name:<17}", unit="epoch", disable=not bars, mininterval=pause
    ) as bar:

        def on_evaluation(step: int, values: list[dict[str, float]]) -> None:
            ratio = values[0][HELD_OUT] / variance
            bar.set_postfix_str(f"held-out MSE/variance {ratio:.4f}", refresh=False)
            bar.update()

        history = _history(
            train([member], _training(settings), on_evaluation=on_evaluation)[0], settings
        )
    if history.interrupted:
        say(
            f"Stopped after {history.done} of {history.epochs} epochs of the {name}. What was "
            f"learned is kept: measuring it and writing the report (Ctrl-C again quits)."
        )
    drawn = draw(model, data.held_out, data.side)
    errors = squared_errors(drawn, data.held_out)
    count = count_parameters(model)
    ratio = errors.mean().item() / variance
    return Contender(
        name, model, count["primary"], count["trainable"], history, drawn, errors, ratio
    )

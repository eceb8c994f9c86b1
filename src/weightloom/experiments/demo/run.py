"""Train both networks on the digits and measure them."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from weightloom.data import ImageSplit, load_digits, pixel_centres, shift
from weightloom.experiments.demo.measure import (
    Baseline,
    Contender,
    baselines,
    draw,
    squared_errors,
)
from weightloom.experiments.demo.networks import embedding_network, hypernetwork
from weightloom.models import EmbeddingNetwork, HyperNetwork, count_parameters
from weightloom.training import History, fit

__all__ = ["Batch", "Result", "Settings", "ShiftedBatches", "run_demo"]

LEARNING_RATE = 1e-2
BATCH = 64
REACH = 0.5  # training images are moved by up to this many pixels
EPOCHS = 200
SMOKE_EPOCHS = 3

Model = TypeVar("Model", HyperNetwork, EmbeddingNetwork)

HYPER = "hypernetwork"
EMBEDDED = "embedding network"


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


@dataclass(frozen=True)
class Batch:
    """Draw ``targets`` at ``points``, given ``conditions``."""

    points: Tensor  # [b, 64, 2]
    conditions: Tensor  # [b, 64]
    targets: Tensor  # [b, 64]


class ShiftedBatches:
    """The training images in a new order each epoch, each moved by a new part of a pixel.

    The condition is the moved image. For the first half of a batch so is the target, at the pixel
    centres. For the other half the target is the image as it was, at the places its pixels were
    moved to: that is how something is learned about the plane between the pixels, from pixel
    values alone. Without it the error at the 64 centres halves, and networks ripple in between.
    """

    def __init__(self, images: Tensor, seed: int) -> None:
        self.images = images
        self.centres = pixel_centres(math.isqrt(images.shape[1]))
        self.generator = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return -(-len(self.images) // BATCH)

    def __iter__(self) -> Iterator[Batch]:
        pixel = 2.0 / math.isqrt(self.images.shape[1])
        order = torch.randperm(len(self.images), generator=self.generator)
        for rows in order.split(BATCH):
            images = self.images[rows]
            by = torch.rand(len(rows), 2, generator=self.generator) * (2 * REACH) - REACH
            moved = shift(images, by)
            half = len(rows) // 2
            offsets = torch.cat([torch.zeros(half, 2), by[half:] * pixel])
            targets = torch.cat([moved[:half], images[half:]])
            yield Batch(self.centres + offsets[:, None], moved, targets)


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

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        drawn: Tensor = model(batch.points, batch.conditions)
        return F.mse_loss(drawn.squeeze(-1), batch.targets)

    def evaluate(model: nn.Module) -> float:
        return F.mse_loss(draw(model, data.held_out, data.side), data.held_out).item()

    # A log file gets a line every few seconds instead of ten a second.
    pause = 0.1 if sys.stderr.isatty() else 10.0
    with tqdm(
        total=settings.rounds, desc=f"{name:<17}", unit="epoch", disable=not bars, mininterval=pause
    ) as bar:

        def on_epoch(history: History) -> None:
            ratio = history.evaluation[-1] / variance
            bar.set_postfix_str(f"held-out MSE/variance {ratio:.4f}", refresh=False)
            bar.update()

        history = fit(
            model,
            ShiftedBatches(data.train, settings.seed),
            loss,
            epochs=settings.rounds,
            learning_rate=LEARNING_RATE,
            evaluate=evaluate,
            on_epoch=on_epoch,
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

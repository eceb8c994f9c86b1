"""Figure 5: shallow networks of growing width n, trained with the learning rate sqrt(n).

    h(x) = sqrt(2/n) W2 relu(W1 x / sqrt(784)),    W1 [n, 784], W2 [10, n] standard normal

in NTK parametrisation, the paper's (Eq. 2). "standard" is the same function with PyTorch's default
initialisation and no scales: a step with the same learning rate changes its output about n times as
much. The paper does not name its loss, so both usual ones are run, and the squared error in two
forms: the mean over the ten outputs, and their sum, which is ten times as steep. (`training` has
the mean; with SGD, ten times the learning rate gives the sum.) Pixels are standardised by the mean
and deviation over the training images.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weightloom.data import ImageSet, has_images
from weightloom.errors import ConfigError
from weightloom.hyper import mlp
from weightloom.hyper.start import ScaledLinear
from weightloom.training import Member, Settings, Split
from weightloom_papers.infinite_width.experiments.rotations.task import (
    Voter,
    both,
    classified,
    load_images,
    marked,
)
from weightloom_papers.lab import Experiment, Outcome, Result, ResultTable, Run, Workspace
from weightloom_papers.lab.experiment import train_members

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["CLASSES", "PLANS", "SETTINGS", "Setting", "WideShallow", "shallow", "train_shallow"]

CLASSES = 10

#: Parametrisation, objective, and a factor on the learning rate: `CLASSES` turns the mean over
#: outputs into their sum.
Setting = tuple[str, str, int]

SETTINGS: tuple[Setting, ...] = (
    ("ntk", "cross_entropy", 1),
    ("ntk", "mse", 1),
    ("ntk", "mse", CLASSES),
    ("standard", "cross_entropy", 1),
)


def shallow(parametrisation: str, inputs: int, width: int, seed: int) -> nn.Sequential:
    """One hidden layer of ``width`` units, no biases, 10 outputs.

    >>> shallow("ntk", 784, 50, seed=0)[2]
    ScaledLinear(in_features=50, out_features=10, bias=False, scale=0.2)
    """
    if parametrisation not in ("ntk", "standard"):
        raise ConfigError(f"parametrisation={parametrisation!r} is unknown; 'ntk' or 'standard'")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if parametrisation == "standard":
            return mlp([inputs, width, CLASSES], bias=False)
        like = torch.empty(0)
        return nn.Sequential(
            ScaledLinear(inputs, width, math.sqrt(1.0 / inputs), like),
            nn.ReLU(),
            ScaledLinear(width, CLASSES, math.sqrt(2.0 / width), like),
        )


def train_shallow(
    runs: Sequence[Run], workspace: Workspace, name: str
) -> Iterator[tuple[Run, Outcome]]:
    """Train runs of one width and setting at once, with the learning rate sqrt(width)."""
    started = time.perf_counter()
    config: Mapping[str, Any] = runs[0].config
    images = load_images(
        config["images"], config["train_images"], config["test_images"], workspace.data_dir
    )
    objective, form, width = config["objective"], config["parametrisation"], config["width"]
    train, test = _splits(images, objective)
    train_set, held_out = marked(train, False), both(test)
    members = [
        Member(
            Voter(shallow(form, images.train.shape[1], width, 5_000_011 + run.seed), objective),
            train_set,
            held_out,
            seed=run.seed,
            name=f"seed {run.seed}",
        )
        for run in runs
    ]
    settings = Settings(
        epochs=config["epochs"],
        batch_size=config["batch_size"],
        learning_rate=math.sqrt(width) * config.get("rate_factor", 1),
        objective=objective,
    )
    setup = (time.perf_counter() - started) / len(runs)
    label = (
        f"{name} {form} {objective} x{config.get('rate_factor', 1)} width {width} (x{len(runs)})"
    )
    reports = train_members(members, settings, workspace, label)
    common = _common_metrics(images, width)
    for run, report in zip(runs, reports, strict=True):
        outcome = classified(report, objective, CLASSES, common)
        outcome.seconds += setup
        yield run, outcome


def _splits(images: ImageSet, objective: str) -> tuple[Split, Split]:
    """Training and test images, standardised."""
    mean, deviation = images.train.mean(), images.train.std()
    return (
        Split(((images.train - mean) / deviation,), _target(images.train_labels, objective)),
        Split(((images.test - mean) / deviation,), _target(images.test_labels, objective)),
    )


def _common_metrics(images: ImageSet, width: int) -> dict[str, float]:
    counts = torch.bincount(images.test_labels, minlength=CLASSES)
    return {
        "chance": float(counts.max()) / len(images.test_labels),
        "digits": float(images.name == "digits"),
        "learning_rate": math.sqrt(width),
        "parameters": width * (images.train.shape[1] + CLASSES),
    }


def _target(labels: Tensor, objective: str) -> Tensor:
    """Class indices, or one-hot vectors for the squared error."""
    return labels if objective == "cross_entropy" else F.one_hot(labels, CLASSES).float()


PLANS: dict[str, dict[str, Any]] = {
    "smoke": {"widths": (50, 400), "train_images": 500, "test_images": 300, "epochs": 1,
              "seeds": 2},
    "laptop": {"widths": (100, 1_000, 4_000), "train_images": 10_000, "test_images": 5_000,
               "epochs": 3, "seeds": 3},
    # The paper gives neither the epochs nor the repetitions.
    "paper": {"widths": (100, 1_000, 10_000, 250_000), "train_images": 60_000,
              "test_images": 10_000, "epochs": 10, "seeds": 5},
}  # fmt: skip
#: At most this many parameters are trained in one stack.
STACK_PARAMETERS = 40_000_000


class WideShallow(Experiment):
    """The paper's claim in four settings; it does not hold in all of them."""

    name = "infinite-width/fig5"
    title = "Wide shallow networks with the learning rate sqrt(n)"
    claim = (
        "Networks of width n can be trained with the very large learning rate sqrt(n), and "
        "accuracy and loss improve as the width grows."
    )
    paper = "infinite-width, Figure 5"
    main_metrics = ("accuracy", "test_loss", "train_loss")

    def runs(self, scale: str) -> list[Run]:
        plan = PLANS[scale]
        common: dict[str, Any] = {
            name: plan[name] for name in ("train_images", "test_images", "epochs")
        }
        common |= {"batch_size": 100, "images": "mnist", "pixels": "standardised"}
        runs = []
        for form, objective, factor in SETTINGS:
            config = {**common, "parametrisation": form, "objective": objective}
            config |= {"rate_factor": factor} if factor != 1 else {}
            runs += [
                Run(self.name, {**config, "width": width}, seed)
                for width in plan["widths"]
                for seed in range(plan["seeds"])
            ]
        return runs

    def group(self, run: Run) -> str:
        """Runs that differ in the seed alone, as many as fit into one stack."""
        config = run.config
        at_once = max(1, STACK_PARAMETERS // (800 * config["width"]))
        return (
            f"{config['parametrisation']}-{config['objective']}-{config.get('rate_factor', 1)}-"
            f"{config['width']}-"
            f"{config['train_images']}-{config['epochs']}-{run.seed // at_once}"
        )

    def cost(self, run: Run) -> float:
        """Approximate seconds on two cores; the standard parametrisation may diverge earlier."""
        config = run.config
        rows = config["epochs"] * config["train_images"]
        parameters = 794.0 * config["width"]
        steps = rows / config["batch_size"]
        return 0.2 + 6.0 * parameters * rows / 8e10 + steps * (0.001 + 20.0 * parameters / 1.5e10)

    def execute(self, runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
        yield from train_shallow(runs, workspace, self.name)

    def stand_in(self, run: Run, data_dir: Path | None) -> bool:
        """Whether digits replace MNIST."""
        return not has_images(run.config["images"], data_dir)

    def figures(self, results: Sequence[Result]) -> Mapping[str, Figure]:
        from weightloom_papers.infinite_width.experiments.fig5.figure import draw_wide

        return draw_wide(results)

    def table(self, results: Sequence[Result]) -> ResultTable:
        from weightloom_papers.infinite_width.experiments.fig5.analysis import wide_table

        return wide_table(results, self.title)

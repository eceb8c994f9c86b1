"""From runs to outcomes: hypernetworks of the rotation task, trained many at once."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from weightloom.data import has_images
from weightloom.errors import ConfigError
from weightloom.experiments.infinite_width.rotations_models import build, generated_weights
from weightloom.experiments.infinite_width.rotations_task import CLASSES, make_task
from weightloom.experiments.infinite_width.rotations_votes import (
    Voter,
    accuracy_of,
    both,
    marked,
)
from weightloom.lab import Experiment, Outcome, Run, Workspace
from weightloom.lab.members import train_members
from weightloom.training import Member, Report, Settings

__all__ = ["RotationTask", "classified"]

#: Parameters of one stack, at most: 160 MB, and as much again for gradients.
MOST = 40_000_000
CHANNELS = {"mnist": 1, "cifar10": 3}
OBJECTIVE = "cross_entropy"
#: What a plan says: what is varied, and what every run has.
VARIED = ("sets", "widths", "depths", "inits", "rates", "seeds", "side")
FIXED = ("train_images", "test_images", "epochs", "batch_size", "f_width", "f_depth")


class RotationTask(Experiment):
    """What Figures 2 and 4 share. ``choices`` replace entries of every run's configuration.

    ``sets``, ``widths``, ``depths``, ``inits`` and ``rates`` are tuples of what is varied;
    ``widths`` and ``side`` may be mappings from sets, ``rates`` one from initialisations.
    """

    main_metrics: ClassVar[tuple[str, ...]] = ("accuracy", "mean_accuracy", "test_loss")

    def __init__(self, **choices: Any) -> None:
        known = {*VARIED, *FIXED}
        unknown = sorted(set(choices) - known)
        if unknown:
            raise ConfigError(
                f"{self.name} was given {', '.join(unknown)}; what can be chosen is "
                f"{', '.join(sorted(known))}"
            )
        self.choices = choices

    def configurations(self, scale: Mapping[str, Any]) -> list[Run]:
        """Every combination of what is varied, in the order of the plan."""
        plan = {**scale, **self.choices}
        fixed = {name: plan[name] for name in FIXED}
        runs = []
        for images, init, depth in itertools.product(plan["sets"], plan["inits"], plan["depths"]):
            widths, rates = _of(plan["widths"], images), _of(plan["rates"], init)
            for width, rate in itertools.product(widths, rates):
                config = {
                    **fixed,
                    "images": images,
                    "side": _of(plan["side"], images),
                    "init": init,
                    "depth": depth,
                    "width": width,
                    "learning_rate": rate,
                }
                runs += [Run(self.name, config, seed) for seed in range(plan["seeds"])]
        return runs

    def group(self, run: Run) -> str:
        """Equal but for the seed, and together not too large."""
        text = json.dumps(dict(run.config), sort_keys=True)
        at_once = max(1, MOST // _parameters(run.config))
        return f"{hashlib.sha256(text.encode()).hexdigest()[:16]}-{run.seed // at_once}"

    def cost(self, run: Run) -> float:
        """Seconds on two cores, roughly: three products with the head's matrix in each step."""
        config = run.config
        rows = config["epochs"] * config["train_images"]
        products = 6.0 * _parameters(config) * rows
        steps = rows / config["batch_size"]
        # Reading and writing the head, its gradient and its update: 20 bytes for each number.
        return 0.2 + products / 8e10 + steps * (0.004 + 20.0 * _parameters(config) / 1.5e10)

    def stand_in(self, run: Run, data_dir: Path | None) -> bool:
        """Whether digits stand for the set that is wanted."""
        return not has_images(run.config["images"], data_dir)

    def execute(self, runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
        started = time.perf_counter()
        config = runs[0].config
        task = make_task(config, workspace.data_dir)
        train, held_out = marked(task.train, False), both(task.test)
        members = [
            Member(
                Voter(build(run.config, task.inputs, 1_000_003 + run.seed), OBJECTIVE),
                train,
                held_out,
                seed=run.seed,
                learning_rate=run.config["learning_rate"],
                name=f"seed {run.seed} rate {run.config['learning_rate']:g}",
            )
            for run in runs
        ]
        settings = Settings(
            epochs=config["epochs"], batch_size=config["batch_size"], objective=OBJECTIVE
        )
        setup = (time.perf_counter() - started) / len(runs)
        label = (
            f"{self.name} {config['images']} {config['init']} depth {config['depth']} "
            f"width {config['width']} (x{len(runs)})"
        )
        about = {
            "chance": task.chance,
            "digits": float(task.digits),
            "generated": generated_weights(config, task.inputs),
        }
        for run, report in zip(
            runs, train_members(members, settings, workspace, label), strict=True
        ):
            outcome = classified(report, OBJECTIVE, CLASSES, about)
            outcome.seconds += setup
            yield run, outcome


def classified(report: Report, objective: str, classes: int, about: Mapping[str, float]) -> Outcome:
    """The outcome of one `Voter`: accuracies beside losses, NaN at the end where it diverged.

    ``mean_accuracy`` is the mean over all evaluations: of two that end alike, the one that trains
    faster has the higher one.
    """
    curves = {name: curve for name, curve in report.curves.items() if name != "votes"}
    steps, votes = report.curves.get("votes", ([], []))
    accuracy = [accuracy_of(value, objective, classes) for value in votes]
    curves["accuracy"] = (steps, accuracy)
    lost = report.status == "diverged" or not accuracy
    metrics = {
        "accuracy": math.nan if lost else accuracy[-1],
        "mean_accuracy": math.nan if lost else math.fsum(accuracy) / len(accuracy),
        "first_accuracy": accuracy[0] if accuracy else math.nan,
        "best_accuracy": max(accuracy, default=math.nan),
        "test_loss": report.final.get("test", math.nan),
        "train_loss": report.final.get("train", math.nan),
        "steps": report.steps,
        **about,
    }
    return Outcome(report.status, metrics, curves, report.message, report.seconds)


def _of(choice: Any, name: str) -> Any:
    """A choice for everything, or one for each name."""
    return choice[name] if isinstance(choice, Mapping) else choice


def _parameters(config: Mapping[str, Any]) -> int:
    """Of the last layer of f, about; the others are small beside it."""
    inputs = CHANNELS[config["images"]] * config["side"] ** 2
    return int(config["f_width"]) * generated_weights(config, inputs)

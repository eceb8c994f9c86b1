"""From runs to outcomes: what all experiments of Section 6 share."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from weightloom.experiments.modularity.fig3_models import HYPER, build
from weightloom.experiments.modularity.fig3_protocol import role_seed, settings, splits
from weightloom.lab import Experiment, Outcome, Run, Workspace
from weightloom.lab.members import train_members
from weightloom.models import count_parameters
from weightloom.training import Member, Report, Split

__all__ = ["Section6", "outcome_of"]

SETUP = 0.1  # seconds for each run, whatever its size


class Section6(Experiment):
    """Trains groups of hypernetworks or embedding networks on random targets.

    Runs of a group differ in seed or learning rate alone: they are trained as one stack.
    """

    main_metrics: ClassVar[tuple[str, ...]] = (
        "test_mse",
        "test_mse_over_variance",
        "target_variance",
    )

    def size_limit(self) -> int:
        """A repetition holds 30,000 x 2000 numbers and more to test on: up to 360 MB."""
        return 8

    def cost(self, run: Run) -> float:
        """Seconds on two cores, roughly: what a hypernetwork does grows with the features."""
        config = run.config
        size = config["d"] * config["batch_size"] / 200_000
        if config["model"] == HYPER:
            step = 0.003 + 0.0055 * size * config["width"] / 100
        else:
            step = 0.0015 + 0.001 * size + 0.0002 * config["depth"]
        if config["optimiser"] != "sgd":
            step *= 1.4
        return SETUP + step * config["epochs"] * config["train_pairs"] / config["batch_size"]

    def execute(self, runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
        started = time.perf_counter()
        config = runs[0].config
        data = {run.seed: splits(config, run.seed) for run in runs}
        members = [_member(run, data[run.seed]) for run in runs]
        before = [_mse(member.model, member.held_out["test"]) for member in members]
        setup = (time.perf_counter() - started) / len(runs)
        reports = train_members(members, settings(config), workspace, _label(runs))
        for run, member, start, report in zip(runs, members, before, reports, strict=True):
            yield run, outcome_of(member, start, report, setup)


def outcome_of(member: Member, before: float, report: Report, setup: float = 0.0) -> Outcome:
    """The numbers of one trained member; NaN where it diverged.

    ``before`` is its test error before training, ``setup`` the seconds that took.

    ``test_mse`` is taken at the end, as in the paper. ``selected_test_mse`` is the test error at
    the evaluation with the lowest validation error: what early stopping would have kept.
    """
    variance = member.held_out["test"].target.double().var(correction=0).item()
    sizes = count_parameters(member.model)
    selected, at = _selected(report)
    metrics = {
        "test_mse": report.final.get("test", math.nan),
        "selected_test_mse": selected,
        "validation_mse": report.final.get("validation", math.nan),
        "best_validation_mse": math.nan,
        "train_mse": report.final.get("train", math.nan),
        "initial_test_mse": before,
        "target_variance": variance,
        "steps": report.steps,
        "selected_step": at,
        "primary_parameters": sizes["primary"],
        "trainable_parameters": sizes["trainable"],
    }
    if report.status != "diverged":
        metrics["best_validation_mse"] = min(report.curves["validation"][1])
    for name in ("test_mse", "selected_test_mse", "initial_test_mse"):
        metrics[f"{name}_over_variance"] = metrics[name] / variance
    return Outcome(report.status, metrics, report.curves, report.message, setup + report.seconds)


def _selected(report: Report) -> tuple[float, float]:
    """Test error and step where the validation error was lowest; NaN if it diverged."""
    if report.status == "diverged":
        return math.nan, math.nan
    steps, validation = report.curves["validation"]
    best = min(range(len(validation)), key=validation.__getitem__)
    return report.curves["test"][1][best], steps[best]


def _member(run: Run, data: Mapping[str, Split]) -> Member:
    return Member(
        model=build(run.config, role_seed(run.seed, "model")),
        train=data["train"],
        held_out={"validation": data["validation"], "test": data["test"]},
        seed=role_seed(run.seed, "batches"),
        learning_rate=run.config["learning_rate"],
        name=f"{run.config['model']} seed {run.seed} rate {run.config['learning_rate']:g}",
    )


@torch.no_grad()
def _mse(model: nn.Module, split: Split) -> float:
    """Mean squared error, a thousand rows at a time."""
    model.eval()
    total = 0.0
    for *inputs, y in zip(*(t.split(1000) for t in (*split.inputs, split.target)), strict=True):
        total += (model(*inputs) - y).double().square().sum().item()
    model.train()
    return total / split.target.numel()


def _label(runs: Sequence[Run]) -> str:
    config: Mapping[str, Any] = runs[0].config
    return (
        f"{runs[0].experiment} {config['model']} depth {config['depth']} width {config['width']} "
        f"({config['target_init']} target, x{len(runs)})"
    )

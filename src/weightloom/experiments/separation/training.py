"""Training the networks of ``depth-separation``: every batch is new, so only size and training
limit what is learned, never the number of samples.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from weightloom.construct import affine_pieces
from weightloom.construct.deep import delta
from weightloom.construct.layers import dense_layer
from weightloom.construct.separation import sawtooth_bound, sawtooth_distance
from weightloom.experiments.separation.networks import (
    by_hand,
    inputs_of,
    make_model,
    parameters_of,
    sample,
    target,
)
from weightloom.lab import Outcome, Run, Workspace
from weightloom.lab.members import train_members
from weightloom.training import Member, Report, Settings, Split

__all__ = ["execute_trained", "measure_by_hand", "on_unit_interval"]

# Points on which the learning rate is chosen, and on which errors are measured.
VALIDATION = 4_000
TEST = 20_000
EVALUATIONS = 10


def execute_trained(runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
    """Train all runs of one architecture at once; they differ in level, seed and learning rate."""
    config = runs[0].config
    points = _points(config)
    inputs = {name: (each.float(),) for name, each in points.items() if name != "test"}
    values: dict[tuple[str, float], Tensor] = {}
    members = []
    for run in runs:
        level = run.config["level"]
        for name in inputs:
            if (name, level) not in values:
                values[name, level] = target(run.config, points[name])[:, None].float()
        members.append(
            Member(
                model=make_model(run.config, run.seed),
                train=Split(inputs["train"], values["train", level]),
                held_out={"validation": Split(inputs["validation"], values["validation", level])},
                seed=run.seed,
                learning_rate=run.config["learning_rate"],
                name=f"level {level}, rate {run.config['learning_rate']:g}, seed {run.seed}",
            )
        )
    settings = Settings(
        epochs=1,
        batch_size=config["batch_size"],
        optimiser=config["optimiser"],
        schedule=config["schedule"],
        evaluate_every=max(1, config["steps"] // EVALUATIONS),
    )
    reports = train_members(members, settings, workspace, _label(runs))
    for run, member, report in zip(runs, members, reports, strict=True):
        yield run, _outcome(run, member.model, points["test"], report)


def measure_by_hand(config: Mapping[str, Any]) -> Outcome:
    """The hand-written network's error on the test points of the trained ones."""
    started = time.perf_counter()
    network, bound, widths = by_hand(config)
    points = _points({**config, "steps": 1, "batch_size": 1})["test"]
    with torch.no_grad():
        wrong = network(points)[:, 0] - target(config, points)
    metrics = {
        "relative": _relative(wrong, config, points),
        "sup": float(wrong.abs().max()),
        "bound": bound,
        "fits": float(all(a <= b for a, b in zip(widths, config["hidden"], strict=True))),
        "parameters": parameters_of(inputs_of(config), widths),
        "allowed": parameters_of(inputs_of(config), config["hidden"]),
    }
    if config["task"] == "sawtooth":
        # The smallest network there is, and a second road to the same function.
        small = delta(config["level"]).network
        with torch.no_grad():
            apart = network(points) + 0.5 - small((points + 1) / 2)
        metrics["apart"] = float(apart.abs().max())
        metrics["smallest"] = parameters_of(1, [2] * config["level"])
        metrics["pieces"] = affine_pieces(on_unit_interval(network), 0, 1).count
    return Outcome("done", metrics, seconds=time.perf_counter() - started)


def _points(config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Training points for one pass, points to choose by, points to judge on; the same for all."""
    generator = torch.Generator().manual_seed(20_190_510)
    made = {"validation": sample(config, VALIDATION, generator)}
    if config["task"] == "sphere":
        made["test"] = sample(config, TEST, generator)
    else:
        # Midpoints of an even grid: as good as the integral for lines between 2^-k.
        made["test"] = ((torch.arange(TEST, dtype=torch.float64) + 0.5) * 2 / TEST - 1)[:, None]
    made["train"] = sample(config, config["steps"] * config["batch_size"], generator)
    return made


@torch.no_grad()
def _outcome(run: Run, model: nn.Module, points: Tensor, report: Report) -> Outcome:
    """``relative`` is the mean squared error over the target's variance: 1 predicts the mean."""
    config = run.config
    model.eval()
    given = torch.cat([model(piece.float()) for piece in points.split(4096)])[:, 0].double()
    wrong = given - target(config, points)
    variance = float(target(config, points).var(correction=0))
    curves = {
        name: (steps, [value / variance for value in values])
        for name, (steps, values) in report.curves.items()
    }
    metrics = {
        "relative": _relative(wrong, config, points),
        "validation": report.final.get("validation", math.nan) / variance,
        "sup": float(wrong.abs().max()),
        "parameters": parameters_of(inputs_of(config), config["hidden"]),
        "steps": report.steps,
    }
    if config["task"] == "sawtooth":
        whole = on_unit_interval(model)
        metrics["pieces"] = affine_pieces(whole, 0, 1).count
        metrics["l1"] = sawtooth_distance(whole, config["level"])
        metrics["l1_bound"] = sawtooth_bound(int(metrics["pieces"]), config["level"])
    if report.status == "diverged":
        metrics.update(relative=math.nan, sup=math.nan, validation=math.nan)
    return Outcome(report.status, metrics, curves, report.message, report.seconds)


def _relative(wrong: Tensor, config: Mapping[str, Any], points: Tensor) -> float:
    variance = target(config, points).var(correction=0)
    return float(wrong.square().mean() / variance)


def on_unit_interval(model: nn.Module) -> nn.Sequential:
    """A network that sees 2 x - 1 and gives Delta^k - 1/2, as one from x to Delta^k, float64."""
    double = torch.float64
    first = dense_layer(torch.tensor([[2.0]], dtype=double), torch.tensor([-1.0], dtype=double))
    last = dense_layer(torch.tensor([[1.0]], dtype=double), torch.tensor([0.5], dtype=double))
    layers: list[nn.Module] = []
    for layer in model.children():
        if isinstance(layer, nn.Linear):
            layer = dense_layer(layer.weight.detach().double(), layer.bias.detach().double())
        layers.append(layer)
    return nn.Sequential(first, *layers, last)


def _label(runs: Sequence[Run]) -> str:
    config = runs[0].config
    task = f"d = {config['d']}" if config["task"] == "sphere" else "sawtooth"
    return f"depth-separation: {task}, depth {config['depth']}, {len(runs)} at once"

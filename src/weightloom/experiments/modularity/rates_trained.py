"""Part (ii): networks that are trained, on the bumps of Lemma 15."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from weightloom.construct import Box, Grid, hat_layers
from weightloom.data import BumpTarget
from weightloom.lab import Outcome, Run, Workspace
from weightloom.lab.members import train_members
from weightloom.models import EmbeddingNetwork, HyperNetwork, count_parameters, mlp
from weightloom.training import Member, Report, Settings, Split

__all__ = ["build_model", "condition_features", "execute_trained", "fine_grid", "primary_size"]

# Points of the fine grid on which errors are measured, about; and of those, during training.
GRID = 20_000
WATCHED = 2_000


def condition_features(config: Mapping[str, Any], conditions: Tensor) -> Tensor:
    """Hat functions of a fine grid of I: the first, fixed layers of f and of e. [n, features^m2].

    Both methods get them, so that neither fails because its encoder could not learn to tell
    conditions apart: encoders are to be "as large as we wish", the question is about g and q. They
    are not trained, so they are computed once, before training.
    """
    counts = (config["features"],) * config["m2"]
    layers = hat_layers(Grid(Box.cube(config["m2"]), counts, corners=True), torch.float32)
    with torch.no_grad():
        return nn.Sequential(*layers)(conditions.float())


def build_model(config: Mapping[str, Any], seed: int) -> nn.Module:
    """g(x; f(I)) or q(x, e(I)) as the run asks; the encoders differ in their last layer only."""
    features = config["features"] ** config["m2"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = mlp([features, *config["encoder"]], last_activation=True)
        if config["model"] == "hypernetwork":
            middle = torch.rand(256, config["m2"]) * 2 - 1
            return HyperNetwork(
                mlp([config["m1"], *config["hidden"], 1]),
                encoder,
                calibration=condition_features(config, middle),
            )
        encoder.append(nn.Linear(config["encoder"][-1], config["embedding"]))
        inputs = config["m1"] + config["embedding"]
        return EmbeddingNetwork(mlp([inputs, *config["hidden"], 1]), encoder)


def primary_size(config: Mapping[str, Any]) -> int:
    """N_g or N_q of a run, without building it."""
    inner = config["m1"] + config["embedding"]
    total = 0
    for width in [*config["hidden"], 1]:
        total, inner = total + (inner + 1) * width, width
    return total


def execute_trained(runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
    """Train all runs of one architecture at once; they differ in target, seed and rate."""
    config = runs[0].config
    splits: dict[tuple[int, int], dict[str, Split]] = {}
    members = []
    for run in runs:
        key = (run.config["pieces"], run.seed)
        if key not in splits:
            splits[key] = _splits(run)
        members.append(
            Member(
                model=build_model(run.config, seed=run.seed),
                train=splits[key]["train"],
                held_out={"watched": splits[key]["watched"]},
                seed=run.seed,
                learning_rate=run.config["learning_rate"],
                name=f"{run.config['pieces']} pieces, rate {run.config['learning_rate']:g}, "
                f"seed {run.seed}",
            )
        )
    batches = -(-config["samples"] // config["batch_size"])
    settings = Settings(
        epochs=config["epochs"],
        batch_size=config["batch_size"],
        optimiser="adam",
        schedule="cosine",
        evaluate_every=max(1, config["epochs"] * batches // 8),
    )
    reports = train_members(members, settings, workspace, _label(runs))
    for run, member, report in zip(runs, members, reports, strict=True):
        test = splits[run.config["pieces"], run.seed]["test"]
        yield run, _outcome(run, member.model, test, report)


def _splits(run: Run) -> dict[str, Split]:
    """Random points to learn from, a fine grid to be judged on; targets divided by the height."""
    config = run.config
    target = _target(run)
    generator = torch.Generator().manual_seed(run.seed)
    dims = config["m1"] + config["m2"]
    drawn = 2 * torch.rand(config["samples"], dims, generator=generator, dtype=torch.float64) - 1
    grid = fine_grid(dims, target)
    watched = grid[torch.randperm(len(grid), generator=generator)[:WATCHED]]
    places = {"train": drawn, "test": grid, "watched": watched}
    made = {}
    for name, points in places.items():
        x, conditions = points[:, : config["m1"]], points[:, config["m1"] :]
        value = (target.at(points) / target.height)[:, None]
        inputs = (x.float(), condition_features(config, conditions))
        made[name] = Split(inputs, value.float())
    return made


def fine_grid(dims: int, target: BumpTarget, points: int = GRID) -> Tensor:
    """A grid finer than the bumps that holds their tops: an odd number of points in each."""
    per_axis = points ** (1 / dims) / target.pieces
    each = max(3, 2 * int((per_axis - 1) // 2) + 1)
    count = each * target.pieces
    axis = (torch.arange(count, dtype=torch.float64) + 0.5) * (2 / count) - 1
    return torch.cartesian_prod(*[axis] * dims).reshape(-1, dims)


def _target(run: Run) -> BumpTarget:
    config = run.config
    return BumpTarget(config["m1"], config["m2"], config["pieces"], config["shape"], run.seed)


@torch.no_grad()
def _outcome(run: Run, model: nn.Module, test: Split, report: Report) -> Outcome:
    """Errors in the target's own units, and relative ones: 1 is what the zero function reaches."""
    target = _target(run)
    model.eval()
    pieces = zip(*(part.split(4096) for part in test.inputs), strict=True)
    given = torch.cat([model(*inputs) for inputs in pieces])
    wrong = (given - test.target).double()
    if report.status == "diverged":
        wrong = wrong * math.nan
    deviation = float(test.target.double().square().mean().sqrt())
    sizes = count_parameters(model)
    rms, sup = float(wrong.square().mean().sqrt()), float(wrong.abs().max())
    metrics = {
        "rms": rms * target.height,
        "sup": sup * target.height,
        "mse": (rms * target.height) ** 2,
        "relative_rms": rms / deviation,
        "relative_sup": sup,
        "mse_over_variance": (rms / deviation) ** 2,
        "height": target.height,
        "target_rms": deviation * target.height,
        "train_mse": report.final.get("train", math.nan) * target.height**2,
        "primary": sizes["primary"],
        "total": sizes["trainable"],
        "steps": report.steps,
    }
    return Outcome(report.status, metrics, report.curves, report.message, report.seconds)


def _label(runs: Sequence[Run]) -> str:
    config = runs[0].config
    shape = "-".join(map(str, [config["m1"] + config["embedding"], *config["hidden"], 1]))
    return f"rates: {config['model']} {shape}, {len(runs)} at once"

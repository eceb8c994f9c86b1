"""Does gradient descent find what a deep network can represent?

Networks of depth 2, 3 and more with equally many parameters are trained, and written by hand. Every
batch is new, so the error is limited by size and training, not by the number of samples.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from weightloom.construct import affine_pieces
from weightloom.construct.deep import delta, sawtooth_bound, sawtooth_distance
from weightloom.construct.layers import dense_layer
from weightloom.training import Member, Report, Settings, Split
from weightloom_papers.depth_separation.experiments.training.networks import (
    by_hand,
    equal_hidden,
    inputs_of,
    make_model,
    parameters_of,
    sample,
    target,
)
from weightloom_papers.lab import Experiment, Outcome, Result, ResultTable, Run, Workspace
from weightloom_papers.lab.experiment import train_members
from weightloom_papers.lab.runs import digest_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "DepthSeparation",
    "cost_of",
    "execute_trained",
    "measure_by_hand",
    "on_unit_interval",
    "runs_at",
]


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
        # The smallest network for this function, and a second way to compute it.
        small = delta(config["level"]).network
        with torch.no_grad():
            apart = network(points) + 0.5 - small((points + 1) / 2)
        metrics["apart"] = float(apart.abs().max())
        metrics["smallest"] = parameters_of(1, [2] * config["level"])
        metrics["pieces"] = affine_pieces(on_unit_interval(network), 0, 1).count
    return Outcome("done", metrics, seconds=time.perf_counter() - started)


def _points(config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Points for training (one pass), validation and test; the same for all runs of a task."""
    generator = torch.Generator().manual_seed(20_190_510)
    points = {"validation": sample(config, VALIDATION, generator)}
    if config["task"] == "sphere":
        points["test"] = sample(config, TEST, generator)
    else:
        # Midpoints of an even grid: as good as the integral for lines between 2^-k.
        points["test"] = ((torch.arange(TEST, dtype=torch.float64) + 0.5) * 2 / TEST - 1)[:, None]
    points["train"] = sample(config, config["steps"] * config["batch_size"], generator)
    return points


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
    """A network from 2 x - 1 to Delta^k - 1/2, rewritten as one from x to Delta^k, in float64."""
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


@dataclass(frozen=True)
class DepthSizes:
    """What is trained on one task."""

    task: str
    levels: Mapping[int, Sequence[int]]
    """frequencies (sphere) or powers (sawtooth) by dimension"""
    depths: Sequence[int]
    parameters: int
    steps: int
    seeds: int
    rates: Sequence[float] = (0.01, 0.03)
    by_hand: bool = True
    """whether the same networks are also written by hand"""

    def configs(self) -> Iterator[dict[str, Any]]:
        for d, levels in self.levels.items():
            for depth in self.depths:
                task: dict[str, Any] = {"task": self.task, "d": d, "depth": depth}
                hidden = equal_hidden(inputs_of(task), depth, self.parameters)
                for level in levels:
                    yield {**task, "hidden": hidden, "level": level}


# The paper's frequency is d^3; all others are there to see where learning ends.
_WAVES = {2: (1, 2, 4, 8), 3: (1, 2, 4, 8, 27), 4: (1, 2, 4, 8, 64)}

_MORE_WAVES = {
    2: (1, 2, 3, 4, 6, 8, 12, 16),
    3: (1, 2, 3, 4, 6, 8, 12, 16, 27),
    4: (1, 2, 3, 4, 6, 8, 12, 16, 64),
    5: (1, 2, 3, 4, 6, 8, 12, 16, 125),
}

PLANS: dict[str, Sequence[DepthSizes]] = {
    "smoke": (
        DepthSizes("sphere", {2: (1, 8)}, (2, 3), 300, 150, 2, (0.03,)),
        DepthSizes("sawtooth", {1: (1, 5)}, (2, 5), 300, 150, 2, (0.03,)),
    ),
    "laptop": (
        DepthSizes("sphere", _WAVES, (2, 3), 2737, 2000, 4),
        DepthSizes("sawtooth", {1: (1, 2, 3, 4, 5, 6, 7)}, (2, 3, 5, 9), 1000, 2000, 4),
        # Is it a matter of patience? Four times as many steps where learning ends.
        DepthSizes("sphere", {2: (8,)}, (2, 3), 2737, 8000, 4, (0.01,), False),
        DepthSizes("sawtooth", {1: (5,)}, (2, 5), 1000, 8000, 4, (0.01,), False),
    ),
    "paper": (
        DepthSizes("sphere", _MORE_WAVES, (2, 3, 4), 20_000, 20_000, 8, (0.003, 0.01, 0.03)),
        DepthSizes(
            "sawtooth",
            {1: (1, 2, 3, 4, 5, 6, 7, 8)},
            (2, 3, 5, 9, 17),
            4000,
            20_000,
            8,
            (0.003, 0.01, 0.03),
        ),
        DepthSizes("sphere", {2: (8,), 3: (8,)}, (2, 3), 20_000, 200_000, 4, (0.01,), False),
        DepthSizes("sawtooth", {1: (5, 6)}, (2, 5, 9), 4000, 200_000, 4, (0.01,), False),
    ),
}

BATCH = 256


def runs_at(name: str, scale: str) -> list[Run]:
    """All runs of the experiment, the quick ones first."""
    built, trained = [], []
    for plan in PLANS[scale]:
        for config in plan.configs():
            # For the sphere, a hand-written network is known for depth 3 only.
            if plan.by_hand and (plan.task == "sawtooth" or config["depth"] == 3):
                built.append(Run(name, {"part": "by hand", **config}, 0))
            how = {
                "part": "trained",
                "steps": plan.steps,
                "batch_size": BATCH,
                "optimiser": "adam",
                "schedule": "cosine",
                "init": "he",
            }
            trained += [
                Run(name, {**how, **config, "learning_rate": rate}, seed)
                for rate in plan.rates
                for seed in range(plan.seeds)
            ]
    return [*built, *trained]


def cost_of(run: Run) -> float:
    """Seconds on one core, roughly."""
    config = run.config
    if config["part"] != "trained":
        return 0.05
    units = sum(config["hidden"])
    weights = parameters_of(inputs_of(config), config["hidden"])
    # Activations are touched some twenty times a step, weights six times in products.
    work = config["batch_size"] * (weights * 6 / 2e10 + units * 20 / 4e9)
    return float(config["steps"] * (5e-5 + 2e-5 * len(config["hidden"]) + work))


class DepthSeparation(Experiment):
    """Two tasks ("sphere", "sawtooth"), two parts ("by hand", "trained")."""

    name = "depth-separation/training"
    title = "Depth, trained: as many parameters in 2 or more layers"
    claim = (
        "sin(pi d^3 <x, x'>) and Delta^k are small networks if deep and large ones if shallow. "
        "That is about networks that exist; nothing is said about training them."
    )
    paper = "depth-separation, main theorem; deep-learning-theory, Theorem 4.4"
    main_metrics = ("relative", "validation", "sup", "pieces", "l1")

    def runs(self, scale: str) -> list[Run]:
        return runs_at(self.name, scale)

    def group(self, run: Run) -> str:
        """One architecture and one length of training; levels, rates and seeds are free."""
        free = ("level", "learning_rate")
        config = {name: value for name, value in run.config.items() if name not in free}
        return f"{config['part']}-{digest_of(config)}"

    def cost(self, run: Run) -> float:
        return cost_of(run)

    def execute(self, runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
        if runs[0].config["part"] == "trained":
            yield from execute_trained(runs, workspace)
        else:
            for run in runs:
                yield run, measure_by_hand(run.config)

    def figures(self, results: Sequence[Result]) -> Mapping[str, Figure]:
        from weightloom_papers.depth_separation.experiments.training.figure import draw_depth

        return draw_depth(results)

    def table(self, results: Sequence[Result]) -> ResultTable:
        from weightloom_papers.depth_separation.experiments.training.analysis import depth_table

        return depth_table(results, self.title)

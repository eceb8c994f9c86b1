"""How far networks are from their Taylor model, against width: moved by hand, and trained.

A trained network is F(x; V) = (1 / sqrt m) sum_j a_j sigma(v_j . x) (NTK parametrisation, only V
is trained) under full-batch gradient descent on the mean squared error, on points of the unit
sphere. Its Taylor model F_0 is evaluated at the trained V. So |F - F_0| is what Propositions 3.4
and 3.7 bound, with |V - V0| as the radius.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weightloom_papers.deep_learning_theory.near_init.attacks import (
    attack,
    relu_worst,
    taylor_errors,
)
from weightloom_papers.deep_learning_theory.near_init.bounds import relu_bound, smooth_bound
from weightloom_papers.deep_learning_theory.near_init.shallow import Shallow
from weightloom_papers.lab import Experiment, Outcome, Result, ResultTable, Run, Workspace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "SphereData",
    "Descent",
    "MEASURES",
    "NearInit",
    "descend",
    "make_data",
    "measure_moved",
    "measure_trained",
]


DELTA = 0.01
RECORDS = 40  # points of a curve, at most


def measure_moved(config: Mapping[str, Any], seed: int) -> Outcome:
    """One row of `taylor_errors`: V moved by ``radius`` in three ways, beside three bounds."""
    started = time.perf_counter()
    (row,) = taylor_errors(
        [config["width"]],
        radius=config["radius"],
        seeds=[seed],
        activation=config["activation"],
        dims=config["dims"],
        delta=DELTA,
    )
    names = ("random", "aligned", "worst", "bound", "corrected", "printed")
    metrics = {name: getattr(row, name) for name in names}
    return Outcome("done", metrics, seconds=time.perf_counter() - started)


@dataclass(frozen=True)
class SphereData:
    """A small regression task: points on the unit sphere, and a smooth function of them."""

    x: Tensor
    y: Tensor
    test: Tensor
    """[points, d], from the same distribution"""


def make_data(samples: int, dims: int, seed: int, points: int = 64) -> SphereData:
    """y = sin(4 u.x) + u'.x for random orthogonal u, u'; the same data for all widths of a seed."""
    generator = torch.Generator().manual_seed(1_000 + seed)
    normal = torch.randn(samples + points, dims, dtype=torch.float64, generator=generator)
    x = normal / normal.norm(dim=-1, keepdim=True)
    u = torch.linalg.qr(torch.randn(dims, 2, dtype=torch.float64, generator=generator)).Q
    y = (4 * x @ u[:, 0]).sin() + x @ u[:, 1]
    return SphereData(x[:samples], y[:samples], x[samples:])


@dataclass(frozen=True)
class Descent:
    """Where gradient descent ended, and its curves."""

    hidden: Tensor
    steps: int
    first: float
    last: float
    """mean squared error at the start and at the end"""
    curves: dict[str, tuple[list[int], list[float]]]


@torch.no_grad()
def descend(net: Shallow, data: SphereData, *, rate: float, goal: float, max_steps: int) -> Descent:
    """Gradient descent on V until the error is ``goal`` times the initial one, or ``max_steps``.

    With residuals r, row j of the gradient is 2/n sum_i r_i out_j sigma'(v_j.x_i) x_i.
    """
    hidden, n = net.hidden.clone(), len(data.y)
    every = max(1, max_steps // RECORDS)
    steps: list[int] = []
    losses: list[float] = []
    moved: list[float] = []
    first = loss = math.nan
    step = 0
    for step in range(max_steps + 1):
        at = data.x @ hidden.T
        residual = net.sigma.function(at) @ net.out - data.y
        loss = float(residual.square().mean())
        first = loss if step == 0 else first
        done = step == max_steps or not goal * first < loss < math.inf
        if done or step % every == 0:
            steps.append(step)
            losses.append(loss)
            moved.append(float((hidden - net.hidden).norm()))
        if done:
            break
        pull = net.sigma.slope(at) * net.out * residual[:, None]
        hidden -= rate * 2 / n * pull.T @ data.x
    curves = {"loss": (steps, losses), "distance": (steps, moved)}
    return Descent(hidden, step, first, loss, curves)


def measure_trained(config: Mapping[str, Any], seed: int) -> Outcome:
    """Train a network and compare it with its Taylor model.

    ``rms`` and ``sup`` are those of F - F_0 on test points after training. ``bound`` is that of the
    propositions at the distance travelled, ``worst`` the largest error that any V at that distance
    has at the first test point.
    """
    started = time.perf_counter()
    width, name = config["width"], config["activation"]
    data = make_data(config["samples"], config["dims"], seed)
    net = Shallow.sample(width, config["dims"], name, seed=seed * 7919 + width)
    descent = descend(
        net, data, rate=config["rate"], goal=config["goal"], max_steps=config["max_steps"]
    )
    if not math.isfinite(descent.last):
        message = f"the error is {descent.last} after {descent.steps} steps"
        return Outcome("diverged", {"loss": descent.last}, descent.curves, message)
    gap = net(data.test, descent.hidden) - net.taylor(data.test, descent.hidden)
    distance = float((descent.hidden - net.hidden).norm())
    if name == "relu":
        bound = relu_bound(width, distance, DELTA, net.largest_out, form="sharp", around="init")
        worst = relu_worst(net, data.test[0], distance).error
    else:
        bound = smooth_bound(net.sigma.smoothness, distance, net.largest_out)
        worst = attack(net, distance, x=data.test[0], steps=40, seed=seed).error
    metrics = {
        "rms": float(gap.square().mean().sqrt()),
        "sup": float(gap.abs().max()),
        "distance": distance,
        "largest_row": float((descent.hidden - net.hidden).norm(dim=-1).max()),
        "bound": bound,
        "worst": worst,
        "first_loss": descent.first,
        "loss": descent.last,
        "steps": descent.steps,
        "change": float((net(data.test, descent.hidden) - net(data.test)).square().mean().sqrt()),
    }
    seconds = time.perf_counter() - started
    return Outcome("done", metrics, descent.curves, seconds=seconds)


#: By ``part`` of a run's configuration.
MEASURES: dict[str, Callable[[Mapping[str, Any], int], Outcome]] = {
    "moved": measure_moved,
    "trained": measure_trained,
}

ACTIVATIONS = ("relu", "tanh")
DIMS, RADIUS = 5, 1.0
SAMPLES, RATE = 20, 0.5


@dataclass(frozen=True)
class NearInitSizes:
    """Widths and repetitions of both parts, and when training stops."""

    moved: Mapping[str, Sequence[int]]
    moved_seeds: int
    trained: Sequence[int]
    trained_seeds: int
    goal: float
    """mean squared error at the end over that of the start"""
    max_steps: int


SCALE = {
    "smoke": NearInitSizes(
        {"relu": (64, 256, 1024, 4096), "tanh": (64, 256, 1024)}, 4, (64, 256, 1024), 2, 0.1, 300
    ),
    "laptop": NearInitSizes(
        {
            "relu": tuple(2**i for i in range(6, 17)),
            "tanh": tuple(2**i for i in range(6, 15)),
        },
        24,
        tuple(2**i for i in range(6, 14)),
        8,
        0.01,
        4_000,
    ),
    "paper": NearInitSizes(
        {
            "relu": tuple(2**i for i in range(6, 21)),
            "tanh": tuple(2**i for i in range(6, 18)),
        },
        100,
        tuple(2**i for i in range(6, 17)),
        20,
        0.01,
        20_000,
    ),
}


class NearInit(Experiment):
    """Two parts, named by ``part`` in a run's configuration.

    - "moved": V moved by a fixed distance: at random, along the gradient, and to the largest error;
    - "trained": V moved by gradient descent on a small regression task.
    """

    name = "deep-learning-theory/near-init"
    title = "Near initialisation: a network and its Taylor model"
    claim = (
        "At a fixed distance from initialisation, networks of m nodes and output weights "
        "±1/sqrt(m) are within order m^-1/2 of their Taylor model for smooth activations "
        "(Prop. 3.4) and m^-1/6 for the ReLU (Prop. 3.7)."
    )
    paper = "deep-learning-theory, Section 3.1"
    main_metrics = ("random", "aligned", "worst", "bound", "rms", "distance", "loss")
    seconds_per_cost = 1.0

    def runs(self, scale: str) -> list[Run]:
        plan = SCALE[scale]
        moved = [
            Run(
                self.name,
                {
                    "part": "moved",
                    "activation": activation,
                    "width": width,
                    "dims": DIMS,
                    "radius": RADIUS,
                },
                seed,
            )
            for activation in ACTIVATIONS
            for width in plan.moved[activation]
            for seed in range(plan.moved_seeds)
        ]
        common = {
            "part": "trained",
            "dims": DIMS,
            "samples": SAMPLES,
            "rate": RATE,
            "goal": plan.goal,
            "max_steps": plan.max_steps,
        }
        trained = [
            Run(self.name, {**common, "activation": activation, "width": width}, seed)
            for activation in ACTIVATIONS
            for width in plan.trained
            for seed in range(plan.trained_seeds)
        ]
        return moved + trained

    def group(self, run: Run) -> str:
        config = run.config
        return f"{config['part']}-{config['activation']}-{config['width']}"

    def size_limit(self) -> int:
        """Moved networks take milliseconds, so many go into one job."""
        return 24

    def cost(self, run: Run) -> float:
        """Seconds on one core, roughly."""
        config = run.config
        if config["part"] == "trained":
            return 0.02 + 2e-7 * float(config["max_steps"]) * config["width"] / 3
        per_node = 1e-6 if config["activation"] == "relu" else 2e-5
        return 0.01 + per_node * float(config["width"])

    def execute(self, runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
        for run in runs:
            yield run, MEASURES[run.config["part"]](run.config, run.seed)

    def figures(self, results: Sequence[Result]) -> Mapping[str, Figure]:
        from weightloom_papers.deep_learning_theory.experiments.near_init.figure import (
            draw_near_init,
        )

        return draw_near_init(results)

    def table(self, results: Sequence[Result]) -> ResultTable:
        from weightloom_papers.deep_learning_theory.experiments.near_init.analysis import (
            near_init_table,
        )

        return near_init_table(results, self.title)

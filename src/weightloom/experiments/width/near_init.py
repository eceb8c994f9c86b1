"""How far networks are from their Taylor model, against width: moved by hand, and trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weightloom.experiments.width.near_init_train import MEASURES
from weightloom.lab import Experiment, Outcome, Result, Run, Table, Workspace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["NearInit"]

ACTIVATIONS = ("relu", "tanh")
DIMS, RADIUS = 5, 1.0
SAMPLES, RATE = 20, 0.5


@dataclass(frozen=True)
class Plan:
    """Widths and repetitions of both parts, and when training stops."""

    moved: Mapping[str, Sequence[int]]
    moved_seeds: int
    trained: Sequence[int]
    trained_seeds: int
    goal: float
    """mean squared error at the end over that of the start"""
    max_steps: int


SCALE = {
    "smoke": Plan(
        {"relu": (64, 256, 1024, 4096), "tanh": (64, 256, 1024)}, 4, (64, 256, 1024), 2, 0.1, 300
    ),
    "laptop": Plan(
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
    "paper": Plan(
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
    """Two parts, told apart by ``part`` in a run's configuration.

    - "moved": V moved by a fixed distance, at random, along the gradient, and as badly as can be;
    - "trained": V moved by gradient descent on a small regression, as far as it goes.
    """

    name = "near-init"
    title = "Near initialisation: a network and its Taylor model"
    claim = (
        "At a fixed distance from initialisation, networks of m nodes and output weights "
        "±1/sqrt(m) are within order m^-1/2 of their Taylor model for smooth activations "
        "(Prop. 3.4) and m^-1/6 for the ReLU (Prop. 3.7)."
    )
    paper = "004, Section 3.1"
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
        """Moved networks take milliseconds: many at a time."""
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
        from weightloom.experiments.width.near_init_draw import draw_near_init

        return draw_near_init(results)

    def table(self, results: Sequence[Result]) -> Table:
        from weightloom.experiments.width.near_init_claims import near_init_table

        return near_init_table(results, self.title)

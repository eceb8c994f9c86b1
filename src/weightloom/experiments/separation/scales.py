"""Which networks ``depth-separation`` builds and trains, at each scale."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weightloom.experiments.separation.networks import equal_hidden, inputs_of, parameters_of
from weightloom.lab import Run

__all__ = ["cost_of", "runs_at"]


@dataclass(frozen=True)
class Plan:
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
PLANS: dict[str, Sequence[Plan]] = {
    "smoke": (
        Plan("sphere", {2: (1, 8)}, (2, 3), 300, 150, 2, (0.03,)),
        Plan("sawtooth", {1: (1, 5)}, (2, 5), 300, 150, 2, (0.03,)),
    ),
    "laptop": (
        Plan("sphere", _WAVES, (2, 3), 2737, 2000, 4),
        Plan("sawtooth", {1: (1, 2, 3, 4, 5, 6, 7)}, (2, 3, 5, 9), 1000, 2000, 4),
        # Is it a matter of patience? Four times as many steps where learning ends.
        Plan("sphere", {2: (8,)}, (2, 3), 2737, 8000, 4, (0.01,), False),
        Plan("sawtooth", {1: (5,)}, (2, 5), 1000, 8000, 4, (0.01,), False),
    ),
    "paper": (
        Plan("sphere", _MORE_WAVES, (2, 3, 4), 20_000, 20_000, 8, (0.003, 0.01, 0.03)),
        Plan(
            "sawtooth",
            {1: (1, 2, 3, 4, 5, 6, 7, 8)},
            (2, 3, 5, 9, 17),
            4000,
            20_000,
            8,
            (0.003, 0.01, 0.03),
        ),
        Plan("sphere", {2: (8,), 3: (8,)}, (2, 3), 20_000, 200_000, 4, (0.01,), False),
        Plan("sawtooth", {1: (5, 6)}, (2, 5, 9), 4000, 200_000, 4, (0.01,), False),
    ),
}
BATCH = 256


def runs_at(name: str, scale: str) -> list[Run]:
    """All runs of the experiment, the quick ones first."""
    built, trained = [], []
    for plan in PLANS[scale]:
        for config in plan.configs():
            # No network of depth 2 is known to write down for the sphere, and of depth 3 only this.
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

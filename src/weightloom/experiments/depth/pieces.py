"""How many affine pieces networks have: Lemma 4.9 of "Deep learning theory" beside counts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weightloom.experiments.depth.pieces_execute import (
    count_random,
    count_sawtooth,
    execute_trained,
)
from weightloom.experiments.depth.pieces_nets import TASKS
from weightloom.lab import Experiment, Outcome, Result, Run, Table, Workspace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Pieces"]


@dataclass(frozen=True)
class Plan:
    """What one scale has."""

    widths: Sequence[int]
    depths: Sequence[int]
    seeds: int
    trained_widths: Sequence[int]
    trained_depths: Sequence[int]
    trained_seeds: int
    steps: int
    powers: Sequence[int]
    """L of the Delta^L that is disturbed"""
    noises: Sequence[float]
    most: int = 1024
    """units of the largest random network"""


NOISES = (0.0, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0)
PLANS = {
    "smoke": Plan((4, 8), (1, 2, 4), 3, (8,), (1, 2), 2, 60, (4,), (0.0, 0.01, 0.3)),
    "laptop": Plan(
        (4, 8, 16, 32, 64, 128), (1, 2, 3, 4, 6, 8, 12, 16), 10,
        (8, 16, 32), (1, 2, 4, 6), 6, 2000, (4, 8, 12), NOISES,
    ),
    "paper": Plan(
        (4, 8, 16, 32, 64, 128, 256), (1, 2, 3, 4, 6, 8, 12, 16, 24, 32), 40,
        (8, 16, 32, 64), (1, 2, 3, 4, 6, 8), 20, 10_000, (4, 8, 12, 16), NOISES, 4096,
    ),
}  # fmt: skip
LINES = 4


class Pieces(Experiment):
    """Three parts: "random" networks, "trained" ones before and after, and a noisy "sawtooth"."""

    name = "pieces"
    title = "Affine pieces of random, trained and built networks"
    claim = (
        "A ReLU network of m nodes in L layers has at most (2 m / L)^L affine pieces "
        "(Lemma 4.9); Delta^L has exponentially many in L."
    )
    paper = "004, Lemma 4.9 and Proposition 4.1"
    main_metrics = ("pieces", "before", "after", "loss")

    def runs(self, scale: str) -> list[Run]:
        plan = PLANS[scale]
        found: list[tuple[dict[str, Any], int]] = []
        for inputs in (1, 16):
            for init in ("he", "default"):
                common: dict[str, Any] = {
                    "part": "random",
                    "inputs": inputs,
                    "init": init,
                    "lines": LINES,
                }
                for width in plan.widths:
                    for depth in plan.depths:
                        if width * depth <= plan.most:
                            shape = {"width": width, "depth": depth}
                            found.append(({**common, **shape}, plan.seeds))
        for name in TASKS:
            settings: dict[str, Any] = {
                "part": "trained",
                "task": name,
                "init": "default",
                "lines": LINES,
                "steps": plan.steps,
                "points": 128,
                "learning_rate": 0.01,
            }
            for width in plan.trained_widths:
                for depth in plan.trained_depths:
                    shape = {"width": width, "depth": depth}
                    found.append(({**settings, **shape}, plan.trained_seeds))
        for depth in plan.powers:
            for noise in plan.noises:
                config = {"part": "sawtooth", "depth": depth, "noise": noise}
                found.append((config, plan.seeds if noise else 1))
        return [Run(self.name, config, seed) for config, seeds in found for seed in range(seeds)]

    def group(self, run: Run) -> str:
        """Trained networks of one task and shape; of the others, many small counts together."""
        if run.config["part"] == "trained":
            return json.dumps(dict(run.config), sort_keys=True)
        kept = ("part", "inputs", "init", "width")
        return json.dumps({key: run.config.get(key) for key in kept})

    def size_limit(self) -> int:
        return 100

    def cost(self, run: Run) -> float:
        """Seconds on one core."""
        config = run.config
        if config["part"] == "random":
            lines = 1 if config["inputs"] == 1 else config["lines"]
            return float(0.005 + lines * (config["width"] * config["depth"]) ** 1.5 / 6e5)
        if config["part"] == "sawtooth":
            return float(0.005 + 2 ** config["depth"] / 1e5)
        return float(config["steps"] * config["depth"] * (1 + config["width"] / 32) * 9e-5)

    def execute(self, runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
        part = runs[0].config["part"]
        if part == "trained":
            yield from execute_trained(runs, workspace)
        else:
            for run in runs:
                counted = count_random if part == "random" else count_sawtooth
                yield run, counted(run.config, run.seed)

    def figures(self, results: Sequence[Result]) -> Mapping[str, Figure]:
        from weightloom.experiments.depth.pieces_draw import draw_pieces

        return draw_pieces(results)

    def table(self, results: Sequence[Result]) -> Table:
        from weightloom.experiments.depth.pieces_table import pieces_table

        return pieces_table(results, self.title)

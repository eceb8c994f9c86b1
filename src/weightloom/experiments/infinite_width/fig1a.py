"""Figure 1 (a): how much the tangent kernel of a hypernetwork varies from draw to draw."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from weightloom.errors import ConfigError
from weightloom.experiments.infinite_width.fig1_kernel import CONDITION, ROADS
from weightloom.lab import Experiment, Outcome, Result, Run, Table, Workspace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ANGLE", "Fig1a", "generator_of", "measure"]

#: Between z and z' of the entry. The paper does not say which entry it took.
ANGLE = math.pi / 4

#: Widths (of f, and of g; None: infinite), draws for each run, and runs, by scale.
SCALE: dict[str, tuple[Sequence[int | None], int, int]] = {
    "smoke": ((5, 20, 80, None), 40, 2),
    "laptop": ((10, 20, 50, 100, 200, 500, None), 100, 4),
    "paper": ((10, 20, 50, 100, 200, 500, 1000, 2000, None), 100, 20),
}
#: Whole hypernetworks are drawn too, up to these widths: the other road to the same numbers.
WHOLE: dict[str, Sequence[int]] = {"smoke": (5,), "laptop": (10, 20), "paper": (10, 20, 50)}


def generator_of(run: Run) -> torch.Generator:
    """Draws of different runs have nothing in common."""
    return torch.Generator().manual_seed(int(run.key[:15], 16))


def measure(run: Run) -> Outcome:
    """One entry of the kernel, drawn again and again; all draws are kept, as a curve."""
    started = time.perf_counter()
    config: Mapping[str, Any] = run.config
    if config["road"] not in ROADS:
        raise ConfigError(f"road is {config['road']!r}; there are: {', '.join(ROADS)}")
    draw = ROADS[config["road"]]
    kernels = draw(
        config["f"],
        config["g"],
        [0.0, config["angle"]],
        config["draws"],
        generator_of(run),
        config["condition"],
    )
    values = kernels[:, 0, 1]
    return Outcome(
        "done",
        {"mean": float(values.mean()), "variance": float(values.var())},
        {"entry": (list(range(len(values))), values.tolist())},
        seconds=time.perf_counter() - started,
    )


class Fig1a(Experiment):
    """Variance of one entry of the tangent kernel against the widths of f and g."""

    name = "fig1a"
    title = "How much the tangent kernel of a hypernetwork varies"
    claim = (
        "The variance of an entry of the empirical kernel tends to zero only when the widths of f "
        "and of g both increase."
    )
    paper = "001, Figure 1 (a)"
    main_metrics = ("mean", "variance")
    seconds_per_cost = 2e-5

    def runs(self, scale: str) -> list[Run]:
        widths, draws, seeds = SCALE[scale]
        common = {"angle": ANGLE, "condition": list(CONDITION), "draws": draws}
        return [
            Run(self.name, {"f": f, "g": g, "road": road, **common}, seed)
            for road, here in (("parts", widths), ("whole", WHOLE[scale]))
            for f in here
            for g in here
            if f or g  # both infinite: no draw differs from another
            for seed in range(seeds)
        ]

    def cost(self, run: Run) -> float:
        """In thousands of random numbers; a whole network takes its time even if it is small."""
        config = run.config
        numbers = 2 * ((config["f"] or 1) ** 2 + (config["g"] or 1) ** 2)
        if config["road"] == "whole":
            numbers = 100_000 + 5 * config["f"] * config["g"] ** 2
        return 0.5 + float(config["draws"]) * (1000 + numbers) / 1000

    def execute(self, runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
        for run in runs:
            yield run, measure(run)

    def figures(self, results: Sequence[Result]) -> Mapping[str, Figure]:
        from weightloom.experiments.infinite_width.fig1a_draw import draw_fig1a

        return draw_fig1a(results)

    def table(self, results: Sequence[Result]) -> Table:
        from weightloom.experiments.infinite_width.fig1a_numbers import fig1a_table

        return fig1a_table(results, self.title)

"""Figure 1: (a) how much the tangent kernel varies between random hypernetworks; (b) its mean.

(a) has one entry of the kernel against the widths of f and g. (b) has the kernel against an angle,
for narrow and wide g, with its limit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from weightloom.errors import ConfigError
from weightloom_papers.infinite_width.experiments.fig1.kernels import (
    CONDITION,
    SAMPLERS,
    limit,
    sample_in_parts,
)
from weightloom_papers.lab import Experiment, Outcome, Result, ResultTable, Run, Workspace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "ANGLE",
    "Fig1a",
    "Fig1b",
    "angles_of",
    "generator_of",
    "measure_angles",
    "measure_entry",
]

#: Angle between z and z' of the entry in (a). The paper does not say which entry it shows.
ANGLE = math.pi / 4

#: Widths (of f, and of g; None: infinite), draws for each run, and runs, by scale.
FIG1A_PLANS: dict[str, tuple[Sequence[int | None], int, int]] = {
    "smoke": ((5, 20, 80, None), 40, 2),
    "laptop": ((10, 20, 50, 100, 200, 500, None), 100, 4),
    "paper": ((10, 20, 50, 100, 200, 500, 1000, 2000, None), 100, 20),
}
#: Up to these widths whole hypernetworks are sampled too, as a check of the sampling in parts.
WHOLE_WIDTHS: dict[str, Sequence[int]] = {"smoke": (5,), "laptop": (10, 20), "paper": (10, 20, 50)}


def generator_of(run: Run) -> torch.Generator:
    """A generator seeded by the run's key, so that different runs are independent."""
    return torch.Generator().manual_seed(int(run.key[:15], 16))


def measure_entry(run: Run) -> Outcome:
    """Many samples of one entry of the kernel; all of them are kept, as a curve."""
    started = time.perf_counter()
    config: Mapping[str, Any] = run.config
    if config["sampler"] not in SAMPLERS:
        raise ConfigError(f"sampler is {config['sampler']!r}; there are: {', '.join(SAMPLERS)}")
    sample = SAMPLERS[config["sampler"]]
    kernels = sample(
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

    name = "infinite-width/fig1a"
    title = "How much the tangent kernel of a hypernetwork varies"
    claim = (
        "The variance of an entry of the empirical kernel tends to zero only when the widths of f "
        "and of g both increase."
    )
    paper = "infinite-width, Figure 1 (a)"
    main_metrics = ("mean", "variance")
    seconds_per_cost = 2e-5

    def runs(self, scale: str) -> list[Run]:
        widths, draws, seeds = FIG1A_PLANS[scale]
        common = {"angle": ANGLE, "condition": list(CONDITION), "draws": draws}
        return [
            Run(self.name, {"f": f, "g": g, "sampler": sampler, **common}, seed)
            for sampler, here in (("parts", widths), ("whole", WHOLE_WIDTHS[scale]))
            for f in here
            for g in here
            if f or g  # both infinite: the kernel is deterministic
            for seed in range(seeds)
        ]

    def cost(self, run: Run) -> float:
        """In thousands of random numbers; a whole network has an overhead even if it is small."""
        config = run.config
        numbers = 2 * ((config["f"] or 1) ** 2 + (config["g"] or 1) ** 2)
        if config["sampler"] == "whole":
            numbers = 100_000 + 5 * config["f"] * config["g"] ** 2
        return 0.5 + float(config["draws"]) * (1000 + numbers) / 1000

    def execute(self, runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
        for run in runs:
            yield run, measure_entry(run)

    def figures(self, results: Sequence[Result]) -> Mapping[str, Figure]:
        from weightloom_papers.infinite_width.experiments.fig1.figure import draw_fig1a

        return draw_fig1a(results)

    def table(self, results: Sequence[Result]) -> ResultTable:
        from weightloom_papers.infinite_width.experiments.fig1.analysis import fig1a_table

        return fig1a_table(results, self.title)


#: Width of f and widths of g in the figure, number of angles; widths of f at which the mean is
#: compared with the limit (None: infinite); draws for each run, and runs, by scale.
FIG1B_PLANS: dict[str, tuple[int, Sequence[int], int, Sequence[int | None], int, int]] = {
    "smoke": (60, (5, 60), 5, (20, 60, None), 40, 2),
    "laptop": (500, (10, 800), 13, (32, 64, 128, 256, 512, None), 100, 4),
    "paper": (500, (10, 800), 25, (32, 64, 128, 256, 512, 1024, 2048, None), 100, 40),
}


def angles_of(count: int) -> list[float]:
    """``count`` angles from -pi/2 to pi/2, both included; 0 is one of them if the count is odd.

    >>> [round(angle, 2) for angle in angles_of(3)]
    [-1.57, 0.0, 1.57]
    """
    return [math.pi * (k / (count - 1) - 0.5) for k in range(count)]


def measure_angles(run: Run) -> Outcome:
    """Many samples of the kernel between angle 0 and all angles.

    Curves: ``mean`` and ``deviation`` at each angle, and ``ratio`` for each draw: the kernel over
    its limit, both averaged over the angles.
    """
    started = time.perf_counter()
    config = run.config
    angles = angles_of(config["angles"])
    kernels = sample_in_parts(
        config["f"],
        config["g"],
        [0.0, *angles],
        config["draws"],
        generator_of(run),
        config["condition"],
    )[:, 0, 1:]  # [draws, angles]
    wanted = limit(angles, config["condition"])
    ratio = kernels.mean(1) / (sum(wanted) / len(wanted))
    at, draws = list(range(len(angles))), list(range(len(kernels)))
    curves = {
        "mean": (at, kernels.mean(0).tolist()),
        "deviation": (at, kernels.std(0).tolist()),
        "ratio": (draws, ratio.tolist()),
    }
    metrics = {"ratio": float(ratio.mean()), "deviation": float(ratio.std())}
    return Outcome("done", metrics, curves, seconds=time.perf_counter() - started)


class Fig1b(Experiment):
    """Mean and deviation of the tangent kernel for narrow and wide g, with the limit."""

    name = "infinite-width/fig1b"
    title = "The tangent kernel of a hypernetwork against the angle"
    claim = (
        "Convergence to a deterministic kernel is observed only when both f and g are wide; the "
        "expected value of the empirical kernel equals the limit for both widths of g."
    )
    paper = "infinite-width, Figure 1 (b) and Appendix A.1"
    main_metrics = ("ratio", "deviation")
    seconds_per_cost = 2e-5

    def runs(self, scale: str) -> list[Run]:
        f, gs, count, widths, draws, seeds = FIG1B_PLANS[scale]
        shared: dict[str, Any] = {"condition": list(CONDITION), "draws": draws}
        figure: list[dict[str, Any]] = [
            {"part": "figure", "f": f, "g": g, "angles": count} for g in gs
        ]
        means: list[dict[str, Any]] = [
            {"part": "means", "f": width, "g": g, "angles": 5}
            for g in (gs[0], None)
            for width in widths
            if width or g
        ]
        return [
            Run(self.name, {**config, **shared}, seed)
            for config in (*figure, *means)
            for seed in range(seeds)
        ]

    def cost(self, run: Run) -> float:
        """In thousands of random numbers."""
        config = run.config
        numbers = 2 * ((config["f"] or 1) ** 2 + (config["g"] or 1) ** 2)
        return 0.5 + float(config["draws"]) * (1000 + numbers) / 1000

    def execute(self, runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
        for run in runs:
            yield run, measure_angles(run)

    def figures(self, results: Sequence[Result]) -> Mapping[str, Figure]:
        from weightloom_papers.infinite_width.experiments.fig1.figure import draw_fig1b

        return draw_fig1b(results)

    def table(self, results: Sequence[Result]) -> ResultTable:
        from weightloom_papers.infinite_width.experiments.fig1.analysis import fig1b_table

        return fig1b_table(results, self.title)

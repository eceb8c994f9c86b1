"""Figure 1 (b): the tangent kernel of a hypernetwork against an angle, beside its limit."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weightloom.experiments.infinite_width.fig1_kernel import CONDITION, limit, parts
from weightloom.experiments.infinite_width.fig1a import generator_of
from weightloom.lab import Experiment, Outcome, Result, Run, Table, Workspace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Fig1b", "angles_of", "measure"]

#: Width of f and widths of g in the figure, number of angles; widths of f at which the mean is
#: compared with the limit (None: infinite); draws for each run, and runs, by scale.
SCALE: dict[str, tuple[int, Sequence[int], int, Sequence[int | None], int, int]] = {
    "smoke": (60, (5, 60), 5, (20, 60, None), 40, 2),
    "laptop": (500, (10, 800), 13, (32, 64, 128, 256, 512, None), 100, 4),
    "paper": (500, (10, 800), 25, (32, 64, 128, 256, 512, 1024, 2048, None), 100, 40),
}


def angles_of(count: int) -> list[float]:
    """From -pi/2 to pi/2, both included; 0 is among them if the count is odd.

    >>> [round(angle, 2) for angle in angles_of(3)]
    [-1.57, 0.0, 1.57]
    """
    return [math.pi * (k / (count - 1) - 0.5) for k in range(count)]


def measure(run: Run) -> Outcome:
    """Kernels between angle 0 and all angles, drawn again and again.

    Curves: ``mean`` and ``deviation`` at each angle, and ``ratio`` for each draw: the kernel over
    its limit, both averaged over the angles.
    """
    started = time.perf_counter()
    config = run.config
    angles = angles_of(config["angles"])
    kernels = parts(
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

    name = "fig1b"
    title = "The tangent kernel of a hypernetwork against the angle"
    claim = (
        "Convergence to a deterministic kernel is observed only when both f and g are wide; the "
        "expected value of the empirical kernel equals the limit for both widths of g."
    )
    paper = "001, Figure 1 (b) and Appendix A.1"
    main_metrics = ("ratio", "deviation")
    seconds_per_cost = 2e-5

    def runs(self, scale: str) -> list[Run]:
        f, gs, count, widths, draws, seeds = SCALE[scale]
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
            yield run, measure(run)

    def figures(self, results: Sequence[Result]) -> Mapping[str, Figure]:
        from weightloom.experiments.infinite_width.fig1b_draw import draw_fig1b

        return draw_fig1b(results)

    def table(self, results: Sequence[Result]) -> Table:
        from weightloom.experiments.infinite_width.fig1b_numbers import fig1b_table

        return fig1b_table(results, self.title)

"""Networks drawn from the Barron density of Gaussians, in one to a hundred dimensions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weightloom.experiments.width.barron_measure import MEASURES
from weightloom.lab import Experiment, Outcome, Result, Run, Table, Workspace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Barron"]

SIGMA = 0.5
#: Dimensions and widths of sampled networks, trials, repetitions.
SAMPLED: dict[str, tuple[Sequence[int], Sequence[int], int, int]] = {
    "smoke": ((1, 4, 16), (16, 64, 256), 8, 2),
    "laptop": ((1, 2, 3, 5, 10, 20, 50, 100), (16, 32, 64, 128, 256, 512, 1024, 2048), 24, 4),
    "paper": ((1, 2, 3, 5, 10, 20, 50, 100, 300), tuple(2**i for i in range(4, 14)), 50, 10),
}
#: Grid nodes per axis by dimension, for interpolants that are built and measured. Odd numbers: a
#: grid without a node at the top of the Gaussian would be a straw man.
GRIDS: dict[str, Mapping[int, Sequence[int]]] = {
    "smoke": {1: (3, 9), 2: (3, 5)},
    "laptop": {1: (3, 5, 9, 17, 33), 2: (3, 5, 9, 17, 33), 3: (3, 5, 7, 9, 11), 5: (3, 5),
               7: (3,)},
    "paper": {1: (3, 5, 9, 17, 33, 65), 2: (3, 5, 9, 17, 33, 65), 3: (3, 5, 7, 9, 11, 13, 17),
              5: (3, 5, 7), 7: (3, 5), 9: (3,)},
}  # fmt: skip
#: Standard deviations and dimensions whose Barron norms are computed; draws of the Monte Carlo.
NORMS: dict[str, tuple[Sequence[float], Sequence[int], int]] = {
    "smoke": ((0.5,), (1, 2, 10), 2_000),
    "laptop": ((0.25, 0.5, 1.0), (1, 2, 3, 5, 10, 20, 50, 100), 100_000),
    "paper": ((0.25, 0.5, 1.0), (1, 2, 3, 5, 10, 20, 50, 100, 300, 1000), 1_000_000),
}
POINTS = {"smoke": 200, "laptop": 500, "paper": 1_000}


class Barron(Experiment):
    """Three parts, told apart by ``part`` in a run's configuration.

    - "sampled": thresholds drawn from the density of Theorem 2.12, their L2 error;
    - "grid": piecewise-linear interpolants on a grid, the alternative that dimension curses;
    - "norm": Barron norms by three numerical roads beside the closed form.
    """

    name = "barron"
    title = "Gaussians by sampled thresholds, in many dimensions"
    claim = (
        "A function whose Barron norm is C is within 2 C / sqrt(k) of k thresholds, in L2 of any "
        "distribution on the unit ball, whatever the dimension; for Gaussians of fixed height C "
        "grows like sqrt(d)."
    )
    paper = "004, Theorem 2.12 and Example 2.18 (2)"
    main_metrics = ("error", "expected", "bound", "rms", "closed")
    seconds_per_cost = 0.9

    def runs(self, scale: str) -> list[Run]:
        return [*self._sampled(scale), *self._grids(scale), *self._norms(scale)]

    def _sampled(self, scale: str) -> Iterator[Run]:
        dims, widths, trials, seeds = SAMPLED[scale]
        common = {"part": "sampled", "sigma": SIGMA, "trials": trials, "points": POINTS[scale]}
        for d in dims:
            for seed in range(seeds):
                for width in widths:
                    yield Run(self.name, {**common, "dims": d, "width": width}, seed)

    def _grids(self, scale: str) -> Iterator[Run]:
        for d, counts in GRIDS[scale].items():
            for count in counts:
                config = {"part": "grid", "sigma": SIGMA, "dims": d, "count": count}
                yield Run(self.name, {**config, "points": POINTS[scale]}, 0)

    def _norms(self, scale: str) -> Iterator[Run]:
        sigmas, dims, draws = NORMS[scale]
        for sigma in sigmas:
            for d in dims:
                yield Run(self.name, {"part": "norm", "sigma": sigma, "dims": d, "draws": draws}, 0)

    def group(self, run: Run) -> str:
        config = run.config
        return f"{config['part']}-{config['dims']}-{run.seed}"

    def cost(self, run: Run) -> float:
        """In units of 100 million numbers in hidden layers."""
        config: Mapping[str, Any] = run.config
        if config["part"] == "sampled":
            work = config["trials"] * config["points"] * config["width"]
            return 0.05 + float(work) * (1 + config["dims"] / 30) / 1e8
        if config["part"] == "grid":
            return 0.1 + float(config["count"] ** config["dims"]) * config["points"] / 1e7
        return 0.2 + float(config["draws"] * config["dims"]) / 1e8

    def execute(self, runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
        for run in runs:
            yield run, MEASURES[run.config["part"]](run.config, run.seed)

    def figures(self, results: Sequence[Result]) -> Mapping[str, Figure]:
        from weightloom.experiments.width.barron_draw import draw_barron

        return draw_barron(results)

    def table(self, results: Sequence[Result]) -> Table:
        from weightloom.experiments.width.barron_numbers import barron_table

        return barron_table(results, self.title)

"""Remark 1: terms of the Taylor series of a gradient step, by learning rate and width."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from weightloom.kernels import Tower, empirical
from weightloom.kernels.finite import FiniteTower
from weightloom.kernels.gradient_step import ACTIVATIONS, terms, tower_series
from weightloom_papers.infinite_width.experiments.fig1.experiment import generator_of
from weightloom_papers.infinite_width.experiments.thm1.experiment import INPUTS, ORDERS, inputs
from weightloom_papers.lab import Experiment, Outcome, Result, ResultTable, Run, Workspace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["POWERS", "SETTINGS", "Remark1", "measure"]

LAYERS = 4  # of the network: K^(r) = 0 for r > 4 if it is piecewise linear
SETTINGS = ("relu", "tanh")
#: The learning rate is n to this power.
POWERS = (0.0, 0.25, 0.4, 0.5, 0.75)

#: Widths and draws by scale.
PLANS: dict[str, tuple[Sequence[int], int]] = {
    "smoke": ((16, 64), 12),
    "laptop": ((64, 128, 256, 512), 300),
    "paper": ((64, 128, 256, 512, 1024, 2048, 4096), 1000),
}


def measure(run: Run) -> Outcome:
    """K^(1) .. K^(4) of many networks, and the remainders of steps on another example.

    Curves, with a value for each draw: ``1`` .. ``4``, and for each power a of `POWERS`, with
    mu = n^a, the true remainder ``rest a``, h(w - mu grad h_j) - h + mu K^(1), and the sum of terms
    2 to 4, ``series a``. (The derivative of the loss is 1.) ``disagreement`` is the largest
    relative difference to `empirical.higher_order` on the first network.
    """
    started = time.perf_counter()
    config, generator = run.config, generator_of(run)
    (x_i, x_j), _ = inputs()
    name, width = config["setting"], config["width"]
    tower = Tower(depth=LAYERS, activation=ACTIVATIONS[name][0])
    sizes = [INPUTS] + [width] * (LAYERS - 1) + [1]
    names = [*map(str, ORDERS), *(f"{what} {a}" for a in POWERS for what in ("rest", "series"))]
    columns: dict[str, list[float]] = {name: [] for name in names}
    disagreement = math.nan
    for _ in range(config["draws"]):
        net = FiniteTower(tower, sizes, generator=generator, dtype=torch.float64)
        weights = list(net.parameters())
        step = torch.autograd.grad(net(x_j[None])[0, 0], weights)
        with torch.no_grad():
            k = terms(tower_series(net, name, x_i, step, max(ORDERS)))
            for r in ORDERS:
                columns[str(r)].append(k[r])
            if config["check"] and math.isnan(disagreement):
                disagreement = _disagreement(net, k, x_i, x_j)
            for a in POWERS:
                mu = width**a
                moved = _moved(net, step, mu, x_i)
                columns[f"rest {a}"].append(moved - k[0] + mu * k[1])
                series = sum((-mu) ** r * k[r] / math.factorial(r) for r in ORDERS[1:])
                columns[f"series {a}"].append(series)
    steps = list(range(config["draws"]))
    return Outcome(
        "done",
        {"disagreement": disagreement},
        {name: (steps, values) for name, values in columns.items()},
        seconds=time.perf_counter() - started,
    )


def _disagreement(
    net: FiniteTower, k: Sequence[float], x_i: torch.Tensor, x_j: torch.Tensor
) -> float:
    """Largest relative difference of the terms ``k`` to nested derivatives."""
    slow = empirical.higher_order(net, x_i[None], x_j[None], ORDERS)
    return max(abs(k[r] / float(s) - 1) for r, s in zip(ORDERS, slow, strict=True))


def _moved(net: FiniteTower, step: Sequence[torch.Tensor], mu: float, x: torch.Tensor) -> float:
    """The output after a step; the network is not changed."""
    names = [name for name, _ in net.named_parameters()]
    values = [p - mu * d for p, d in zip(net.parameters(), step, strict=True)]
    moved = dict(zip(names, values, strict=True))
    return float(torch.func.functional_call(net, moved, (x[None],)))


class Remark1(Experiment):
    """The size of each term of the series, and the true remainder of finite steps."""

    name = "infinite-width/remark1"
    title = "Learning rates that grow with the width"
    claim = (
        "The r-th term of the Taylor expansion is of order mu^r / (r! n^(r-1)), not mu^r / (r! n); "
        "for any mu = o(sqrt n) all terms beyond the first tend to zero (Remark 1; Appendix B.2 "
        "says o(n))."
    )
    paper = "infinite-width, Remark 1"
    main_metrics = ("disagreement",)
    seconds_per_cost = 6e-3

    def runs(self, scale: str) -> list[Run]:
        widths, draws = PLANS[scale]
        return [
            Run(
                self.name,
                {
                    "setting": setting,
                    "width": width,
                    "layers": LAYERS,
                    "draws": draws,
                    "powers": list(POWERS),
                    "check": width == widths[0],
                },
                0,
            )
            for setting in SETTINGS
            for width in widths
        ]

    def cost(self, run: Run) -> float:
        """In units of one draw of a small network."""
        config = run.config
        return 30 * config["check"] + float(config["draws"]) * (1 + config["width"] ** 2 / 50_000)

    def execute(self, runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
        for run in runs:
            yield run, measure(run)

    def figures(self, results: Sequence[Result]) -> Mapping[str, Figure]:
        from weightloom_papers.infinite_width.experiments.remark1.figure import draw_remark1

        return draw_remark1(results)

    def table(self, results: Sequence[Result]) -> ResultTable:
        from weightloom_papers.infinite_width.experiments.remark1.analysis import remark1_table

        return remark1_table(results, self.title)

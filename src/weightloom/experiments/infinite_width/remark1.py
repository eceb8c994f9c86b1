"""Remark 1: terms of the Taylor series of a step, against learning rate and width."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from weightloom.experiments.infinite_width.fig1a import generator_of
from weightloom.experiments.infinite_width.thm1 import INPUTS, ORDERS, inputs
from weightloom.experiments.infinite_width.thm1_series import ACTIVATIONS, terms, tower_series
from weightloom.kernels import Tower, empirical
from weightloom.kernels.finite import FiniteTower
from weightloom.lab import Experiment, Outcome, Result, Run, Table, Workspace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["POWERS", "SETTINGS", "Remark1", "measure"]

LAYERS = 4  # of the network: K^(r) = 0 for r > 4 if it is piecewise linear
SETTINGS = ("relu", "tanh")
#: The learning rate is n to this power.
POWERS = (0.0, 0.25, 0.4, 0.5, 0.75)

#: Widths and draws by scale.
SCALE: dict[str, tuple[Sequence[int], int]] = {
    "smoke": ((16, 64), 12),
    "laptop": ((64, 128, 256, 512), 300),
    "paper": ((64, 128, 256, 512, 1024, 2048, 4096), 1000),
}


def measure(run: Run) -> Outcome:
    """K^(1) .. K^(4) of many networks, and what steps on another example leave unexplained.

    Curves, a value for each draw: ``1`` .. ``4``; for each power a of `POWERS`, with mu = n^a,
    ``rest a`` is h(w - mu grad h_j) - h + mu K^(1), what the linear term leaves out, and
    ``series a`` what terms 2 to 4 make of it. (The derivative of the loss is 1.) ``disagreement``
    is the largest relative difference to `empirical.higher_order` on the first network.
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
                slow = empirical.higher_order(net, x_i[None], x_j[None], ORDERS)
                disagreement = max(
                    abs(k[r] / float(s) - 1) for r, s in zip(ORDERS, slow, strict=True)
                )
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


def _moved(net: FiniteTower, step: Sequence[torch.Tensor], mu: float, x: torch.Tensor) -> float:
    """The output after a step; the network is left as it was."""
    names = [name for name, _ in net.named_parameters()]
    values = [p - mu * d for p, d in zip(net.parameters(), step, strict=True)]
    moved = dict(zip(names, values, strict=True))
    return float(torch.func.functional_call(net, moved, (x[None],)))


class Remark1(Experiment):
    """How large each term of the series is, and the true remainder of finite steps."""

    name = "remark1"
    title = "Learning rates that grow with the width"
    claim = (
        "The r-th term of the Taylor expansion is of order mu^r / (r! n^(r-1)), not mu^r / (r! n); "
        "for any mu = o(sqrt n) all terms beyond the first tend to zero (Remark 1; Appendix B.2 "
        "says o(n))."
    )
    paper = "001, Remark 1"
    main_metrics = ("disagreement",)
    seconds_per_cost = 6e-3

    def runs(self, scale: str) -> list[Run]:
        widths, draws = SCALE[scale]
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
        """In draws of small networks."""
        config = run.config
        return 30 * config["check"] + float(config["draws"]) * (1 + config["width"] ** 2 / 50_000)

    def execute(self, runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
        for run in runs:
            yield run, measure(run)

    def figures(self, results: Sequence[Result]) -> Mapping[str, Figure]:
        from weightloom.experiments.infinite_width.remark1_draw import draw_remark1

        return draw_remark1(results)

    def table(self, results: Sequence[Result]) -> Table:
        from weightloom.experiments.infinite_width.remark1_numbers import remark1_table

        return remark1_table(results, self.title)

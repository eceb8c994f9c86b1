"""The theorem of "On the Modularity of Hypernetworks" put to the test: parameters against error."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from weightloom.experiments.modularity.rates_constructive import measure
from weightloom.experiments.modularity.rates_scales import cost_of, runs_at
from weightloom.experiments.modularity.rates_trained import execute_trained
from weightloom.lab import Experiment, Outcome, Result, Run, Table, Workspace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Rates"]


class Rates(Experiment):
    """Three parts, told apart by ``part`` in a run's configuration.

    - "constructive": certified networks for hard and smooth targets on finer and finer grids;
    - "trained": the smallest primary that training brings to a given relative error;
    - "total": all weights together, for targets with a selector of few numbers (Theorem 6).
    """

    name = "rates"
    title = "How the primary network grows with accuracy"
    claim = (
        "To reach error eps on an r-smooth target, a hypernetwork's primary needs of order "
        "eps^-(m1/r) parameters, a plain network eps^-((m1+m2)/r); for r = 1 an embedding method's "
        "predictor needs eps^-(m1+m2), or eps^-min(m1+m2, 2 m1) if the embedding may grow."
    )
    paper = "000, Theorems 2-6"
    main_metrics = ("sup", "rms", "primary", "total", "bound", "relative_rms")

    def runs(self, scale: str) -> list[Run]:
        return runs_at(self.name, scale)

    def group(self, run: Run) -> str:
        """Built networks of one kind, one after the other; trained ones of one shape, at once."""
        config = dict(run.config)
        trained = config["part"] == "trained"
        free = ("pieces", "learning_rate") if trained else ("pieces", "counts", "points")
        for name in free:
            config.pop(name, None)
        text = json.dumps(config, sort_keys=True)
        return f"{config['part']}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    def size_limit(self) -> int:
        """Stacked networks are small: the more at once, the less is lost between them."""
        return 32

    def cost(self, run: Run) -> float:
        return cost_of(run)

    def execute(self, runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
        if runs[0].config["part"] == "trained":
            yield from execute_trained(runs, workspace)
        else:
            for run in runs:
                yield run, measure(run.config, run.seed)

    def figures(self, results: Sequence[Result]) -> Mapping[str, Figure]:
        from weightloom.experiments.modularity.rates_draw import draw_rates

        return draw_rates(results)

    def table(self, results: Sequence[Result]) -> Table:
        from weightloom.experiments.modularity.rates_numbers import rates_table

        return rates_table(results, self.title)

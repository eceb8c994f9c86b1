"""Is what can be represented also found? Networks of depth 2, 3 and more, trained and by hand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from weightloom.experiments.separation.scales import cost_of, runs_at
from weightloom.experiments.separation.training import execute_trained, measure_by_hand
from weightloom.lab import Experiment, Outcome, Result, Run, Table, Workspace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["DepthSeparation"]


class DepthSeparation(Experiment):
    """Two tasks ("sphere", "sawtooth"), two parts ("by hand", "trained")."""

    name = "depth-separation"
    title = "Depth, trained: as many parameters in 2 or more layers"
    claim = (
        "sin(pi d^3 <x, x'>) and Delta^k are small networks if deep and large ones if shallow. "
        "That is about networks that exist; nothing is said about training them."
    )
    paper = "003, main theorem; 004, Theorem 4.4"
    main_metrics = ("relative", "validation", "sup", "pieces", "l1")

    def runs(self, scale: str) -> list[Run]:
        return runs_at(self.name, scale)

    def group(self, run: Run) -> str:
        """One architecture and one length of training; levels, rates and seeds are free."""
        free = ("level", "learning_rate")
        config = {name: value for name, value in run.config.items() if name not in free}
        text = json.dumps(config, sort_keys=True)
        return f"{config['part']}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    def cost(self, run: Run) -> float:
        return cost_of(run)

    def execute(self, runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
        if runs[0].config["part"] == "trained":
            yield from execute_trained(runs, workspace)
        else:
            for run in runs:
                yield run, measure_by_hand(run.config)

    def figures(self, results: Sequence[Result]) -> Mapping[str, Figure]:
        from weightloom.experiments.separation.depth_draw import draw_depth

        return draw_depth(results)

    def table(self, results: Sequence[Result]) -> Table:
        from weightloom.experiments.separation.depth_numbers import depth_table

        return depth_table(results, self.title)

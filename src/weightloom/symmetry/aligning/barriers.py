"""The loss on the line between two networks, before and after one is aligned to the other."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from weightloom.errors import ConfigError, MissingDependencyError, OutputError
from weightloom.symmetry.aligning.alignment import Alignment, align
from weightloom.symmetry.aligning.averaging import interpolate
from weightloom.symmetry.aligning.batches import DataBatches
from weightloom.symmetry.aligning.judging import Judge, Loss

__all__ = ["Barrier", "loss_barrier"]


@dataclass(frozen=True)
class Barrier:
    """Losses along the line from a (t = 0) to b (t = 1).

    ``losses`` and ``barrier``: with b aligned to a (and repaired in between, with data).
    ``naive_losses`` and ``naive_barrier``: with b as given. A barrier is the largest height of the
    loss above the straight line between its ends, at least 0.
    """

    ts: tuple[float, ...]
    losses: tuple[float, ...]
    barrier: float
    naive_losses: tuple[float, ...]
    naive_barrier: float
    alignment: Alignment

    def plot(self, path: str | os.PathLike[str]) -> Path:
        """Draws both curves into a file (the suffix sets the format) and returns its path."""
        try:
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
        except ImportError as error:
            raise MissingDependencyError(
                "the figure needs matplotlib; pip install 'weightloom[plot]'"
            ) from error
        figure = Figure(figsize=(5, 3.2), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.plot(self.ts, self.naive_losses, "o--", color="0.55", label="as given")
        axes.plot(self.ts, self.losses, "o-", color="tab:blue", label="aligned")
        axes.set_xlabel("t: (1 - t) a + t b")
        axes.set_ylabel("loss")
        axes.legend(frameon=False)
        target = Path(path)
        try:
            figure.savefig(target)
        except (OSError, ValueError) as error:
            raise OutputError(f"cannot write the figure to {target}: {error}") from error
        return target


def loss_barrier(
    a: nn.Module,
    b: nn.Module,
    loss: Loss,
    steps: int = 11,
    method: str | None = None,
    *,
    data: Any = None,
    repair: bool = True,
    progress: bool = False,
) -> Barrier:
    """The loss barrier between a and b, before and after `align`.

    ``loss`` takes a network and returns a number (on data that both were trained for). ``method``
    and ``data`` are those of `align`, which chooses by the same loss. With data, the aligned
    networks between a and b are repaired (`repair`); those as given never are.
    """
    if steps < 3:
        raise ConfigError(f"steps is {steps}; at least 3 points are needed to see a barrier")
    ts = tuple(step / (steps - 1) for step in range(steps))
    aligned = align(a, b, data, method=method, loss=loss, repair=repair, progress=progress)
    batches = None if data is None else DataBatches(data, progress)
    judge = Judge(loss, batches, repair and aligned.method != "exact")
    naive = tuple(judge.loss_of(interpolate(a, b, t)) for t in ts)
    losses = tuple(
        judge.loss_of(
            judge.join([a, aligned.module], (1 - t, t))[0]
            if 0 < t < 1
            else interpolate(a, aligned.module, t)
        )
        for t in ts
    )
    return Barrier(ts, losses, _height(ts, losses), naive, _height(ts, naive), aligned)


def _height(ts: tuple[float, ...], losses: tuple[float, ...]) -> float:
    lines = ((1 - t) * losses[0] + t * losses[-1] for t in ts)
    return max(0.0, *(value - line for value, line in zip(losses, lines, strict=True)))

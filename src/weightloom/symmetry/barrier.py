"""The loss on the straight line between two networks, with and without alignment."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from weightloom.errors import ConfigError, MissingDependencyError, OutputError
from weightloom.symmetry.align import Alignment, align, interpolate

__all__ = ["Barrier", "loss_barrier"]


@dataclass(frozen=True)
class Barrier:
    """Losses along the line from a (t = 0) to b (t = 1).

    ``losses`` and ``barrier``: with b aligned to a; ``naive_losses`` and ``naive_barrier``: with b
    as it was given. A barrier is the largest height of the loss above the straight line between its
    ends, at least 0.
    """

    ts: tuple[float, ...]
    losses: tuple[float, ...]
    barrier: float
    naive_losses: tuple[float, ...]
    naive_barrier: float
    alignment: Alignment

    def plot(self, path: str | os.PathLike[str]) -> Path:
        """Draws both curves into a file (the ending says which format) and returns its path."""
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
    loss: Callable[[nn.Module], float],
    steps: int = 11,
    method: str = "auto",
) -> Barrier:
    """The loss barrier between a and b, before and after `align`.

    ``loss`` takes a network and returns a number (it should use data that both were trained for).
    """
    if steps < 3:
        raise ConfigError(f"steps is {steps}; at least 3 points are needed to see a barrier")
    ts = tuple(step / (steps - 1) for step in range(steps))
    aligned = align(a, b, method)
    naive = tuple(float(loss(interpolate(a, b, t))) for t in ts)
    losses = tuple(float(loss(interpolate(a, aligned.module, t))) for t in ts)
    return Barrier(ts, losses, _height(ts, losses), naive, _height(ts, naive), aligned)


def _height(ts: tuple[float, ...], losses: tuple[float, ...]) -> float:
    lines = ((1 - t) * losses[0] + t * losses[-1] for t in ts)
    return max(0.0, *(value - line for value, line in zip(losses, lines, strict=True)))

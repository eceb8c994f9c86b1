"""Figure 4: the same networks at learning rates from 10^-7 to 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weightloom.experiments.infinite_width.fig2 import PAPER as FIGURE_2
from weightloom.experiments.infinite_width.rotations_execute import RotationTask
from weightloom.lab import Result, Run, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["SCALE", "RotationRates"]

#: Appendix B.1 says "the same architectures", and then widths of its own for both sets.
PAPER: dict[str, Any] = {
    **FIGURE_2,
    "widths": (50, 100, 200),
    "rates": tuple(10.0**j for j in range(-7, 1)),
    "epochs": 40,
}
SCALE: dict[str, dict[str, Any]] = {
    "smoke": {
        **PAPER,
        "sets": ("mnist",),
        "widths": (4, 12),
        "depths": (3,),
        "inits": ("default",),
        "rates": (1e-4, 1e-2, 1.0),
        "seeds": 2,
        "side": 7,
        "train_images": 200,
        "test_images": 200,
        "epochs": 1,
        "f_width": 20,
    },
    # Coarser images, a narrower f, the ends of widths and depths, 240 steps instead of 4,000.
    "laptop": {
        **PAPER,
        "widths": (20, 60),
        "depths": (3, 8),
        "seeds": 3,
        "side": {"mnist": 14, "cifar10": 8},
        "train_images": 2_000,
        "test_images": 2_000,
        "epochs": 12,
        "f_width": 50,
    },
    "paper": PAPER,
}


class RotationRates(RotationTask):
    """Accuracy at the end of training, over the learning rate."""

    name = "fig4"
    title = "Predicting rotations at learning rates from 10^-7 to 1"
    claim = (
        "For every learning rate at which the networks learn anything, test performance improves "
        "as g gets wider; a deeper g trains more slowly and ends lower."
    )
    paper = "001, Figure 4"

    def runs(self, scale: str) -> list[Run]:
        return self.configurations(SCALE[scale])

    def figures(self, results: Sequence[Result]) -> Mapping[str, Figure]:
        from weightloom.experiments.infinite_width.rotations_draw import draw_rates

        return draw_rates(results)

    def table(self, results: Sequence[Result]) -> Table:
        from weightloom.experiments.infinite_width.rotations_numbers import (
            accuracy_table,
            rate_verdicts,
        )

        return accuracy_table(results, self.title, rate_verdicts(results))

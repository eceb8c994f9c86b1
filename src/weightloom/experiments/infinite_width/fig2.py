"""Figure 2: how the width and depth of g change the training of a hypernetwork."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weightloom.experiments.infinite_width.rotations_execute import RotationTask
from weightloom.lab import Result, Run, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["SCALE", "Rotations"]

#: The paper's networks. It does not say how they were initialised: twice, see `rotations_models`.
PAPER: dict[str, Any] = {
    "sets": ("mnist", "cifar10"),
    "widths": {"mnist": (10, 50, 100), "cifar10": (100, 200, 300)},
    "depths": (3, 6, 8),
    "inits": ("default", "hyperfan_in"),
    "rates": (0.01,),
    "seeds": 100,
    "side": {"mnist": 28, "cifar10": 32},
    "train_images": 10_000,
    "test_images": 10_000,
    "epochs": 100,
    "batch_size": 100,
    "f_width": 200,
    "f_depth": 4,
}
SCALE: dict[str, dict[str, Any]] = {
    "smoke": {
        **PAPER,
        "widths": (4, 12),
        "depths": (3, 6),
        "inits": ("default",),
        "seeds": 2,
        "side": {"mnist": 7, "cifar10": 4},
        "train_images": 200,
        "test_images": 200,
        "epochs": 2,
        "f_width": 20,
    },
    # Coarser images (means over 2 x 2 and 4 x 4 pixels): the cost is that of f's last layer, which
    # grows with the pixels. CIFAR-10's widths are a third of the paper's. There are 420 steps, not
    # 10,000: with the default initialisation nothing is learned by then at the paper's rate, so it
    # gets ten times as much (hyperfan_in does learn at 0.01, and diverges at 0.1).
    "laptop": {
        **PAPER,
        "rates": {"default": (0.1,), "hyperfan_in": (0.01,)},
        "widths": {"mnist": (10, 50, 100), "cifar10": (33, 66, 100)},
        "seeds": 3,
        "side": {"mnist": 14, "cifar10": 8},
        "train_images": 3_000,
        "test_images": 2_000,
        "epochs": 14,
        "f_width": 100,
    },
    "paper": PAPER,
}


class Rotations(RotationTask):
    """Accuracy over epochs, for every width and depth of g, in two initialisations."""

    name = "fig2"
    title = "Predicting rotations: width and depth of the primary network"
    claim = (
        "A hypernetwork with a wider and shallower primary network g trains faster and achieves "
        "better test performance on the rotation prediction task."
    )
    paper = "001, Figure 2"

    def runs(self, scale: str) -> list[Run]:
        return self.configurations(SCALE[scale])

    def figures(self, results: Sequence[Result]) -> Mapping[str, Figure]:
        from weightloom.experiments.infinite_width.rotations_draw import draw_epochs

        return draw_epochs(results)

    def table(self, results: Sequence[Result]) -> Table:
        from weightloom.experiments.infinite_width.rotations_numbers import (
            accuracy_table,
            epoch_verdicts,
        )

        return accuracy_table(results, self.title, epoch_verdicts(results))

"""What `fit` returns: the curves, how it ended, and what is needed to go on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from weightloom.errors import TrainingError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["DivergedError", "FitHistory"]


@dataclass
class FitHistory:
    """The course of one `fit`. Lists have one value for each epoch; epochs count from 1."""

    losses: list[float] = field(default_factory=list)
    """mean training loss of each epoch, measured while it was trained"""
    validation: list[float] = field(default_factory=list)
    """loss on the validation data after each epoch; empty without such data"""
    status: str = "done"
    """"done", "stopped early" (patience) or "interrupted" (Ctrl-C)"""
    message: str = ""
    steps: int = 0
    seconds: float = 0.0
    restored: int | None = None
    """the epoch whose weights the model has, if they are not the last; 0: those of the start"""
    optimiser: torch.optim.Optimizer | None = field(default=None, repr=False)
    best: Best | None = field(default=None, repr=False)
    last: dict[str, Tensor] | None = field(default=None, repr=False)
    """the weights of the last step, if the model has those of the best epoch"""
    part: PartOfEpoch | None = field(default=None, repr=False)

    @property
    def best_epoch(self) -> int:
        """The epoch with the lowest validation loss (training loss without validation data)."""
        values = self.validation or self.losses
        return 0 if not values else 1 + min(range(len(values)), key=values.__getitem__)

    def plot(self) -> Figure:
        """The curves as a matplotlib figure: ``history.plot().savefig("loss.png")``."""
        from weightloom.plotting import GREY, new_figure, require_matplotlib, style

        require_matplotlib("read history.losses and history.validation")
        figure, (axis,) = new_figure()
        epochs = range(1, len(self.losses) + 1)
        with style():
            axis.plot(epochs, self.losses, label="training")
            if self.validation:
                axis.plot(range(1, len(self.validation) + 1), self.validation, label="validation")
                axis.axvline(self.best_epoch, color=GREY, linestyle=":", label="best epoch")
                axis.legend()
            axis.set(xlabel="epoch", ylabel="loss")
            if min([*self.losses, *self.validation], default=0.0) > 0.0:
                axis.set_yscale("log")
        return figure


@dataclass
class Best:
    """The weights of the best epoch so far."""

    value: float
    epoch: int
    weights: dict[str, Tensor]


@dataclass
class PartOfEpoch:
    """The steps of an epoch that has not ended."""

    batches: int
    loss: float
    """sum over the rows"""
    rows: int
    before: dict[str, Tensor]
    """the weights that the epoch began with; empty if validation decides which are the best"""


def kept(model: nn.Module) -> dict[str, Tensor]:
    """What training changes: not a frozen base."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return {**trained, **dict(model.named_buffers())}


@torch.no_grad()
def fill(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    for name, tensor in kept(model).items():
        tensor.copy_(weights[name])


class DivergedError(TrainingError):
    """A loss that is not finite. `history` has the curves up to there."""

    def __init__(self, message: str, history: Any = None) -> None:
        super().__init__(message)
        self.history = history

"""How often a classifier is right, measured by a training loop that only knows its objective.

`training` evaluates the objective on every held-out set. A `Voter` answers, on rows that are
marked, with its vote instead of its numbers: a one for the largest, zeros for the rest, times a
height. The objective of a vote is 0 where it is right and one known value where it is wrong, so its
mean over a held-out set is that value times the error rate.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weightloom.training import Split

__all__ = ["HEIGHT", "Voter", "accuracy_of", "both", "marked"]

#: For each objective: the height of a vote; so high that exp(-height) is nothing beside 1.
HEIGHT = {"cross_entropy": 100.0, "mse": 1.0}


class Voter(nn.Module):
    """``model`` with one more input, the last: marks [b]; where it is true, a vote is returned."""

    def __init__(self, model: nn.Module, objective: str) -> None:
        super().__init__()
        self.model = model
        self.height = HEIGHT[objective]

    def forward(self, *inputs: Tensor) -> Tensor:
        *mine, marks = inputs
        output: Tensor = self.model(*mine)
        classes = torch.arange(output.shape[-1], device=output.device)
        vote = self.height * (output.argmax(-1, keepdim=True) == classes).to(output)
        vote = vote + 0.0 * output  # no vote from an output that is not finite: NaN
        return torch.where(marks.unsqueeze(-1), vote, output)


def accuracy_of(value: float, objective: str, classes: int) -> float:
    """The share of right votes from the mean objective of votes.

    A wrong vote costs the height under cross-entropy (log(1 + 11 exp(-100)) is nothing), and
    2/classes of its square under the mean squared error.

    >>> round(accuracy_of(25.0, "cross_entropy", 12), 3), accuracy_of(0.05, "mse", 10)
    (0.75, 0.75)
    """
    height = HEIGHT[objective]
    wrong = height if objective == "cross_entropy" else 2.0 * height**2 / classes
    return 1.0 - value / wrong


def marked(split: Split, mark: bool) -> Split:
    """``split`` for a `Voter`: with ``mark`` on every row."""
    marks = torch.full((len(split),), mark, dtype=torch.bool)
    return Split((*split.inputs, marks), split.target)


def both(test: Split) -> dict[str, Split]:
    """Held-out sets for the loss and for the votes, of the same samples."""
    return {"test": marked(test, False), "votes": marked(test, True)}

"""Training: one loop for one model or many at once, with checkpoints that resume exactly."""

from weightloom.training.loop import train
from weightloom.training.members import Augment, Member, Report, Split
from weightloom.training.settings import Settings

__all__ = [
    # what to train, and how
    "Member",
    "Split",
    "Augment",
    "Settings",
    # training it
    "train",
    "Report",
]

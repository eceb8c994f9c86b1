"""Training: one loop for one model or for many at once, with checkpoints that resume exactly."""

from weightloom.training.data import Augment, Member, Split
from weightloom.training.loop import train
from weightloom.training.report import Report
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

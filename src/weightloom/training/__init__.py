"""Training: `fit` for one model, `train` for many at once, and what else learning needs."""

from weightloom.training.continual import OutputRegulariser, output_regulariser
from weightloom.training.ensembles import (
    LearnedConditions,
    SampledCondition,
    SampledNetworks,
    fit_condition,
    sample_networks,
)
from weightloom.training.fitting import fit
from weightloom.training.history import DivergedError, FitHistory
from weightloom.training.loop import train
from weightloom.training.members import Augment, Member, Report, Split
from weightloom.training.settings import Settings

__all__ = [
    # one model, in one line
    "fit",
    "FitHistory",
    "DivergedError",
    # many at once: what to train, and how
    "Member",
    "Split",
    "Augment",
    "Settings",
    # training them
    "train",
    "Report",
    # one task after another
    "output_regulariser",
    "OutputRegulariser",
    # conditions that are not data
    "LearnedConditions",
    "fit_condition",
    "SampledCondition",
    "sample_networks",
    "SampledNetworks",
]

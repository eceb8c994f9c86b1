"""Is this hypernetwork healthy? Scales, gradients and dependence on the condition, layer by layer.

`diagnose` measures a model on one batch and returns a `Diagnosis`: a table to print, a figure, and
warnings with a remedy for each. With an optimiser it also trains a copy for a few steps.
"""

from weightloom.hyper.diagnosis.measuring import diagnose
from weightloom.hyper.diagnosis.report import (
    Diagnosis,
    FeatureSummary,
    LayerRow,
    StepReport,
    StepRow,
)

__all__ = ["diagnose", "Diagnosis", "LayerRow", "FeatureSummary", "StepReport", "StepRow"]

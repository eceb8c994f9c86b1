"""The parts of `weightloom.models.diagnose`: measuring, judging, showing."""

from weightloom.models.diagnosis.advice import advise
from weightloom.models.diagnosis.report import Diagnosis, Features, LayerRow

__all__ = ["Diagnosis", "Features", "LayerRow", "advise"]

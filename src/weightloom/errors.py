"""The exceptions users meet. Each message says what was seen, what was wanted and what to do.

Every class also derives from the built-in exception that a reader would expect, so
``except ValueError`` keeps working for people who do not know these names.
"""

from __future__ import annotations

__all__ = [
    "CheckpointError",
    "HeadError",
    "MissingDependencyError",
    "NonFiniteWeightsError",
    "PatternError",
    "ShapeError",
    "SlowPathWarning",
    "UnsupportedModuleError",
    "WeightloomError",
]


class WeightloomError(Exception):
    """Base of everything weightloom raises on purpose."""


class ShapeError(WeightloomError, ValueError):
    """Tensors that do not fit together."""


class PatternError(WeightloomError, ValueError):
    """A pattern that selects no parameter."""


class HeadError(WeightloomError, ValueError):
    """A head or an initialisation that does not exist or does not fit the model."""


class UnsupportedModuleError(WeightloomError, TypeError):
    """A module whose weights cannot be generated."""


class NonFiniteWeightsError(WeightloomError, ArithmeticError):
    """Generated weights that hold NaN or infinity; the message names the first such tensor."""


class CheckpointError(WeightloomError, RuntimeError):
    """A file or state dict that does not belong to this model."""


class MissingDependencyError(WeightloomError, ImportError):
    """An optional package that is needed for what was asked."""


class SlowPathWarning(UserWarning):
    """Something runs in a loop over conditions because no batched form of it exists."""

"""The exceptions users meet. Each message says what was seen, what was wanted and what to do.

Every class also derives from the matching built-in exception, so ``except ValueError`` works for
people who do not know these names.
"""

from __future__ import annotations

__all__ = [
    "CertificateError",
    "CheckpointError",
    "ConfigError",
    "ConvergenceError",
    "HeadError",
    "KernelError",
    "MemoryLimitError",
    "MissingDependencyError",
    "NonFiniteWeightsError",
    "NotPositiveDefiniteError",
    "OutputError",
    "PatternError",
    "ShapeError",
    "SlowPathWarning",
    "TrainingError",
    "UndecidedError",
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


# Not a TypeError: PyTorch takes one that is raised inside `a * b` for "this type cannot do it".
class UnsupportedModuleError(WeightloomError, NotImplementedError):
    """A module whose weights cannot be generated."""


class NonFiniteWeightsError(WeightloomError, ArithmeticError):
    """Generated weights that hold NaN or infinity; the message names the first such tensor."""


class CertificateError(WeightloomError, ArithmeticError):
    """A proven bound that a given network violates; the message shows where."""


class CheckpointError(WeightloomError, RuntimeError):
    """A file or state dict that does not belong to this model."""


class KernelError(WeightloomError, ValueError):
    """A kernel, an activation or data that kernel methods cannot use as given."""


class MemoryLimitError(WeightloomError, MemoryError):
    """Work that needs more memory than there is, or than was allowed. It was not started."""


class NotPositiveDefiniteError(WeightloomError, ArithmeticError):
    """A matrix that has no Cholesky factor, even with a small multiple of the identity added."""


class ConvergenceError(WeightloomError, RuntimeError):
    """An iteration that stopped before the tolerance; `solution` holds the best iterate."""

    def __init__(self, message: str, solution: object = None) -> None:
        super().__init__(message)
        self.solution = solution


class ConfigError(WeightloomError, ValueError):
    """A run, an experiment or an option that cannot be used as given."""


class TrainingError(WeightloomError, ValueError):
    """Settings or members (models trained together) that cannot be trained as given."""


class UndecidedError(WeightloomError, ValueError):
    """A verdict that was asked for yes or no and is neither; the message says what is missing."""


class OutputError(WeightloomError, OSError):
    """A place that cannot be written to."""


class MissingDependencyError(WeightloomError, ImportError):
    """An optional package that is not installed and is needed here."""


class SlowPathWarning(UserWarning):
    """Something runs in a loop (over conditions, over members) because it has no batched form."""

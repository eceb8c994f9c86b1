"""The exceptions users meet. Each message says what was seen, what was wanted and what to do.

Every class also derives from the built-in exception that a reader would expect, so
``except ValueError`` keeps working for people who do not know these names.
"""

from __future__ import annotations

__all__ = [
    "CertificateError",
    "CheckpointError",
    "ConfigError",
    "ConvergenceError",
    "CorruptRowWarning",
    "EngineError",
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
    "StoreError",
    "StoreFullError",
    "StoreLockedError",
    "StoreVersionError",
    "TrainingError",
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


class CertificateError(WeightloomError, ArithmeticError):
    """A proven bound that the network in hand does not keep; the message shows where."""


class CheckpointError(WeightloomError, RuntimeError):
    """A file or state dict that does not belong to this model."""


class KernelError(WeightloomError, ValueError):
    """A kernel, an activation or data that kernel methods cannot use as given."""


class MemoryLimitError(WeightloomError, MemoryError):
    """Work that would need more memory than there is, or than was allowed; nothing was started."""


class NotPositiveDefiniteError(WeightloomError, ArithmeticError):
    """A matrix that has no Cholesky factor, even after a little was added to its diagonal."""


class ConvergenceError(WeightloomError, RuntimeError):
    """An iteration that stopped before the tolerance; `solution` holds the best that it found."""

    def __init__(self, message: str, solution: object = None) -> None:
        super().__init__(message)
        self.solution = solution


class ConfigError(WeightloomError, ValueError):
    """A run, an experiment or an option that cannot be used as given."""


class TrainingError(WeightloomError, ValueError):
    """Settings or members that cannot be trained as they are."""


class StoreError(WeightloomError, RuntimeError):
    """A store of results that cannot be read or written."""


class StoreVersionError(StoreError):
    """A store that a newer weightloom has written."""


class StoreLockedError(StoreError):
    """A store that another process does not let go of."""


class StoreFullError(StoreError):
    """A store that cannot grow: the disk is full."""


class EngineError(WeightloomError, RuntimeError):
    """Workers or a cluster that cannot be started or reached."""


class OutputError(WeightloomError, OSError):
    """A place that cannot be written to."""


class MissingDependencyError(WeightloomError, ImportError):
    """An optional package that is needed for what was asked."""


class SlowPathWarning(UserWarning):
    """Something runs in a loop (over conditions, over members) because it has no batched form."""


class CorruptRowWarning(UserWarning):
    """A row of the store that cannot be read; it is named and left out."""

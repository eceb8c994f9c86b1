"""The exceptions of the lab, beside those of `weightloom.errors`.

Each message says what was seen, what was wanted and what to do. The command line and the page
report every `WeightloomError` without a traceback, these included.
"""

from __future__ import annotations

from weightloom.errors import WeightloomError

__all__ = [
    "CorruptRowWarning",
    "EngineError",
    "StoreError",
    "StoreFullError",
    "StoreLockedError",
    "StoreVersionError",
]


class StoreError(WeightloomError, RuntimeError):
    """A store of results that cannot be read or written."""


class StoreVersionError(StoreError):
    """A store that was written by a newer version of weightloom-papers."""


class StoreLockedError(StoreError):
    """A store that another process keeps locked."""


class StoreFullError(StoreError):
    """A store that cannot grow because the disk is full."""


class EngineError(WeightloomError, RuntimeError):
    """Workers or a cluster that cannot be started or reached."""


class CorruptRowWarning(UserWarning):
    """A row of the store that cannot be read. It is named and left out."""

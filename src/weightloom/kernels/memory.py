"""How much memory there is, and saying no before the work starts: the words of linalg, for kernels.

A kernel matrix and a factor of it compete for the same memory, so there is one way to count it.
"""

from __future__ import annotations

from weightloom.linalg.memory import available, check, empty, parse, readable

__all__ = ["available", "check", "empty", "parse", "readable"]

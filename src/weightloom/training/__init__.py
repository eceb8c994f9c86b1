"""Training loops."""

from weightloom.training.loop import History, fit

__all__ = ["History", "fit"]

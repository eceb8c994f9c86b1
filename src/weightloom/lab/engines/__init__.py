"""Engines: what carries out runs. All of them hand results back; none writes to the store."""

from weightloom.lab.engines.base import Died, Ended, Engine, Event, Job, perform
from weightloom.lab.engines.choose import ENGINES, make_engine

__all__ = ["ENGINES", "Died", "Ended", "Engine", "Event", "Job", "make_engine", "perform"]

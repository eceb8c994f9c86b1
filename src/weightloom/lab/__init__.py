"""Running and remembering: runs, their store, the engines that do them, and figures from it all."""

from weightloom.lab import drawing
from weightloom.lab.engines import ENGINES, Engine, make_engine
from weightloom.lab.estimates import Estimate, duration, estimate
from weightloom.lab.experiment import SCALES, Experiment, Workspace, wanted
from weightloom.lab.figures import DEFAULT_FIGURES, Drawing, draw, stored_scale
from weightloom.lab.runner import Summary, run_experiments
from weightloom.lab.runs import STATUSES, Outcome, Result, Run
from weightloom.lab.store import DEFAULT_STORE, Store
from weightloom.lab.table import Table

__all__ = [
    # What an experiment is
    "Experiment",
    "Workspace",
    "SCALES",
    "wanted",
    # What was done, and what came of it
    "Run",
    "Outcome",
    "Result",
    "STATUSES",
    "Table",
    # Remembering
    "Store",
    "DEFAULT_STORE",
    # Doing
    "run_experiments",
    "Summary",
    "Engine",
    "ENGINES",
    "make_engine",
    "estimate",
    "Estimate",
    "duration",
    # Showing
    "draw",
    "drawing",
    "Drawing",
    "DEFAULT_FIGURES",
    "stored_scale",
]

"""The lab: runs experiments, stores every result, and draws figures and tables from the store.

Experiments subclass `Experiment`; `run_experiments` executes them with a `JobEngine` and adds each
result to a `Store`; `draw` reads the store alone.
"""

from weightloom_papers.lab import drawing
from weightloom_papers.lab.engines import ENGINES, JobEngine, make_engine
from weightloom_papers.lab.estimates import CostEstimate, duration, estimate
from weightloom_papers.lab.experiment import SCALES, Experiment, Workspace, wanted
from weightloom_papers.lab.figures import DEFAULT_FIGURES, DrawnFigures, draw, stored_scale
from weightloom_papers.lab.runner import Summary, run_experiments
from weightloom_papers.lab.runs import STATUSES, Outcome, Result, Run
from weightloom_papers.lab.store import DEFAULT_STORE, Store
from weightloom_papers.lab.tables import ResultTable

__all__ = [
    # what an experiment is
    "Experiment", "Workspace", "SCALES", "wanted",
    # runs and results
    "Run", "Outcome", "Result", "STATUSES", "ResultTable",
    # the store
    "Store", "DEFAULT_STORE",
    # running
    "run_experiments", "Summary", "JobEngine", "ENGINES", "make_engine",
    "estimate", "CostEstimate", "duration",
    # figures
    "draw", "drawing", "DrawnFigures", "DEFAULT_FIGURES", "stored_scale",
]  # fmt: skip

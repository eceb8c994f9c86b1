"""Regression with the kernels of infinitely wide hypernetworks, on points and on grids."""

from weightloom.kernels.regression.problem import (
    GridProblem,
    GridQuery,
    PointProblem,
    PointQuery,
)
from weightloom.kernels.regression.regressor import HyperKernelRegressor
from weightloom.kernels.regression.system import LeaveOneOut, Options, System
from weightloom.kernels.regression.trials import Trial, TuneReport

__all__ = [
    # The estimator
    "HyperKernelRegressor",
    # What it returns beside predictions
    "LeaveOneOut",
    "TuneReport",
    "Trial",
    # What is inside, for new structures: a problem, questions about it, a system that answers
    "PointProblem",
    "GridProblem",
    "PointQuery",
    "GridQuery",
    "System",
    "Options",
]

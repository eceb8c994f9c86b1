"""Regression with the kernels of infinitely wide hypernetworks, on points and on grids."""

from weightloom.kernels.regression.problem import GridProblem, GridQuery, PointProblem, PointQuery
from weightloom.kernels.regression.regressor import HyperKernelRegressor
from weightloom.kernels.regression.system import LeaveOneOut, Options, System
from weightloom.kernels.regression.tuning import Trial, TuneReport

__all__ = [
    # the estimator
    "HyperKernelRegressor",
    # what it returns besides predictions
    "LeaveOneOut",
    "TuneReport",
    "Trial",
    # for new structures: problems, queries, and the system that solves and answers
    "PointProblem",
    "GridProblem",
    "PointQuery",
    "GridQuery",
    "System",
    "Options",
]

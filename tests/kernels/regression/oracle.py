"""Gaussian-process regression as in a textbook: one dense matrix, refits instead of formulas."""

from __future__ import annotations

import numpy as np
import torch
from scipy import stats

from weightloom.kernels.regression import GridProblem, GridQuery


def pairs(problem_or_query):
    """x [N, dx] and z [N, dz] of all equations, or of all places that are asked about."""
    if isinstance(problem_or_query, (GridProblem, GridQuery)):
        problem_or_query = problem_or_query.points()
    return problem_or_query.x, problem_or_query.z


class Oracle:
    """The posterior of a kernel given a problem, by numpy in float64."""

    def __init__(self, kernel, problem, ridge):
        self.kernel, self.problem, self.ridge = kernel, problem, ridge
        points = problem.points() if isinstance(problem, GridProblem) else problem
        self.x, self.z, self.y = points.x.double(), points.z.double(), points.y.double().numpy()
        self.K = kernel(self.x, self.z).numpy()
        self.A = self.K + ridge * np.eye(len(self.K))

    def cross(self, query):
        x, z = pairs(query)
        return self.kernel(x.double(), z.double(), self.x, self.z).numpy()

    def mean(self, query):
        mean = self.cross(query) @ np.linalg.solve(self.A, self.y)
        return mean.reshape(*query.shape, -1)

    def variance(self, query):
        x, z = pairs(query)
        cross = self.cross(query)
        prior = self.kernel(x.double(), z.double()).diagonal().numpy()
        return (prior - (cross * np.linalg.solve(self.A, cross.T).T).sum(1)).reshape(query.shape)

    def log_marginal_likelihood(self):
        normal = stats.multivariate_normal(np.zeros(len(self.A)), self.A)
        return sum(normal.logpdf(column) for column in self.y.T)

    def leave_one_out(self, k):
        """Prediction [c] and variance (noise included) of equation k, from a fit without it."""
        rest = np.arange(len(self.A)) != k
        A, cross = self.A[np.ix_(rest, rest)], self.K[k, rest]
        weights = np.linalg.solve(A, cross)
        return weights @ self.y[rest], self.A[k, k] - weights @ cross

    def condition_number(self):
        return np.linalg.cond(self.A)


def relative(value, wanted):
    """Largest error as a share of the largest entry."""
    value = value.double().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    assert value.shape == wanted.shape, f"{value.shape} against {wanted.shape}"
    return np.abs(value - wanted).max() / np.abs(wanted).max()

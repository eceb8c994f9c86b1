"""What every system must do; a new structure inherits these tests from three fixtures.

Every number is computed twice: by the system, and by `oracle.Oracle`, dense linear algebra.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.kernels.regression.oracle import Oracle, relative
from weightloom.kernels.regression import GridProblem, GridQuery, Options, PointQuery


class SystemContract:
    """Subclasses give fixtures ``kernel`` (kind "nngp"), ``problem`` and ``system_class``.

    ``solver`` and ``tolerance`` say how it is solved and how far answers may be from the oracle's,
    as a share of the largest; log determinants and leave-one-out that are estimated may be
    ``errors`` standard errors away.
    """

    solver = "auto"
    tolerance = 1e-9
    errors = 4.0
    ridge = 1e-2
    memory: int | None = None

    @pytest.fixture
    def system(self, kernel, problem, system_class):
        return self.fit(system_class, kernel, problem)

    @pytest.fixture
    def oracle(self, kernel, problem):
        return Oracle(kernel, problem, self.ridge)

    def fit(self, system_class, kernel, problem):
        options = Options(self.solver, tolerance=1e-12, memory=self.memory)
        return system_class.fit(kernel, problem, self.ridge, options)

    def queries(self, problem):
        """Points and grids that the fit has not seen, and the training data themselves."""
        first, second = vars(problem.query).values()
        new = torch.Generator().manual_seed(5)
        x = torch.randn(3, first.shape[1], generator=new, dtype=first.dtype)
        z = torch.rand(3, second.shape[1], generator=new, dtype=first.dtype)
        yield PointQuery(x, z)
        yield PointQuery(first[[0, 0, 1]], z)
        yield GridQuery(x[:2], z)
        yield GridQuery(x, second[:4])
        yield GridQuery(x[:2], second)
        yield problem.query

    def test_it_says_that_it_can_and_what_it_needs(self, kernel, problem, system_class):
        assert system_class.fits(kernel, problem) is None
        assert system_class.bytes(kernel, problem) > 0

    def test_mean(self, system, oracle, problem):
        for query in self.queries(problem):
            answer = system.mean(query)
            assert answer.dtype == problem.dtype
            assert relative(answer, oracle.mean(query)) < self.tolerance

    def test_variance(self, system, oracle, problem):
        prior = oracle.K.max()
        for query in self.queries(problem):
            answer, wanted = system.variance(query), oracle.variance(query)
            assert answer.shape == query.shape
            assert (answer >= 0).all()
            assert np.abs(answer.numpy() - wanted).max() < self.tolerance * prior

    def test_the_certificate(self, system, oracle, problem):
        """The residual says how well the training data are solved for."""
        # K alpha = y - ridge alpha, so the fitted values tell alpha without reading it.
        query = problem.query
        fitted = system.mean(query).double().numpy()
        y = problem.values.numpy() if isinstance(problem, GridProblem) else problem.y.numpy()
        seen = np.ones(query.shape, bool)
        if isinstance(problem, GridProblem) and problem.mask is not None:
            seen = problem.mask.numpy()
        alpha = (y - fitted)[seen] / self.ridge
        wrong = oracle.A @ alpha - oracle.y
        share = max(np.linalg.norm(wrong, axis=0) / np.linalg.norm(oracle.y, axis=0))
        assert share < 10 * system.solution.residual + 1e3 * self.tolerance
        assert system.solution.residual < max(self.tolerance, 1e-12)
        assert system.plan.reason
        assert system.plan.solver == system.solution.solver

    def test_log_marginal_likelihood(self, system, oracle):
        answer, wanted = system.log_marginal_likelihood(), oracle.log_marginal_likelihood()
        near = self.tolerance * abs(wanted)
        near += self.errors * float(answer.standard_error)
        assert abs(float(answer.value) - wanted) <= near

    def test_leave_one_out_is_refitting(self, system, oracle, problem):
        answer = system.leave_one_out()
        assert answer.prediction.shape == (*problem.shape, problem.channels)
        assert answer.variance.shape == answer.standard_error.shape == problem.shape
        where = range(problem.size)
        if isinstance(problem, GridProblem):
            where = problem.observed.tolist()
        prediction = answer.prediction.reshape(-1, problem.channels)
        for k, place in list(enumerate(where))[:: max(1, problem.size // 7)]:
            mean, variance = oracle.leave_one_out(k)
            error = float(answer.standard_error.reshape(-1)[place])
            near = self.tolerance * variance + self.errors * error
            assert abs(float(answer.variance.reshape(-1)[place]) - variance) <= near
            # prediction = y - alpha variance: it inherits the variance's error, and alpha's.
            apart = np.abs(prediction[place].double().numpy() - mean).max()
            inherited = np.abs(oracle.y[k] - mean).max() * near / variance
            assert apart <= inherited + 10 * self.tolerance * np.abs(oracle.y).max()

    def test_state_gives_the_same_answers_without_solving(self, system, kernel, problem):
        state = {name: tensor.clone() for name, tensor in system.state().items()}
        again = type(system).from_state(
            kernel, problem, self.ridge, system.options, state, system.plan, system.solution
        )
        for query in self.queries(problem):
            assert torch.equal(again.mean(query), system.mean(query))
        apart = (again.variance(query) - system.variance(query)).abs().max()
        assert apart <= self.tolerance * system.variance(query).max()

"""What every solver must do; a new one inherits these tests from one method."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.linalg.matrices import gaussian, laplace, shifted, tensor
from weightloom.errors import ConfigError, ShapeError
from weightloom.linalg import DenseOperator, SolverFactor

RIDGE = 0.05


class FactorContract:
    """Subclasses give ``make(operator, shift, **options)``, which returns a `SolverFactor`."""

    # Residual that a solution must keep; for iterative solvers their tolerance.
    residual = 1e-12
    # Whether logdet and inverse_diagonal come without sampling error.
    exact = True

    def make(self, operator, shift=0.0) -> SolverFactor:
        raise NotImplementedError

    @pytest.fixture(params=[gaussian, laplace])
    def matrix(self, request):
        return request.param(40)

    @pytest.fixture
    def rhs(self, matrix):
        return np.random.default_rng(2).normal(size=(len(matrix), 3))

    def check(self, solution, system, rhs):
        """The solution against numpy's, and its certificate against one made here."""
        value = solution.value.double().numpy()
        norms = np.linalg.norm(rhs, axis=0)
        seen = (np.linalg.norm(rhs - system @ value, axis=0) / norms).max()
        assert seen <= self.residual
        # Both residuals carry the rounding of a product: N eps |A| |x|.
        size = len(system) * np.linalg.norm(value, axis=0).max() * np.abs(system).max()
        assert solution.residual == pytest.approx(seen, rel=1e-3, abs=1e-15 * size / norms.min())
        smallest = np.linalg.eigvalsh(system)[0]
        error = np.linalg.norm(value - np.linalg.solve(system, rhs), axis=0)
        assert (error <= 2 * self.residual * norms / smallest).all()

    def test_several_right_hand_sides(self, matrix, rhs):
        factor = self.make(DenseOperator(tensor(matrix)), RIDGE)
        given = tensor(rhs)
        solution = factor.solve(given)
        self.check(solution, shifted(matrix, RIDGE), rhs)
        assert torch.equal(given, tensor(rhs))
        assert solution.solver == factor.plan.solver
        assert solution.reason == factor.plan.reason
        assert solution.seconds > 0

    def test_one_right_hand_side(self, matrix, rhs):
        factor = self.make(DenseOperator(tensor(matrix)), RIDGE)
        solution = factor.solve(tensor(rhs[:, 0]))
        assert solution.value.shape == (len(matrix),)
        again = factor.solve(tensor(rhs[:, :1])).value[:, 0]
        torch.testing.assert_close(solution.value, again, rtol=1e-9, atol=1e-12)

    def test_right_hand_sides_of_any_size(self, matrix, rhs):
        factor = self.make(DenseOperator(tensor(matrix)), RIDGE)
        scales = np.array([1e-150, 1.0, 1e150])
        self.check(factor.solve(tensor(rhs * scales)), shifted(matrix, RIDGE), rhs * scales)

    def test_a_zero_among_them(self, matrix, rhs):
        rhs[:, 1] = 0.0
        solution = self.make(DenseOperator(tensor(matrix)), RIDGE).solve(tensor(rhs))
        assert torch.equal(solution.value[:, 1], torch.zeros(len(matrix), dtype=torch.float64))
        assert solution.residual <= self.residual

    def test_a_shift_for_each_row(self, matrix, rhs):
        shift = np.random.default_rng(3).uniform(0.02, 0.5, size=len(matrix))
        solution = self.make(DenseOperator(tensor(matrix)), tensor(shift)).solve(tensor(rhs))
        self.check(solution, shifted(matrix, shift), rhs)

    def test_no_shift(self, rhs):
        matrix = laplace(len(rhs))
        self.check(self.make(DenseOperator(tensor(matrix))).solve(tensor(rhs)), matrix, rhs)

    def test_quadratic_forms(self, matrix, rhs):
        factor = self.make(DenseOperator(tensor(matrix)), RIDGE)
        wanted = np.diag(rhs.T @ np.linalg.solve(shifted(matrix, RIDGE), rhs))
        np.testing.assert_allclose(factor.quadratic(tensor(rhs)).numpy(), wanted, rtol=1e-7)
        single = factor.quadratic(tensor(rhs[:, 1]))
        assert single.shape == ()
        assert float(single) == pytest.approx(wanted[1], rel=1e-7)

    def test_log_determinant(self, matrix):
        estimate = self.make(DenseOperator(tensor(matrix)), RIDGE).logdet()
        wanted = np.linalg.slogdet(shifted(matrix, RIDGE))[1]
        error = float(estimate.standard_error)
        assert (error == 0) == self.exact
        assert abs(float(estimate) - wanted) <= 4 * error + 1e-9 * len(matrix)

    def test_diagonal_of_the_inverse(self, matrix):
        shift = np.random.default_rng(3).uniform(0.02, 0.5, size=len(matrix))
        for given in (RIDGE, tensor(shift)):
            factor = self.make(DenseOperator(tensor(matrix)), given)
            wanted = np.diag(np.linalg.inv(shifted(matrix, given))).copy()
            exact = factor.inverse_diagonal(probes=len(matrix))  # as many probes as rows
            assert torch.equal(exact.standard_error, torch.zeros(len(matrix), dtype=torch.float64))
            np.testing.assert_allclose(exact.value.numpy(), wanted, rtol=1e-6)
            some = factor.inverse_diagonal(probes=20)
            wrong = np.abs(some.value.numpy() - wanted)
            # Student's t with 19 degrees of freedom: 5.5 is passed by one in 40,000.
            assert (wrong <= 5.5 * some.standard_error.numpy() + 1e-6 * wanted).all()

    def test_gradients_are_not_recorded(self, matrix, rhs):
        given = tensor(matrix).requires_grad_()
        factor = self.make(DenseOperator(given), RIDGE)
        assert not factor.solve(tensor(rhs).requires_grad_()).value.requires_grad
        assert not factor.logdet().value.requires_grad

    def test_wrong_right_hand_sides(self, matrix, rhs):
        factor = self.make(DenseOperator(tensor(matrix)), RIDGE)
        with pytest.raises(ShapeError, match=r"right-hand sides have shape \[3, 40\]"):
            factor.solve(tensor(rhs.T))
        rhs[3, 1] = np.nan
        with pytest.raises(ConfigError, match=r"right-hand sides hold NaN"):
            factor.solve(tensor(rhs))

    def test_the_plan_speaks(self, matrix):
        plan = self.make(DenseOperator(tensor(matrix)), RIDGE).plan
        assert plan.bytes > 0
        assert plan.flops > 0
        assert len(plan.reason.split()) >= 3

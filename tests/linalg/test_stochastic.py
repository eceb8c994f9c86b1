"""Estimates from products alone: unbiased, with standard errors that mean what they say."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.linalg.matrices import gaussian, laplace, shifted, spectrum, tensor
from weightloom.errors import ConfigError, KernelError, NotPositiveDefiniteError
from weightloom.linalg import (
    DenseOperator,
    Jacobi,
    Nystrom,
    PivotedCholesky,
    estimate_inverse_diagonal,
    estimate_logdet,
    smallest_eigenvalue,
)


def exact_logdet(matrix, shift):
    return np.linalg.slogdet(shifted(matrix, shift))[1]


def scores(matrix, shift, preconditioner=None, runs=40, probes=8):
    """Errors of many independent estimates, in standard errors."""
    operator = DenseOperator(tensor(matrix))
    wanted = exact_logdet(matrix, shift)
    estimates = [
        estimate_logdet(operator, shift, preconditioner=preconditioner, probes=probes, seed=seed)
        for seed in range(runs)
    ]
    errors = np.array([float(estimate) - wanted for estimate in estimates])
    return errors, np.array([float(estimate.standard_error) for estimate in estimates])


@pytest.mark.parametrize("kind", [None, Jacobi, PivotedCholesky, Nystrom])
def test_unbiased_and_calibrated(kind):
    matrix, shift = laplace(60) * np.outer(np.linspace(1, 2, 60), np.linspace(1, 2, 60)), 0.1
    operator = DenseOperator(tensor(matrix))
    if kind in (PivotedCholesky, Nystrom):
        preconditioner = kind(operator, 10, shift)
    else:
        preconditioner = kind and kind(operator, shift)
    errors, errors_said = scores(matrix, shift, preconditioner)
    # The mean of 40 runs, against its own standard error.
    assert abs(errors.mean()) < 4 * errors.std() / np.sqrt(40)
    # z^2 has the mean (m - 1) / (m - 3) = 7 / 5 for 8 probes, and the mean of 40 a deviation of
    # about 0.6 (Student's t with 7 degrees of freedom).
    ratio = (errors**2 / errors_said**2).mean()
    assert 0.4 < ratio < 4


def test_a_preconditioner_makes_it_more_precise():
    matrix, shift = gaussian(100), 1e-2
    operator = DenseOperator(tensor(matrix))
    _, plain = scores(matrix, shift, runs=5)
    _, better = scores(matrix, shift, PivotedCholesky(operator, 30, shift), runs=5)
    assert better.mean() < 0.1 * plain.mean()


def test_more_probes_more_precise():
    matrix = laplace(60)
    _, few = scores(matrix, 0.1, runs=10, probes=8)
    _, many = scores(matrix, 0.1, runs=10, probes=128)
    assert few.mean() / many.mean() == pytest.approx(4, rel=0.25)


def test_multiples_of_the_identity_have_no_sampling_error():
    for size in (1, 7):
        estimate = estimate_logdet(DenseOperator(3 * torch.eye(size, dtype=torch.float64)), 2.0)
        assert float(estimate) == pytest.approx(size * np.log(5), rel=1e-14)
        assert float(estimate.standard_error) < 1e-12


def test_an_exact_preconditioner_has_no_sampling_error():
    matrix, shift = laplace(30), 0.1
    operator = DenseOperator(tensor(matrix))
    estimate = estimate_logdet(operator, shift, preconditioner=PivotedCholesky(operator, 30, shift))
    assert float(estimate) == pytest.approx(exact_logdet(matrix, shift), abs=1e-10)
    assert float(estimate.standard_error) < 1e-10


def test_a_diagonal_matrix_has_no_sampling_error():
    # Random signs meet every eigenvector alike; quadrature must find all eigenvalues.
    values = np.geomspace(1e-3, 1e3, 12)
    estimate = estimate_logdet(DenseOperator(tensor(np.diag(values))))
    assert float(estimate) == pytest.approx(np.log(values).sum(), abs=1e-6)


def test_too_few_steps_show_in_the_standard_error():
    matrix = np.diag(np.geomspace(1e-6, 1e3, 200))
    wanted = np.log(np.diag(matrix)).sum()
    for steps in (2, 8, 12, 40, 150):
        estimate = estimate_logdet(DenseOperator(tensor(matrix)), steps=steps)
        wrong = abs(float(estimate) - wanted)
        if steps == 2:
            assert float(estimate.standard_error) == np.inf
        assert wrong < 10 * float(estimate.standard_error)


def test_preconditioners_without_a_root_are_left_out():
    class Rootless:
        def apply(self, residuals):
            raise NotImplementedError

        def logdet(self):
            raise NotImplementedError

    operator = DenseOperator(tensor(laplace(30)))
    plain = estimate_logdet(operator, 0.1)
    assert float(estimate_logdet(operator, 0.1, preconditioner=Rootless())) == float(plain)


@pytest.mark.parametrize("kind", [PivotedCholesky, Nystrom])
@pytest.mark.parametrize("shift", [1e-2, 1e-4, 1e-6])
def test_a_float32_preconditioner(kind, shift):
    matrix = gaussian(120, width=0.2)
    operator = DenseOperator(tensor(matrix))
    single = kind(operator, 60, shift, dtype=torch.float32)
    estimate = estimate_logdet(operator, shift, preconditioner=single, probes=32)
    wrong = abs(float(estimate) - exact_logdet(matrix, shift))
    assert wrong < 4 * float(estimate.standard_error)


def test_an_unusable_preconditioner_is_left_out():
    class Wrong(Jacobi):
        def apply(self, residuals):
            product = super().apply(residuals)
            product[::2] *= -1  # not positive definite
            return product

    operator = DenseOperator(tensor(laplace(30)))
    plain = estimate_logdet(operator, 0.1)
    assert float(estimate_logdet(operator, 0.1, preconditioner=Wrong(operator))) == float(plain)


def test_a_shift_for_each_row():
    matrix, shift = laplace(60), np.linspace(0.05, 1, 60)
    estimate = estimate_logdet(DenseOperator(tensor(matrix)), tensor(shift), probes=64)
    wrong = float(estimate) - exact_logdet(matrix, shift)
    assert abs(wrong) < 4 * float(estimate.standard_error)


def test_float32():
    matrix = laplace(60)
    estimate = estimate_logdet(DenseOperator(tensor(matrix, torch.float32)), 0.1, probes=64)
    wrong = float(estimate) - exact_logdet(matrix, 0.1)
    assert abs(wrong) < 4 * float(estimate.standard_error)


def test_float32_with_an_exact_preconditioner():
    matrix = laplace(60)
    operator = DenseOperator(tensor(matrix, torch.float32))
    estimate = estimate_logdet(operator, 0.1, preconditioner=PivotedCholesky(operator, 60, 0.1))
    # Rounding: 60 eigenvalues, each relative to the condition of about 500.
    assert float(estimate) == pytest.approx(exact_logdet(matrix, 0.1), abs=60 * 500 * 1e-7)
    assert float(estimate.standard_error) < 60 * 500 * 1e-7


def test_products_that_are_not_numbers():
    matrix = laplace(20)
    matrix[3, 4] = matrix[4, 3] = np.nan
    with pytest.raises(KernelError, match=r"product with the matrix gave NaN or infinity"):
        estimate_logdet(DenseOperator(tensor(matrix)), 0.1)


def test_indefinite():
    with pytest.raises(NotPositiveDefiniteError, match=r"Ritz value of -0.5"):
        estimate_logdet(DenseOperator(tensor(spectrum(np.r_[np.linspace(1, 2, 30), -0.5]))))


class TestSmallestEigenvalue:
    @pytest.mark.parametrize("size", [5, 512, 600])
    def test_against_numpy(self, size):
        matrix = spectrum(np.r_[np.linspace(1, 2, size - 1), -0.25])
        estimate = smallest_eigenvalue(DenseOperator(tensor(matrix)), 0.125)
        assert estimate == pytest.approx(-0.125, abs=1e-8)

    def test_a_ritz_value_is_never_too_small(self):
        matrix = gaussian(600)
        assert smallest_eigenvalue(DenseOperator(tensor(matrix)), 0.1) >= 0.1 - 1e-10


class TestInverseDiagonal:
    def test_calibrated(self):
        matrix, shift = laplace(80), 0.1
        system = shifted(matrix, shift)
        inverse = np.linalg.inv(system)

        def solve(rhs):
            return tensor(np.linalg.solve(system, rhs.numpy()))

        operator = DenseOperator(tensor(matrix))
        wanted = np.diag(inverse)
        squares, widths = [], []
        for preconditioner in (None, PivotedCholesky(operator, 20, shift)):
            estimate = estimate_inverse_diagonal(
                solve, operator, shift, preconditioner=preconditioner, probes=40
            )
            z = (estimate.value.numpy() - wanted) / estimate.standard_error.numpy()
            squares.append((z**2).mean())
            widths.append(float(estimate.standard_error.mean()))
        # 80 correlated z with 39 degrees of freedom: z^2 has mean 1.05.
        assert 0.5 < min(squares) <= max(squares) < 2
        assert widths[1] < 0.9 * widths[0]

    def test_kept_where_the_truth_can_be(self):
        matrix, shift = gaussian(60), 1e-3
        system = shifted(matrix, shift)
        estimate = estimate_inverse_diagonal(
            lambda rhs: tensor(np.linalg.solve(system, rhs.numpy())),
            DenseOperator(tensor(matrix)),
            shift,
            probes=2,
        ).value.numpy()
        assert (estimate >= 1 / np.diag(system)).all()
        assert (estimate <= 1 / shift).all()

    def test_every_column(self):
        matrix = laplace(70)
        estimate = estimate_inverse_diagonal(
            lambda rhs: tensor(np.linalg.solve(matrix, rhs.numpy())),
            DenseOperator(tensor(matrix)),
            probes=70,
        )
        np.testing.assert_allclose(
            estimate.value.numpy(), np.diag(np.linalg.inv(matrix)), rtol=1e-10
        )
        assert not estimate.standard_error.any()


def test_one_probe_is_refused():
    operator = DenseOperator(tensor(laplace(5)))
    with pytest.raises(ConfigError, match=r"1 probes give no standard error; use at least 2"):
        estimate_logdet(operator, probes=1)
    with pytest.raises(ConfigError, match=r"use at least 2"):
        estimate_inverse_diagonal(lambda rhs: rhs, operator, probes=1)

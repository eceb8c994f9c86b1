"""Preconditioners: what they are, as dense matrices, and what they are worth."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.linalg.matrices import blocked, gaussian, laplace, shifted, spectrum, tensor
from weightloom.errors import ConfigError, NotPositiveDefiniteError
from weightloom.linalg import (
    DenseOperator,
    IdentityPreconditioner,
    Jacobi,
    LowRank,
    Nystrom,
    PivotedCholesky,
    Preconditioner,
    conjugate_gradients,
)
from weightloom.linalg.preconditioners import pivoted_cholesky


class PreconditionerContract:
    """Subclasses give ``make(operator, shift)``; ``wanted(matrix, shift)`` is P as an array."""

    @pytest.fixture(params=["number", "vector"])
    def shift(self, request):
        if request.param == "number":
            return 0.03
        return np.random.default_rng(3).uniform(0.01, 0.1, size=40)

    @pytest.fixture
    def matrix(self):
        return gaussian(40)

    @pytest.fixture
    def preconditioner(self, matrix, shift):
        given_ = shift if isinstance(shift, float) else tensor(shift)
        return self.make(DenseOperator(tensor(matrix)), given_)

    @pytest.fixture
    def inverse(self, preconditioner):
        return preconditioner.apply(torch.eye(40, dtype=torch.float64)).numpy()

    def test_protocol(self, preconditioner):
        assert isinstance(preconditioner, Preconditioner)

    def test_it_is_the_matrix_it_should_be(self, inverse, matrix, shift):
        wanted = np.linalg.inv(self.wanted(matrix, shift))
        np.testing.assert_allclose(inverse, wanted, atol=1e-9 * np.abs(wanted).max())

    def test_symmetric_and_positive(self, inverse):
        np.testing.assert_allclose(inverse, inverse.T, atol=1e-12 * np.abs(inverse).max())
        assert np.linalg.eigvalsh(inverse)[0] > 0

    def test_log_determinant(self, preconditioner, inverse):
        assert preconditioner.logdet() == pytest.approx(-np.linalg.slogdet(inverse)[1], abs=1e-8)

    def test_root(self, preconditioner, inverse):
        root = preconditioner.root(torch.eye(40, dtype=torch.float64)).numpy()
        np.testing.assert_allclose(root @ root.T @ inverse, np.eye(40), atol=1e-8)

    def test_diagonal_of_the_inverse(self, preconditioner, inverse):
        if not hasattr(preconditioner, "inverse_diagonal"):
            pytest.skip("it does not know it")
        np.testing.assert_allclose(
            preconditioner.inverse_diagonal().numpy(), np.diag(inverse), rtol=1e-8
        )

    def test_what_it_is_given_stays(self, preconditioner):
        vectors = torch.randn(40, 2, dtype=torch.float64)
        before = vectors.clone()
        preconditioner.apply(vectors)
        preconditioner.root(vectors)
        assert torch.equal(vectors, before)


class TestPivotedCholesky(PreconditionerContract):
    def make(self, operator, shift):
        return PivotedCholesky(operator, 9, shift)

    def wanted(self, matrix, shift):
        """A[:, p] A[p, p]^-1 A[p, :] + shift for the greedily chosen rows p."""
        chosen = []
        left = matrix.copy()
        for _ in range(9):
            chosen.append(int(np.diag(left).argmax()))
            rows = matrix[chosen]
            left = matrix - rows.T @ np.linalg.solve(rows[:, chosen], rows)
        return shifted(matrix - left, shift)


class TestNystrom(PreconditionerContract):
    def make(self, operator, shift):
        return Nystrom(operator, 9, shift, seed=5)

    def wanted(self, matrix, shift):
        """A W (W^T A W)^-1 W^T A, its smallest eigenvalue moved to the complement."""
        test = torch.randn(
            40, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(5)
        ).numpy()
        product = matrix @ test
        near = product @ np.linalg.solve(test.T @ product, product.T)
        values, vectors = np.linalg.eigh((near + near.T) / 2)
        smallest = values[-9]
        top = vectors[:, -9:]
        return shifted((top * (values[-9:] - smallest)) @ top.T, np.asarray(shift) + smallest)


class TestJacobi(PreconditionerContract):
    @pytest.fixture
    def matrix(self):
        return gaussian(40) * np.outer(np.linspace(1, 2, 40), np.linspace(1, 2, 40))

    def make(self, operator, shift):
        return Jacobi(operator, shift)

    def wanted(self, matrix, shift):
        return np.diag(np.diag(shifted(matrix, shift)))


class TestIdentity(PreconditionerContract):
    def make(self, operator, shift):
        return IdentityPreconditioner()

    def wanted(self, matrix, shift):
        return np.eye(len(matrix))


@given(st.integers(1, 20), st.integers(1, 25), st.integers(0, 100))
def test_what_is_left_is_the_diagonal_of_the_difference(size, rank, seed):
    matrix = laplace(size, seed=seed)
    operator, asked = blocked(matrix, side=5)
    factor, left = pivoted_cholesky(operator, rank)
    near = (factor @ factor.mT).numpy()
    np.testing.assert_allclose(left.numpy(), np.diag(matrix - near), atol=1e-13 * size)
    assert factor.shape == (size, min(rank, size))
    if rank >= size:
        np.testing.assert_allclose(near, matrix, atol=1e-12)
    # Only the diagonal and the rows of the pivots were computed.
    computed = sum((r.stop - r.start) * (c.stop - c.start) for r, c in asked)
    assert computed <= 5 * size + min(rank, size) * size


@pytest.mark.parametrize("kind", [PivotedCholesky, Nystrom])
def test_a_matrix_of_low_rank(kind):
    matrix = spectrum(np.r_[np.arange(1.0, 6.0), np.zeros(25)])
    operator = DenseOperator(tensor(matrix))
    preconditioner = kind(operator, 12, 1e-3)
    inverse = preconditioner.apply(torch.eye(30, dtype=torch.float64)).numpy()
    np.testing.assert_allclose(inverse @ shifted(matrix, 1e-3), np.eye(30), atol=1e-8)
    rhs = tensor(np.random.default_rng(0).normal(size=30))
    solution = conjugate_gradients(operator, rhs, 1e-3, preconditioner=preconditioner)
    assert solution.iterations <= 2


@pytest.mark.parametrize("kind", [PivotedCholesky, Nystrom])
@pytest.mark.parametrize("shift", [1e-3, np.geomspace(1e-3, 1e-2, 200)])
def test_they_save_iterations(kind, shift):
    matrix = gaussian(200, width=0.2)
    operator = DenseOperator(tensor(matrix))
    shift = shift if isinstance(shift, float) else tensor(shift)
    rhs = tensor(np.random.default_rng(0).normal(size=(200, 2)))
    plain = conjugate_gradients(operator, rhs, shift).iterations
    counts = [
        conjugate_gradients(
            operator, rhs, shift, preconditioner=kind(operator, rank, shift)
        ).iterations
        for rank in (10, 40, 100)
    ]
    assert plain > counts[0] > counts[1] > counts[2]
    assert plain > 10 * counts[2]


@pytest.mark.parametrize("kind", [PivotedCholesky, Nystrom])
def test_without_a_shift(kind):
    matrix = laplace(60)
    operator = DenseOperator(tensor(matrix))
    rhs = tensor(np.random.default_rng(0).normal(size=60))
    solution = conjugate_gradients(operator, rhs, preconditioner=kind(operator, 20, 0.0))
    assert solution.residual <= 1e-8
    assert solution.iterations < conjugate_gradients(operator, rhs).iterations


@pytest.mark.parametrize("kind", [PivotedCholesky, Nystrom])
def test_in_float32(kind):
    operator = DenseOperator(tensor(gaussian(40)))
    double, single = kind(operator, 9, 0.03), kind(operator, 9, 0.03, dtype=torch.float32)
    assert (double.dtype, single.dtype) == (torch.float64, torch.float32)
    assert single.bytes * 2 == double.bytes == 40 * 9 * 8
    assert single.rank == double.rank == 9
    vectors = torch.randn(40, 2)
    torch.testing.assert_close(
        single.apply(vectors).double(), double.apply(vectors.double()), rtol=1e-4, atol=1e-4
    )
    assert single.logdet() == pytest.approx(double.logdet(), abs=1e-4)


def test_digits_are_kept_when_the_shift_is_small():
    # Directions 1e12 times as large as the shift: Woodbury's formula would leave nothing of them.
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(30, 3)))[0]
    exact = LowRank(tensor(basis * 1e3), torch.tensor(1e-6, dtype=torch.float64))
    inside = basis @ np.array([1.0, -2.0, 0.5])
    outside = np.random.default_rng(1).normal(size=30)
    outside -= basis @ (basis.T @ outside)
    given_ = exact.apply(tensor(inside + outside)[:, None])[:, 0].numpy()
    np.testing.assert_allclose(given_, inside / (1e6 + 1e-6) + outside / 1e-6, rtol=1e-9)
    assert exact.logdet() == pytest.approx(
        3 * math.log(1e6 + 1e-6) + 27 * math.log(1e-6), rel=1e-12
    )


def test_refusals():
    operator = DenseOperator(tensor(gaussian(5)))
    for kind in (PivotedCholesky, Nystrom):
        with pytest.raises(ConfigError, match=r"rank 0 is empty"):
            kind(operator, 0, 0.1)
        with pytest.raises(ConfigError, match=r"finite and not negative"):
            kind(operator, 2, -0.1)
    with pytest.raises(ConfigError, match=r"diagonal part of a preconditioner must be positive"):
        LowRank(torch.ones(3, 1), torch.tensor(0.0))
    with pytest.raises(NotPositiveDefiniteError, match=r"diagonal has the entry -0.9"):
        Jacobi(DenseOperator(tensor(np.diag([1.0, -1.0]))), 0.1)
    with pytest.raises(NotPositiveDefiniteError, match=r"no Nystrom approximation"):
        Nystrom(DenseOperator(tensor(spectrum([1.0, 1.0, -1.0, -1.0]))), 4, 0.1)

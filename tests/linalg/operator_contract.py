"""What every operator must do; a new structure inherits these tests from two fixtures."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from weightloom.errors import ShapeError
from weightloom.linalg import prepare


class OperatorContract:
    """Subclasses give the fixtures ``operator`` (float64) and ``matrix``, the same as a numpy array
    that was computed another way; positive semidefinite, so that it can be solved with a shift."""

    # Allowed error, relative to the largest entry; more only for structures that approximate.
    accuracy = 1e-12

    @pytest.fixture
    def vectors(self, matrix):
        return np.random.default_rng(1).normal(size=(len(matrix), 3))

    def close(self, given, wanted, matrix):
        assert given.shape == wanted.shape
        # A sum of N products of rounded numbers: N terms as large as the largest entry.
        scale = np.abs(matrix).max() * max(1.0, np.abs(wanted).max()) * len(matrix)
        np.testing.assert_allclose(given.numpy(), wanted, rtol=0, atol=self.accuracy * scale)

    def test_attributes(self, operator, matrix):
        assert operator.size == len(matrix)
        assert operator.dtype == torch.float64
        assert operator.bytes >= 0
        assert operator.flops > 0
        assert f"{len(matrix)} x {len(matrix)}" in repr(operator)

    def test_products(self, operator, matrix, vectors):
        given = torch.from_numpy(vectors)
        before = given.clone()
        self.close(operator.matmul(given), matrix @ vectors, matrix)
        self.close(operator.matmul(given[:, :1]), matrix @ vectors[:, :1], matrix)
        self.close(operator @ given[:, 1], matrix @ vectors[:, 1], matrix)
        assert torch.equal(given, before)

    def test_products_are_new_tensors(self, operator, vectors):
        given = torch.from_numpy(vectors)
        first = operator.matmul(given)
        kept = first.clone()
        first.fill_(7.0)
        assert torch.equal(operator.matmul(given), kept)

    def test_products_with_no_vectors(self, operator):
        assert operator.matmul(torch.zeros(operator.size, 0, dtype=torch.float64)).shape[1] == 0

    def test_symmetric(self, operator, vectors):
        a, b = torch.from_numpy(vectors[:, 0]), torch.from_numpy(vectors[:, 1])
        size = float((operator @ a).norm() * b.norm())
        assert float(a @ (operator @ b)) == pytest.approx(
            float(b @ (operator @ a)), abs=self.accuracy * max(size, 1.0)
        )

    def test_diagonal(self, operator, matrix):
        given = operator.diagonal()
        self.close(given, np.diag(matrix).copy(), matrix)
        given.zero_()
        self.close(operator.diagonal(), np.diag(matrix).copy(), matrix)

    def test_rows(self, operator, matrix):
        last = len(matrix) - 1
        for index in ([0], [last, 0, last // 2], [1, 1, 0], list(range(len(matrix)))):
            self.close(operator.rows(torch.tensor(index)), matrix[index], matrix)

    def test_dense(self, operator, matrix):
        given = operator.dense()
        self.close(given, matrix, matrix)
        given.zero_()
        self.close(operator.dense(), matrix, matrix)

    @pytest.mark.parametrize("solver", ["cholesky", "lu", "cg"])
    def test_it_can_be_solved(self, operator, matrix, vectors, solver):
        shift = 0.1 * float(np.abs(np.diag(matrix)).mean())
        solution = prepare(operator, shift, solver, tolerance=1e-10).solve(
            torch.from_numpy(vectors)
        )
        wanted = np.linalg.solve(matrix + shift * np.eye(len(matrix)), vectors)
        assert solution.residual < 1e-10
        # |x - x*| <= |residual| / smallest eigenvalue, and that is at least the shift.
        bound = (1e-10 + self.accuracy * len(matrix)) * np.linalg.norm(vectors) / shift
        assert np.linalg.norm(solution.value.numpy() - wanted) < 10 * bound

    def test_wrong_vectors(self, operator):
        size = operator.size
        with pytest.raises(ShapeError, match=rf"shape \[{size + 1}\], but the matrix is {size} x"):
            operator @ torch.zeros(size + 1, dtype=torch.float64)
        with pytest.raises(ShapeError, match=r"torch.float32, but the matrix is torch.float64"):
            operator @ torch.zeros(size)

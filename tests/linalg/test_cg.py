"""Conjugate gradients: the path it takes, when it stops, and what it says when it cannot."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.linalg.matrices import gaussian, laplace, shifted, spectrum, tensor
from weightloom.errors import ConfigError, ConvergenceError, NotPositiveDefiniteError, ShapeError
from weightloom.linalg import (
    DenseOperator,
    Jacobi,
    MaskedOperator,
    Nystrom,
    PivotedCholesky,
    conjugate_gradients,
)


def textbook(matrix, rhs, steps, inverse=None):
    """Hestenes and Stiefel, one right-hand side, in numpy; the iterates."""
    inverse = np.eye(len(rhs)) if inverse is None else inverse
    x, r = np.zeros_like(rhs), rhs.copy()
    z = inverse @ r
    p, iterates = z.copy(), []
    for _ in range(steps):
        q = matrix @ p
        alpha = (r @ z) / (p @ q)
        x = x + alpha * p
        new = r - alpha * q
        znew = inverse @ new
        p = znew + (new @ znew) / (r @ z) * p
        r, z = new, znew
        iterates.append(x)
    return iterates


class Counting(DenseOperator):
    """Counts the columns that it is multiplied with."""

    def __init__(self, matrix):
        super().__init__(matrix)
        self.columns = []

    def matmul(self, vectors):
        self.columns.append(vectors.shape[1])
        return super().matmul(vectors)


@pytest.mark.parametrize("preconditioned", [False, True])
def test_every_iterate_is_the_textbook_one(preconditioned):
    matrix = shifted(laplace(50) * np.outer(np.linspace(1, 3, 50), np.linspace(1, 3, 50)), 0.1)
    rhs = np.random.default_rng(0).normal(size=50)
    inverse = np.diag(1 / np.diag(matrix)) if preconditioned else None
    operator = DenseOperator(tensor(matrix))
    jacobi = Jacobi(operator) if preconditioned else None
    for steps, wanted in enumerate(textbook(matrix, rhs, 8, inverse), 1):
        with pytest.raises(ConvergenceError) as caught:
            conjugate_gradients(
                operator, tensor(rhs), preconditioner=jacobi, max_iterations=steps, tolerance=1e-13
            )
        solution = caught.value.solution
        assert solution.iterations == steps
        np.testing.assert_allclose(solution.value.numpy(), wanted, rtol=1e-9, atol=1e-10)
        wrong = np.linalg.norm(rhs - matrix @ wanted) / np.linalg.norm(rhs)
        assert solution.residual == pytest.approx(wrong, rel=1e-8)


def test_the_shift_is_part_of_the_matrix():
    matrix, rhs = gaussian(30), np.random.default_rng(0).normal(size=30)
    for shift in (0.2, np.linspace(0.1, 1, 30)):
        given_ = shift if isinstance(shift, float) else tensor(shift)
        result = conjugate_gradients(
            DenseOperator(tensor(matrix)), tensor(rhs), given_, tolerance=1e-12
        )
        whole = conjugate_gradients(
            DenseOperator(tensor(shifted(matrix, shift))), tensor(rhs), tolerance=1e-12
        )
        assert abs(result.iterations - whole.iterations) <= 2  # rounding may cost one or two
        torch.testing.assert_close(result.value, whole.value, rtol=1e-9, atol=1e-9)


@given(
    st.integers(1, 25),
    st.integers(1, 4),
    st.floats(1e-4, 1.0),
    st.sampled_from([1e-4, 1e-8, 1e-11]),
    st.integers(0, 1000),
)
def test_the_certificate_holds(size, columns, shift, tolerance, seed):
    matrix = gaussian(size, seed=seed)
    rhs = np.random.default_rng(seed + 1).normal(size=(size, columns))
    solution = conjugate_gradients(
        DenseOperator(tensor(matrix)), tensor(rhs), shift, tolerance=tolerance
    )
    wrong = rhs - shifted(matrix, shift) @ solution.value.numpy()
    seen = (np.linalg.norm(wrong, axis=0) / np.linalg.norm(rhs, axis=0)).max()
    assert seen <= tolerance * (1 + 1e-3)
    assert solution.residual == pytest.approx(seen, rel=1e-2, abs=1e-14 / shift)


def test_as_many_iterations_as_distinct_eigenvalues():
    matrix = spectrum([1.0] * 10 + [5.0] * 10 + [70.0] * 10)
    rhs = tensor(np.random.default_rng(0).normal(size=(30, 2)))
    assert conjugate_gradients(DenseOperator(tensor(matrix)), rhs, tolerance=1e-11).iterations == 3


def test_columns_leave_when_they_are_done():
    values = np.linspace(1, 1000, 60)
    matrix = spectrum(values)
    eigenvectors = np.linalg.eigh(matrix)[1]
    # Right-hand sides with 1, 4 and 60 eigenvectors need as many iterations.
    rhs = np.stack(
        [eigenvectors[:, 7], eigenvectors[:, :60:16].sum(1), eigenvectors.sum(1)], axis=1
    )
    operator = Counting(tensor(matrix))
    solution = conjugate_gradients(operator, tensor(rhs))
    *steps, certificate = operator.columns
    assert steps[0] == 3
    assert steps == sorted(steps, reverse=True)
    assert steps.count(3) <= 2
    assert steps.count(2) <= 4
    assert steps[-1] == 1
    assert certificate == 3
    alone = [conjugate_gradients(DenseOperator(tensor(matrix)), tensor(column)) for column in rhs.T]
    assert solution.iterations == max(single.iterations for single in alone)
    for number, single in enumerate(alone):
        # Each column is within its own tolerance of the same solution; smallest eigenvalue 1.
        wrong = (solution.value[:, number] - single.value).norm()
        assert float(wrong) < 2e-8 * np.linalg.norm(rhs[:, number])


class Drifting(Counting):
    """Multiplies slightly wrongly, and differently, at first: the recursive residual drifts."""

    def matmul(self, vectors):
        product = super().matmul(vectors)
        if len(self.columns) <= 5:
            noise = np.random.default_rng(len(self.columns)).normal(size=tuple(product.shape))
            product = product * (1 + 1e-4 * torch.from_numpy(noise))
        return product


def test_a_drifted_residual_is_noticed_and_repaired():
    matrix = shifted(laplace(40), 1.0)
    rhs = np.random.default_rng(0).normal(size=(40, 2))
    operator = Drifting(tensor(matrix))
    solution = conjugate_gradients(operator, tensor(rhs), tolerance=1e-9)
    clean = conjugate_gradients(DenseOperator(tensor(matrix)), tensor(rhs), tolerance=1e-9)
    wrong = np.linalg.norm(rhs - matrix @ solution.value.numpy(), axis=0)
    assert (wrong <= 1e-9 * np.linalg.norm(rhs, axis=0)).all()
    assert solution.iterations > clean.iterations


def test_a_good_start():
    matrix, rhs = gaussian(40), np.random.default_rng(0).normal(size=(40, 2))
    operator = DenseOperator(tensor(matrix))
    exact = np.linalg.solve(shifted(matrix, 0.1), rhs)
    at_once = conjugate_gradients(operator, tensor(rhs), 0.1, start=tensor(exact))
    assert at_once.iterations == 0
    assert at_once.residual < 1e-12
    near = conjugate_gradients(operator, tensor(rhs), 0.1, start=tensor(exact * (1 + 1e-5)))
    far = conjugate_gradients(operator, tensor(rhs), 0.1)
    assert 0 < near.iterations < far.iterations
    rhs[:, 0] = 0.0
    zero = conjugate_gradients(operator, tensor(rhs), 0.1, start=tensor(exact))
    assert not zero.value[:, 0].any()
    with pytest.raises(ShapeError, match=r"start is torch.float64 \[40\], but"):
        conjugate_gradients(operator, tensor(rhs), 0.1, start=tensor(exact[:, 0]))


def test_progress():
    seen = []
    matrix, rhs = gaussian(40), np.random.default_rng(0).normal(size=(40, 2))
    solution = conjugate_gradients(
        DenseOperator(tensor(matrix)), tensor(rhs), 0.1, progress=lambda i, r: seen.append((i, r))
    )
    assert [number for number, _ in seen] == list(range(1, solution.iterations + 1))
    assert seen[-1][1] <= 1e-8 < seen[0][1]


def test_no_columns():
    solution = conjugate_gradients(
        DenseOperator(tensor(gaussian(5))), tensor(np.zeros((5, 0))), 0.1
    )
    assert solution.value.shape == (5, 0)
    assert (solution.residual, solution.iterations) == (0.0, 0)


class Single(PivotedCholesky):
    """In float32 inside a float64 iteration; notes what it was given."""

    def __init__(self, operator, rank, shift):
        super().__init__(operator, rank, shift, dtype=torch.float32)
        self.kinds = set()

    def apply(self, residuals):
        self.kinds.add(residuals.dtype)
        return super().apply(residuals)


def test_a_float32_preconditioner():
    matrix, rhs = gaussian(120), np.random.default_rng(0).normal(size=(120, 2))
    operator = DenseOperator(tensor(matrix))
    double, single = PivotedCholesky(operator, 20, 1e-4), Single(operator, 20, 1e-4)
    # Rounding allows eps |A| |x| / |b|, up to 2e-16 * 50 / 1e-4 = 1e-10.
    options = {"shift": 1e-4, "tolerance": 1e-9}
    full = conjugate_gradients(operator, tensor(rhs), preconditioner=double, **options)
    mixed = conjugate_gradients(operator, tensor(rhs), preconditioner=single, **options)
    assert single.kinds == {torch.float32}
    assert mixed.value.dtype == torch.float64
    assert mixed.residual <= 1e-9
    assert mixed.iterations <= 1.5 * full.iterations + 5


@pytest.mark.parametrize("kind", [PivotedCholesky, Nystrom])
def test_a_float32_preconditioner_far_from_the_shift(kind):
    # Gains of 1e7 and more: 1 / (1 + gain) is below the rounding of float32.
    matrix, rhs = gaussian(120), np.random.default_rng(0).normal(size=120)
    operator = DenseOperator(tensor(matrix))
    single = kind(operator, 40, 1e-6, dtype=torch.float32)
    if kind is PivotedCholesky:
        assert float(kind(operator, 40, 1e-6).gains.max()) > 1e7
    result = conjugate_gradients(operator, tensor(rhs), 1e-6, preconditioner=single, tolerance=1e-7)
    assert result.residual <= 1e-7


class Lazy:
    """Hands back what it was given, although a new tensor was asked for."""

    def apply(self, residuals):
        return residuals

    def logdet(self):
        return 0.0


def test_a_preconditioner_that_does_not_copy():
    matrix, rhs = gaussian(40), tensor(np.random.default_rng(0).normal(size=(40, 2)))
    operator = DenseOperator(tensor(matrix))
    plain = conjugate_gradients(operator, rhs, 0.1)
    lazy = conjugate_gradients(operator, rhs, 0.1, preconditioner=Lazy())
    assert torch.equal(plain.value, lazy.value)


class TestFailures:
    def test_too_few_iterations(self):
        matrix, rhs = gaussian(60), np.random.default_rng(0).normal(size=(60, 2))
        with pytest.raises(
            ConvergenceError,
            match=r"stopped after 4 iterations, at a relative residual of .* where 1e-08 was wanted"
            r"; raise max_iterations or the shift.*`solution` holds",
        ) as caught:
            conjugate_gradients(DenseOperator(tensor(matrix)), tensor(rhs), 1e-4, max_iterations=4)
        best = caught.value.solution
        wrong = rhs - shifted(matrix, 1e-4) @ best.value.numpy()
        seen = (np.linalg.norm(wrong, axis=0) / np.linalg.norm(rhs, axis=0)).max()
        assert best.residual == pytest.approx(seen, rel=1e-8)
        assert best.iterations == 4

    def test_more_than_rounding_allows(self):
        matrix = gaussian(60, width=1.0)
        rhs = tensor(np.random.default_rng(0).normal(size=60), torch.float32)
        with pytest.raises(ConvergenceError, match=r"(rounding of torch.float32|stopped) after"):
            conjugate_gradients(
                DenseOperator(tensor(matrix, torch.float32)), rhs, 1e-2, tolerance=1e-9
            )

    def test_a_failed_restart_does_no_harm(self):
        # Products are a little wrong, and after the first certificate (the only long vector after
        # a few iterations) very wrong.
        class Worse(Counting):
            noise = 1e-6

            def matmul(self, vectors):
                product = super().matmul(vectors)
                count = len(self.columns)
                signs = np.random.default_rng(count).choice([-1.0, 1.0], size=tuple(vectors.shape))
                product = product * (1 + self.noise * torch.from_numpy(signs))
                if self.noise < 0.5 and count > 5 and float(vectors.norm()) > 0.05:
                    self.noise, self.certified = 0.5, vectors[:, 0].clone()
                return product

        matrix, rhs = shifted(laplace(40), 3.0), np.random.default_rng(0).normal(size=40)
        operator = Worse(tensor(matrix))
        with pytest.raises(ConvergenceError, match=r"reached the rounding of") as caught:
            conjugate_gradients(operator, tensor(rhs), tolerance=1e-7)
        best = operator.certified * np.linalg.norm(rhs)
        torch.testing.assert_close(caught.value.solution.value, best, rtol=1e-14, atol=0)
        wrong = rhs - matrix @ caught.value.solution.value.numpy()
        assert np.linalg.norm(wrong) < 1e-5 * np.linalg.norm(rhs)
        assert caught.value.solution.residual < 1e-5

    def test_an_indefinite_matrix(self):
        matrix = spectrum(np.r_[np.linspace(1, 2, 20), -0.5])
        rhs = tensor(np.random.default_rng(0).normal(size=21))
        with pytest.raises(NotPositiveDefiniteError, match=r"p\^T p = (-[\d.e-]+), so") as caught:
            conjugate_gradients(DenseOperator(tensor(matrix)), rhs)
        quotient = float(str(caught.value).split("p^T p = ")[1].split(",")[0])
        assert -0.5 <= quotient < 0
        assert conjugate_gradients(DenseOperator(tensor(matrix)), rhs, 0.6).residual <= 1e-8

    def test_a_singular_matrix(self):
        # The right-hand side has a part that no x can give: the residual cannot fall below it.
        matrix = spectrum([1.0, 2.0, 3.0, 0.0])
        with pytest.raises((ConvergenceError, NotPositiveDefiniteError)):
            conjugate_gradients(DenseOperator(tensor(matrix)), torch.ones(4, dtype=torch.float64))
        zero = DenseOperator(torch.zeros(4, 4, dtype=torch.float64))
        with pytest.raises(ConvergenceError, match=r"relative residual of 1 where"):
            conjugate_gradients(zero, torch.ones(4, dtype=torch.float64))

    def test_an_indefinite_preconditioner(self):
        class Wrong(Lazy):
            def apply(self, residuals):
                return -residuals

        with pytest.raises(NotPositiveDefiniteError, match=r"preconditioner is not positive"):
            conjugate_gradients(
                DenseOperator(tensor(gaussian(5))),
                torch.ones(5, dtype=torch.float64),
                0.1,
                preconditioner=Wrong(),
            )

    def test_not_a_number_on_the_way(self):
        class Broken(Counting):
            def matmul(self, vectors):
                product = super().matmul(vectors)
                return product * float("nan") if len(self.columns) == 4 else product

        matrix, rhs = gaussian(30), np.random.default_rng(0).normal(size=30)
        with pytest.raises(ConvergenceError, match=r"got NaN or infinity from a product") as caught:
            conjugate_gradients(Broken(tensor(matrix)), tensor(rhs), 1e-2)
        # The result of the three good iterations is kept.
        wanted = textbook(shifted(matrix, 1e-2), rhs, 3)[-1]
        np.testing.assert_allclose(caught.value.solution.value.numpy(), wanted, rtol=1e-8)

    def test_wrong_tolerances(self):
        for tolerance in (0.0, -1.0, 1.0, float("nan")):
            with pytest.raises(
                ConfigError, match=r"tolerance is .*; give a number between 0 and 1"
            ):
                conjugate_gradients(
                    DenseOperator(tensor(gaussian(5))),
                    torch.ones(5, dtype=torch.float64),
                    tolerance=tolerance,
                )


def test_a_mask_is_solved_without_its_matrix():
    whole = gaussian(50)
    mask = np.random.default_rng(1).uniform(size=50) < 0.6
    rhs = np.random.default_rng(0).normal(size=mask.sum())
    operator = MaskedOperator(DenseOperator(tensor(whole)), torch.from_numpy(mask))
    result = conjugate_gradients(operator, tensor(rhs), 0.1, tolerance=1e-11)
    wanted = np.linalg.solve(shifted(whole[np.ix_(mask, mask)], 0.1), rhs)
    np.testing.assert_allclose(result.value.numpy(), wanted, atol=1e-9)

"""Direct and iterative factors against numpy, the choice between them, and what they report."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.linalg.factor_contract import RIDGE, FactorContract
from tests.linalg.matrices import blocked, gaussian, laplace, shifted, spectrum, tensor
from weightloom.errors import ConfigError, MemoryLimitError, NotPositiveDefiniteError
from weightloom.linalg import DenseOperator, Operator, PivotedCholesky, make_plan, prepare
from weightloom.linalg import prepare as prepare_function
from weightloom.linalg.direct import cholesky_in_place, inverse_columns, mirror_upper
from weightloom.linalg.memory import available, check, parse


class TestCholesky(FactorContract):
    def make(self, operator, shift=0.0):
        return prepare(operator, shift, "cholesky")


class TestCholeskyOverwriting(FactorContract):
    def make(self, operator, shift=0.0):
        matrix = operator.matrix.clone(memory_format=torch.contiguous_format)
        return prepare(DenseOperator(matrix, overwrite=True), shift, "cholesky")


class TestLU(FactorContract):
    def make(self, operator, shift=0.0):
        return prepare(operator, shift, "lu")


class TestConjugateGradients(FactorContract):
    residual, exact = 1e-10, False

    def make(self, operator, shift=0.0):
        return prepare(operator, shift, "cg", tolerance=1e-10)


class TestConjugateGradientsNystrom(FactorContract):
    residual, exact = 1e-10, False

    def make(self, operator, shift=0.0):
        return prepare(operator, shift, "cg", tolerance=1e-10, preconditioner="nystrom")


class TestConjugateGradientsJacobi(FactorContract):
    residual, exact = 1e-10, False

    def make(self, operator, shift=0.0):
        return prepare(operator, shift, "cg", tolerance=1e-10, preconditioner="jacobi")


class TestConjugateGradientsAlone(FactorContract):
    residual, exact = 1e-10, False

    def make(self, operator, shift=0.0):
        return prepare(operator, shift, "cg", tolerance=1e-10, preconditioner="none")


class TestCholeskyInPlace:
    @pytest.mark.parametrize("size", [1, 6, 7, 8, 20, 21])
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    def test_factor_below_matrix_above(self, size, dtype):
        original = tensor(shifted(gaussian(size), 0.1), dtype)
        matrix = original.clone()
        matrix += torch.full_like(matrix, 5.0).triu(1)  # what is above must not be read
        above = matrix.triu(1)
        assert cholesky_in_place(matrix, block=7) == 0
        assert torch.equal(matrix.triu(1), above)
        lower = matrix.tril()
        wanted = np.linalg.cholesky(original.double().numpy())
        # Backward stable: relative error below N eps times the condition, which is below N / 0.1.
        bound = 10 * size**2 * torch.finfo(dtype).eps
        np.testing.assert_allclose(lower.double().numpy(), wanted, atol=bound)

    @pytest.mark.parametrize("begin", [0, 5, 14, 19])
    def test_columns_of_the_inverse(self, begin):
        matrix = tensor(shifted(gaussian(20), 0.1))
        wanted = np.linalg.inv(np.linalg.cholesky(matrix.numpy()))
        cholesky_in_place(matrix)
        end = min(begin + 6, 20)
        columns = inverse_columns(matrix, begin, end, block=4).numpy()
        np.testing.assert_allclose(columns, wanted[begin:, begin:end], atol=1e-12)

    @pytest.mark.parametrize("bad", [0, 6, 7, 13, 19])
    def test_the_pivot_that_fails(self, bad):
        matrix = shifted(gaussian(20), 0.1)
        matrix[bad, bad] = -1.0
        work = tensor(matrix)
        assert cholesky_in_place(work, block=7) == bad + 1
        work.diagonal().copy_(tensor(np.diag(matrix)))
        mirror_upper(work, block=6)
        np.testing.assert_array_equal(work.numpy(), matrix)


class TestJitter:
    def test_none_where_none_is_needed(self):
        factor = prepare(DenseOperator(tensor(laplace(30))), solver="cholesky")
        assert factor.plan.jitter == 0
        assert factor.solve(torch.ones(30, dtype=torch.float64)).jitter == 0

    @pytest.mark.parametrize("size", [80, 600])  # 600: fails after the first blocks were written
    @pytest.mark.parametrize("overwrite", [False, True])
    def test_as_little_as_needed_and_reported(self, overwrite, size):
        # One eigenvalue is negative by rounding; the jitters tried are 0, eps * mean * 10^k.
        matrix = spectrum(np.r_[np.linspace(1, 2, size - 1), -1e-13])
        factor = prepare(DenseOperator(tensor(matrix), overwrite=overwrite), 0.0, "cholesky")
        jitter = factor.plan.jitter
        eps, mean = torch.finfo(torch.float64).eps, np.trace(matrix) / size
        assert jitter == pytest.approx(eps * mean * 10**3, rel=1e-9)
        with pytest.raises(np.linalg.LinAlgError):
            np.linalg.cholesky(matrix + jitter / 10 * np.eye(size))
        # A right-hand side along that eigenvector, which is the first that eigh returns.
        rhs = np.linalg.eigh(matrix)[1][:, 0] + 0.01 * np.random.default_rng(0).normal(size=size)
        solution = factor.solve(tensor(rhs))
        assert solution.jitter == jitter
        # The solution belongs to the matrix with the jitter, the certificate to the one without.
        # Rounding: eps |A| |x| / |b| is below 2e-16 * 2 / 2e-13 = 2e-3 times a small constant.
        value = solution.value.numpy()
        given, used = (
            np.linalg.norm(rhs - (matrix + extra * np.eye(size)) @ value) / np.linalg.norm(rhs)
            for extra in (0.0, jitter)
        )
        assert solution.residual == pytest.approx(given, abs=0.03)
        assert used < 0.03
        assert given > 0.5

    def test_an_indefinite_matrix(self):
        matrix = spectrum(np.r_[np.linspace(1, 2, 29), -0.125])
        with pytest.raises(
            NotPositiveDefiniteError,
            match=r"pivot \d+ of 30 was not .* smallest eigenvalue is about -0.125; raise the",
        ):
            prepare(DenseOperator(tensor(matrix)), 0.0, "cholesky")
        factor = prepare(DenseOperator(tensor(matrix)), 0.126, "cholesky")
        assert factor.plan.jitter == 0
        with pytest.raises(NotPositiveDefiniteError, match=r"smallest eigenvalue is about -0.025"):
            prepare(DenseOperator(tensor(matrix), overwrite=True), 0.1, "cholesky")

    def test_a_large_indefinite_matrix(self):
        diagonal = np.r_[np.linspace(1, 2, 699), -0.5]
        with pytest.raises(NotPositiveDefiniteError, match=r"eigenvalue is about -0\.5;"):
            prepare(DenseOperator(tensor(np.diag(diagonal))), 0.0, "cholesky")

    def test_a_negative_matrix(self):
        for matrix in (-np.eye(3), np.zeros((3, 3))):
            with pytest.raises(NotPositiveDefiniteError, match=r"mean of its diagonal is -?[01]"):
                prepare(DenseOperator(tensor(matrix)), 0.0, "cholesky")

    @pytest.mark.parametrize("place", [(3, 3), (5, 2)])
    def test_not_a_number(self, place):
        matrix = gaussian(9)
        matrix[place] = matrix[place[::-1]] = np.nan
        for solver in ("cholesky", "lu"):
            with pytest.raises(NotPositiveDefiniteError, match=r"NaN or infinity|not finite"):
                prepare(DenseOperator(tensor(matrix)), 0.1, solver)


class TestLUOnly:
    def test_indefinite_systems_are_solved(self):
        matrix = spectrum([1.0, 2.0, -3.0, 4.0])
        factor = prepare(DenseOperator(tensor(matrix)), 0.0, "lu")
        rhs = np.arange(4.0)
        np.testing.assert_allclose(
            factor.solve(tensor(rhs)).value.numpy(), np.linalg.solve(matrix, rhs), rtol=1e-12
        )
        with pytest.raises(NotPositiveDefiniteError, match=r"determinant is negative"):
            factor.logdet()

    def test_singular(self):
        with pytest.raises(NotPositiveDefiniteError, match=r"matrix is singular \(pivot 3 of 3"):
            prepare(DenseOperator(tensor(np.diag([1.0, 2.0, 0.0]))), 0.0, "lu")


class Cheap(DenseOperator):
    """Claims that a product costs next to nothing."""

    @property
    def flops(self):
        return 100.0 * self.size


class Sized(Operator):
    """Has a size, and must not be touched."""

    def __init__(self, size, dtype=torch.float64):
        super().__init__(size, dtype)

    def matmul(self, vectors):
        raise NotImplementedError

    diagonal = rows = matmul


class TestChoice:
    def test_small(self):
        plan = make_plan(DenseOperator(tensor(gaussian(20))))
        assert plan.solver == "cholesky"
        assert "Cholesky, because the factor of N = 20" in plan.reason

    def test_too_little_memory(self):
        plan = make_plan(Sized(10_000), memory=10**8)
        assert plan.solver == "cg"
        assert "needs 882 MB and there are 100 MB" in plan.reason
        assert plan.bytes <= 10**8
        assert make_plan(Sized(10_000), memory=10**9).solver == "cholesky"
        assert make_plan(Sized(10_000, torch.float32), memory=5 * 10**8).solver == "cholesky"

    def test_too_large(self):
        plan = make_plan(Sized(50_000), memory=10**12)
        assert plan.solver == "cg"
        assert "N = 50000 is above 40000" in plan.reason

    def test_structure(self):
        matrix = torch.eye(2_100, dtype=torch.float64)
        plan = make_plan(Cheap(matrix))
        assert plan.solver == "cg"
        assert "cost 42 times less" in plan.reason
        assert make_plan(Cheap(matrix[:500, :500])).solver == "cholesky"

    def test_asked_for(self):
        for solver in ("cholesky", "lu", "cg"):
            plan = make_plan(Sized(100), solver)
            assert (plan.solver, plan.reason) == (solver, f"{solver} was asked for")

    def test_overwriting_needs_less(self):
        matrix = torch.eye(2_000, dtype=torch.float64)
        copied, given = (
            make_plan(DenseOperator(matrix)),
            make_plan(DenseOperator(matrix, overwrite=True)),
        )
        assert copied.bytes - given.bytes == 8 * 2_000**2

    def test_errors_come_before_the_work(self):
        with pytest.raises(
            MemoryLimitError, match=r"cholesky factor of Sized\(30000 x 30000, float64\) needs 7"
        ):
            prepare(Sized(30_000), 1.0, "cholesky", memory="2 GB")
        with pytest.raises(
            MemoryLimitError, match=r'use solver="cg" or DenseOperator\(matrix, overwrite'
        ):
            prepare(DenseOperator(torch.eye(300)), 1.0, "lu", memory=1_000)
        with pytest.raises(ConfigError, match=r"no solver 'qr'; choose from auto, cholesky"):
            prepare(Sized(3), 1.0, "qr")
        with pytest.raises(ConfigError, match=r"no preconditioner 'ilu'; choose from pivoted_chol"):
            prepare(Sized(3), 1.0, "cg", preconditioner="ilu")
        with pytest.raises(ConfigError, match=r"must be finite and not negative"):
            prepare(Sized(3), -1.0)

    def test_the_preconditioner_is_the_one_given(self):
        operator = DenseOperator(tensor(gaussian(30)))
        mine = PivotedCholesky(operator, 3, RIDGE)
        assert prepare(operator, RIDGE, "cg", preconditioner=mine).preconditioner is mine
        assert prepare_function(operator, RIDGE, "cg").preconditioner.rank == 30 // 4


def test_a_matrix_free_system():
    matrix = gaussian(150, width=0.1)
    operator, _ = blocked(matrix, side=40)
    rhs = np.random.default_rng(5).normal(size=(150, 2))
    solution = prepare(operator, 1e-3, "cg").solve(tensor(rhs))
    system = shifted(matrix, 1e-3)
    seen = np.linalg.norm(rhs - system @ solution.value.numpy(), axis=0)
    assert (seen <= 1e-8 * np.linalg.norm(rhs, axis=0)).all()


@pytest.mark.parametrize("solver", ["cholesky", "lu", "cg"])
def test_float32(solver):
    matrix, rhs = gaussian(40), np.random.default_rng(5).normal(size=(40, 2))
    solution = prepare(DenseOperator(tensor(matrix, torch.float32)), 0.5, solver).solve(
        tensor(rhs, torch.float32)
    )
    assert solution.value.dtype == torch.float32
    assert solution.residual < 1e-5
    wanted = np.linalg.solve(shifted(matrix, 0.5), rhs)
    # Condition below 40 / 0.5.
    np.testing.assert_allclose(solution.value.numpy(), wanted, atol=80 * 1e-5 * np.abs(rhs).max())


class TestMemory:
    def test_text(self):
        assert parse("1.5 GB") == 1_500_000_000
        assert parse("2GiB") == 2**31
        assert parse("300") == 300
        assert parse(" 4 k ") == 4_000
        for wrong in ("much", "-2 GB", "2 XB", "", "2 ib"):
            with pytest.raises(ConfigError, match=r"cannot be read; write bytes or"):
                parse(wrong)
        for number in (0, -5, float("nan"), float("inf")):
            with pytest.raises(ConfigError, match=r"give a positive number of bytes"):
                parse(number)

    def test_available(self):
        assert 2**20 < available() < 2**50

    def test_check(self):
        check(10**3, "this", "do that")
        with pytest.raises(
            MemoryLimitError, match=r"this needs 1e\+06 TB, but .* are free; do tha"
        ):
            check(10**18, "this", "do that")
        with pytest.raises(MemoryLimitError, match=r"this needs 2 kB, but 1 kB are allowed; do"):
            check(2_000, "this", "do that", 1_000)

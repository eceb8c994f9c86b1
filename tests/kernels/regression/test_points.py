"""Regression on points by every solver, on grids taken as points; the Gram matrix as operator."""

import sys

import numpy as np
import pytest
import torch

from tests.kernels.regression.oracle import Oracle, relative
from tests.kernels.regression.system_contract import SystemContract
from tests.linalg.operator_contract import OperatorContract
from weightloom.errors import MemoryLimitError
from weightloom.kernels import FourierFeatures, HyperKernel, Tower
from weightloom.kernels.regression import GridProblem, GridQuery, Options, PointProblem
from weightloom.kernels.regression.points import KernelMatrix, PointSystem
from weightloom.kernels.regression.problem import PointQuery


def points(n=30, channels=2, seed=0, dtype=torch.float64):
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(n // 3, 4, generator=random, dtype=dtype).repeat_interleave(3, 0)
    z = torch.rand(n, 2, generator=random, dtype=dtype)
    return PointProblem(x, z, torch.randn(n, channels, generator=random, dtype=dtype))


def grid(masked, n=5, P=6, seed=0):
    random = torch.Generator().manual_seed(seed)
    images = torch.randn(n, 4, generator=random, dtype=torch.float64)
    coordinates = torch.rand(P, 2, generator=random, dtype=torch.float64)
    values = torch.randn(n, P, 2, generator=random, dtype=torch.float64)
    mask = torch.rand(n, P, generator=random) < 0.6 if masked else None
    if mask is not None:
        values = values.masked_fill(~mask[..., None], 0)
    return GridProblem(images, coordinates, values, mask)


class PointContract(SystemContract):
    @pytest.fixture
    def kernel(self):
        return HyperKernel(Tower(3, sigma_b=0.1), Tower(2), "nngp", FourierFeatures(3.0))

    @pytest.fixture
    def problem(self):
        return points()

    @pytest.fixture
    def system_class(self):
        return PointSystem


class TestCholesky(PointContract):
    solver = "cholesky"

    def test_the_factor_takes_the_place_of_the_matrix(self, system):
        operator = system.factor.operator  # what is left for certificates
        assert operator._matrix.data_ptr() == system.factor._factor.data_ptr()


class TestTangentKernel(PointContract):
    @pytest.fixture
    def kernel(self):
        return HyperKernel(Tower(3, sigma_b=0.1), Tower(3), "ntk", FourierFeatures(3.0))


class TestLU(PointContract):
    solver = "lu"


class TestConjugateGradients(PointContract):
    solver = "cg"
    tolerance = 1e-8


class TestMatrixFree(PointContract):
    solver = "cg"
    tolerance = 1e-8
    memory = 20_000  # the matrix alone has 7,200 bytes, and there are vectors and temporaries

    def queries(self, problem):
        return list(super().queries(problem))[:3]  # each costs an iteration over all tiles

    def test_the_matrix_is_not_held(self, system):
        assert "computed again for every product" in system.plan.reason
        assert isinstance(system.factor.operator, KernelMatrix)


class TestGrid(PointContract):
    @pytest.fixture
    def problem(self):
        return grid(masked=False)


class TestMaskedGrid(PointContract):
    @pytest.fixture
    def problem(self):
        return grid(masked=True)


class TestFloat32(PointContract):
    # Condition number about 1e3 times the 6e-8 of float32, and the variance cancels.
    tolerance = 1e-3

    @pytest.fixture
    def problem(self):
        return points(dtype=torch.float32)


def test_auto_says_why(monkeypatch):
    kernel, problem = HyperKernel(Tower(2), Tower(2)), points()
    system = PointSystem.fit(kernel, problem, 0.1, Options())
    assert system.plan.solver == "cholesky"
    assert "which fits, and is exact" in system.plan.reason
    # Not by its dotted name, which is that of the function `prepare`.
    monkeypatch.setattr(sys.modules["weightloom.linalg.solvers"], "LARGEST_DENSE", 20)
    system = PointSystem.fit(kernel, problem, 0.1, Options())
    assert system.plan.solver == "cg"
    assert "N = 30 is above 20" in system.plan.reason


def test_memory_is_asked_for_before_the_work(monkeypatch):
    kernel, problem = HyperKernel(Tower(2), Tower(2)), points(n=300)

    def never(*_, **__):
        raise AssertionError("the kernel was computed")

    monkeypatch.setattr(HyperKernel, "__call__", never)
    with pytest.raises(
        MemoryLimitError, match=r"cholesky solver for 300 points needs .* allowed; "
    ):
        PointSystem.fit(kernel, problem, 0.1, Options("cholesky", memory=100_000))


@pytest.mark.parametrize("solver", ["cholesky", "cg"])
def test_everything_comes_in_parts(monkeypatch, solver):
    """With 10,000 bytes for temporaries no part of the kernel is computed in one piece."""
    monkeypatch.setattr("weightloom.kernels.regression.points.BLOCK", 10_000)
    kernel, problem = HyperKernel(Tower(3), Tower(2), "nngp"), points(n=36)
    oracle = Oracle(kernel, problem, 0.1)
    sizes = []
    join = HyperKernel.join

    def counted(self, condition, points):
        block = join(self, condition, points)
        sizes.append(block.numel())
        return block

    monkeypatch.setattr(HyperKernel, "join", counted)
    # Too little for conjugate gradients to hold the matrix.
    memory = 20_000 if solver == "cg" else None
    options = Options(solver, tolerance=1e-10, memory=memory)
    system = PointSystem.fit(kernel, problem, 0.1, options)
    x, z = torch.randn(12, 4).double(), torch.rand(12, 2).double()
    for query in (GridQuery(x, z[:3]), PointQuery(x, z)):
        answers = system.mean(query), system.variance(query)
        assert max(sizes) <= 16 * 16  # the smallest blocks that kernels make
        assert relative(answers[0], oracle.mean(query)) < 1e-7
        assert relative(answers[1], oracle.variance(query)) < 1e-7
        sizes.clear()


def test_calibration():
    """Functions sampled from the prior: held-out residuals are as large as the variance says.

    Standardised residuals of a correct posterior are N(0, 1). Those of one draw depend on each
    other, so the standard error is taken over draws.
    """
    random = torch.Generator().manual_seed(3)
    kernel = HyperKernel(Tower(3), Tower(2), "nngp", FourierFeatures(3.0))
    n, held_out, draws, noise = 120, 40, 50, 0.05
    few = 1 + torch.rand(8, 3, generator=random, dtype=torch.float64)
    x = few[torch.randint(8, (n + held_out,), generator=random)]
    z = torch.rand(n + held_out, 2, generator=random, dtype=torch.float64)
    root = torch.linalg.cholesky(kernel(x, z) + 1e-10 * torch.eye(len(x)))
    functions = root @ torch.randn(len(x), draws, generator=random, dtype=torch.float64)
    observed = functions + noise**0.5 * torch.randn(functions.shape, generator=random).double()
    system = PointSystem.fit(kernel, PointProblem(x[:n], z[:n], observed[:n]), noise, Options())
    query = PointQuery(x[n:], z[n:])
    residual = functions[n:] - system.mean(query)
    single = residual.square() / system.variance(query)[:, None]
    means = single.mean(0)
    error = float(means.std() / draws**0.5)
    assert abs(float(means.mean()) - 1) < 4 * error
    # Sharp: most of the prior is explained, and a variance that is wrong by a fifth is seen.
    assert float((system.variance(query) / kernel.diagonal(query.x, query.z)).mean()) < 0.3
    assert error < 0.05
    # Left-out training values, with their noise, likewise.
    left_out = system.leave_one_out()
    means = (left_out.residual.square() / left_out.variance[:, None]).mean(0)
    assert abs(float(means.mean()) - 1) < 4 * float(means.std() / draws**0.5)


def test_more_data_never_raise_the_variance():
    kernel, problem = HyperKernel(Tower(3), Tower(2), "nngp"), points()
    query = PointQuery(torch.randn(6, 4).double(), torch.rand(6, 2).double())
    before = np.full(6, np.inf)
    for n in (1, 5, 20, 30):
        part = PointProblem(problem.x[:n], problem.z[:n], problem.y[:n])
        now = PointSystem.fit(kernel, part, 0.1, Options()).variance(query).numpy()
        assert (now <= before + 1e-12).all()
        before = now


# -- the Gram matrix as an operator, against the same matrix entry by entry -----------------------

KERNEL = HyperKernel(Tower(3), Tower(2), "ntk", FourierFeatures(2.0))


class MatrixContract(OperatorContract):
    memory: int

    @pytest.fixture
    def problem(self):
        return points(n=45)

    @pytest.fixture
    def operator(self, problem):
        return KernelMatrix(KERNEL, problem, self.memory)

    @pytest.fixture
    def matrix(self, problem):
        x, z = problem.x, problem.z
        n = len(x)
        i, j = torch.arange(n).repeat_interleave(n), torch.arange(n).repeat(n)
        return KERNEL.paired(x[i], z[i], x[j], z[j]).reshape(n, n).numpy()


class TestInOnePiece(MatrixContract):
    memory = 2**26


class TestInBlocks(MatrixContract):
    memory = 8_000


def test_nothing_is_computed_before_a_product(monkeypatch):
    def never(*_, **__):
        raise AssertionError("the kernel was computed")

    for name in ("from_conditions", "from_points", "join"):
        monkeypatch.setattr(HyperKernel, name, never)
    operator = KernelMatrix(KERNEL, points(), 2**20)
    assert operator.flops > 0
    with pytest.raises(AssertionError, match="was computed"):
        operator.matmul(torch.ones(30, 1, dtype=torch.float64))


def test_tables_are_kept_between_products(monkeypatch):
    """15 distinct conditions: after the first product only joins are left to do."""
    problem = points(n=45)
    operator = KernelMatrix(KERNEL, problem, 2**26)
    vectors = torch.ones(45, 1, dtype=torch.float64)
    first = operator.matmul(vectors)

    def never(*_, **__):
        raise AssertionError("the conditions were computed again")

    monkeypatch.setattr(HyperKernel, "from_conditions", never)
    assert torch.equal(operator.matmul(vectors), first)
    np.testing.assert_allclose(operator.rows(torch.tensor([7])).sum(), first[7], rtol=1e-12)

"""The Gram matrix as an operator, against the same matrix entry by entry."""

import numpy as np
import pytest
import torch

from tests.kernels.regression.test_points import points
from tests.linalg.operator_contract import OperatorContract
from weightloom.kernels import FourierFeatures, HyperKernel, Tower
from weightloom.kernels.regression.matrix import KernelMatrix

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

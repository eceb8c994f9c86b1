"""Operators held in memory, blocked, cached on disk, masked."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import weightloom.linalg
from tests.linalg.matrices import blocked, gaussian, laplace, tensor
from tests.linalg.operator_contract import OperatorContract
from weightloom.errors import ConfigError, KernelError, MemoryLimitError, ShapeError
from weightloom.linalg import Blocked, DenseOperator, MaskedOperator, prepare
from weightloom.linalg.direct import UpperHalf
from weightloom.linalg.operator import check_shift


@pytest.fixture
def matrix():
    return gaussian(31)


class TestDense(OperatorContract):
    @pytest.fixture
    def operator(self, matrix):
        return DenseOperator(tensor(matrix))


class TestDenseTransposed(OperatorContract):
    """Column-major memory."""

    @pytest.fixture
    def operator(self, matrix):
        return DenseOperator(tensor(matrix).mT.contiguous().mT)


class TestBlocked(OperatorContract):
    @pytest.fixture
    def operator(self, matrix):
        return blocked(matrix)[0]


class TestBlockedOnDisk(OperatorContract):
    @pytest.fixture
    def operator(self, matrix, tmp_path):
        return blocked(matrix, folder=tmp_path)[0]


class TestMasked(OperatorContract):
    index = (30, 2, 3, 17, 5, 0, 11)

    @pytest.fixture
    def whole(self):
        return gaussian(31)

    @pytest.fixture
    def matrix(self, whole):
        return whole[np.ix_(self.index, self.index)]

    @pytest.fixture
    def operator(self, whole):
        return MaskedOperator(blocked(whole)[0], torch.tensor(self.index))


class TestUpperHalf(OperatorContract):
    """Reads neither the lower half nor the diagonal of what it is given."""

    @pytest.fixture
    def operator(self, matrix):
        upper = tensor(np.triu(matrix, 1) + np.tril(np.full_like(matrix, np.nan)))
        return UpperHalf(upper, tensor(np.diag(matrix)), block=7)


@given(st.integers(1, 23), st.integers(1, 25), st.integers(0, 4))
def test_tiles_of_any_size(size, side, columns):
    matrix = laplace(size)
    operator, asked = blocked(matrix, side=side)
    assert operator.side == min(size, side)
    vectors = np.random.default_rng(4).normal(size=(size, columns))
    given_ = operator.matmul(tensor(vectors)).numpy()
    np.testing.assert_allclose(given_, matrix @ vectors, atol=1e-13 * size)
    # Every entry of the upper half was computed once, and nothing below the diagonal tiles.
    seen = np.zeros((size, size), dtype=int)
    for rows, cols in asked:
        seen[rows, cols] += 1
    assert seen.max() == 1
    assert (seen + seen.T >= 1).all()
    assert all(cols.start >= rows.start for rows, cols in asked)


def test_tiles_stay_within_the_memory():
    operator, asked = blocked(gaussian(60), side=9)
    operator.matmul(torch.ones(60, 1, dtype=torch.float64))
    operator.rows(torch.tensor([3, 59]))
    operator.diagonal()
    entries = [(r.stop - r.start) * (c.stop - c.start) for r, c in asked]
    assert max(entries) <= 81


def test_a_file_is_filled_once_and_has_no_name(tmp_path):
    matrix = gaussian(31)
    operator, asked = blocked(matrix, folder=tmp_path)
    for _ in range(3):
        operator.matmul(torch.ones(31, 2, dtype=torch.float64))
    assert len(asked) == 5 * 6 // 2
    np.testing.assert_array_equal(operator.dense().numpy(), matrix)
    assert len(asked) == 5 * 6 // 2
    assert list(tmp_path.iterdir()) == []


def test_the_file_goes_with_the_operator(tmp_path):
    descriptors = "/proc/self/fd"
    maps = "/proc/self/maps"
    if not os.path.exists(maps):
        pytest.skip("no /proc here to look for maps")

    def held():
        with open(maps) as lines:
            return sum(str(tmp_path) in line for line in lines)

    before = len(os.listdir(descriptors))
    operator, _ = blocked(gaussian(31), folder=tmp_path)
    operator.matmul(torch.ones(31, 1, dtype=torch.float64))
    assert held() == 1
    del operator
    assert held() == 0
    assert len(os.listdir(descriptors)) == before


def test_float32_tiles_on_disk(tmp_path):
    matrix = gaussian(31)
    operator, _ = blocked(matrix, torch.float32, folder=tmp_path)
    assert operator.dense().dtype == torch.float32
    np.testing.assert_array_equal(operator.dense().numpy(), matrix.astype(np.float32))


def test_a_failing_block_leaves_no_wrong_tile(tmp_path):
    matrix = tensor(gaussian(20))
    broken = [True]

    def block(rows, columns):
        if broken[0] and columns.start == 10:
            raise RuntimeError("interrupted")
        return matrix[rows, columns]

    operator = Blocked(20, block, memory=2 * 8 * 25, folder=tmp_path)
    ones = torch.ones(20, 1, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="interrupted"):
        operator.matmul(ones)
    broken[0] = False
    torch.testing.assert_close(operator.matmul(ones), matrix @ ones)


def test_no_room_on_disk(tmp_path):
    size = 2**22  # 64 TiB: more than any disk that runs tests
    with pytest.raises(MemoryLimitError, match=r"the tiles need \d+\.?\d* TB in .*give another fo"):
        Blocked(size, lambda i, j: torch.zeros(1), memory="1 TB", folder=tmp_path)
    with pytest.raises(ConfigError, match=r"nowhere is not a folder"):
        Blocked(5, lambda i, j: torch.zeros(1), folder=tmp_path / "nowhere")


def test_a_block_of_the_wrong_kind():
    wrong = Blocked(5, lambda i, j: torch.zeros(2, 2, dtype=torch.float64))
    with pytest.raises(
        KernelError, match=r"block\(0:5, 0:5\) returned .*\[2, 2\]; it must .*\[5, 5\]"
    ):
        wrong.matmul(torch.zeros(5, 1, dtype=torch.float64))
    wrong = Blocked(5, lambda i, j: torch.zeros(5, 5))
    with pytest.raises(KernelError, match=r"returned torch.float32 .* must return torch.float64"):
        wrong.diagonal()


def test_masks():
    whole = DenseOperator(tensor(gaussian(6)))
    mask = torch.tensor([True, False, True, True, False, False])
    np.testing.assert_array_equal(
        MaskedOperator(whole, mask).dense().numpy(), gaussian(6)[np.ix_([0, 2, 3], [0, 2, 3])]
    )
    with pytest.raises(ShapeError, match=r"mask has shape \[3\], but the operator has 6 rows"):
        MaskedOperator(whole, torch.tensor([True, False, True]))
    with pytest.raises(ShapeError, match=r"index runs from -1 to 2"):
        MaskedOperator(whole, torch.tensor([2, -1]))
    with pytest.raises(ShapeError, match=r"names a row twice"):
        MaskedOperator(whole, torch.tensor([2, 2]))
    with pytest.raises(ShapeError, match=r"index is torch.float32 of shape \[1\]"):
        MaskedOperator(whole, torch.tensor([2.0]))
    with pytest.raises(ShapeError, match=r"size 0 is empty"):
        MaskedOperator(whole, torch.zeros(6, dtype=torch.bool))


def test_matrices_that_are_none():
    with pytest.raises(ShapeError, match=r"shape \[2, 3\]; a symmetric matrix is \[N, N\]"):
        DenseOperator(torch.zeros(2, 3))
    with pytest.raises(ConfigError, match=r"operator of torch.int64 cannot be solved"):
        DenseOperator(torch.zeros(2, 2, dtype=torch.int64))


def test_a_matrix_that_was_given_up():
    matrix = tensor(gaussian(5))
    operator = DenseOperator(matrix, overwrite=True)
    assert operator.bytes == 200
    factor = prepare(operator, 0.1, "cholesky")
    assert operator.bytes == 0
    for use in (operator.diagonal, operator.dense, lambda: operator @ matrix):
        with pytest.raises(ConfigError, match=r"overwritten by its factor; build DenseOperator"):
            use()
    # The factor is in the very tensor, below; the matrix lives on above.
    lower = np.linalg.cholesky(gaussian(5) + 0.1 * np.eye(5))
    np.testing.assert_allclose(matrix.tril().numpy(), lower, atol=1e-14)
    np.testing.assert_array_equal(factor.operator.dense().numpy(), gaussian(5))


@pytest.mark.parametrize("solver", ["cholesky", "lu", "cg"])
def test_a_matrix_that_was_not_given_up(solver):
    matrix = tensor(gaussian(20))
    factor = prepare(DenseOperator(matrix), 0.1, solver)
    factor.solve(torch.ones(20, dtype=torch.float64))
    np.testing.assert_array_equal(matrix.numpy(), gaussian(20))


def test_shifts():
    operator = DenseOperator(tensor(gaussian(4)))
    assert check_shift(1, operator).dtype == torch.float64
    with pytest.raises(ShapeError, match=r"shift has shape \[3\].*each of the 4 rows"):
        check_shift(torch.ones(3), operator)
    for wrong in (-1e-3, float("nan"), float("inf"), torch.tensor([1.0, 1.0, -2.0, 1.0])):
        with pytest.raises(ConfigError, match=r"must be finite and not negative"):
            check_shift(wrong, operator)


def test_only_torch_and_numpy_are_asked_for():
    folder = Path(weightloom.linalg.__file__).parent
    roots = set()
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                roots |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                roots.add((node.module or "").split(".")[0])
    assert roots - set(sys.stdlib_module_names) == {"numpy", "torch", "weightloom"}

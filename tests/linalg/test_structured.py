"""Sums of Kronecker products, their preconditioner, and matrices on a torus."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.linalg.matrices import gaussian, laplace, shifted, tensor
from tests.linalg.operator_contract import OperatorContract
from weightloom.errors import NotPositiveDefiniteError, ShapeError
from weightloom.linalg import (
    KroneckerSum,
    KroneckerTerms,
    SpectralBlocks,
    Torus,
    TorusFactor,
    conjugate_gradients,
    cosine_transform,
    estimate_logdet,
    half_grid,
)
from weightloom.linalg.spectral import common_basis
from weightloom.linalg.torus import fourier_basis


def terms(n=5, P=6, corner=True):
    left = np.stack([gaussian(n, seed=1), laplace(n, seed=2)])
    right = np.stack([laplace(P, seed=3), gaussian(P, seed=4)])
    extra = (np.linspace(0.5, 1.5, n), laplace(P, seed=5)) if corner else (None, None)
    matrix = sum(np.kron(a, b) for a, b in zip(left, right, strict=True))
    if corner:
        matrix = matrix + np.kron(np.diag(extra[0]), extra[1])
    given_ = KroneckerTerms(
        tensor(left), tensor(right), *(e if e is None else tensor(e) for e in extra)
    )
    return given_, matrix


class KroneckerContract(OperatorContract):
    corner = True

    @pytest.fixture
    def matrix(self):
        return terms(corner=self.corner)[1]

    @pytest.fixture
    def operator(self):
        return KroneckerSum(terms(corner=self.corner)[0])


class TestKronecker(KroneckerContract):
    def test_flops_are_those_of_the_two_products(self, operator):
        assert operator.flops == 2 * 2 * (5 * 5 * 6 + 5 * 6 * 6)


class TestWithoutCorner(KroneckerContract):
    corner = False


def test_rectangular_terms():
    left, right = tensor(np.random.randn(3, 2, 4)), tensor(np.random.randn(3, 5, 3))
    whole = sum(np.kron(a, b) for a, b in zip(left.numpy(), right.numpy(), strict=True))
    rectangular = KroneckerTerms(left, right)
    vectors = tensor(np.random.randn(12, 2))
    assert rectangular.shape == (10, 12)
    np.testing.assert_allclose(rectangular.matmul(vectors), whole @ vectors.numpy(), atol=1e-13)
    np.testing.assert_allclose(rectangular.rows(torch.tensor([7, 0])), whole[[7, 0]], atol=1e-14)
    with pytest.raises(ShapeError, match="10 x 12 matrix"):
        KroneckerSum(rectangular)


def test_terms_that_do_not_fit():
    square = torch.eye(2)[None]
    with pytest.raises(
        ShapeError, match=r"of one r, but left is \[1, 2, 2\] and right \[2, 2, 2\]"
    ):
        KroneckerTerms(square, square.repeat(2, 1, 1))
    with pytest.raises(ShapeError, match="give both or neither"):
        KroneckerTerms(square, square, torch.ones(2))


class TestSpectralBlocks:
    shift = 0.02

    def stand_in(self, given_, modes=None):
        """The preconditioner as a matrix, from its definition."""
        U = common_basis(given_).numpy()
        n, P = given_.left.shape[1], len(U)
        blocks = []
        for p in range(P):
            block = sum(
                a * (U[:, p] @ b @ U[:, p])
                for a, b in zip(given_.left.numpy(), given_.right.numpy(), strict=True)
            )
            block = block + np.diag(given_.weights) * (U[:, p] @ given_.corner.numpy() @ U[:, p])
            if modes is not None and p >= modes:
                block = np.diag(np.diag(block))
            blocks.append(block + self.shift * np.eye(n))
        return sum(np.kron(block, np.outer(U[:, p], U[:, p])) for p, block in enumerate(blocks))

    @pytest.mark.parametrize("modes", [None, 4, 0])
    def test_against_its_definition(self, modes):
        given_, _ = terms()
        wanted = self.stand_in(given_, modes)
        result = SpectralBlocks(given_, self.shift, modes=modes, dtype=torch.float64)
        eye = torch.eye(30, dtype=torch.float64)
        np.testing.assert_allclose(result.apply(eye), np.linalg.inv(wanted), atol=1e-10)
        assert result.logdet() == pytest.approx(np.linalg.slogdet(wanted)[1], abs=1e-10)
        root = result.root(eye).numpy()
        np.testing.assert_allclose(root @ root.T, wanted, atol=1e-12)
        inverse = np.diag(np.linalg.inv(wanted))
        np.testing.assert_allclose(result.inverse_diagonal(), inverse, atol=1e-10)
        assert result.bytes == 8 * 25 * result.modes

    def test_exact_when_the_right_factors_commute(self):
        basis = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))[0]
        right = np.stack([(basis * s) @ basis.T for s in ([6, 5, 4, 3, 2, 1], [3, 1, 2, 9, 7, 5])])
        left = np.stack([gaussian(5, seed=1), laplace(5, seed=2)])
        given_ = KroneckerTerms(tensor(left), tensor(right))
        matrix = shifted(sum(np.kron(a, b) for a, b in zip(left, right, strict=True)), self.shift)
        result = SpectralBlocks(given_, self.shift, dtype=torch.float64)
        vectors = np.random.default_rng(1).normal(size=(30, 2))
        np.testing.assert_allclose(
            result.apply(tensor(vectors)), np.linalg.solve(matrix, vectors), atol=1e-10
        )
        solution = conjugate_gradients(
            KroneckerSum(given_), tensor(vectors), self.shift, preconditioner=result
        )
        assert solution.iterations == 1

    def test_single_precision_is_enough_inside(self):
        given_, matrix = terms(n=8, P=9)
        rhs = tensor(np.random.default_rng(2).normal(size=(72, 2)))
        plain = conjugate_gradients(KroneckerSum(given_), rhs, self.shift, tolerance=1e-10)
        with_it = conjugate_gradients(
            KroneckerSum(given_),
            rhs,
            self.shift,
            tolerance=1e-10,
            preconditioner=SpectralBlocks(given_, self.shift),
        )
        assert with_it.iterations < plain.iterations / 2
        wanted = np.linalg.solve(shifted(matrix, self.shift), rhs.numpy())
        np.testing.assert_allclose(with_it.value, wanted, atol=1e-8 * np.abs(wanted).max())

    def test_log_determinants_through_it(self):
        given_, matrix = terms(n=8, P=9)
        blocks = SpectralBlocks(given_, self.shift, dtype=torch.float64)
        result = estimate_logdet(KroneckerSum(given_), self.shift, preconditioner=blocks, probes=8)
        plain = estimate_logdet(KroneckerSum(given_), self.shift, probes=8)
        wanted = np.linalg.slogdet(shifted(matrix, self.shift))[1]
        assert abs(float(result) - wanted) < 4 * float(result.standard_error)
        assert float(result.standard_error) < float(plain.standard_error)

    def test_rounding_that_makes_a_block_indefinite(self):
        """A block of ones and a tiny shift: no Cholesky factor in float32, one in float64."""
        ones = torch.ones(1, 40, 40, dtype=torch.float64) * 1e6
        given_ = KroneckerTerms(ones, torch.ones(1, 1, 1, dtype=torch.float64))
        blocks = SpectralBlocks(given_, 1e-3)
        assert math.isfinite(blocks.logdet())
        with pytest.raises(NotPositiveDefiniteError, match="block 0 of the preconditioner"):
            SpectralBlocks(KroneckerTerms(-ones, given_.right), 1e-3)


SHAPES = [(5,), (4,), (1,), (2, 3), (4, 5), (2, 3, 4)]


def torus(shape, n=3, seed=0):
    """Blocks by frequency, and the matrix written down entry by entry from displacements."""
    P, classes = math.prod(shape), len(half_grid(shape))
    random = np.random.default_rng(seed).normal(size=(classes, n, n))
    blocks = random @ random.transpose(0, 2, 1) / n
    places = np.array(list(itertools.product(*(range(size) for size in shape))))
    frequencies = half_grid(shape).numpy()
    full = np.array(list(itertools.product(*(range(size) for size in shape))))
    folded = np.minimum(full, np.array(shape) - full)
    which = [next(c for c, f in enumerate(frequencies) if (f == row).all()) for row in folded]
    matrix = np.zeros((n, P, n, P))
    for a, b in itertools.product(range(P), range(P)):
        phases = 2j * np.pi * ((places[a] - places[b]) / np.array(shape)) @ full.T
        entry = np.tensordot(np.exp(phases), blocks[which], axes=1) / P
        assert np.abs(entry.imag).max() < 1e-13
        matrix[:, a, :, b] = entry.real
    return blocks, matrix.reshape(n * P, n * P)


class TestTorus(OperatorContract):
    @pytest.fixture(params=SHAPES, ids=str)
    def shape(self, request):
        return request.param

    @pytest.fixture
    def matrix(self, shape):
        return torus(shape)[1]

    @pytest.fixture
    def operator(self, shape):
        return Torus(tensor(torus(shape)[0]), shape)

    def test_factor(self, operator, matrix, vectors):
        factor = TorusFactor(operator, 0.3)
        system = shifted(matrix, 0.3)
        solution = factor.solve(tensor(vectors))
        np.testing.assert_allclose(solution.value, np.linalg.solve(system, vectors), atol=1e-11)
        assert solution.residual < 1e-13
        assert solution.solver == "torus"
        assert float(factor.logdet()) == pytest.approx(np.linalg.slogdet(system)[1], abs=1e-11)
        inverse = np.diag(np.linalg.inv(system))
        np.testing.assert_allclose(factor.inverse_diagonal().value, inverse, atol=1e-12)
        wanted = np.diag(vectors.T @ np.linalg.solve(system, vectors))
        np.testing.assert_allclose(factor.quadratic(tensor(vectors)), wanted, rtol=1e-10)

    def test_the_operator_survives_its_factor(self, operator, matrix, vectors):
        TorusFactor(operator, 0.3)
        self.close(operator.matmul(tensor(vectors)), matrix @ vectors, matrix)

    def test_only_the_upper_half_is_read(self, operator, shape, matrix, vectors):
        blocks = tensor(torus(shape)[0]).triu() + torch.full((3, 3), 99.0).tril(-1)
        other = Torus(blocks, shape)
        self.close(other.matmul(tensor(vectors)), matrix @ vectors, matrix)
        solved = TorusFactor(other, 0.3).solve(tensor(vectors)).value
        wanted = np.linalg.solve(shifted(matrix, 0.3), vectors)
        np.testing.assert_allclose(solved, wanted, atol=1e-11)


@given(st.integers(1, 12), st.integers(1, 7))
def test_fourier_bases_and_cosine_transforms(first, second):
    """Values on displacements, and eigenvalues, are the two sides of one even function."""
    basis = fourier_basis(first, torch.float64)
    torch.testing.assert_close(basis @ basis.T, torch.eye(first, dtype=torch.float64))
    shape = (first, second)
    values = torch.randn(len(half_grid(shape)), dtype=torch.float64)
    places = np.array(list(itertools.product(range(first), range(second))))
    folded = np.minimum(places, np.array(shape) - places)
    full = values[folded[:, 0] * (second // 2 + 1) + folded[:, 1]].reshape(shape)
    wanted = np.fft.fft2(full.numpy())
    result = cosine_transform(shape, torch.float64) @ values
    for k, (a, b) in enumerate(half_grid(shape).tolist()):
        assert result[k].item() == pytest.approx(wanted[a, b].real, abs=1e-11)


def test_blocks_of_another_grid():
    with pytest.raises(ShapeError, match=r"grid \(4, 4\) has 9 frequencies.*\[8, 2, 2\]"):
        Torus(torch.zeros(8, 2, 2), (4, 4))


def test_an_indefinite_torus_says_which_frequency():
    blocks = torch.eye(2, dtype=torch.float64).repeat(3, 1, 1)
    blocks[2] *= -0.5
    with pytest.raises(NotPositiveDefiniteError, match=r"frequency \[2\].*-0\.4.*above 0\.5"):
        TorusFactor(Torus(blocks, (5,)), 0.1)

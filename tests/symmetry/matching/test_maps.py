"""The matrix between two pairs of factors, against plain least squares."""

from __future__ import annotations

import pytest
import torch

from weightloom.symmetry.matching.heads.determined import determined
from weightloom.symmetry.matching.heads.maps import grams, solve
from weightloom.symmetry.matching.heads.planes import Planes


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def random(generator, *shape, dtype=torch.float64):
    return torch.randn(*shape, generator=generator, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_exact_factors(dtype):
    generator = seeded(0)
    left, right = random(generator, 2, 3, 9, dtype=dtype), random(generator, 2, 3, 7, dtype=dtype)
    A = random(generator, 2, 3, 3, dtype=dtype)
    right[:, 2] = right[:, 1]  # one factor may lack rank
    moved = torch.linalg.inv(A).mH @ right
    assert torch.allclose(solve(grams(A @ left, left, moved, right)), A, atol=1e-8)


def test_noisy_factors_against_least_squares():
    """Both equations as one system for the entries of A, each divided by its deviation."""
    generator = seeded(1)
    n, d = 40, 4
    A = random(generator, d, d)
    left = random(generator, d, n)
    noise = 1e-6
    left_a = A @ left + noise * random(generator, d, n)
    right_b = A.T @ random(generator, d, n)
    right_a = torch.linalg.inv(A).T @ right_b + noise * random(generator, d, n)
    found = solve(grams(left_a[None], left[None], right_a[None], right_b[None]))[0]

    # The variances that solve() assumes: D(L_a) + A D(L_b) A^T, and A^T times that of R.
    def squares(factor):
        return torch.diag(factor.square().mean(1))

    back = torch.linalg.inv(A)
    one = torch.linalg.cholesky(squares(left_a) + A @ squares(left) @ A.T)
    two = torch.linalg.cholesky(squares(right_a) + back.T @ squares(right_b) @ back)
    # Unknown X in A = (1 + X) A_0 with the true A_0: X L' = L_a - L', X^T R_a = R' - R_a.
    moved, returned = A @ left, back.T @ right_b
    identity = torch.eye(d).double()
    # Entry (p, n) of X L' whitened is sum_ij one^-1[p, i] L'[j, n] X[i, j]; of X^T R_a, with
    # two^-1[p, j] R_a[i, n].
    whiten_one, whiten_two = torch.linalg.inv(one), torch.linalg.inv(two)
    rows = torch.cat((
        torch.einsum("pi,jn->pnij", whiten_one, moved).reshape(d * n, d * d),
        torch.einsum("pj,in->pnij", whiten_two, right_a).reshape(d * n, d * d),
    ))  # fmt: skip
    wanted = torch.cat((
        (whiten_one @ (left_a - moved)).flatten(),
        (whiten_two @ (returned - right_a)).flatten(),
    ))  # fmt: skip
    X = torch.linalg.lstsq(rows, wanted[:, None]).solution.reshape(d, d)
    best = (identity + X) @ A
    assert float((found - A).abs().max()) < 100 * noise
    assert float((found - best).abs().max()) < 1e-3 * float((found - A).abs().max())


@pytest.mark.parametrize(("rank_left", "rank_right"), [(3, 5), (5, 2), (2, 4), (0, 5)])
def test_what_a_product_determines(rank_left, rank_right):
    generator = seeded(2)
    left = random(generator, 5, rank_left) @ random(generator, rank_left, 20)
    right = random(generator, 5, rank_right) @ random(generator, rank_right, 30)
    part = determined(left, right, 1e-15)
    assert part.ranks == (rank_left, min(rank_left, rank_right))
    assert part.p.shape == (min(rank_left, rank_right), 5)
    torch.testing.assert_close(part.p @ part.q.mH, torch.eye(len(part.p)).double())
    product = (part.p @ left).mH @ (part.q @ right)
    torch.testing.assert_close(product, left.mH @ right, rtol=1e-9, atol=1e-9)
    assert float(part.left.abs().max()) < 1e-12


def test_planes_are_complex_numbers():
    planes = Planes(torch.tensor([[0, 3], [4, 1]]), torch.tensor([2, 5]))
    generator = seeded(3)
    x, y = random(generator, 6, 8), random(generator, 6, 8)
    numbers, rest = planes.gram((x @ y.T)[None])
    rows_x, rest_x = planes.rows_of(x)
    rows_y, rest_y = planes.rows_of(y)
    torch.testing.assert_close(numbers.flatten(), (rows_x * rows_y.conj()).sum(1))
    torch.testing.assert_close(rest[0], rest_x @ rest_y.T)
    z, inner = random(generator, 2, 1, 1, dtype=torch.complex128), random(generator, 1, 2, 2)
    matrix = planes.matrix(z, inner)
    moved = planes.real_rows(z.flatten()[:, None] * rows_x, inner[0] @ rest_x)
    torch.testing.assert_close(matrix[0] @ x, moved)
    parts = planes.parts(matrix)
    assert torch.equal(parts[0], z)
    assert torch.equal(parts[1], inner)

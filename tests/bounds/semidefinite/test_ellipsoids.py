"""What an activation does to an ellipsoid: against random slopes, also on a torus."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weightloom.bounds.semidefinite.ellipsoids import (
    after_slopes,
    largest,
    sandwich,
    summed_sandwich,
)
from weightloom.bounds.semidefinite.signals import ImageTorus

SLOPES = [(0.0, 1.0), (0.2, 1.0), (-0.13, 1.13), (-1.0, 1.0), (0.0, 0.25), (0.7, 0.7), (-2.0, 0.5)]
# Rounding of a matrix with entries near 1.
ROUNDING = 1e-10


def positive(n, rank, generator):
    w = torch.randn(n, rank, dtype=torch.float64, generator=generator)
    return (w @ w.T)[None]


def contains(big, small):
    """small <= big, as matrices."""
    gap = torch.linalg.eigvalsh(big - small)
    return float(gap.min()) >= -ROUNDING * float(largest(big))


def diagonals(n, low, high, generator):
    """Extreme slopes first, then any."""
    corner = torch.randint(0, 2, (6, n), generator=generator)
    inside = torch.rand(6, n, generator=generator, dtype=torch.float64)
    return low + (high - low) * torch.cat([corner, inside, torch.zeros(1, n), torch.ones(1, n)])


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.integers(1, 6), st.integers(1, 6), st.sampled_from(SLOPES), st.integers(0, 999),
    st.sampled_from([None, 0.5, 3.0]), st.sampled_from([-4.0, 0.0, 1.0]),
)  # fmt: skip
def test_every_slope_stays_inside(n, rank, slopes, seed, scales, slack):
    generator = torch.Generator().manual_seed(seed)
    g = positive(n, rank, generator)
    log_scales = None
    if scales is not None:
        log_scales = scales * torch.randn(n, dtype=torch.float64, generator=generator)
    after = after_slopes(g, *slopes, log_scales, slack)
    for d in diagonals(n, *slopes, generator):
        assert contains(after, d[:, None] * g * d)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(1, 6), st.sampled_from(SLOPES), st.integers(0, 999))
def test_the_largest_axis_grows_by_the_largest_slope_and_no_more(n, slopes, seed):
    """So the closed form is never above the product of norms, and a factor 2 would show."""
    g = positive(n, n, torch.Generator().manual_seed(seed))
    steepest = max(map(abs, slopes))
    after = float(largest(after_slopes(g, *slopes)))
    assert after == pytest.approx(steepest**2 * float(largest(g)), rel=1e-9)


def test_no_slack_is_the_best_one_for_equal_scales():
    g = positive(5, 5, torch.Generator().manual_seed(0))
    for slopes in SLOPES[:3]:
        best = float(largest(after_slopes(g, *slopes)))
        for slack in (-1.0, -0.1, 0.1, 1.0):
            assert float(largest(after_slopes(g, *slopes, slack=slack))) > best * (1 + 1e-4)


def circulant(matrices):
    """The matrix over all pixels of a torus [n] from those of its frequencies [n, c, c]."""
    n, c = matrices.shape[:2]
    taps = torch.fft.ifft(matrices, dim=0)  # covariance of pixels at a distance t
    rows = [torch.cat([taps[(i - j) % n] for j in range(n)], 1) for i in range(n)]
    full = torch.cat(rows)
    assert full.shape == (n * c, n * c)
    return full


@pytest.mark.parametrize("slopes", SLOPES)
@pytest.mark.parametrize("seed", range(4))
def test_on_a_torus_every_pixel_has_its_own_slope(slopes, seed):
    generator = torch.Generator().manual_seed(seed)
    n, c = 5, 3
    kernel = torch.randn(c, 2, 3, dtype=torch.float64, generator=generator)
    g = sandwich(ImageTorus((n,), (n,)).transform(kernel), None)
    after = after_slopes(g, *slopes, torch.randn(c, dtype=torch.float64, generator=generator))
    big, small = circulant(after), circulant(g)
    assert float(small.imag.abs().max()) < 1e-12
    for d in diagonals(n * c, *slopes, generator):
        assert contains(big, d[:, None] * small * d)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_products_against_plain_ones(dtype):
    generator = torch.Generator().manual_seed(1)
    maps = torch.randn(4, 3, 5, dtype=dtype, generator=generator)
    root = torch.randn(4, 5, 5, dtype=dtype, generator=generator)
    matrices = root @ root.mH
    plain = torch.stack([w @ x @ w.mH for w, x in zip(maps, matrices, strict=True)])
    torch.testing.assert_close(sandwich(maps, matrices), plain, rtol=1e-9, atol=1e-9)
    summed = summed_sandwich(maps, matrices)[0]
    torch.testing.assert_close(summed, plain.sum(0).real, rtol=1e-9, atol=1e-9)
    assert contains(sandwich(maps, matrices), plain)


def test_the_largest_eigenvalue_is_never_below():
    """A matrix with a known largest eigenvalue, of many sizes and scales."""
    for n in (1, 2, 17, 100):
        q = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64))[0]
        for scale in (1e-200, 1.0, 1e100):
            values = torch.linspace(0, 1, n + 1, dtype=torch.float64)[1:] * scale
            top = float(largest((q * values) @ q.T))
            assert scale * (1 - 1e-15) <= top <= scale * (1 + 1e-9)
    assert math.isclose(float(largest(torch.zeros(2, 3, 3))), 0.0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("near", [0.0, 1.0])
def test_the_largest_of_many_matrices(dtype, near):
    """Most matrices are left out; the one with the largest eigenvalue never is."""
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        root = torch.randn(60, 5, 5, dtype=dtype, generator=generator)
        sizes = torch.randn(60, 1, 1, dtype=torch.float64, generator=generator)
        stack = near * root @ root.mH + torch.exp(sizes) * (root[0] @ root[0].mH)
        plain = max(float(torch.linalg.eigvalsh(matrix)[-1]) for matrix in stack)
        assert float(largest(stack)) == pytest.approx(plain, rel=1e-9)
    assert float(largest(torch.zeros(60, 3, 3, dtype=dtype))) == 0

"""What the claims of depth-separation use, checked by hand or by a slower method."""

import math

import pytest
import torch

from weightloom_papers.depth_separation.claims.lower_bound import (
    _log2,
    _log2_sum,
    polynomial_distance,
)
from weightloom_papers.depth_separation.claims.polynomials import angles, laplace
from weightloom_papers.depth_separation.claims.upper_bound import _swings, sine, zigzag


@pytest.mark.parametrize("d", [2, 3, 4, 9, 40])
def test_moments_of_a_coordinate(d):
    """E t^2 = 1 / d, E t^4 = 3 / (d (d + 2)), E t^6 = 15 / (d (d + 2) (d + 4))."""
    t, w = angles(d, 60)
    wanted = [1, 0, 1 / d, 0, 3 / (d * (d + 2)), 0, 15 / (d * (d + 2) * (d + 4))]
    for power, value in enumerate(wanted):
        assert float((w * t**power).sum()) == pytest.approx(value, abs=1e-13)


def test_distance_from_lines_by_hand():
    """t^3 - 3 t / 5 is orthogonal to 1, t, t^2 on [-1, 1] (d = 3): its squared mean is 4 / 175."""
    t, w = angles(3, 40)
    assert polynomial_distance(lambda t: t**3 + 7 * t - 2, t, w, 2) == pytest.approx(4 / 175)
    assert polynomial_distance(lambda t: t**3, t, w, 3) < 1e-28


def test_distance_of_a_sine_from_constants():
    """Under dt / 2 the mean square of sin(pi t) is 1 / 2, and its mean is 0."""
    t, w = angles(3, 60)
    assert polynomial_distance(sine(math.pi), t, w, 0) == pytest.approx(0.5, abs=1e-13)


@pytest.mark.parametrize("n", [0, 1, 2, 5, 9])
def test_the_integral_gives_the_known_polynomials(n):
    a = torch.linspace(0.1, 3.0, 17, dtype=torch.float64)
    t = torch.cos(a)
    assert torch.allclose(laplace(2, n, t), torch.cos(n * a), atol=1e-13)
    assert torch.allclose(laplace(4, n, t), torch.sin((n + 1) * a) / ((n + 1) * torch.sin(a)),
                          atol=1e-13)  # fmt: skip
    assert torch.allclose(laplace(3, n, t), torch.special.legendre_polynomial_p(t, n), atol=1e-13)


def test_a_zigzag_has_its_slope_and_height():
    x = torch.linspace(-2, 2, 40_001, dtype=torch.float64)
    y = zigzag(3.0, 0.2)(x)
    slopes = y.diff() / x.diff()
    assert float(y.max()) == pytest.approx(0.2, abs=4e-4)
    assert float(y.min()) == pytest.approx(-0.2, abs=4e-4)
    assert float(slopes.abs().max()) == pytest.approx(3.0, abs=1e-9)
    assert float((slopes.abs() > 2.999).double().mean()) > 0.99


def test_swings_are_counted_beyond_eps_alone():
    values = torch.tensor([1.0, 0.05, -0.05, 1.0, -1.0, -0.05, 1.0, 0.0])
    assert _swings(values, 0.1) == 2
    assert _swings(values, 2.0) == 0


def test_logarithms_of_whole_numbers():
    assert _log2(1 << 5000) == 5000
    assert _log2(3 * 7**400) == pytest.approx(math.log2(3) + 400 * math.log2(7), rel=1e-14)
    assert _log2_sum(10, 3) == pytest.approx(math.log2(1024 + 8), rel=1e-15)

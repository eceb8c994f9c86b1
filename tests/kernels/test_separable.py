"""Kernels on grids as short sums of Kronecker products, against the kernel entry by entry."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weightloom.errors import KernelError
from weightloom.kernels import FourierFeatures, HyperKernel, Tower
from weightloom.kernels.panels import Panels
from weightloom.kernels.separable import obstacle, separate
from weightloom.linalg import KroneckerSum

N, P = 9, 7


def data(unit=False, signs=True, seed=0, dtype=torch.float64):
    """Images with two that coincide, two that nearly do, and (with signs) two that are opposite."""
    random = torch.Generator().manual_seed(seed)
    x = torch.rand(N, 4, generator=random, dtype=torch.float64)
    if signs:
        x = x - 0.5
        x[6] = -x[3]
    x[5] = x[2]
    x[7] = x[1] + 1e-5 * x[0]
    if unit:
        x = x / x.norm(dim=1, keepdim=True)
    z = torch.randn(P, 2, generator=random, dtype=torch.float64)
    return x.to(dtype), z.to(dtype)


def pairs(x, z):
    return x.repeat_interleave(len(z), 0), z.repeat(len(x), 1)


CASES = {
    "ntk": (HyperKernel(Tower(3), Tower(2)), False),
    "nngp": (HyperKernel(Tower(3), Tower(2), "nngp"), False),
    "deep g": (HyperKernel(Tower(2), Tower(4)), False),
    "deep g, nngp": (HyperKernel(Tower(2), Tower(4), "nngp"), False),
    "linear g": (HyperKernel(Tower(3), Tower(1)), False),
    "f writes odd functions": (HyperKernel(Tower(2, "identity"), Tower(3, "leaky_relu")), False),
    "abs": (HyperKernel(Tower(2), Tower(2, "abs")), False),
    "erf": (HyperKernel(Tower(3), Tower(2, "erf")), True),
    "tanh": (HyperKernel(Tower(2), Tower(2, "tanh"), "nngp"), True),
    "biases": (HyperKernel(Tower(3, "erf", sigma_b=0.3), Tower(3, sigma_b=0.5)), True),
    "random features": (HyperKernel(Tower(3), Tower(2), features=FourierFeatures(1.0, 30)), False),
    "exact features": (HyperKernel(Tower(3), Tower(2), features=FourierFeatures(1.0)), False),
}


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def case(request):
    kernel, unit = request.param
    return kernel, *data(unit)


@pytest.mark.parametrize("tolerance", [1e-6, 1e-10])
def test_gram_matrix(case, tolerance):
    kernel, x, z = case
    separation = separate(
        kernel, kernel.condition_part(x), kernel.point_part(z), tolerance=tolerance, gram=True
    )
    wanted = kernel(*pairs(x, z))
    largest = wanted.diagonal().max()
    apart = (KroneckerSum(separation.terms).dense() - wanted).abs().max() / largest
    # Opposite inputs sit on a kink that a gap near 2 resolves to sqrt(4e-16) = 2e-8 only.
    opposite = kernel.f.propagate(kernel.condition_part(x).covariance).nngp.gap.max() > 2 - 1e-14
    assert apart <= separation.error + 1e-13 + (1e-8 if opposite else 0)
    assert separation.error <= tolerance
    assert separation.rank < 25


def test_between_two_grids(case):
    kernel, x, z = case
    other_x = torch.cat([x[:2], x[4:6].flip(1)])
    other_z = torch.cat([z[:1], z[1:4].flip(1)])
    separation = separate(kernel, kernel.condition_part(other_x, x), kernel.point_part(other_z, z))
    wanted = kernel(*pairs(other_x, other_z), *pairs(x, z))
    largest = kernel(*pairs(x, z)).diagonal().max()
    rows = separation.terms.rows(torch.arange(len(wanted)))
    assert (rows - wanted).abs().max() / largest <= separation.error + 1e-8 * (x.min() < 0)


def test_coincident_images_are_exact():
    """All images alike: no expansion at all, one term, no error."""
    kernel = HyperKernel(Tower(3), Tower(2))
    x, z = torch.ones(4, 3, dtype=torch.float64), data()[1]
    separation = separate(kernel, kernel.condition_part(x), kernel.point_part(z), gram=True)
    assert (separation.rank, separation.error) == (1, 0.0)
    torch.testing.assert_close(KroneckerSum(separation.terms).dense(), kernel(*pairs(x, z)))


def test_few_terms_are_enough():
    """On 1,000 MNIST images 7 terms are known to do for 1e-6, 14 for 1e-12."""
    kernel = HyperKernel(Tower(3), Tower(2), features=FourierFeatures(0.5))
    random = torch.Generator().manual_seed(0)
    x = torch.rand(40, 6, generator=random, dtype=torch.float64)
    z = torch.cartesian_prod(*[torch.arange(6, dtype=torch.float64)] * 2)
    parts = kernel.condition_part(x), kernel.point_part(z)
    ranks = [separate(kernel, *parts, tolerance=t, gram=True).rank for t in (1e-6, 1e-9, 1e-12)]
    assert ranks == sorted(ranks)
    assert ranks[0] <= 10
    assert ranks[-1] <= 18


def test_single_precision_inputs():
    kernel = HyperKernel(Tower(3), Tower(2, "erf"))
    x, z = data(unit=True, dtype=torch.float32)
    assert obstacle(kernel, kernel.condition_part(x)) is None
    separation = separate(kernel, kernel.condition_part(x), kernel.point_part(z), gram=True)
    wanted = kernel(*pairs(x, z)).double()
    apart = (KroneckerSum(separation.terms).dense() - wanted).abs().max()
    assert apart < 1e-5 * wanted.max()


def test_norms_that_cannot_be_taken_out():
    kernel = HyperKernel(Tower(3), Tower(2, "erf"))
    x, z = data()
    with pytest.raises(KernelError, match=r"differ in norm.*scale the rows"):
        separate(kernel, kernel.condition_part(x), kernel.point_part(z))


class TestPanels:
    @given(st.floats(1e-9, 1.9), st.floats(1.0, 1e6), st.sampled_from([1e-4, 1e-8, 1e-12]))
    def test_ellipses_stay_in_the_disc(self, low, ratio, tolerance):
        high = min(low * ratio, 2 - 1e-6)
        panels = Panels.covering(low, max(high, low), tolerance)
        edges = np.array(panels.edges)
        assert edges[0] == low
        assert edges[-1] >= high
        assert (np.diff(edges) > 0).all()
        centre, half = 1 - (edges[1:] + edges[:-1]) / 2, np.diff(edges) / 2
        assert (np.abs(centre) + 5 / 3 * half <= 1 + 1e-8).all()
        assert panels.error <= tolerance

    @pytest.mark.parametrize("tolerance", [1e-3, 1e-6, 1e-9])
    def test_the_bound_holds_where_it_is_nearly_sharp(self, tolerance):
        """r^k and the arc cosine, both with |G| <= 1 on the disc; errors stay below the bound."""
        panels = Panels.covering(1e-6, 1.99, tolerance)
        gaps = torch.linspace(0, 1, 4001, dtype=torch.float64) ** 3 * (1.99 - 1e-6) + 1e-6
        for name, function in {
            "power": lambda r: r**40,
            "kink": lambda r: (r.asin() * r + (1 - r * r).sqrt()) / (math.pi / 2),
        }.items():
            at_points = function(1 - panels.points)[:, None]
            result = panels.interpolate(gaps, at_points)[:, 0]
            apart = (result - function(1 - gaps)).abs().max()
            assert apart <= panels.error + 1e-14, name

    def test_polynomials_of_low_degree_are_exact(self):
        panels = Panels.covering(0.01, 1.0, 1e-6)
        gaps = torch.linspace(0.01, 1.0, 101, dtype=torch.float64)
        values = torch.stack([panels.points**2, 1 - panels.points], 1)
        result = panels.interpolate(gaps, values)
        torch.testing.assert_close(result, torch.stack([gaps**2, 1 - gaps], 1), rtol=0, atol=1e-14)

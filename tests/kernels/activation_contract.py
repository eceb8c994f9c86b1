"""What every activation must do; a new one inherits these tests from one fixture."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from tests.kernels.oracle import by_polar_quadrature, covariance
from weightloom.kernels import Covariance
from weightloom.kernels.activations import activation
from weightloom.kernels.covariance import cross
from weightloom.kernels.covariance import scale as norms

variances = st.floats(0.05, 2.0)
gaps = st.one_of(st.floats(0.02, 1.98), st.sampled_from([0.0, 1e-20, 1e-9, 1e-4, 1.0, 2.0]))
pairs = st.tuples(variances, variances, gaps)
few = settings(max_examples=12, suppress_health_check=[HealthCheck.differing_executors])


def slope_of(function):
    def slope(t):
        return torch.func.grad(lambda inputs: function(inputs).sum())(t)

    return slope


class ActivationContract:
    """Subclasses give ``make()``."""

    exact = 5e-13  # agreement with quadrature that is wanted, relative to the variances
    serializable = True

    @staticmethod
    def make():
        raise NotImplementedError

    @pytest.fixture
    def s(self):
        return self.make()

    @few
    @given(pair=pairs)
    def test_moments_against_quadrature(self, pair):
        s, (left, right, gap) = self.make(), pair
        moments = s.moments(covariance(left, right, gap))
        for moment, wanted in (
            (moments.value.left, by_polar_quadrature(s, left, left, 0.0)),
            (moments.value.right, by_polar_quadrature(s, right, right, 0.0)),
            (cross(moments.value), by_polar_quadrature(s, left, right, gap)),
            (moments.slope, by_polar_quadrature(slope_of(s), left, right, gap)),
        ):
            size = max(1.0, abs(wanted))
            # Where u and v are (anti)parallel the quadrature's panels are as thin as the angle.
            assert float(moment) == pytest.approx(wanted, abs=self.exact * size)

    @few
    @given(pair=pairs)
    def test_swapping_the_pair(self, pair):
        s, (left, right, gap) = self.make(), pair
        first, second = (
            s.moments(covariance(left, right, gap)),
            s.moments(covariance(right, left, gap)),
        )
        assert torch.equal(first.value.left, second.value.right)
        torch.testing.assert_close(first.value.gap, second.value.gap, rtol=1e-13, atol=1e-17)
        torch.testing.assert_close(first.slope, second.slope, rtol=1e-14, atol=0)

    @few
    @given(pair=pairs)
    def test_gap_is_a_gap(self, pair):
        gap = self.make().moments(covariance(*pair)).value.gap
        assert 0 <= float(gap) <= 2 + 1e-15

    @few
    @given(variance=variances)
    def test_coinciding_pairs_coincide(self, variance):
        moments = self.make().moments(covariance(variance, variance, 0.0))
        assert float(moments.value.gap) <= 1e-30

    def test_gram_matrices_are_positive(self, s):
        x = torch.randn(30, 3, dtype=torch.float64)
        x[5] = x[4] * 1.0001
        gram = x @ x.mT
        left = gram.diagonal()
        gap = 1 - gram / (left[:, None] * left).sqrt()
        moments = s.moments(Covariance(left[:, None], left, gap.clamp_min(0)))
        for matrix in (cross(moments.value), moments.slope):
            values = torch.linalg.eigvalsh((matrix + matrix.mT) / 2)
            assert values[0] > -1e-12 * values[-1]

    def test_gradients(self, s):
        left = torch.tensor([[0.4], [1.3], [0.9]], dtype=torch.float64, requires_grad=True)
        right = torch.tensor([[0.7, 1.3]], dtype=torch.float64, requires_grad=True)
        gap = torch.tensor([[0.3, 1e-2], [1.6, 0.9], [1.1, 0.25]], dtype=torch.float64)
        gap.requires_grad_()

        def outputs(left, right, gap):
            moments = s.moments(Covariance(left, right, gap))
            return moments.value.left, moments.value.right, moments.value.gap, moments.slope

        assert gradcheck(outputs, (left, right, gap), eps=1e-6, atol=1e-7, rtol=1e-6)

    def test_gradients_are_finite_at_the_ends(self, s):
        left = torch.tensor([[1.0], [0.0]], dtype=torch.float64, requires_grad=True)
        gap = torch.tensor([[0.0, 2.0, 1.0], [1.0, 0.0, 1.0]], dtype=torch.float64)
        gap.requires_grad_()
        moments = s.moments(Covariance(left, torch.ones(1, 3, dtype=torch.float64), gap))
        total = moments.value.gap.sum() + moments.slope.sum() + moments.value.left.sum()
        for gradient in torch.autograd.grad(total, (left, gap)):
            assert gradient.isfinite().all()

    @few
    @given(pair=pairs)
    def test_float32(self, pair):
        s = self.make()
        single = s.moments(covariance(*pair, dtype=torch.float32))
        # The numbers as float32 sees them, then in float64.
        cov = covariance(*pair, dtype=torch.float32)
        double = s.moments(Covariance(cov.left.double(), cov.right.double(), cov.gap.double()))
        assert single.value.gap.dtype == single.slope.dtype == torch.float32
        scale = float(norms(double.value))
        assert float(cross(single.value)) == pytest.approx(
            float(cross(double.value)), abs=2e-6 * scale
        )
        assert float(single.slope) == pytest.approx(
            float(double.slope), abs=2e-6 * max(1.0, abs(float(double.slope)))
        )

    def test_without_derivative(self, s):
        moments = s.moments(covariance(1.0, 0.5, 0.2), derivative=False)
        assert moments.slope is None
        full = s.moments(covariance(1.0, 0.5, 0.2), derivative=True)
        assert torch.equal(moments.value.gap, full.value.gap)

    def test_homogeneous_as_claimed(self, s):
        t = torch.linspace(-2, 2, 41, dtype=torch.float64)
        assert s.homogeneous == torch.allclose(s(3 * t), 3 * s(t), rtol=1e-12, atol=1e-12)

    def test_error_is_small_and_shaped(self, s):
        ones = torch.ones(2, 3, dtype=torch.float64)
        cov = Covariance(ones[:, :1], ones[:1], 0.5 * ones)
        error = s.error(cov)
        assert error.shape == (2, 3)
        assert 0 < float(error.max()) < 1e-12

    def test_config(self, s):
        if self.serializable:
            assert activation(s.config()) == s
            assert repr(activation(s.config())) == repr(s)

"""Closed forms and quadrature of every activation, against each other and against 60 digits."""

from __future__ import annotations

import warnings

import mpmath as mp
import pytest
import torch
from torch import nn

from tests.kernels.activation_contract import ActivationContract
from tests.kernels.oracle import MOMENTS, covariance, exact, gap_after
from weightloom.errors import KernelError
from weightloom.kernels.activations import (
    GELU,
    Abs,
    Cos,
    Erf,
    Exp,
    GaussianActivation,
    Identity,
    LeakyReLU,
    PiecewiseLinear,
    Quadrature,
    ReLU,
    Sin,
    Tanh,
    activation,
)
from weightloom.kernels.covariance import cross


class TestReLU(ActivationContract):
    make = staticmethod(ReLU)


class TestLeakyReLU(ActivationContract):
    make = staticmethod(lambda: LeakyReLU(0.3))


class TestAbs(ActivationContract):
    make = staticmethod(Abs)


class TestIdentity(ActivationContract):
    make = staticmethod(Identity)


class TestPiecewiseLinear(ActivationContract):
    make = staticmethod(lambda: PiecewiseLinear(1.3, -0.4))


class TestErf(ActivationContract):
    make = staticmethod(Erf)


class TestSin(ActivationContract):
    make = staticmethod(lambda: Sin(1.5))


class TestCos(ActivationContract):
    make = staticmethod(lambda: Cos(0.7))


class TestExp(ActivationContract):
    make = staticmethod(lambda: Exp(-0.6))


class TestGELU(ActivationContract):
    make = staticmethod(GELU)


class TestTanh(ActivationContract):
    make = staticmethod(Tanh)


class TestSoftplus(ActivationContract):
    make = staticmethod(lambda: Quadrature(nn.functional.softplus))
    serializable = False


CLOSED = ["relu", "leaky_relu", "abs", "identity", "erf", "sin", "cos", "exp"]
GAPS = [1e-2, 1e-4, 1e-8, 1e-12, 1e-16, 1e-20, 1e-30]


@pytest.mark.parametrize("name", CLOSED)
@pytest.mark.parametrize("gap", GAPS)
def test_gap_near_coincidence_with_60_digits(name, gap):
    """Equal variances: the gap keeps 14 digits, however small it is."""
    moments = activation(name).moments(covariance(0.8, 0.8, gap))
    wanted = gap_after(name, 0.8, 0.8, gap)
    assert float(abs(exact(moments.value.gap) / wanted - 1)) < 1e-14


@pytest.mark.parametrize("name", [*CLOSED[4:], "tanh", "gelu"])
@pytest.mark.parametrize(
    ("drift", "gap"), [(1e-2, 0.0), (1e-5, 1e-12), (1e-9, 0.0), (-1e-7, 1e-16)]
)
def test_gap_of_parallel_inputs_with_60_digits(name, drift, gap):
    """Different variances: the angle, about sqrt(2 gap), is right to a few float64 eps."""
    left, right = 0.8, 0.8 * (1 + drift)
    computed = exact(activation(name).moments(covariance(left, right, gap)).value.gap)
    wanted = gap_after(name, left, right, gap)
    assert float(abs(mp.sqrt(2 * computed) - mp.sqrt(2 * wanted))) < 2e-15


@pytest.mark.parametrize("name", MOMENTS)
@pytest.mark.parametrize("gap", [1e-30, 1e-16, 1e-3, 0.4, 1.7])
def test_slope_with_60_digits(name, gap):
    left, right = 0.8, 0.9
    value = activation(name).moments(covariance(left, right, gap)).slope
    cross = mp.sqrt(exact(left) * exact(right)) * (1 - exact(gap))
    wanted = MOMENTS[name](exact(left), exact(right), cross)[1]
    # tanh: its sum stops where the rest is 1e-14 of the whole.
    digits = 3e-14 if name == "tanh" else 3e-15
    assert float(abs(exact(value) - wanted)) < digits * max(1.0, float(abs(wanted)))


@pytest.mark.parametrize("name", ["sin", "erf", "gelu", "cos"])
def test_quadrature_agrees_with_closed_forms(name):
    s = activation(name)
    q = Quadrature(s.__call__)
    cov = covariance(1.4, 0.6, 0.7)
    closed, quadrature = s.moments(cov), q.moments(cov)
    torch.testing.assert_close(closed.value.gap, quadrature.value.gap, rtol=1e-13, atol=0)
    torch.testing.assert_close(closed.value.left, quadrature.value.left, rtol=1e-13, atol=0)
    torch.testing.assert_close(closed.slope, quadrature.slope, rtol=1e-13, atol=1e-15)


def test_large_variances_need_more_terms_and_get_them():
    s, q = Erf(), Quadrature(torch.special.erf)
    cov = covariance(12.0, 9.0, 0.05)
    torch.testing.assert_close(s.moments(cov).slope, q.moments(cov).slope, rtol=1e-10, atol=0)
    assert float(q.error(cov)) < 1e-9


@pytest.mark.parametrize("gap", [0.0, 1e-6, 0.05, 0.5, 1.5])
def test_error_estimate_of_a_kink_is_honest(gap):
    """ReLU by quadrature is poor near coincident inputs, and error() says at least how poor."""
    q, cov = Quadrature(lambda t: t.clamp_min(0)), covariance(1.0, 1.3, gap)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        measured = q.moments(cov)
    wanted = ReLU().moments(cov)
    mistake = max(
        float(abs(cross(measured.value) / cross(wanted.value) - 1)),
        float(abs(measured.slope - wanted.slope)) / 0.5,
    )
    estimate = float(q.error(cov))
    assert mistake <= estimate + 1e-14
    assert any("only accurate to about" in str(warning.message) for warning in caught) == (
        gap < 0.01
    )
    if gap == 0.5:
        assert estimate < 1e-13  # far from coincidence the sum converges all the same


def test_error_estimate_sees_kinks_that_are_not_at_zero():
    q, cov = Quadrature(nn.functional.hardtanh), covariance(1.0, 1.0, 0.3)
    with pytest.warns(RuntimeWarning, match="kink"):
        q.moments(cov)
    assert float(q.error(cov)) > 1e-8


def test_smooth_functions_do_not_warn(recwarn):
    Quadrature(nn.functional.silu).moments(covariance(1.0, 2.0, 0.1))
    assert not recwarn.list


def test_a_given_derivative_is_used():
    q = Quadrature(torch.tanh, lambda t: 0 * t + 2)
    assert float(q.moments(covariance(1.0, 1.0, 0.5)).slope) == pytest.approx(4.0, rel=1e-14)


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        ("relu", ReLU), (torch.relu, ReLU), (nn.functional.relu, ReLU), (nn.ReLU(), ReLU),
        (nn.LeakyReLU(0.2), LeakyReLU), (nn.Tanh(), Tanh), (nn.GELU(), GELU), ("tanh", Tanh),
        (nn.GELU("tanh"), Quadrature), (lambda t: t**3, Quadrature), (nn.SiLU(), Quadrature),
        ({"name": "sin", "frequency": 30.0}, Sin), (Abs(), Abs), ("identity", Identity),
    ],
)  # fmt: skip
def test_specs(spec, kind):
    built = activation(spec)
    assert type(built) is kind
    assert isinstance(built, GaussianActivation)
    t = torch.linspace(-2, 2, 9, dtype=torch.float64)
    if callable(spec) and not isinstance(spec, GaussianActivation):
        torch.testing.assert_close(built(t), spec(t))


def test_specs_that_are_refused():
    with pytest.raises(
        KernelError, match=r"unknown activation 'swosh'; known are 'relu', .*callable"
    ):
        activation("swosh")
    with pytest.raises(KernelError, match=r"cannot make an activation of 3; pass a name"):
        activation(3)
    with pytest.raises(KernelError, match=r"'relu' does not take \{'slope': 1\}"):
        activation({"name": "relu", "slope": 1})
    with pytest.raises(KernelError, match=r"must work elementwise"):
        activation(lambda t: t.sum())
    with pytest.raises(KernelError, match=r"failed on a float64 tensor: boom"):
        activation(_boom)
    with pytest.raises(KernelError, match=r"cannot be saved"):
        activation(lambda t: t**3).config()
    with pytest.raises(KernelError, match=r"both slopes are 0"):
        PiecewiseLinear(0, 0)
    with pytest.raises(KernelError, match=r"frequency is -1"):
        Sin(-1)
    with pytest.raises(KernelError, match=r"rate is 0"):
        Exp(0)
    with pytest.raises(KernelError, match=r"moments do not exist or overflow"):
        Quadrature(lambda t: torch.exp(t**2)).moments(covariance(20.0, 20.0, 0.5))


def _boom(t):
    raise RuntimeError("boom")


def test_tables_made_under_inference_mode_serve_gradients():
    with torch.inference_mode():
        Quadrature(torch.atan).moments(covariance(1.0, 1.0, 0.5))
    left = torch.ones(1, dtype=torch.float64, requires_grad=True)
    cov = covariance(1.0, 1.0, 0.5)
    moments = Quadrature(torch.atan).moments(type(cov)(left, cov.right, cov.gap))
    (gradient,) = torch.autograd.grad(moments.value.gap.sum(), left)
    assert gradient.isfinite().all()

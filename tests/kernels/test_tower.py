"""Towers against the textbook recursion with 60 digits, and as plain objects."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from tests.kernels.oracle import exact, tower_kernels, triple
from weightloom.errors import KernelError, ShapeError
from weightloom.kernels import Covariance, Tower
from weightloom.kernels.activations import ReLU
from weightloom.kernels.inputs import input_covariance, paired_covariance

EPS = torch.finfo(torch.float64).eps


def rows(n, d, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scales = 0.3 + torch.rand(n, 1, generator=generator, dtype=torch.float64)
    return scales * torch.randn(n, d, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "abs", "identity", "erf", "sin", "gelu"])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("numbers", [(math.sqrt(2), 1.0, 0.0), (1.1, 0.8, 0.3)])
def test_against_60_digits(name, depth, numbers):
    gain, sigma_w, sigma_b = numbers
    tower = Tower(depth, name, gain=gain, sigma_w=sigma_w, sigma_b=sigma_b)
    x, y = rows(3, 4), rows(2, 4, seed=1)
    nngp, ntk = tower(x, y, kind="nngp"), tower(x, y, kind="ntk")
    for i in range(3):
        for j in range(2):
            (left, right, cross), tangent = tower_kernels(tower, triple(x[i], y[j]))
            # Each of the up to ten steps of a layer rounds to a few units of its scale.
            size = float((left * right) ** 0.5)
            assert abs(float(exact(nngp[i, j]) - cross)) < 20 * depth * EPS * size
            assert abs(float(exact(ntk[i, j]) - tangent)) < 20 * depth**2 * EPS * size


@settings(max_examples=30)
@given(st.floats(0, 5), st.floats(0, 5), st.sampled_from([0.0, 1e-25, 1e-9, 0.3, 1.0, 2.0]),
       st.floats(0.1, 3), st.floats(0, 2))  # fmt: skip
@example(1e-8, 2e-8, 0.0, 1.0, 1.0)
@example(0.7, 0.7 * (1 + 1e-9), 1e-22, 1.3, 0.9)
def test_the_affine_step_loses_nothing(left, right, gap, sigma_w, sigma_b):
    """gap' with 60 digits, to 1e-14 relative, however small it is."""
    cov = Covariance(*(torch.tensor([v], dtype=torch.float64) for v in (left, right, gap)))
    moments = Tower(1, sigma_w=sigma_w, sigma_b=sigma_b).affine(cov)
    w2, b2 = exact(sigma_w) ** 2, exact(sigma_b) ** 2
    k = (exact(left) * exact(right)) ** 0.5
    after = ((w2 * exact(left) + b2) * (w2 * exact(right) + b2)) ** 0.5
    assert float(moments.left) == pytest.approx(float(w2 * exact(left) + b2), rel=1e-15)
    if after > 1e-290:
        wanted = 1 - (w2 * k * (1 - exact(gap)) + b2) / after
        assert abs(float(exact(moments.gap) - wanted)) <= 1e-14 * float(wanted) + 1e-45


@pytest.mark.parametrize("d", [3, 40])
@pytest.mark.parametrize("size", [1e-1, 1e-4, 1e-8, 1e-12, 1e-15])
def test_gaps_of_inputs(d, size):
    """The angle between close rows is right to a few units of 1, by differences or by products."""
    x = torch.zeros(1, d, dtype=torch.float64)
    x[0, 0] = 1.3
    y = x.clone()
    y[0, 1] = size
    for cov in (input_covariance(x, y), paired_covariance(x, y)):
        left, right, cross = triple(x[0], y[0])
        wanted = 1 - cross / (left * right) ** 0.5
        assert float(cov.gap.flatten()[0]) == pytest.approx(float(wanted), rel=1e-13)


@pytest.mark.parametrize("d", [3, 60])
def test_inputs_near_and_far(d):
    x = rows(30, d)
    x[1] = 3 * x[0]
    x[2] = x[0] + 1e-9 * x[3]
    x[4] = 0
    x[5] = -x[0]
    y = torch.cat([x[:8], rows(5, d, seed=2)])
    cov = input_covariance(x, y)
    for i in range(8):
        for j in range(len(y)):
            left, right, cross = triple(x[i], y[j])
            assert float(cov.left[i, 0]) == pytest.approx(float(left), rel=1e-15)
            if not left * right:
                assert float(cov.gap[i, j]) == 1
                continue
            gap = 1 - cross / (left * right) ** 0.5
            angles = [
                2 * math.asin(min(1.0, math.sqrt(float(g) / 2))) for g in (cov.gap[i, j], gap)
            ]
            # d numbers are summed: a unit of 1 each at worst, divided by the sine at 1e-2
            assert angles[0] == pytest.approx(angles[1], abs=1e-14 if gap < 1.99 else 1e-7)
    gram = input_covariance(x)
    assert torch.equal(gram.gap, gram.gap.mT)
    assert (gram.gap.diagonal() == 0).all()


@pytest.mark.parametrize("d", [1, 3, 50])
def test_opposite_rows_are_exactly_opposite(d):
    x = rows(9, d)
    for cov in (input_covariance(x, -2 * x), input_covariance(x, -2 * x.requires_grad_())):
        assert (cov.gap.diagonal() == 2).all()
    assert (paired_covariance(x, -4 * x).gap == 2).all()
    tower = Tower(2)
    kernel = tower(x.detach(), -2 * x.detach())
    assert float(kernel.diagonal().abs().max()) < 1e-15


def test_extreme_norms():
    x = torch.tensor([[3e150, 4e150], [3e-150, 4e-150], [3.0, 4.0]], dtype=torch.float64)
    cov = input_covariance(x)
    assert float(cov.gap.max()) < 1e-31
    wanted = torch.tensor([12.5e300, 12.5e-300, 12.5], dtype=torch.float64)
    torch.testing.assert_close(cov.left[:, 0], wanted, rtol=1e-15, atol=0)


@pytest.mark.parametrize("name", ["relu", "erf", "gelu", "tanh", "sin", "exp"])
def test_gram_matrices_are_exactly_symmetric(name):
    x = rows(40, 20)
    for kind in ("ntk", "nngp"):
        matrix = Tower(3, name, sigma_b=0.1, gain=0.5)(x, kind=kind)
        assert torch.equal(matrix, matrix.mT)


def test_float32_is_as_good_as_its_inputs():
    x = rows(40, 50).float()
    x[1] = x[0] * (1 + 1e-6)
    single, double = Tower(4)(x), Tower(4)(x.double())
    scale = double.diagonal().sqrt()
    error = (single.double() - double).abs() / (scale[:, None] * scale)
    assert single.dtype == torch.float32
    assert float(error.max()) < 1e-6


def test_gradients():
    x, y = rows(3, 3).requires_grad_(), rows(2, 3, seed=5).requires_grad_()
    numbers = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (1.2, 0.9, 0.4)]

    def matrix(x, y, gain, sigma_w, sigma_b):
        tower = Tower(3, "relu", gain=gain, sigma_w=sigma_w, sigma_b=sigma_b)
        return tower(x, y), tower(x, kind="nngp")

    assert gradcheck(matrix, (x, y, *numbers), eps=1e-6, atol=1e-7)


def test_objects():
    tower = Tower(3, "erf", sigma_b=0.5)
    assert repr(tower) == "Tower(depth=3, activation='erf', sigma_b=0.5)"
    assert tower.get_params() == {
        "depth": 3, "activation": "erf", "gain": math.sqrt(2), "sigma_w": 1.0, "sigma_b": 0.5,
    }  # fmt: skip
    again = Tower.from_config(json.loads(json.dumps(tower.config())))
    x = rows(4, 2)
    assert torch.equal(tower(x), again(x))
    assert again.nonlinearity == tower.nonlinearity
    assert tower == Tower(3, "erf", sigma_b=0.5) != Tower(3, "relu", sigma_b=0.5)
    assert tower != "tower"
    assert tower.set_params(depth=2, activation="relu") is tower
    assert tower == Tower(2, sigma_b=0.5)
    assert isinstance(tower.nonlinearity, ReLU)
    assert Tower(2) == Tower(2, gain=torch.tensor(math.sqrt(2), dtype=torch.float64))


def test_homogeneous():
    assert Tower(3).homogeneous
    assert not Tower(3, sigma_b=0.1).homogeneous
    assert not Tower(3, "tanh").homogeneous
    assert Tower(1, "tanh").homogeneous


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Tower(0), "depth is 0; it counts weight matrices"),
        (lambda: Tower(2.5), "depth is 2.5"),
        (lambda: Tower(True), "depth is True"),
        (lambda: Tower(2, gain=0.0), "gain is 0.0; it must be finite and > 0"),
        (lambda: Tower(2, sigma_b=-1), "sigma_b is -1.0; it must be finite and >= 0"),
        (lambda: Tower(2, sigma_w=torch.ones(2)), r"sigma_w has shape \[2\]; pass one number"),
        (lambda: Tower(2).set_params(width=3), "Tower has no parameter 'width'; it has depth"),
        (lambda: Tower(2).set_params(depth__x=3), "Tower.depth is 2 and has no parameters x"),
        (lambda: Tower(2)(torch.eye(2), kind="prior"), "kind is 'prior'; wanted \"ntk\""),
        (lambda: Tower(2, lambda t: t**2).config(), "cannot be saved"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(KernelError, match=message):
        make()


def test_bad_rows():
    x = torch.eye(3)
    with pytest.raises(ShapeError, match=r"x has shape \[3\]; wanted \[rows, columns\]"):
        Tower(2)(x[0])
    with pytest.raises(ShapeError, match="x has 3 columns but x2 has 2"):
        Tower(2)(x, x[:, :2])
    with pytest.raises(ShapeError, match="x is a list; pass a torch tensor"):
        Tower(2)([[1.0]])
    with pytest.raises(KernelError, match=r"x is torch\.int64; convert"):
        Tower(2)(x.long())
    with pytest.raises(KernelError, match=r"x is torch.float32 on cpu but x2 is torch.float64"):
        Tower(2)(x, x.double())
    with pytest.raises(KernelError, match="NaN or infinity in 2 of 3 rows, the first is row 1"):
        Tower(2)(torch.tensor([[1.0], [math.nan], [math.inf]]))
    with pytest.raises(KernelError, match=r"entries up to 1.0e\+30, whose squares torch\.float32"):
        Tower(2)(1e30 * x)

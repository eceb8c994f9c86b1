"""Targets on a cube: what they promise about height and steepness, measured."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weightloom.data import BumpTarget, FactoredTarget, FourierTarget
from weightloom.data.bumps import _steepness
from weightloom.errors import ConfigError, ShapeError

DIMS = [(1, 1), (1, 2), (2, 1), (2, 2)]


def make(kind, m1, m2, pieces=3, seed=0):
    if kind == "factored":
        return FactoredTarget(m1, m2, width=3, seed=seed)
    if kind == "factored bump":
        return FactoredTarget(m1, m2, width=2, pieces=pieces, seed=seed)
    if kind == "fourier":
        return FourierTarget(m1, m2, frequencies=2, seed=seed)
    return BumpTarget(m1, m2, pieces, kind, seed)


KINDS = ["tent", "smooth", "fourier", "factored", "factored bump"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("m1", "m2"), DIMS)
def test_never_steeper_nor_higher_than_promised(kind, m1, m2):
    y = make(kind, m1, m2)
    generator = torch.Generator().manual_seed(1)
    a = 2 * torch.rand(20_000, m1 + m2, generator=generator, dtype=torch.float64) - 1
    reach = 10.0 ** -torch.randint(0, 5, (20_000, 1), generator=generator)
    noise = 2 * torch.rand(a.shape, generator=generator, dtype=torch.float64) - 1
    b = (a + reach * noise).clamp(-1, 1)
    change = (y.at(a) - y.at(b)).abs()
    distance = (a - b).abs().amax(-1)
    assert (change <= y.lipschitz * distance * (1 + 1e-9) + 1e-12).all()
    assert y.at(a).abs().max() <= y.height * (1 + 1e-12)


@pytest.mark.parametrize("shape", ["tent", "smooth"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_bumps_reach_height_and_steepness(shape, dims):
    """The promised constants are attained, so they could not be smaller."""
    y = BumpTarget(dims, 0, 3, shape)
    centres = y.centres()
    assert len(centres) == 3**dims
    assert torch.allclose(y.at(centres).abs(), torch.tensor(y.height, dtype=torch.float64))
    # Along the diagonal of one cube: there the gradient's 1-norm is largest.
    t = torch.linspace(0, 1 / 3, 4001, dtype=torch.float64)[:, None]
    diagonal = centres[:1] + t
    slope = (y.at(diagonal).diff().abs() / t.diff(dim=0)[:, 0]).max()
    assert slope == pytest.approx(1.0, abs=1e-5)
    assert y.at((centres + 1 / 3).clamp(-1, 1)).abs().max() <= 1e-15  # zero where cubes meet


def test_steepness_against_a_search():
    """The closed form of c_m, against the best of many random starts and autograd."""
    for dims in (1, 2, 3, 4):
        generator = torch.Generator().manual_seed(dims)
        z = torch.rand(1000, dims, generator=generator, dtype=torch.float64, requires_grad=True)
        for _ in range(150):
            bump = (z * math.pi / 2).cos().square().prod(-1)
            (gradient,) = torch.autograd.grad(bump.sum(), z, create_graph=True)
            steep = gradient.abs().sum(-1)
            (direction,) = torch.autograd.grad(steep.sum(), z)
            z = (z.detach() + 0.01 * direction).clamp(0, 1).requires_grad_()
        assert steep.max().item() == pytest.approx(_steepness(dims), rel=1e-3)
        assert steep.max().item() <= _steepness(dims) * (1 + 1e-9)


def test_bump_value_by_hand():
    y = BumpTarget(1, 1, pieces=2, seed=5)
    # Inside the cube [0, 1] x [-1, 0], at (0.25, -0.5): z = (-0.5, 0), tent 1 - 0.5, height 1/2.
    sign = int(y.signs[2 * 1 + 0])
    value = y(torch.tensor([0.25]), torch.tensor([-0.5]))
    assert value.item() == pytest.approx(sign * 0.5 * 0.5)


def test_signs_are_drawn_and_seeded():
    first, again, other = (BumpTarget(1, 1, 16, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.signs, again.signs)
    assert not torch.equal(first.signs, other.signs)
    # 256 fair coins: six standard deviations are 96.
    assert abs(int(first.signs.long().sum())) < 96
    torch.manual_seed(123)
    assert torch.equal(BumpTarget(1, 1, 16, seed=0).signs, first.signs)


@settings(max_examples=20)
@given(st.integers(1, 3), st.integers(0, 1000))
def test_fourier_bends_no_more_than_promised(dims, seed):
    y = FourierTarget(dims, 0, frequencies=2, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    p = 2 * torch.rand(50, dims, generator=generator, dtype=torch.float64) - 1
    u = torch.randint(0, 2, p.shape, generator=generator).to(torch.float64) * 2 - 1  # max norm 1

    def along(t):
        return y.at(p + t * u)

    _, first = torch.func.jvp(along, (torch.zeros(()).double(),), (torch.ones(()).double(),))
    second = torch.func.jvp(
        lambda t: torch.func.jvp(along, (t,), (torch.ones(()).double(),))[1],
        (torch.zeros(()).double(),),
        (torch.ones(()).double(),),
    )[1]
    assert first.abs().max() <= 1 + 1e-9
    assert second.abs().max() <= y.curvature * (1 + 1e-9)


def test_factored_is_what_it_says():
    y = FactoredTarget(2, 1, width=3, seed=4)
    x, condition = torch.rand(7, 2).double(), torch.rand(7, 1).double()
    assert y.basis(x).shape == (7, 3)
    table = y(x[:, None, :], condition[None, :, :])
    # Rank w: the table of all pairs is a product of thin matrices.
    assert torch.linalg.matrix_rank(table, atol=1e-12) == 3
    assert torch.allclose(table, y.basis(x) @ y.coefficients(condition).T)
    assert y.curvature is not None
    assert FactoredTarget(1, 1, pieces=4).curvature is None


def test_calls_broadcast_and_check():
    y = BumpTarget(1, 2, 2)
    assert y(torch.zeros(5, 1), torch.zeros(2)).shape == (5,)
    with pytest.raises(ShapeError, match=r"condition has shape \[5, 1\]; .* wants \[..., 2\]"):
        y(torch.zeros(5, 1), torch.zeros(5, 1))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: BumpTarget(1, 1, 0), "pieces=0 was given; at least one bump"),
        (lambda: BumpTarget(1, 1, 2, "square"), "shape='square' is unknown; choose one of tent"),
        (lambda: BumpTarget(0, 0, 2), "m1=0, m2=0 was given"),
        (lambda: FourierTarget(1, 1, 0), "frequencies=0 was given"),
        (lambda: FactoredTarget(1, 1, 0), "width=0"),
    ],
)
def test_bad_arguments(build, message):
    with pytest.raises(ConfigError, match=message):
        build()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("m1", "m2"), [(1, 1), (1, 2)])
def test_sobolev_norm_is_bounded(kind, m1, m2):
    """Largest value and largest partial derivatives found by autograd, against the bound."""
    y = make(kind, m1, m2)
    generator = torch.Generator().manual_seed(0)
    p = 2 * torch.rand(5000, m1 + m2, generator=generator, dtype=torch.float64) - 1
    p.requires_grad_()
    value = y.at(p)
    (slope,) = torch.autograd.grad(value.sum(), p, create_graph=True)
    order_1 = slope.detach().abs().amax(0).sum().item()
    assert value.abs().max().item() <= y.derivatives()[0] * (1 + 1e-9)
    assert 0.2 * y.derivatives()[1] <= order_1 <= y.derivatives()[1] * (1 + 1e-9)
    if len(y.derivatives()) == 3:
        order_2 = 0.0
        for i in range(m1 + m2):
            (bend,) = torch.autograd.grad(slope[:, i].sum(), p, retain_graph=True)
            order_2 += float(bend[:, i:].abs().amax(0).sum())
        assert 0.1 * y.derivatives()[2] <= order_2 <= y.derivatives()[2] * (1 + 1e-9)
    else:
        with pytest.raises(ConfigError, match="bounded derivatives up to order 1 only"):
            y.sobolev(2)
    assert y.sobolev(1) == pytest.approx(sum(y.derivatives()[:2]))

"""K^(r): nested forward derivatives against nested reverse ones and against a polynomial in e."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from tests.kernels.networks import LINEAR_SEED, Product, ntk_oracle
from weightloom.errors import ConfigError, KernelError, ShapeError
from weightloom.kernels import Tower, empirical
from weightloom.kernels.finite import FiniteHypernetwork


def tiny(activation=nn.Tanh):
    torch.manual_seed(LINEAR_SEED)
    return nn.Sequential(nn.Linear(2, 3), activation(), nn.Linear(3, 1)).double()


def gradient(h, row):
    return torch.autograd.grad(h(row).squeeze(), list(h.parameters()))


def reverse_oracle(h, row, direction, order):
    """<grad^r h, direction^(x r)> by differentiating r times backwards, one contraction each."""
    parameters = list(h.parameters())
    value = h(row).squeeze()
    for _ in range(order):
        grads = torch.autograd.grad(value, parameters, create_graph=True, allow_unused=True)
        value = sum((g * d).sum() for g, d in zip(grads, direction, strict=True) if g is not None)
    return float(value.detach())


def moved(h, row, direction, steps):
    """h(row; w + e direction) for each e."""
    start = [p.detach().clone() for p in h.parameters()]
    values = []
    with torch.no_grad():
        for step in steps:
            for p, s, d in zip(h.parameters(), start, direction, strict=True):
                p.copy_(s + step * d)
            values.append(float(h(row)))
        for p, s in zip(h.parameters(), start, strict=True):
            p.copy_(s)
    return np.array(values)


@pytest.fixture
def rows():
    return torch.randn(3, 2, dtype=torch.float64), torch.randn(3, 2, dtype=torch.float64)


@pytest.mark.parametrize("activation", [nn.Tanh, nn.GELU, nn.Softplus])
def test_against_nested_reverse_mode(activation, rows):
    h, (u, u2) = tiny(activation), rows
    orders = empirical.higher_order(h, u, u2, order=(0, 1, 2, 3, 4))
    for order, terms in enumerate(orders):
        for i in range(3):
            direction = gradient(h, u2[i : i + 1])
            truth = reverse_oracle(h, u[i : i + 1], direction, order)
            assert terms[i] == pytest.approx(truth, rel=1e-9, abs=1e-12)


def test_against_a_polynomial_in_the_step(rows):
    """Chebyshev interpolation in e: its derivatives at 0 are K^(r), without any calculus here."""
    h, (u, u2) = tiny(), rows
    radius = 0.2
    nodes = radius * np.cos(np.pi * (np.arange(25) + 0.5) / 25)
    orders = empirical.higher_order(h, u, u2, order=(0, 1, 2, 3))
    for i in range(3):
        values = moved(h, u[i : i + 1], gradient(h, u2[i : i + 1]), nodes)
        series = np.polynomial.Chebyshev.fit(nodes, values, 24, domain=[-radius, radius])
        for order, terms in enumerate(orders):
            # Rounding of the values grows by (degree^2 / radius)^order at most; far less here.
            truth = series.deriv(order)(0.0) if order else series(0.0)
            assert float(terms[i]) == pytest.approx(truth, rel=1e-6, abs=1e-9)


def test_first_order_is_the_tangent_kernel(rows):
    h, (u, u2) = tiny(), rows
    first = empirical.higher_order(h, u, u2, order=1)
    torch.testing.assert_close(first, ntk_oracle(h, u, u2).diagonal())


def test_taylor_series_predicts_a_gradient_step(rows):
    """Eq. 5: what a small step along another row's gradient does, to the order that was summed."""
    h, (u, u2) = tiny(), rows
    step = -0.03
    terms = torch.stack(empirical.higher_order(h, u, u2, order=range(6)))
    factors = torch.tensor([step**r / math.factorial(r) for r in range(6)], dtype=torch.float64)
    for i in range(3):
        (truth,) = moved(h, u[i : i + 1], gradient(h, u2[i : i + 1]), [step])
        partial = torch.cumsum(factors * terms[:, i], 0)
        errors = (partial - truth).abs()
        assert errors[5] < 1e-3 * errors[1]
        assert errors[5] < 1e-6


def test_a_linear_network_of_depth_l_has_no_terms_beyond_l(rows):
    """h is a polynomial of degree L in the weights."""
    torch.manual_seed(1)
    h = nn.Sequential(nn.Linear(2, 3, bias=False), nn.Linear(3, 3, bias=False), nn.Linear(3, 1))
    h.double()
    h[2].bias.requires_grad_(False)
    with torch.no_grad():
        for parameter in h.parameters():
            parameter.normal_()
    terms = empirical.higher_order(h, *rows, order=(2, 3, 4, 5))
    assert terms[0].abs().min() > 1e-3
    assert terms[1].abs().min() > 1e-3
    assert terms[2].abs().max() < 1e-12 * terms[0].abs().max()
    assert terms[3].abs().max() < 1e-12 * terms[0].abs().max()


def test_two_arguments(rows):
    h = Product().double()
    u = (torch.randn(2, 3).double(), torch.randn(2, 2).double())
    u2 = (torch.randn(2, 3).double(), torch.randn(2, 2).double())
    first, second = empirical.higher_order(h, u, u2, order=(1, 2))
    torch.testing.assert_close(first, ntk_oracle(h, u, u2).diagonal())
    row = tuple(a[:1] for a in u)
    direction = torch.autograd.grad(h(*(a[:1] for a in u2)).squeeze(), list(h.parameters()))

    class Bound(nn.Module):
        def __init__(self):
            super().__init__()
            self.h = h

        def forward(self, _):
            return h(*row)

    assert float(second[0]) == pytest.approx(reverse_oracle(Bound(), row[0], direction, 2))


def test_hypernetwork_terms_beyond_h_shrink_with_the_width_of_f():
    """Theorem 1 for H = 1: K^(2) goes like 1/n while K^(1) stays; medians over seeds."""
    f, g = Tower(2, "relu"), Tower(1, "relu")
    x, z = torch.randn(1, 4).double(), torch.randn(1, 3).double()
    medians = []
    for width in (64, 1024):
        terms = []
        for seed in range(24):
            h = FiniteHypernetwork(f, g, [4, width], [3, 1], seed=seed, dtype=torch.float64)
            terms.append(torch.cat(empirical.higher_order(h, (x, z), (x, z), order=(1, 2))))
        medians.append(torch.stack(terms).abs().median(0).values)
    slope = torch.log(medians[1] / medians[0]) / math.log(16)
    # The median of 24 draws is uncertain by about a quarter of its spread: a few tenths in slope.
    assert abs(float(slope[0])) < 0.2
    assert float(slope[1]) == pytest.approx(-1, abs=0.3)


def test_rows_in_blocks_are_the_same(rows):
    h = tiny()
    all_at_once = empirical.higher_order(h, *rows, order=(1, 2))
    one_by_one = empirical.higher_order(h, *rows, order=(1, 2), memory=1)
    for a, b in zip(all_at_once, one_by_one, strict=True):
        torch.testing.assert_close(a, b)


def test_only_trained_parameters_move(rows):
    h = tiny()
    h[0].requires_grad_(False)
    first, second = empirical.higher_order(h, *rows, order=(1, 2))
    torch.testing.assert_close(first, ntk_oracle(h, *rows).diagonal())
    assert second.abs().max() < 1e-12  # linear in what is left


class TestRefusals:
    def test_several_outputs(self, rows):
        with pytest.raises(
            KernelError, match=r"the network has 2 outputs; K\^\(r\) is defined for"
        ):
            empirical.higher_order(nn.Linear(2, 2).double(), *rows, order=1)

    @pytest.mark.parametrize("order", [-1, (), (1, -2)])
    def test_order(self, rows, order):
        with pytest.raises(ConfigError, match=r"order is .*; it must be 0, 1, 2"):
            empirical.higher_order(tiny(), *rows, order=order)

    def test_unpaired(self, rows):
        with pytest.raises(ShapeError, match=r"u_i has 3 rows but u_j has 2"):
            empirical.higher_order(tiny(), rows[0], rows[1][:2], order=1)

"""The slow methods that the claims of deep-learning-theory use, against numbers known by hand."""

import math

import numpy as np
import pytest
import torch

from weightloom.construct import affine_pieces
from weightloom.construct.shallow import ThresholdForm
from weightloom_papers.deep_learning_theory.claims import cube as interval
from weightloom_papers.deep_learning_theory.claims import fractal, pieces, relu, separation
from weightloom_papers.deep_learning_theory.claims import separation as parabola
from weightloom_papers.deep_learning_theory.claims.judging import (
    Measured,
    every,
    generator,
    grid,
    sampled_outputs,
    share_allowed,
)
from weightloom_papers.deep_learning_theory.claims.polynomials import printed_chain
from weightloom_papers.deep_learning_theory.claims.squares import interpolated, printed_product
from weightloom_papers.deep_learning_theory.near_init.shallow import Shallow
from weightloom_papers.lab.statistics import mean_and_error, power_law


def test_the_worst_row_is_the_evidence():
    judge = every(lambda r: r.error, lambda r: r.bound, "at {r.x}")
    rows = [Measured(x=0, error=1.0, bound=2.0), Measured(x=1, error=0.3, bound=0.2)]
    assert judge(rows).at == "at 1"
    assert not judge(rows).holds
    # A row that does not hold comes before one that is merely close.
    assert (
        judge([Measured(x=0, error=0.0, bound=-1e-9), Measured(x=1, error=1.0, bound=1.0)]).at
        == "at 0"
    )
    nan = judge([*rows[:1], Measured(x=2, error=math.nan, bound=1.0)])
    assert nan.at == "at 2"
    assert not nan.holds
    with pytest.raises(ValueError, match="empty"):
        judge([])


def test_rows_stay_as_they_are():
    with pytest.raises(AttributeError, match="error: measured numbers cannot be changed"):
        Measured(error=1.0).error = 2.0


def test_sampled_outputs_are_those_of_narrow_networks():
    """One wide draw taken apart: its groups are networks of 3 neurons, and they average to it."""
    form = ThresholdForm(lambda b: torch.cos(5 * b[:, 0]), offset=0.7)
    x = grid(0, 1, 11)
    values = sampled_outputs(form, 3, 50, x, generator(4))
    wide = form.sample(150, generator(4))
    with torch.no_grad():
        assert torch.allclose(values.mean(0), wide(x)[:, 0], atol=1e-12)
        inner, bias, outer = wide[0].weight[:3], wide[0].bias[:3], wide[2].weight[0, :3]
        first = ((x @ inner.T + bias >= 0).double() @ outer) * 50 + 0.7
    assert torch.allclose(values[0], first, atol=1e-12)


def test_statistics_by_hand():
    mean, error = mean_and_error(torch.tensor([[1.0], [3.0]]))
    assert (float(mean), float(error)) == pytest.approx((2.0, 1.0))
    assert share_allowed(0.1, 900) == pytest.approx(0.1 + 4 * 0.01)
    assert power_law([1, 10, 100], [3, 30, 300]) == pytest.approx(1.0)


def test_the_best_polynomials_for_the_absolute_value():
    """Degree 2: x^2 + 1/8 is off by 1/8. Bernstein's constant 0.2801 is the limit."""
    rows = interval.absolute_value("quick")
    assert all(r.lower <= r.upper for r in rows)
    assert rows[-1].degree * rows[-1].lower == pytest.approx(0.2801, abs=0.003)


def test_interpolated_squares_and_the_printed_product():
    x = torch.tensor([0.0, 0.25, 0.375, 1.0], dtype=torch.float64)
    assert interpolated(x, 2).tolist() == [0.0, 0.0625, 0.15625, 1.0]
    half = torch.tensor([0.5], dtype=torch.float64)
    # h_1(1/4) = 1/8, h_1(1/2) = 1/4: (4/8 - 0 - 1/4)/2 at (0, 1/2).
    assert float(printed_product(0 * half, half, 1)) == 0.125
    assert float(printed_chain(torch.ones(1, 5).double(), 3)) == pytest.approx(1.0)


def test_functions_with_a_known_number_of_pieces():
    for count in (2, 3, 7):
        assert pieces.count(pieces.line_of(count, seed=count)) == count
    assert pieces.count(pieces._merged(4)) == 2**4 + 2
    total = pieces.summed([fractal.hat(), fractal.hat()], torch.tensor([1.0, 1.0]), 0.25)
    x = grid(-1, 2, 31)
    with torch.no_grad():
        assert torch.allclose(total(x), 2 * fractal.hat()(x) + 0.25)


def test_the_first_teeth_are_those_of_the_sawtooth():
    net = separation._first_teeth(6, 4)
    x = grid(0, 2.5 / 64, 101)
    with torch.no_grad():
        assert torch.allclose(net(x), fractal.power(6)(x), atol=1e-12)
        assert net(grid(0.1, 1, 5)).flatten().tolist() == pytest.approx([0.5] * 5)


def test_areas_about_the_line_one_half():
    x = grid(0, 1, 4097)[:, 0]
    with torch.no_grad():
        areas = separation._areas(fractal.power(3)(x[:, None])[:, 0], x)
    assert len(areas) == 7
    assert areas.tolist() == pytest.approx([2.0**-5] * 7, rel=1e-3)


def test_a_bad_pair_stays_in_the_ball_and_switches_rows():
    net = Shallow.sample(300, 4, seed=2)
    x = torch.tensor([1.0, 0, 0, 0]).double()
    w, v = relu._pair(net, x, 1.0)
    for each in (w, v):
        assert float((each - net.hidden).norm()) <= 1 + 1e-9
    gap = abs(float(net(x[None], v) - net.expand(x[None], v, w)))
    assert gap > 10 * abs(float(net(x[None], v) - net.taylor(x[None], v)))


def test_the_last_layer_is_fitted():
    x = grid(0, 1, 65)
    net = parabola.fitted(pieces.random_net((6,), 0, 0.3), x**2, x)
    with torch.no_grad():
        rest = (net(x) - x**2)[:, 0].numpy()
        hidden = net[:-1](x).numpy()
    features = np.concatenate([hidden, np.ones((65, 1))], 1)
    assert np.abs(features.T @ rest).max() < 1e-10  # the normal equations
    assert affine_pieces(net, 0, 1).count >= 2

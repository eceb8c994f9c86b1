"""Gradients of what tuning minimises, and the search for its minimum."""

import copy
import functools
import math

import numpy as np
import pytest
import torch
from scipy import optimize

from tests.kernels.regression.oracle import Oracle
from tests.kernels.regression.test_points import points
from weightloom.errors import ConfigError
from weightloom.kernels import FourierFeatures, HyperKernel, Tower
from weightloom.kernels.regression import objectives as gradients
from weightloom.kernels.regression.objectives import loss, minimise, value_and_gradient

START = {
    "ridge": 0.05,
    "kernel__features__scale": 2.0,
    "kernel__f__sigma_w": 1.2,
    "kernel__f__sigma_b": 0.3,
    "kernel__g__sigma_w": 0.9,
    "kernel__g__gain": 1.3,
}


def kernel(activation="relu", kind="nngp", **features):
    f, g = Tower(3, activation), Tower(2, activation, sigma_b=0.2)
    return HyperKernel(f, g, kind, FourierFeatures(1.0, **features))


def directly(prior, problem, objective, name, step):
    """The loss with one parameter moved, without the machinery of gradients."""
    values = {**START, name: START[name] * math.exp(step)}
    ridge = values.pop("ridge")
    inner = {key.removeprefix("kernel__"): value for key, value in values.items()}
    matrix = copy.deepcopy(prior).set_params(**inner)(problem.x, problem.z)
    return loss(
        matrix + ridge * torch.eye(len(matrix), dtype=matrix.dtype), problem.y, objective
    ).item()


@pytest.mark.parametrize("objective", gradients.OBJECTIVES)
@pytest.mark.parametrize("kind", ["nngp", "ntk"])
@pytest.mark.parametrize(
    ("activation", "features"),
    [("relu", {}), ("erf", {}), ("relu", {"period": 1.0}), ("leaky_relu", {"count": 32})],
)
def test_gradient_against_finite_differences(objective, kind, activation, features, monkeypatch):
    monkeypatch.setattr(gradients, "BLOCK", 8)  # several blocks, on and off the diagonal
    prior, problem = kernel(activation, kind, **features), points(n=15)
    _, slope = value_and_gradient(prior, problem, 0.0, START, objective)
    # Central differences, extrapolated: off by h^4 times a fifth derivative (below 1e4), and by
    # rounding over h, 1e-15 times a condition of 1e3.
    h = 1e-3
    for k, name in enumerate(START):
        ahead = functools.partial(directly, prior, problem, objective, name)
        near, far = ((ahead(step) - ahead(-step)) / (2 * step) for step in (h, 2 * h))
        assert float(slope[k]) == pytest.approx((4 * near - far) / 3, abs=1e-7)
    assert slope.abs().max() > 0.1


def test_loss_is_what_systems_report():
    prior, problem = kernel(), points(n=15)
    oracle = Oracle(prior, problem, 0.1)
    matrix = torch.from_numpy(oracle.A)
    per_value = -oracle.log_marginal_likelihood() / problem.y.numel()
    assert loss(matrix, problem.y, "marginal_likelihood").item() == pytest.approx(per_value)
    errors = [oracle.y[k] - oracle.leave_one_out(k)[0] for k in range(15)]
    wanted = math.log(np.square(errors).mean())
    assert loss(matrix, problem.y, "leave_one_out").item() == pytest.approx(wanted)


def test_the_ridge_may_stay_fixed():
    prior, problem = kernel(), points(n=15)
    free = value_and_gradient(prior, problem, 9.0, START, "marginal_likelihood")
    rest = {name: value for name, value in START.items() if name != "ridge"}
    fixed = value_and_gradient(prior, problem, START["ridge"], rest, "marginal_likelihood")
    assert fixed[0] == pytest.approx(free[0])
    assert torch.allclose(fixed[1], free[1][1:])


def test_where_there_is_no_factor_the_loss_is_infinite():
    matrix = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.float64)
    assert loss(matrix, torch.ones(2, 1).double(), "leave_one_out") == math.inf
    x = torch.ones(3, 2).double()
    problem = type(points())(x, x, torch.ones(3, 1).double())
    value, slope = value_and_gradient(kernel(), problem, 0.0, {"ridge": 1e-300}, "leave_one_out")
    assert value == math.inf
    assert slope.isnan().all()


def test_unknown_objective():
    with pytest.raises(ConfigError, match=r"objective is 'mse'; wanted one of leave_one_out"):
        value_and_gradient(kernel(), points(), 0.1, START, "mse")


# -- the search ------------------------------------------------------------------------------------


def rosenbrock(place):
    value = optimize.rosen(place.numpy())
    return float(value), torch.from_numpy(optimize.rosen_der(place.numpy()))


def test_a_curved_valley():
    start = torch.tensor([-1.2, 1.0, 0.5], dtype=torch.float64)
    place, value, count = minimise(rosenbrock, start, steps=200)
    np.testing.assert_allclose(place, np.ones(3), atol=1e-5)
    assert value == pytest.approx(0, abs=1e-10)
    assert count < 100


def test_walls_are_survived():
    """The minimum of t - log t lies at 1; below 0.9 there is nothing."""

    def function(t):
        if float(t) < 0.9:
            return math.inf, torch.full_like(t, math.nan)
        return float(t - t.log()), 1 - 1 / t

    start = torch.tensor([8.0], dtype=torch.float64)
    place, _, _ = minimise(function, start, reach=10.0)
    assert float(place) == pytest.approx(1, abs=1e-4)


def test_a_wall_at_the_start_stays_there():
    def nowhere(t):
        return math.inf, torch.full_like(t, math.nan)

    place, value, count = minimise(nowhere, torch.zeros(2))
    assert (place.tolist(), value, count) == ([0, 0], math.inf, 0)


def test_never_worse_and_never_far():
    visited = []

    def slope_down(t):
        visited.append(float(t))
        return -float(t), -torch.ones_like(t)

    place, _, _ = minimise(slope_down, torch.zeros(1, dtype=torch.float64), steps=5, reach=1.0)
    assert float(place) == pytest.approx(5)
    assert np.diff(visited).max() <= 1 + 1e-12

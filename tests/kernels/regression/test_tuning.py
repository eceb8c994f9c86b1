"""Tuning: the best candidate is found, refined, and left in the model."""

import math

import numpy as np
import pytest
import torch
from scipy import optimize

from tests.kernels.regression.oracle import Oracle
from tests.kernels.regression.test_points import grid
from weightloom.errors import ConfigError, KernelError
from weightloom.kernels import FourierFeatures, HyperKernel, Tower
from weightloom.kernels.regression import HyperKernelRegressor, PointProblem, tuning


def kernel(scale=1.0, depth=2):
    return HyperKernel(Tower(depth), Tower(2), "nngp", FourierFeatures(scale))


def sample(n=40, scale=4.0, noise=0.05, channels=8, seed=0):
    """Data that the kernel with this scale and noise describes exactly."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=random, dtype=torch.float64)
    z = torch.rand(n, 2, generator=random, dtype=torch.float64)
    matrix = kernel(scale)(x, z) + noise * torch.eye(n, dtype=torch.float64)
    draws = torch.randn(n, channels, generator=random, dtype=torch.float64)
    return (x, z), torch.linalg.cholesky(matrix) @ draws


SEARCH = {"ridge": [1e-3, 1e-1], "kernel__features__scale": [1.0, 3.0], "kernel__f__depth": [1, 2]}


def objective_by_hand(X, y, parameters, objective):
    prior = kernel(parameters["kernel__features__scale"], parameters.get("kernel__f__depth", 2))
    oracle = Oracle(prior, PointProblem(*X, y), parameters["ridge"])
    if objective == "marginal_likelihood":
        return oracle.log_marginal_likelihood()
    errors = [oracle.y[k] - oracle.leave_one_out(k)[0] for k in range(len(y))]
    return np.square(errors).mean()


@pytest.mark.parametrize("objective", ["leave_one_out", "marginal_likelihood"])
def test_candidates(objective):
    X, y = sample()
    model = HyperKernelRegressor(kernel())
    report = model.tune(X, y, objective=objective, search=SEARCH, refine=False)
    assert len(report.trials) == 8
    for trial in report.trials:
        wanted = objective_by_hand(X, y, trial.parameters, objective)
        assert trial.value == pytest.approx(wanted)
    choose = max if objective == "marginal_likelihood" else min
    assert report.best is choose(report.trials, key=lambda trial: trial.value)
    # The model is set and fitted.
    assert model.ridge == report.best.parameters["ridge"] == model.system_.ridge
    assert model.kernel.features.scale == report.best.parameters["kernel__features__scale"]
    fresh = HyperKernelRegressor(model.kernel, model.ridge).fit(X, y)
    assert torch.equal(model.predict(X), fresh.predict(X))


@pytest.mark.parametrize("objective", ["leave_one_out", "marginal_likelihood"])
def test_refining_finds_the_minimum_that_scipy_finds(objective):
    X, y = sample()
    model = HyperKernelRegressor(kernel())
    search = {"ridge": [1e-2], "kernel__features__scale": [2.0]}
    report = model.tune(X, y, objective=objective, search=search)
    assert report.best.refined
    assert "refined ridge, kernel__features__scale" in report.note

    def function(logs):
        names = ("ridge", "kernel__features__scale")
        values = dict(zip(names, np.exp(logs), strict=True))
        tuned = objective_by_hand(X, y, values, objective)
        return math.log(tuned) if objective == "leave_one_out" else -tuned / y.numel()

    start = np.log([1e-2, 2.0])
    wanted = optimize.minimize(
        function, start, method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-12}
    )
    tuned = [model.ridge, model.kernel.features.scale]
    # Both stop where the loss is flat to 1e-10 or so: its square root in the parameters.
    np.testing.assert_allclose(np.log(tuned), wanted.x, atol=1e-3)


def test_the_truth_is_found():
    """Marginal likelihood finds noise and scale again, within what 320 values can tell."""
    X, y = sample()
    model = HyperKernelRegressor(kernel(), ridge=1.0)
    search = {"ridge": [1.0], "kernel__features__scale": [1.0, 10.0]}
    model.tune(X, y, objective="marginal_likelihood", search=search)
    assert model.ridge == pytest.approx(0.05, rel=0.5)
    assert model.kernel.features.scale == pytest.approx(4.0, rel=0.2)


def test_without_a_search_the_ridge_is_refined():
    X, y = sample()
    model = HyperKernelRegressor(kernel(4.0), ridge=1.0)
    report = model.tune(X, y, objective="marginal_likelihood")
    assert list(report.best.parameters) == ["ridge"]
    assert report.best.refined
    assert model.ridge == pytest.approx(0.05, rel=0.5)


def test_a_candidate_that_fails_is_recorded():
    (x, z), y = sample(n=20)
    twice = torch.cat([x, x]), torch.cat([z, z])
    model = HyperKernelRegressor(kernel())
    search = {"ridge": [0.0, 0.1, -1.0], "kernel__f__depth": [0, 2]}
    report = model.tune(twice, torch.cat([y, y]), search=search, refine=False)
    failures = {tuple(t.parameters.values()): t.failure for t in report.trials}
    assert failures[0.1, 2] is None
    assert "row 0 and row 20 are the same point" in failures[0.0, 2]
    assert "ridge is -1.0" in failures[-1.0, 2]
    assert "depth is 0" in failures[0.1, 0]
    assert sum(failure is not None for failure in failures.values()) == 5
    assert model.ridge == 0.1


def test_all_fail_and_the_model_stays():
    X, y = sample(n=10)
    model = HyperKernelRegressor(kernel(), ridge=0.3).fit(X, y)
    before = model.predict(X)
    with pytest.raises(KernelError, match=r"none of 2 candidates.*ridge is -1"):
        model.tune(X, y, search={"ridge": [-1, -2]})
    assert model.ridge == 0.3
    assert torch.equal(model.predict(X), before)


def test_the_report_is_a_table():
    X, y = sample(n=15)
    model = HyperKernelRegressor(kernel())
    search = {"ridge": [0.1, -1.0], "kernel__g__activation": ["relu", "erf"]}
    lines = str(model.tune(X, y, search=search)).splitlines()
    assert lines[0].split() == ["ridge", "g__activation", "leave_one_out"]
    assert len(lines) == 1 + 4 + 1 + 1
    assert sum("best" in line for line in lines) == 1
    assert sum("ConfigError" in line for line in lines) == 2
    assert "refined ridge in" in lines[-1]


def test_grids_are_tuned_too():
    problem = grid(masked=True)
    X = problem.images, problem.coordinates
    model = HyperKernelRegressor(kernel())
    report = model.tune(X, problem.values, mask=problem.mask, search={"ridge": [0.1, 1.0]})
    assert report.best.refined
    assert model.predict(X).shape == problem.values.shape


def test_estimates_have_errors_and_are_not_refined(monkeypatch):
    X, y = sample(n=20)
    model = HyperKernelRegressor(kernel(), solver="cg")
    report = model.tune(X, y, objective="marginal_likelihood", search={"ridge": [0.05]})
    assert report.best.standard_error > 0
    assert report.note == (
        "not refined: that needs a dense Cholesky factor, and this was solved by cg"
    )
    wanted = objective_by_hand(
        X, y, {"ridge": 0.05, "kernel__features__scale": 1.0}, report.objective
    )
    assert abs(report.best.value - wanted) < 4 * report.best.standard_error
    assert "±" in str(report)
    monkeypatch.setattr(tuning, "REFINE_LIMIT", 5)
    model = HyperKernelRegressor(kernel())
    assert "20 equations are more than 5" in model.tune(X, y).note
    report = model.tune(X, y, search={"kernel__f__depth": [1, 2]})
    assert "no searched parameter is a positive number" in report.note


def test_progress(capsys):
    X, y = sample(n=10)
    HyperKernelRegressor(kernel(), progress=True).tune(X, y, search=SEARCH, refine=False)
    out, err = capsys.readouterr()
    assert "tuning: 100%" in err
    assert not out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "mse"}, r"objective is 'mse'; wanted one of leave_one_out, marginal"),
        ({"search": {"rigde": [1]}}, r"no parameter 'rigde' to search; there are dtype, kernel"),
        ({"search": {"ridge": 1.0}}, r"search\['ridge'\] is 1.0; wanted a list"),
        ({"search": {"solver": "cg"}}, r"search\['solver'\] is 'cg'; wanted a list"),
        ({"search": {"ridge": []}}, r"search\['ridge'\] is empty"),
    ],
)
def test_messages(options, message):
    X, y = sample(n=10)
    with pytest.raises(ConfigError, match=message):
        HyperKernelRegressor(kernel()).tune(X, y, **options)

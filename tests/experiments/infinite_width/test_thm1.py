"""Theorem 1: series against nested derivatives, exponents from draws, and verdicts."""

from __future__ import annotations

import math
import pickle

import pytest
import torch

from weightloom.errors import ConfigError
from weightloom.experiments import all_experiments
from weightloom.experiments.infinite_width.thm1 import (
    ORDERS,
    SETTINGS,
    Thm1,
    draw_network,
    inputs,
    measure,
    shared_path,
)
from weightloom.experiments.infinite_width.thm1_numbers import (
    exponent,
    exponent_smooth_f,
    is_rate,
    median_slope,
    rates,
    verdicts,
)
from weightloom.experiments.infinite_width.thm1_series import (
    ACTIVATIONS,
    hypernetwork_series,
    terms,
    tower_series,
)
from weightloom.kernels import Tower, empirical
from weightloom.kernels.finite import FiniteTower
from weightloom.lab import SCALES, Outcome, Result, Run, Workspace, wanted
from weightloom.lab.intervals import Slope


def config(setting="relu", depth=2, layers=2, width=8, draws=3, check=False):
    return {
        "setting": setting, "depth": depth, "layers": layers, "width": width, "draws": draws,
        "check": check,
    }  # fmt: skip


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("setting", SETTINGS)
def test_series_are_nested_derivatives(setting):
    x, z = inputs()
    for seed in range(20):
        net = draw_network(config(setting, depth=3, layers=3), seeded(seed))
        if shared_path(net, x, z):
            break
    step = torch.autograd.grad(net(x[1:], z[1:])[0, 0], list(net.parameters()))
    with torch.no_grad():
        series = hypernetwork_series(net, SETTINGS[setting], x[0], z[0], step, 3)
    slow = empirical.higher_order(net, (x[:1], z[:1]), (x[1:], z[1:]), (0, 1, 2, 3))
    assert terms(series) == pytest.approx([float(k) for k in slow], rel=1e-9)
    assert terms(series)[1] != 0


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_series_are_the_step(name):
    """A third road: the polynomial is the network along the step, for a small one."""
    tower = Tower(depth=3, activation=ACTIVATIONS[name][0])
    net = FiniteTower(tower, [3, 6, 6, 2], seed=1, dtype=torch.float64)
    x = inputs()[0][0]
    step = [torch.randn(p.shape, generator=seeded(2), dtype=p.dtype) for p in net.parameters()]
    e = 1e-3
    with torch.no_grad():
        series = tower_series(net, name, x, step, 4)
        for parameter, direction in zip(net.parameters(), step, strict=True):
            parameter += e * direction
        wanted_output = net(x[None])[0]
    found = sum(c * e**k for k, c in enumerate(series))
    torch.testing.assert_close(found, wanted_output, rtol=1e-10, atol=1e-11)


def test_linear_terms_end_with_the_layers():
    """H = 1 and piecewise linear: K^(r) = 0 for r > L."""
    x, z = inputs()
    net = draw_network(config(depth=1, layers=2), seeded())
    step = torch.autograd.grad(net(x[:1], z[:1])[0, 0], list(net.parameters()))
    with torch.no_grad():
        found = terms(hypernetwork_series(net, SETTINGS["relu"], x[0], z[0], step, 4))
    assert found[2] != 0
    assert found[3:] == [0, 0]


def test_unknown_activation():
    x, z = inputs()
    net = draw_network(config(), seeded())
    step = list(net.parameters())
    with pytest.raises(ConfigError, match="no series through the activation 'sin'; there are: rel"):
        hypernetwork_series(net, ("relu", "sin"), x[0], z[0], step, 2)


def test_no_shared_path_means_no_limit():
    """Networks without one: the terms are far below those of the others, or exactly 0."""
    x, z = inputs()
    apart, together = [], []
    for seed in range(60):
        net = draw_network(config(depth=2, width=2000), seeded(seed))
        step = torch.autograd.grad(net(x[1:], z[1:])[0, 0], list(net.parameters()))
        with torch.no_grad():
            series = hypernetwork_series(net, SETTINGS["relu"], x[0], z[0], step, 1)
        size = abs(terms(series)[1])
        (together if shared_path(net, x, z) else apart).append(size)
    assert 5 <= len(apart) <= 45
    assert sorted(apart)[len(apart) // 2] < 0.1 * sorted(together)[len(together) // 2]
    leaky = draw_network(config("leaky", depth=3), seeded())
    assert shared_path(leaky, x, z)


def test_inputs_have_unit_variance():
    for rows in inputs():
        assert rows.square().mean(1).tolist() == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("scale", SCALES)
def test_runs_are_complete_and_unique(scale):
    experiment = all_experiments()["thm1"]
    runs = wanted(experiment, scale)
    assert {run.config["depth"] for run in runs} == {1, 2, 3}
    # Every order must be able to be other than 0: K^(r) = 0 for r > L H.
    assert all(run.config["depth"] * run.config["layers"] >= max(ORDERS) for run in runs)
    assert all(experiment.cost(run) > 0 for run in runs)
    assert pickle.loads(pickle.dumps(experiment)).runs(scale) == runs


def test_a_run_is_the_same_each_time_and_checks_itself():
    run = Run("thm1", config("smooth g", check=True), 0)
    ((_, first),) = Thm1().execute([run], Workspace())
    assert first.curves == measure(run).curves
    assert first.metrics["disagreement"] < 1e-10
    other = Run("thm1", config("smooth g"), 1)
    assert math.isnan(measure(other).metrics["disagreement"])
    assert measure(other).curves["same 1"] != first.curves["same 1"]


@pytest.mark.parametrize(("depth", "found"), [(1, [0, -1, -1, -2]), (2, [0, 0, -1, -1])])
def test_exponents_of_smooth_f(depth, found):
    """By enumeration of how r derivatives are shared out among H factors."""

    def best(left, factors):
        if factors == 0:
            return 0 if left == 0 else -math.inf
        return max(-(a // 2) + best(left - a, factors - 1) for a in range(left + 1))

    assert [exponent_smooth_f(depth, r) for r in ORDERS] == found
    assert [best(r, depth) for r in ORDERS] == found


def test_exponents_of_the_theorem():
    """As Eq. 6 has them: 1 up to r = H, then n^(H - r)."""
    assert [[exponent(depth, r) for r in ORDERS] for depth in (1, 2, 3)] == [
        [0, -1, -2, -3],
        [0, 0, -1, -2],
        [0, 0, 0, -1],
    ]


def test_median_slope_finds_the_slope_and_its_spread():
    widths = [10, 100, 1000]
    draws = [(torch.randn(400, generator=seeded(n)).exp() / n**1.5).tolist() for n in widths]
    slope = median_slope(widths, draws)
    assert abs(slope.value + 1.5) < 2 * slope.margin
    # Median of lognormal: standard error sqrt(pi/2) / sqrt 400 / ln 10 in log10 at each width.
    expected = 1.96 * math.sqrt(math.pi / 2 / 400) / math.log(10) / math.sqrt(2)
    assert slope.margin == pytest.approx(expected, rel=0.35)
    assert median_slope(widths, [[0.0] * 3, [1.0] * 3, [1.0] * 3]) is None
    assert median_slope([10], [[1.0]]) is None


def test_is_rate():
    assert is_rate(Slope(-1.1, 0.1, 0, 4), -1) == "holds"
    assert is_rate(Slope(-1.6, 0.1, 0, 4), -1) == "fails"
    assert is_rate(Slope(-1.3, 0.3, 0, 4), -1) == "holds"
    assert is_rate(Slope(-1.5, 0.3, 0, 4), -1) == "unclear"
    assert is_rate(Slope(-1.0, 0.6, 0, 4), -1) == "unclear"
    assert is_rate(None, -1) == "no data"
    assert is_rate(Slope(-1.0, math.nan, 0, 2), -1) == "unclear"


def fakes(rule, settings=tuple(SETTINGS), disagreement=1e-12, apart=0):
    """Results with |K^(r)| = n^rule(setting, H, r), with a little noise."""
    results = []
    for setting in settings:
        for depth, layers in ((1, 4), (2, 2)):
            for width in (10, 100):
                draws = 20
                curves = {}
                for pair in ("same", "other"):
                    for r in ORDERS:
                        size = float(width) ** rule(setting, depth, r)
                        values = [size * (1 + 0.01 * k) * (-1) ** k for k in range(draws)]
                        values[:apart] = [0.0] * apart
                        curves[f"{pair} {r}"] = (list(range(draws)), values)
                    paths = [float(k >= apart) for k in range(draws)]
                    curves[f"{pair} path"] = (list(range(draws)), paths)
                run = Run("thm1", config(setting, depth, layers, width, draws), 0)
                results.append(Result(run, Outcome("done", {"disagreement": disagreement}, curves)))
    return results


def truth(setting, depth, r):
    if setting == "smooth g" and depth > 1:
        return 0
    return exponent_smooth_f(depth, r) if setting == "smooth f" else exponent(depth, r)


def said(results):
    return [one.verdict for one in verdicts(results)]


def test_verdicts():
    expected = ["holds", "holds", "holds", "fails", "holds", "fails", "holds", "holds"]
    assert said(fakes(truth)) == expected
    theorem = said(fakes(lambda setting, depth, r: exponent(depth, r)))
    assert theorem == ["holds"] * 4 + ["fails", "holds", "fails", "holds"]
    assert said(fakes(lambda setting, depth, r: 0))[:3] == ["fails"] * 3
    assert said(fakes(truth, disagreement=0.1))[-1] == "fails"
    assert said([]) == ["no data"] * 8


def test_zeros_are_counted_and_left_out():
    (rate, *_) = rates(fakes(truth, ("relu",), apart=8))
    assert rate.zeros == rate.apart == pytest.approx(0.4)
    assert min(rate.medians) > 0
    assert len(rate.everyone[0]) == 20
    assert len(rate.draws[0]) == 12


def test_table_and_figure_from_results_alone():
    pytest.importorskip("matplotlib")
    experiment = Thm1()
    table = experiment.table(fakes(truth))
    assert len(table.rows) == 4 * 2 * 2 * 4
    assert "smooth g, which the setup allows: FAILS" in table.text()
    (figure,) = experiment.figures(fakes(truth, ("relu", "smooth g"))).values()
    assert len(figure.axes) == 4
    assert experiment.figures([]) == {}
    assert "NO DATA" in experiment.table([]).text()

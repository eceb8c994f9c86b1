"""The experiment barron: exact errors by two methods, guarantees, norms, verdicts."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from scipy import integrate

from weightloom.construct.shallow import (
    BarronForm,
    NumericSpectrum,
    gaussian_form,
)
from weightloom.errors import ConfigError
from weightloom_papers.deep_learning_theory.experiments.barron.analysis import (
    growth,
    sampled,
    verdicts,
)
from weightloom_papers.deep_learning_theory.experiments.barron.experiment import (
    Barron,
    ball_points,
    best_constant,
    exact_error,
    grid_guarantee,
    grid_nodes,
    measure_grid,
    measure_norm,
    measure_sampled,
)
from weightloom_papers.deep_learning_theory.printed import gaussian_barron_bound
from weightloom_papers.experiments import all_experiments
from weightloom_papers.lab import SCALES, Outcome, Result, Run, Workspace, wanted


def sampled_config(dims, width, trials=30, points=100):
    common = {"part": "sampled", "sigma": 0.5, "trials": trials, "points": points}
    return {**common, "dims": dims, "width": width}


def result(config, metrics, seed=0):
    return Result(Run("deep-learning-theory/barron", config, seed), Outcome("done", metrics))


def fakes(level=1.0, power=-1.0, grows=0.5, barron=30.0):
    """k error^2 = level d^grows times k^(1 + power), with a little noise; the bound is barron d."""
    built_results = []
    for number, dims in enumerate((1, 4, 16, 64)):
        for at, width in enumerate((16, 64, 256)):
            for seed in range(3):
                noise = 1 + 0.03 * (-1) ** (seed + at + number)
                error = level * dims**grows * width**power * noise
                metrics = {
                    "error": error,
                    "standard_error": 0.0,
                    "expected": dims**0.5 / width,
                    "bound": barron / 2 * dims / width,
                    "barron": barron * dims / width,
                    "above": 0.0,
                }
                built_results.append(result(sampled_config(dims, width), metrics, seed))
    return built_results


def grid(sup=0.1, rms=0.05, dims=1, count=3):
    config = {"part": "grid", "sigma": 0.5, "dims": dims, "count": count, "points": 9}
    numbers = {"sup": sup, "rms": rms, "guarantee": 0.2, "grid": count**dims, "nodes": 9}
    return result(config, numbers)


def norm(closed=1.0, **changes):
    config = {"part": "norm", "sigma": 0.5, "dims": 2, "draws": 9}
    numbers = {"closed": closed, "holder": 1.1, "mass": 1.5, "monte_carlo": 1.001}
    numbers |= {"monte_carlo_error": 0.001, "quadrature": 1.0, "fft": 1.0001, **changes}
    return result(config, numbers)


def verdict_words(results):
    return [verdict.verdict for verdict in verdicts(results)]


@pytest.mark.parametrize("scale", SCALES)
def test_runs_are_complete_and_unique(scale):
    experiment = all_experiments()["deep-learning-theory/barron"]
    runs = wanted(experiment, scale)
    assert {run.config["part"] for run in runs} == {"sampled", "grid", "norm"}
    assert all(experiment.cost(run) > 0 for run in runs)
    assert pickle.loads(pickle.dumps(experiment)).runs(scale) == runs


def test_points_have_the_distribution_that_is_claimed():
    points = ball_points(4000, 7, seed=0)
    radius = points.norm(dim=-1)
    assert float(radius.max()) <= 1
    # Uniform on [0, 1]: mean 1/2, standard error of it sqrt(1/12/4000).
    assert abs(float(radius.mean()) - 0.5) < 4 * math.sqrt(1 / 12 / 4000)
    assert torch.equal(points, ball_points(4000, 7, seed=0))
    assert not torch.equal(points, ball_points(4000, 7, seed=1))


@pytest.mark.parametrize(("dims", "sigma"), [(1, 0.5), (1, 0.2), (2, 0.5)])
def test_exact_error_against_quadrature_over_frequencies(dims, sigma):
    """An integral over one normal variable, and one over all frequencies w."""
    form, points = gaussian_form(dims, sigma), ball_points(20, dims, 0)
    assert exact_error(form, points) == pytest.approx(form.expected_error(1, points), rel=1e-5)


@pytest.mark.parametrize("dims", [5, 40])
def test_exact_error_against_sampled_networks(dims):
    numbers = measure_sampled(sampled_config(dims, 32, trials=80), 0).metrics
    assert abs(numbers["error"] - numbers["expected"]) < 4 * numbers["standard_error"]
    assert numbers["expected"] < numbers["bound"] <= numbers["barron"]
    assert numbers["above"] == 0


def test_exact_error_is_for_gaussians():
    odd = NumericSpectrum(lambda w: -1j * w[:, 0] * (-math.pi * w[:, 0] ** 2).exp(), 1, reach=5.0)
    with pytest.raises(ConfigError, match="spectrum is a NumericSpectrum; wanted a Gaussian's"):
        exact_error(BarronForm(odd), ball_points(5, 1, 0))


def test_best_constant_by_scipy():
    moments = [integrate.quad(lambda r, p=p: math.exp(-2 * p * r * r), 0, 1)[0] for p in (1, 2)]
    assert best_constant(0.5) == pytest.approx(math.sqrt(moments[1] - moments[0] ** 2))


@pytest.mark.parametrize(("dims", "count"), [(1, 3), (1, 9), (2, 5), (3, 3)])
def test_interpolants_keep_the_guarantee(dims, count):
    config = {"part": "grid", "sigma": 0.5, "dims": dims, "count": count, "points": 300}
    numbers = measure_grid(config, 0).metrics
    assert numbers["rms"] <= numbers["sup"] <= numbers["guarantee"]
    assert numbers["grid"] == count**dims
    # What the figure draws for as many nodes is never worse.
    assert grid_guarantee(dims, 0.5, numbers["grid"]) <= numbers["guarantee"] * (1 + 1e-9)


def test_guarantee_on_a_line_is_sharp():
    """Three nodes on [-1, 1]: the guarantee 1 / (8 sigma^2) is nearly reached for wide bells."""
    sigma = 3.0
    x = torch.linspace(0, 1, 1001, dtype=torch.float64)
    g = (-x.square() / (2 * sigma**2)).exp()
    gap = (g[0] + (g[-1] - g[0]) * x - g).abs().max()
    linear = 1 / (2 * sigma**2 * 4)
    assert 0.9 * linear < float(gap) <= linear
    constant = (1 - math.exp(-1 / 18)) / 2
    assert grid_guarantee(1, sigma, 3) == pytest.approx(min(constant, linear))


@pytest.mark.parametrize("dims", [1, 2, 5])
@pytest.mark.parametrize("eps", [0.3, 0.1, 0.02])
def test_nodes_and_guarantee_are_inverse(dims, eps):
    nodes = 10 ** grid_nodes(dims, 0.5, eps)
    assert grid_guarantee(dims, 0.5, nodes * (1 + 1e-9)) <= eps * (1 + 1e-9)
    per_axis = round(nodes ** (1 / dims))
    # One node less on each axis is not enough for either method (the constant does not count here).
    fewer = per_axis - 1
    centres = math.exp(-0.5) / 0.5 * math.sqrt(dims) / fewer
    linear = dims / (2 * 0.25 * (fewer - 1) ** 2)
    assert min(centres, linear) > eps


def test_norms_agree():
    for dims in (1, 2, 20):
        config = {"part": "norm", "sigma": 0.5, "dims": dims, "draws": 4000}
        numbers = measure_norm(config, 0).metrics
        gap = abs(numbers["monte_carlo"] - numbers["closed"])
        assert gap < 4 * numbers["monte_carlo_error"]
        assert numbers["closed"] <= numbers["holder"]
        assert numbers["mass"] <= 2 * numbers["closed"]
        assert ("fft" in numbers) == (dims <= 3)
        # The text's bound is for the density; at height 1 it is sqrt(d) / sigma.
        scale = (2 * math.pi * 0.25) ** (dims / 2)
        assert numbers["holder"] == pytest.approx(gaussian_barron_bound(dims, 0.5) * scale)
        for method in {"fft", "quadrature"} & set(numbers):
            assert numbers[method] == pytest.approx(numbers["closed"], rel=5e-4)


def test_all_claims_hold_on_numbers_that_obey():
    assert verdict_words([*fakes(), grid(), norm()]) == ["holds"] * 6


def test_every_verdict_can_differ():
    assert verdict_words(fakes(power=-0.8))[0] == "fails"
    assert verdict_words(fakes(level=1.5))[1] == "fails"
    assert verdict_words(fakes(barron=0.1))[2] == "fails"
    assert verdict_words(fakes(grows=1.6))[3] == "fails"
    assert verdict_words([grid(sup=0.3)])[4] == "fails"
    for wrong in ({"monte_carlo": 1.1}, {"quadrature": 1.01}, {"fft": 0.9}, {"mass": 2.1}):
        assert verdict_words([norm(**wrong)])[5] == "fails"
    assert verdict_words([]) == ["no data"] * 6


def test_growth_by_hand():
    measured, bound = growth(sampled(fakes()))
    assert measured.value == pytest.approx(0.5, abs=0.02)
    assert bound.value == pytest.approx(1.0)


def test_sizes_by_hand():
    each = next(each for each in sampled(fakes()) if each.dims == 16)
    assert each.exact == pytest.approx(4.0)
    assert each.barron2 == pytest.approx(480)
    assert each.nodes(each.exact) == pytest.approx(400)  # sqrt(4 / 400) = 0.1


def test_table_and_figure_from_results_alone():
    pytest.importorskip("matplotlib")
    experiment = Barron()
    failed = Result(
        Run("deep-learning-theory/barron", sampled_config(3, 9), 0), Outcome("failed", {})
    )
    results = [*fakes(), grid(), grid(dims=2, rms=0.3), norm(), failed]
    table = experiment.table(results)
    assert [row[0] for row in table.rows] == [1, 4, 16, 64]
    assert "2 built, the nearest at 50% of it" in table.text()
    (figure,) = experiment.figures(results).values()
    assert len(figure.axes) == 4
    (line,) = [x for x in figure.axes[2].lines if "smallest built" in str(x.get_label())]
    assert list(line.get_xdata()) == [1]  # the other one is not good enough
    assert set(experiment.figures(fakes())) == {""}
    assert experiment.figures([grid()]) == {}
    assert "NO DATA" in experiment.table([]).text()


def test_one_run_of_each_part():
    experiment = Barron()
    for part in ("sampled", "grid", "norm"):
        run = next(run for run in experiment.runs("smoke") if run.config["part"] == part)
        ((done, outcome),) = experiment.execute([run], Workspace())
        assert done == run
        assert outcome.status == "done"

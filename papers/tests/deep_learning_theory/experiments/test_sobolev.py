"""``sobolev``: derivative bounds, counts against built networks, and verdicts that go both ways."""

from __future__ import annotations

import itertools
import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weightloom.construct import Box, sobolev
from weightloom.construct.deep.taylor import partials
from weightloom.errors import ConfigError
from weightloom_papers.deep_learning_theory.experiments.sobolev import analysis as sobolev_numbers
from weightloom_papers.deep_learning_theory.experiments.sobolev import experiment as sobolev_build
from weightloom_papers.deep_learning_theory.experiments.sobolev.experiment import PLANS, Sobolev
from weightloom_papers.lab import SCALES, Outcome, Result, Run, Workspace, wanted


@pytest.mark.parametrize("name", sobolev_build.TARGETS)
@pytest.mark.parametrize("d", [1, 2, 3])
def test_derivatives_stay_below_their_bounds_and_come_near(name, d):
    """On a fine grid; bounds are those of one dimension, so they are nearly attained there."""
    points = Box.cube(d, 0, 1).grid(1500)
    for r in (2, 3) if d == 3 else (2, 3, 4):
        derivatives = partials(sobolev_build.target_of(name, d), points, r, r)
        largest = max(float(each.abs().max()) for each in derivatives.values())
        bound = sobolev_build.bound_of(name, r)
        assert largest <= bound * (1 + 1e-12)
        if d == 1:
            assert largest >= 0.7 * bound


def test_hermite_constants_are_rounded_up():
    t = torch.linspace(-5, 5, 200_001, dtype=torch.float64)
    weight = (-t * t / 2).exp()
    polynomials = (t**0, t, t**2 - 1, t**3 - 3 * t, t**4 - 6 * t**2 + 3)
    for constant, polynomial in zip(sobolev_build.HERMITE, polynomials, strict=True):
        largest = float((polynomial * weight).abs().max())
        assert largest <= constant <= largest + 2e-5
    # Along one axis is the worst: no product of lower ones is larger.
    for r in (2, 3, 4):
        for split in itertools.product(range(r + 1), repeat=3):
            if sum(split) == r:
                product = math.prod(sobolev_build.HERMITE[a] for a in split)
                assert product <= sobolev_build.HERMITE[r]


@settings(deadline=None, max_examples=6, derandomize=True)
@given(
    st.sampled_from(sobolev_build.TARGETS),
    st.integers(1, 2),
    st.sampled_from([2, 3, 4]),
    st.floats(0.005, 0.2),
)
def test_counted_as_built(name, d, r, eps):
    """Cells and levels without building are those that `sobolev` chooses."""
    bound = sobolev_build.bound_of(name, r)
    certified = sobolev(sobolev_build.target_of(name, d), d, eps=eps, r=r, derivative_bound=bound)
    s, k = sobolev_build.plan(name, d, r, eps)
    assert s == certified.s
    if s <= sobolev_build.FINEST[d]:
        assert k == certified.k
    else:
        assert abs(k - certified.k) <= 1


@pytest.mark.parametrize("name", ["fast wave", "reciprocal"])
def test_counted_far_beyond_the_grid_that_is_looked_at(name):
    bound = sobolev_build.bound_of(name, 2)
    target = sobolev_build.target_of(name, 1)
    certified = sobolev(target, 1, eps=1e-6, r=2, derivative_bound=bound)
    assert certified.s > 5 * sobolev_build.FINEST[1]
    s, k = sobolev_build.plan(name, 1, 2, 1e-6)
    assert s == certified.s
    assert abs(k - certified.k) <= 1


def run_of(**changes):
    config = {"part": "built", "target": "wave", "d": 1, "r": 3, "eps": 0.01}
    return Run(
        "deep-learning-theory/sobolev", {**config, "max_nodes": 1000, "points": 300, **changes}, 0
    )


def test_measured_below_the_bound_or_counted_only():
    numbers = sobolev_build.measure(run_of().config, 0).metrics
    assert 0 < numbers["error"] <= numbers["bound"] <= 0.01
    assert numbers["cells"] < numbers["nodes"]
    assert numbers["printed_bound"] > numbers["bound"]
    counted = sobolev_build.measure(run_of(max_nodes=10).config, 0).metrics
    assert math.isnan(counted["error"])
    assert math.isnan(counted["bound"])
    same = ("nodes", "cells", "s", "k", "printed_bound")
    assert [counted[name] for name in same] == [numbers[name] for name in same]


def test_printed_formulas():
    assert sobolev_build.printed(1.0, 1, 2, 1, 2) == 2 * (0.25 + 4 * 0.5) + 3 * 0.5
    assert sobolev_build.printed_nodes(2, 3, 5, 2) == (10 + 4 + 16 + 40) * 9


def test_messages():
    with pytest.raises(ConfigError, match="target 'cliff' is unknown; wanted one of wave"):
        sobolev_build.target_of("cliff", 1)
    with pytest.raises(ConfigError, match="r=5 was given; 2, 3 or 4 is wanted"):
        sobolev_build.bound_of("bump", 5)


@pytest.mark.parametrize("scale", SCALES)
def test_runs_are_complete(scale):
    experiment = Sobolev()
    runs = wanted(experiment, scale)
    assert pickle.loads(pickle.dumps(experiment)).runs(scale) == runs
    for d, digits in PLANS[scale].digits.items():
        eps = [run.config["eps"] for run in runs if run.config["d"] == d]
        assert max(eps) == 0.1
        assert min(eps) == pytest.approx(10.0**-digits)
    for run in runs:
        sobolev_build.target_of(run.config["target"], run.config["d"])


# -- verdicts --------------------------------------------------------------------------------------


def fake(d, r, eps, target="wave", **metrics):
    """A stored result with the exponent d / r by default."""
    usual = {
        "nodes": 40 * eps ** (-d / r),
        "cells": 3 * eps ** (-d / r),
        "error": eps / 2,
        "bound": eps * 0.9,
        "layers": 9,
        "printed_bound": 30 * eps,
        "printed_nodes": 1e4,
        "s": 4,
        "k": 3,
    }
    run = run_of(d=d, r=r, eps=eps, target=target)
    return Result(run, Outcome("done", {**usual, **metrics}))


def grid(**changes):
    return [
        fake(d, r, eps, target, **{name: rule(d, r, eps) for name, rule in changes.items()})
        for d in (1, 2)
        for r in (2, 3, 4)
        for target in ("wave", "bump")
        for eps in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
    ]


def verdict(results, words):
    (match,) = [each for each in sobolev_numbers.verdicts(results) if words in each.claim]
    return match.verdict


def test_verdicts_go_both_ways():
    good = grid()
    for words in (
        "certified bound",
        "no faster",
        "for cells",
        "networks built",
        "built or counted",
        "more smoothness",
        "printed",
    ):
        assert verdict(good, words) == "holds"
        assert verdict([], words) == "no data"
    one_bad = [*good, fake(1, 2, 0.05, error=0.046, bound=0.045)]
    assert verdict(one_bad, "certified bound") == "fails"
    assert verdict([*good, fake(1, 2, 0.05, bound=0.051)], "certified bound") == "fails"
    assert verdict([*good, fake(1, 2, 0.05, error=9.0)], "printed") == "fails"
    flat = grid(nodes=lambda d, r, eps: 500 + eps ** (-d / r))
    assert verdict(flat, "networks built") == "fails"
    assert verdict(flat, "built or counted") == "fails"
    assert verdict(flat, "for cells") == "holds"
    steep = grid(cells=lambda d, r, eps: eps ** (-1.2 * d / r))
    assert verdict(steep, "for cells") == "fails"
    assert verdict(steep, "no faster") == "fails"
    assert verdict(flat, "no faster") == "holds"
    upside = grid(nodes=lambda d, r, eps: 10 * r)
    assert verdict(upside, "more smoothness") == "fails"


def test_exponents_use_what_they_say():
    """Built only, the finest three factors of ten, and the cells: three different slopes."""

    results = [fake(1, 2, eps, nodes=eps**-0.5, cells=9.0) for eps in (1e-1, 1e-2)]
    results += [
        fake(1, 2, eps, nodes=1 / eps, cells=eps**-0.7, error=math.nan)
        for eps in (1e-4, 1e-5, 1e-6, 1e-7)
    ]
    (fit,) = sobolev_numbers.exponents(results)
    assert fit.built.value == pytest.approx(0.5)
    assert fit.built.points == 2
    assert fit.finest.value == pytest.approx(1.0)
    assert fit.cells.value == pytest.approx(0.7)
    assert fit.theory == 0.5


def test_crossings_are_where_sizes_say():
    results = [
        fake(1, r, eps, nodes=size)
        for r, sizes in ((2, (10, 100, 1000)), (3, (20, 90, 400)), (4, (15, 95, 200)))
        for eps, size in zip((0.1, 0.01, 0.001), sizes, strict=True)
    ]
    (match,) = [v for v in sobolev_numbers.verdicts(results) if "smoothness" in v.claim]
    assert match.verdict == "holds"
    assert "r = 3 below r = 2 from eps = 0.01 on" in match.evidence
    assert "r = 4 below r = 3 from eps = 0.001 on" in match.evidence


def test_figure_and_table_from_results_alone():
    pytest.importorskip("matplotlib")
    results = [*grid(), fake(1, 2, 1e-8, error=math.nan, bound=math.nan, layers=math.nan)]
    results.append(Result(run_of(eps=0.5), Outcome("failed", {})))
    figure = Sobolev().figures(results)[""]
    assert len(figure.axes) == 4
    legend = figure.axes[0].get_legend().get_texts()
    assert legend[0].get_text() == "r = 2: 0.50 built, 0.50 finest; d/r = 0.50"
    assert "none of 72 networks is above it" in " ".join(figure.texts[0].get_text().split())
    text = Sobolev().table(results).text()
    assert "its certified bound, and that is at most eps: HOLDS" in text
    assert Sobolev().figures([]) == {}
    assert "NO DATA" in Sobolev().table([]).text()


def test_a_group_runs():
    experiment = Sobolev()
    runs = [run for run in experiment.runs("smoke") if run.config["d"] == 1][:3]
    assert len({experiment.group(run) for run in runs}) == 1
    done = list(experiment.execute(runs, Workspace()))
    assert [run for run, _ in done] == runs
    assert all(outcome.metrics["error"] <= outcome.metrics["bound"] for _, outcome in done)

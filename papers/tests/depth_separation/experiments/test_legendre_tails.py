"""The experiment legendre-tails: both methods, and verdicts that can come out either way."""

from __future__ import annotations

import dataclasses
import itertools
import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weightloom.construct import depth3
from weightloom.errors import ConfigError
from weightloom_papers.depth_separation.experiments.legendre_tails import analysis as tails_numbers
from weightloom_papers.depth_separation.experiments.legendre_tails.experiment import (
    LegendreTails,
    built_log2_width,
    measure_tails,
    measure_widths,
)
from weightloom_papers.depth_separation.harmonics import (
    oscillation,
    polynomial_bound,
    sine_tail,
    sine_tails,
    tail,
    wave_coefficients,
)
from weightloom_papers.depth_separation.separable import (
    depth2_log2_width,
    printed_depth2_log2_width,
)
from weightloom_papers.lab import SCALES, Outcome, Result, Run, Workspace, wanted
from weightloom_papers.lab.verdicts import FAILS, HOLDS, NO_DATA


def squares_by_recurrence(d, w):
    """a_0^2, a_1^2, ... by Miller's algorithm: J_(v-1) = (2v/w) J_v - J_(v+1), stable downwards.

    No Bessel function is used: the a_n^2 sum to 1.
    """
    last = math.ceil(w + 20 * w ** (1 / 3)) + 40
    n = torch.arange(1, last + 2, dtype=torch.float64)
    # q_n = sqrt(N_(n-1) / N_n); for n = 1 that is 1 / sqrt(d), 0 / 0 by the formula if d = 2.
    below = (2 * n + d - 2) * (n + d - 3)
    q = ((2 * n + d - 4) * n / torch.where(below == 0, 1.0, below)).sqrt()
    q[0] = 1 / math.sqrt(d)
    first = (q[:-1] * (2 * n[:-1] + d - 2) / w).tolist()
    second = (q[:-1] * q[1:]).tolist()
    above, here = 0.0, 1e-30
    values = [here]
    for k in range(last - 1, -1, -1):
        above, here = here, first[k] * here - second[k] * above
        values.append(here)
        if abs(here) > 1e150:  # a small w makes them grow fast
            values = [each * 1e-200 for each in values]
            above, here = above * 1e-200, here * 1e-200
    squares = torch.tensor(values[::-1], dtype=torch.float64)
    squares = (squares / squares.abs().max()).square()
    return squares / squares.sum()


@settings(deadline=None, max_examples=25)
@given(d=st.integers(2, 30), w=st.floats(0.01, 3000))
def test_coefficients_against_a_recurrence(d, w):
    squares = wave_coefficients(d, w).square()
    wanted_squares = squares_by_recurrence(d, w)
    # SciPy's jv is good to about 1e-13 near its turning point, relative to the largest value.
    assert len(squares) == len(wanted_squares)
    assert (squares - wanted_squares).abs().max() < 1e-11
    assert float(squares.sum()) == pytest.approx(1, abs=1e-11)


@pytest.mark.parametrize("d", [2, 3, 10, 31])
def test_tails_at_every_degree_and_at_one(d):
    w = math.pi * d**3
    tails = sine_tails(d, w)
    for n in (1, 2, d * d, d * d + 1):
        assert sine_tail(d, w, n) == pytest.approx(float(tails[n]), abs=1e-11)
    squares = squares_by_recurrence(d, w)
    assert sine_tail(d, w, d * d) == pytest.approx(
        float(squares[d * d + (d + 1) % 2 :: 2].sum()), abs=1e-11
    )


@pytest.mark.parametrize("d", [3, 4, 5])
def test_known_tails(d):
    value = tails_numbers.KNOWN[d]
    assert float(sine_tails(d, math.pi * d**3)[d * d]) == pytest.approx(value, abs=5.1e-10)
    assert tail(oscillation(d), d, d * d) == pytest.approx(value, abs=5.1e-10)


def test_tiny_tails_keep_their_digits():
    """At n = 9 of sin(t / 100) in d = 3: w^9 / 9! times what x^9 has beyond degree 8."""
    w = 0.01
    # The distance of x^n from lower degrees in L2(mu_3): n!^2 2^n / (2n)! times 1/sqrt(2n + 1)
    # by Rodrigues' formula; the next term of the sine is smaller by w^2.
    n = 9
    monic = math.factorial(n) ** 2 * 2**n / math.factorial(2 * n) / math.sqrt(2 * n + 1)
    expected = (w**n / math.factorial(n) * monic) ** 2
    assert float(sine_tails(3, w)[n]) == pytest.approx(expected, rel=w**2)


def test_waves_want_a_frequency():
    with pytest.raises(ConfigError, match=r"d=1 and w=3.0 were given; d >= 2"):
        wave_coefficients(1, 3.0)
    with pytest.raises(ConfigError, match=r"w=inf were given"):
        wave_coefficients(3, math.inf)


@pytest.mark.parametrize("function", ["paper", "smooth"])
def test_measured_tails(function):
    measured = measure_tails(3, function)
    metrics = measured.metrics
    w = math.pi * (27 if function == "paper" else math.sqrt(3))
    exact = tail(lambda t: torch.sin(w * t), 3, 9, nodes=400)
    assert metrics["tail_quadrature"] == pytest.approx(exact, abs=1e-14)
    assert metrics["tail_recurrence"] == pytest.approx(exact, abs=1e-14)
    assert metrics["apart"] < 1e-13
    degrees, values = measured.curves["recurrence"]
    assert values[degrees.index(9)] == metrics["tail_recurrence"]
    assert all(a >= b for a, b in itertools.pairwise(values))  # tails fall
    m = metrics["m"]
    ratios = [
        value / polynomial_bound(m, n - 1)
        for n, value in zip(degrees, values, strict=True)
        if n - 1 < m
    ]
    assert 1 < metrics["lemma_ratio"] <= min(ratios)


def test_widths_and_the_network_that_is_built():
    measured = measure_widths(20)
    dims, printed = measured.curves["depth 2, printed"]
    assert dims == list(range(2, 21))
    assert printed[19 - 2] == printed_depth2_log2_width(19)
    at_16 = tail(oscillation(4), 4, 16)
    assert measured.curves["tail"][1][2] == pytest.approx(at_16, abs=1e-12)
    exact = measured.curves["depth 2, tail"][1][18]
    assert exact == pytest.approx(depth2_log2_width(20, tail=0.5), abs=1e-6)
    for d, eps in ((2, 0.3), (3, 0.5), (4, 3.0)):
        network = depth3(oscillation(d), d, lipschitz=math.pi * d**3, eps=eps).network
        widest = max(network[0].bias.numel(), network[2].bias.numel())
        assert 2 ** built_log2_width(d, eps) == pytest.approx(widest)


# -- what is said about it -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results():
    experiment = LegendreTails()
    runs = experiment.runs("smoke")
    widths = Run(experiment.name, {"part": "widths", "last": 45}, 0)
    done = dict(experiment.execute([*runs[:-1], widths], Workspace()))
    return [Result(run, outcome) for run, outcome in done.items()]


def changed(results, part, curve=None, **metrics):
    """The same results, some numbers of one part replaced."""
    built_results = []
    for result in results:
        if result.run.config["part"] == part:
            old = result.outcome
            curves = dict(old.curves)
            for name, change in (curve or {}).items():
                dims, values = curves[name]
                curves[name] = (dims, [change(d, v) for d, v in zip(dims, values, strict=True)])
            result = dataclasses.replace(
                result, outcome=Outcome("done", {**old.metrics, **metrics}, curves)
            )
        built_results.append(result)
    return built_results


def words(results):
    return [each.verdict for each in tails_numbers.verdicts(results)]


def test_all_claims_hold(results):
    assert words(results) == [HOLDS] * 6
    text = LegendreTails().table(results).text()
    assert (
        "lower bound on depth 2, lemma exceeds one neuron: d = 17; depth 3, printed: d = 39" in text
    )
    assert "depth 2, tail exceeds one neuron: d = 15; depth 3, printed: d = 38" in text
    assert "the lemma alone gives it from d = 25 on" in text
    assert "0.495256762" in text


@pytest.mark.parametrize(
    ("number", "change"),
    [
        (0, {"part": "tails", "apart": 1e-9}),
        (1, {"part": "tails", "tail_recurrence": 0.4952569}),
        (2, {"part": "tails", "lemma_ratio": 0.99}),
        (3, {"part": "widths", "curve": {"tail": lambda d, v: v if d < 40 else 0.02}}),
        (4, {"part": "tails", "tail_recurrence": 0.3}),
        (5, {"part": "widths", "curve": {"depth 2, printed": lambda d, v: v - 2}}),
    ],
)
def test_each_claim_can_fail(results, number, change):
    assert words(changed(results, **change))[number] == FAILS


def test_nothing_stored_nothing_said(results):
    assert words([]) == [NO_DATA] * 6
    short = [r for r in results if r.run.config["part"] == "tails"]
    few = Run("depth-separation/legendre-tails", {"part": "widths", "last": 20}, 0)
    short.append(Result(few, measure_widths(20)))
    verdict = tails_numbers.verdicts(short)[5]
    assert verdict.verdict == NO_DATA
    assert "not reached, computed up to d = 20" in verdict.text()


def test_crossings_by_hand():
    line = {d: float(d) for d in range(2, 11)}
    curves = {"depth 2, printed": {d: 2.0 * d - 9 for d in line}}
    curves |= {"depth 3, printed": line, "depth 3, built": dict.fromkeys(line, 100.0)}
    crossed = tails_numbers.crossings(curves, "depth 2, printed")
    assert crossed == {"one neuron": 5, "depth 3, printed": 10, "depth 3, built": None}


def test_figure_and_table_from_results_alone(results):
    pytest.importorskip("matplotlib")
    figures = LegendreTails().figures(results)
    (figure,) = figures.values()
    assert len(figure.axes) == 3
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels == ["d = 2", "d = 3"]
    assert LegendreTails().figures([]) == {}
    assert "NO DATA" in LegendreTails().table([]).text()


@pytest.mark.parametrize("scale", SCALES)
def test_runs_are_unique_and_costed(scale):
    experiment = LegendreTails()
    runs = wanted(experiment, scale)
    assert all(experiment.cost(run) > 0 for run in runs)
    assert pickle.loads(pickle.dumps(experiment)).runs(scale) == runs

"""Kernels of towers chosen by hand, against closed forms and the experiments' own numbers."""

import math

import pytest
import torch

from weightloom.demo import curves
from weightloom.demo.curves import Towers
from weightloom.errors import ConfigError
from weightloom.kernels import empirical
from weightloom.kernels.gradient_step import Shape, inputs, same_example, sample_network


def towers(kind="ntk", f=(2, "relu"), g=(2, "relu"), angle=0.0):
    return Towers(kind, f, g, angle)


def arc_cosine(t):
    """2 E[relu(u) relu(v)] at variance 1 and angle t."""
    return (math.sin(t) + (math.pi - t) * math.cos(t)) / math.pi


@pytest.mark.parametrize("angle", [0.0, 1.0])
def test_the_exact_nngp_is_the_arc_cosine_formula(angle):
    """L = H = 2: NNGP = Q^1 S with S = Sigma^1; the angle of (Q^0 S) is that of a product."""
    curve = curves.curve(towers("nngp", angle=angle))
    s = arc_cosine(angle)
    for t, value in zip(curve["angle"], curve["kernel"], strict=True):
        product = s * math.cos(t)  # correlation that g's hidden layer sees, variances 1
        wanted = arc_cosine(math.acos(max(-1.0, min(1.0, product)))) * s
        assert value == pytest.approx(wanted, abs=1e-7)  # acos near 1 loses half of the digits


def test_linear_towers_have_linear_kernels():
    """One layer each and equal conditions: the NNGP is the cosine itself."""
    curve = curves.curve(towers("nngp", (1, "identity"), (1, "identity")))
    for t, value in zip(curve["angle"], curve["kernel"], strict=True):
        assert value == pytest.approx(math.cos(t), abs=1e-12)


@pytest.mark.parametrize("kind", ["ntk", "nngp"])
def test_sampled_networks_come_near_the_exact_kernel(kind):
    draws = 40
    measured = curves.sampled(towers(kind), [8, 64], draws)
    wide = measured["widths"][-1]
    # A network of width n is biased by O(1/n) beside the error of the mean; five errors and 10 %.
    rows = zip(wide["mean"], wide["deviation"], measured["exact"], strict=True)
    for mean, deviation, exact in rows:
        assert abs(mean - exact) < 5 * deviation / math.sqrt(draws) + 0.1 * max(measured["exact"])
    assert measured["widths"][0]["spread"] > 2 * wide["spread"]
    assert measured["slope"]["value"] < -0.3


def test_widths_are_cached():
    """Asking for one more width does not draw the others again, and gives the same numbers."""
    before = curves._sampled.cache_info().misses
    first = curves.sampled(towers(angle=0.5), [4, 6], 3)
    second = curves.sampled(towers(angle=0.5), [4, 6, 8], 3)
    assert second["widths"][:2] == first["widths"]
    assert curves._sampled.cache_info().misses - before == 3


def test_too_many_weights_are_refused_before_sampling():
    with pytest.raises(ConfigError, match=r"at most 60,000,000 are sampled here"):
        curves.sampled(towers(f=(5, "relu"), g=(5, "relu")), [256], 40)


def test_orders_follow_the_theorem_where_it_is_clear():
    measured = curves.orders("relu", 2, [64, 4096], 60)
    by_order = {row["order"]: row for row in measured["orders"]}
    assert [row["theorem"] for row in measured["orders"]] == [0, 0, -1, -2]
    # 60 draws at two widths: the exponents' own intervals are about 0.4.
    assert abs(by_order[1]["slope"]["value"]) < 0.5
    assert by_order[4]["slope"]["value"] < -1.2


def test_orders_are_medians_of_sampled_networks():
    """By another method: nested derivatives of each network, one by one."""
    x, z = inputs()
    measured = curves.orders("leaky", 2, [16], 9)
    generator = torch.Generator().manual_seed(10_000 * 2 + 16)
    values = []
    for _ in range(9):
        net = sample_network(Shape("leaky", 2, 2, 16), generator)
        (third,) = empirical.higher_order(net, (x[:1], z[:1]), (x[:1], z[:1]), (3,))
        values.append(abs(float(third)))
    assert measured["orders"][2]["medians"] == [pytest.approx(sorted(values)[4], rel=1e-9)]
    assert measured["orders"][2]["slope"] is None  # one width has no slope


def test_the_experiment_measures_the_same_terms():
    """The page and `weightloom reproduce` sample and expand networks with the same functions."""
    from weightloom_papers.infinite_width.experiments.fig1.experiment import generator_of
    from weightloom_papers.infinite_width.experiments.thm1.experiment import measure
    from weightloom_papers.lab import Run

    config = {"setting": "leaky", "depth": 2, "layers": 2, "width": 16, "draws": 9, "check": False}
    run = Run("infinite-width/thm1", config, 0)
    sampled = same_example(Shape("leaky", 2, 2, 16), 9, generator_of(run))
    assert [terms[3] for terms, _ in sampled] == measure(run).curves["same 3"][1]


def test_lines_are_those_of_the_lab():
    """By another method: the lab's own least squares."""
    from weightloom_papers.lab.statistics import fit_slope

    x, y = [0.5, 1.0, 1.5, 2.5], [2.0, 1.4, 1.1, -0.3]
    fit, wanted = curves._fit(x, y), fit_slope(x, y)
    assert fit["value"] == pytest.approx(wanted.value, rel=1e-12)
    assert fit["intercept"] == pytest.approx(wanted.intercept, rel=1e-12)
    assert fit["margin"] == pytest.approx(wanted.margin, rel=1e-4)
    assert curves._fit(x[:2], y[:2])["margin"] is None
    assert curves._fit([1.0, 1.0], [2.0, 3.0]) is None

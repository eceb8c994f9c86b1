"""Kernels of towers chosen by hand, against closed forms and the experiments' own numbers."""

import math

import pytest

from weightloom.errors import ConfigError
from weightloom.experiments.infinite_width import curves
from weightloom.experiments.infinite_width.curves import Towers


def towers(kind="ntk", f=(2, "relu"), g=(2, "relu"), angle=0.0):
    return Towers(kind, f, g, angle)


def arc_cosine(t):
    """2 E[relu(u) relu(v)] at variance 1 and angle t."""
    return (math.sin(t) + (math.pi - t) * math.cos(t)) / math.pi


@pytest.mark.parametrize("angle", [0.0, 1.0])
def test_the_exact_nngp_is_the_arc_cosine_formula(angle):
    """L = H = 2: NNGP = Q^1 S with S = Sigma^1; the angle of (Q^0 S) is that of a product."""
    found = curves.curve(towers("nngp", angle=angle))
    s = arc_cosine(angle)
    for t, value in zip(found["angle"], found["kernel"], strict=True):
        product = s * math.cos(t)  # correlation that g's hidden layer sees, variances 1
        wanted = arc_cosine(math.acos(max(-1.0, min(1.0, product)))) * s
        assert value == pytest.approx(wanted, abs=1e-7)  # acos near 1 loses half of the digits


def test_linear_towers_have_linear_kernels():
    """One layer each and equal conditions: the NNGP is the cosine itself."""
    found = curves.curve(towers("nngp", (1, "identity"), (1, "identity")))
    for t, value in zip(found["angle"], found["kernel"], strict=True):
        assert value == pytest.approx(math.cos(t), abs=1e-12)


@pytest.mark.parametrize("kind", ["ntk", "nngp"])
def test_sampled_networks_come_near_the_exact_kernel(kind):
    draws = 40
    found = curves.sampled(towers(kind), [8, 64], draws)
    wide = found["widths"][-1]
    # A network of width n is biased by O(1/n) beside the error of the mean; five errors and 10 %.
    rows = zip(wide["mean"], wide["deviation"], found["exact"], strict=True)
    for mean, deviation, exact in rows:
        assert abs(mean - exact) < 5 * deviation / math.sqrt(draws) + 0.1 * max(found["exact"])
    assert found["widths"][0]["spread"] > 2 * wide["spread"]
    assert found["slope"]["value"] < -0.3


def test_widths_are_remembered():
    """Asking for one more width does not draw the others again, and gives the same numbers."""
    before = curves._sampled.cache_info().misses
    first = curves.sampled(towers(angle=0.5), [4, 6], 3)
    second = curves.sampled(towers(angle=0.5), [4, 6, 8], 3)
    assert second["widths"][:2] == first["widths"]
    assert curves._sampled.cache_info().misses - before == 3


def test_too_much_is_refused_before_it_is_drawn():
    with pytest.raises(ConfigError, match=r"at most 60,000,000 are drawn here"):
        curves.sampled(towers(f=(5, "relu"), g=(5, "relu")), [256], 40)


def test_orders_follow_the_theorem_where_it_is_clear():
    found = curves.orders("relu", 2, [64, 4096], 60)
    by_order = {row["order"]: row for row in found["orders"]}
    assert [row["theorem"] for row in found["orders"]] == [0, 0, -1, -2]
    # 60 draws at two widths: the exponents' own intervals are about 0.4.
    assert abs(by_order[1]["slope"]["value"]) < 0.5
    assert by_order[4]["slope"]["value"] < -1.2


def test_orders_are_the_experiments_numbers():
    """The medians are those that `weightloom reproduce thm1` would store."""
    from weightloom.experiments.infinite_width.thm1 import measure
    from weightloom.lab import Run

    config = {"setting": "leaky", "depth": 2, "layers": 2, "width": 16, "draws": 9, "check": False}
    values = sorted(abs(v) for v in measure(Run("thm1", config, 0)).curves["same 3"][1])
    found = curves.orders("leaky", 2, [16], 9)
    assert found["orders"][2]["medians"] == [pytest.approx(values[4], rel=1e-6)]
    assert found["orders"][2]["slope"] is None  # one width has no slope

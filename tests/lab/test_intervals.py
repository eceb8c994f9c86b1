"""Slopes and means with their intervals, against numpy, SciPy and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightloom.lab.intervals import Slope, fit_slope, quantile


@given(st.integers(3, 12), st.integers(0, 1000))
def test_slope_against_numpy(count, seed):
    draw = np.random.default_rng(seed)
    x, y = draw.normal(size=count), draw.normal(size=count)
    found = fit_slope(list(x), list(y))
    (slope, level), covariance = np.polyfit(x, y, 1, cov="unscaled")
    left = y - level - slope * x
    error = math.sqrt(covariance[0, 0] * (left @ left) / (count - 2))
    assert found.value == pytest.approx(slope, abs=1e-9)
    assert found.intercept == pytest.approx(level, abs=1e-9)
    assert found.margin == pytest.approx(quantile(count - 2) * error, rel=1e-6, abs=1e-9)


@given(st.integers(2, 4), st.integers(2, 5), st.integers(0, 1000))
def test_groups_against_least_squares_with_levels(groups, each, seed):
    """One column for each group's level and one for the slope, solved by numpy."""
    draw = np.random.default_rng(seed)
    x, y = draw.normal(size=groups * each), draw.normal(size=groups * each)
    label = np.repeat(np.arange(groups), each)
    columns = np.column_stack([x, *(label == g for g in range(groups))])
    solved = np.linalg.lstsq(columns, y, rcond=None)[0]
    found = fit_slope(list(x), list(y), list(label))
    assert found.value == pytest.approx(solved[0], abs=1e-8)
    assert found.intercept == pytest.approx(solved[1:].mean(), abs=1e-8)


def test_groups_do_not_blur_the_slope():
    """Two parallel lines far apart, at different places: pooled, the slope would be wrong."""
    x = [0.0, 1.0, 2.0, 10.0, 11.0, 12.0]
    y = [0.0, 1.0, 2.0, -50.0, -49.0, -48.0]
    assert fit_slope(x, y).value < 0
    together = fit_slope(x, y, [0, 0, 0, 1, 1, 1])
    assert (together.value, together.margin) == pytest.approx((1.0, 0.0), abs=1e-9)


def test_interval_covers_as_often_as_it_says():
    draw = np.random.default_rng(0)
    hits = 0
    for _ in range(2000):
        x = draw.normal(size=6)
        found = fit_slope(list(x), list(3 * x + draw.normal(size=6)))
        hits += found.low <= 3 <= found.high
    # 95 percent of 2000, four standard errors of a proportion
    assert abs(hits / 2000 - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 2000)


def test_few_points():
    assert fit_slope([], []) is None
    assert fit_slope([1.0], [1.0]) is None
    assert fit_slope([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) is None
    two = fit_slope([0.0, 1.0], [0.0, 2.0])
    assert (two.value, two.text()) == (2.0, "2.00 (2 points)")
    assert math.isnan(two.margin)
    assert Slope(1.234, 0.056, 0.0, 5).text() == "1.23 ± 0.06"

"""Slopes and means with their intervals, against numpy, SciPy and simulation.

Where a falling curve crosses a goal.

Confidence intervals against SciPy and against plain least squares.
"""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from weightloom_papers.lab.statistics import (
    Slope,
    change,
    crossing,
    deviation,
    differences,
    fit_slope,
    mean_and_error,
    median,
    power_law,
    student_quantile,
)


@given(st.integers(3, 12), st.integers(0, 1000))
def test_slope_against_numpy(count, seed):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=count), rng.normal(size=count)
    fit = fit_slope(list(x), list(y))
    (slope, level), covariance = np.polyfit(x, y, 1, cov="unscaled")
    left = y - level - slope * x
    error = math.sqrt(covariance[0, 0] * (left @ left) / (count - 2))
    assert fit.value == pytest.approx(slope, abs=1e-9)
    assert fit.intercept == pytest.approx(level, abs=1e-9)
    assert fit.margin == pytest.approx(student_quantile(count - 2) * error, rel=1e-6, abs=1e-9)


@given(st.integers(2, 4), st.integers(2, 5), st.integers(0, 1000))
def test_groups_against_least_squares_with_levels(groups, each, seed):
    """One column for each group's level and one for the slope, solved by numpy."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=groups * each), rng.normal(size=groups * each)
    label = np.repeat(np.arange(groups), each)
    columns = np.column_stack([x, *(label == g for g in range(groups))])
    solved = np.linalg.lstsq(columns, y, rcond=None)[0]
    fit = fit_slope(list(x), list(y), list(label))
    assert fit.value == pytest.approx(solved[0], abs=1e-8)
    assert fit.intercept == pytest.approx(solved[1:].mean(), abs=1e-8)


def test_groups_do_not_blur_the_slope():
    """Two parallel lines far apart, at different places: pooled, the slope would be wrong."""
    x = [0.0, 1.0, 2.0, 10.0, 11.0, 12.0]
    y = [0.0, 1.0, 2.0, -50.0, -49.0, -48.0]
    assert fit_slope(x, y).value < 0
    together = fit_slope(x, y, [0, 0, 0, 1, 1, 1])
    assert (together.value, together.margin) == pytest.approx((1.0, 0.0), abs=1e-9)


def test_interval_covers_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(2000):
        x = rng.normal(size=6)
        fit = fit_slope(list(x), list(3 * x + rng.normal(size=6)))
        hits += fit.low <= 3 <= fit.high
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


@given(st.integers(2, 9), st.integers(0, 1000))
def test_power_law_is_the_slope_of_logarithms(count, seed):
    rng = np.random.default_rng(seed)
    x, y = rng.uniform(1, 100, size=count), rng.uniform(1, 100, size=count)
    slope = fit_slope(list(np.log(x)), list(np.log(y)))
    assert power_law(list(x), list(y)) == pytest.approx(slope.value, rel=1e-8, abs=1e-8)


def test_medians_and_deviations():
    assert median([5.0, 1.0, 2.0]) == 2.0
    assert median([5.0, 1.0, 2.0, 3.0]) == 2.5
    assert math.isnan(median([]))
    assert deviation([1.0, 3.0]) == pytest.approx(math.sqrt(2))
    assert deviation([4.0]) == 0.0


def test_mean_and_error_of_tensors():
    mean, error = mean_and_error(torch.tensor([[1.0, 0.0], [3.0, 0.0]]))
    assert (mean.tolist(), error.tolist()) == ([2.0, 0.0], [1.0, 0.0])
    assert mean_and_error(torch.tensor([[1.0, 3.0]]), dim=1)[1].tolist() == [1.0]


def test_crossing_by_hand():
    # Error 1/size: 0.3 is reached at 10/3 whatever the grid, because lines are straight in logs.
    sizes = [1, 2, 4, 8]
    assert crossing(sizes, [1 / s for s in sizes], 0.3).size == pytest.approx(10 / 3)
    assert crossing(sizes[::-1], [1 / s for s in sizes[::-1]], 0.3).size == pytest.approx(10 / 3)
    assert crossing(sizes, [0.9, 0.8, 0.7, 0.6], 0.5) is None
    first = crossing(sizes, [0.4, 0.3, 0.2, 0.1], 0.5)
    assert (first.size, first.bounded) == (1, "below")
    assert crossing([1, 2, 4], [1.0, math.nan, 0.25], 0.5).size == pytest.approx(2.0)


def test_crossing_when_training_was_unlucky():
    """A larger network that did worse does not push the crossing away from the better one."""
    crossed = crossing([1, 2, 4, 8], [0.6, 0.9, 0.9, 0.3], 0.5)
    assert crossed.size == pytest.approx(crossing([1, 8], [0.6, 0.3], 0.5).size)


@pytest.mark.parametrize(
    ("freedom", "printed"),
    [
        (1, 12.7062),
        (2, 4.3027),
        (3, 3.1824),
        (4, 2.7764),
        (10, 2.2281),
        (30, 2.0423),
        (1000, 1.9623),
    ],
)
def test_quantile_against_printed_tables(freedom: int, printed: float) -> None:
    assert student_quantile(freedom) == pytest.approx(printed, abs=6e-5)


def test_no_freedom_no_statement() -> None:
    assert student_quantile(0) == math.inf
    alone = differences({3: [0.5]})[3]
    assert (alone.low, alone.high) == (-math.inf, math.inf)
    alone = change([[1.0], [0.5]])
    assert (alone.low, alone.high) == (-math.inf, math.inf)


def test_one_point_is_a_t_test() -> None:
    values = [0.3, -0.1, 0.5, 0.2]
    difference = differences({4: values})[4]
    expected = stats.ttest_1samp(values, 0.0)
    assert difference.errors == pytest.approx(expected.statistic)
    interval = expected.confidence_interval(0.95)
    assert (difference.low, difference.high) == pytest.approx(tuple(interval), rel=1e-9)


def test_points_share_their_variance() -> None:
    """Analysis of variance: each point has its own mean, all have one variance."""
    by_point = differences({3: [1.0, 2.0], 4: [5.0, 5.5, 6.0], 8: []})
    assert set(by_point) == {3, 4}
    pooled = (0.5**2 + 0.5**2 + 0.5**2 + 0.0 + 0.5**2) / (1 + 2)
    assert by_point[3].error == pytest.approx(math.sqrt(pooled / 2))
    assert by_point[4].error == pytest.approx(math.sqrt(pooled / 3))
    assert by_point[4].freedom == 3


def test_two_columns_are_the_paired_test() -> None:
    first, last = [1.0, 1.4, 0.7, 1.1], [0.8, 1.3, 0.4, 0.9]
    changed = change([first, last])
    expected = stats.ttest_rel(first, last)
    assert changed.errors == pytest.approx(expected.statistic)
    assert changed.freedom == 3


def test_change_is_least_squares() -> None:
    """Effects of repetition and point fitted by numpy; the contrast's error from its covariance."""
    rng = random.Random(1)
    table = np.array([[rng.gauss(0, 1) for _ in range(5)] for _ in range(4)])  # rows: repetitions
    rows, columns = table.shape
    design = np.zeros((rows * columns, rows + columns - 1))
    for i in range(rows):
        for j in range(columns):
            design[i * columns + j, i] = 1.0
            if j:
                design[i * columns + j, rows + j - 1] = 1.0
    answer, *_ = np.linalg.lstsq(design, table.ravel(), rcond=None)
    freedom = (rows - 1) * (columns - 1)
    variance = ((table.ravel() - design @ answer) ** 2).sum() / freedom
    contrast = np.zeros(rows + columns - 1)
    contrast[-1] = -1.0  # first minus last column
    changed = change([list(column) for column in table.T])
    assert changed.mean == pytest.approx(contrast @ answer)
    error = math.sqrt(variance * contrast @ np.linalg.inv(design.T @ design) @ contrast)
    assert changed.error == pytest.approx(error)
    assert changed.freedom == freedom


def test_identical_repetitions() -> None:
    changed = change([[2.0, 2.0], [1.0, 1.0]])
    assert changed.low == changed.high == 1.0
    assert changed.errors == math.inf
    assert change([[1.0, 1.0], [1.0, 1.0]]).errors == 0.0

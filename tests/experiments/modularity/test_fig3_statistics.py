"""Confidence intervals against SciPy and against plain least squares."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from scipy import stats

from weightloom.experiments.modularity.fig3_statistics import change, differences
from weightloom.lab.intervals import quantile


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 6, 8, 10, 20, 50, 1000])
def test_quantile(freedom: int) -> None:
    assert quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=2e-4)


def test_no_freedom_no_statement() -> None:
    assert quantile(0) == math.inf
    alone = differences({3: [0.5]})[3]
    assert (alone.low, alone.high) == (-math.inf, math.inf)
    alone = change([[1.0], [0.5]])
    assert (alone.low, alone.high) == (-math.inf, math.inf)


def test_one_point_is_a_t_test() -> None:
    values = [0.3, -0.1, 0.5, 0.2]
    found = differences({4: values})[4]
    expected = stats.ttest_1samp(values, 0.0)
    assert found.errors == pytest.approx(expected.statistic)
    interval = expected.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx(tuple(interval), rel=1e-3)


def test_points_share_their_variance() -> None:
    """Analysis of variance: each point has its own mean, all have one variance."""
    found = differences({3: [1.0, 2.0], 4: [5.0, 5.5, 6.0], 8: []})
    assert set(found) == {3, 4}
    pooled = (0.5**2 + 0.5**2 + 0.5**2 + 0.0 + 0.5**2) / (1 + 2)
    assert found[3].error == pytest.approx(math.sqrt(pooled / 2))
    assert found[4].error == pytest.approx(math.sqrt(pooled / 3))
    assert found[4].freedom == 3


def test_two_columns_are_the_paired_test() -> None:
    first, last = [1.0, 1.4, 0.7, 1.1], [0.8, 1.3, 0.4, 0.9]
    found = change([first, last])
    expected = stats.ttest_rel(first, last)
    assert found.errors == pytest.approx(expected.statistic)
    assert found.freedom == 3


def test_change_is_least_squares() -> None:
    """Effects of repetition and point fitted by numpy; the contrast's error from its covariance."""
    draw = random.Random(1)
    table = np.array([[draw.gauss(0, 1) for _ in range(5)] for _ in range(4)])  # rows: repetitions
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
    found = change([list(column) for column in table.T])
    assert found.mean == pytest.approx(contrast @ answer)
    error = math.sqrt(variance * contrast @ np.linalg.inv(design.T @ design) @ contrast)
    assert found.error == pytest.approx(error)
    assert found.freedom == freedom


def test_identical_repetitions() -> None:
    found = change([[2.0, 2.0], [1.0, 1.0]])
    assert found.low == found.high == 1.0
    assert found.errors == math.inf
    assert change([[1.0, 1.0], [1.0, 1.0]]).errors == 0.0

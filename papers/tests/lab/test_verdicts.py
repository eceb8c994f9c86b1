"""Verdicts can come out either way, and say nothing where there is nothing to say."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from weightloom_papers.lab.statistics import Mean, Slope, mean_of
from weightloom_papers.lab.verdicts import (
    VAGUE,
    Verdict,
    equals,
    in_short,
    slope_is,
    slope_text,
    stays_below,
    worst_of,
)


def test_mean_is_that_of_scipy():
    values = [1.0, 4.0, 2.0, 8.0, 5.0, 7.0]
    mean = mean_of(values)
    low, high = stats.t.interval(0.95, 5, loc=mean.value, scale=stats.sem(values))
    assert mean.value == pytest.approx((low + high) / 2)
    assert mean.margin == pytest.approx((high - low) / 2)
    assert mean_of([]) is None
    assert math.isnan(mean_of([3.0]).margin)


@pytest.mark.parametrize(
    ("mean", "word"),
    [
        (None, "no data"),
        (Mean(1.0, math.nan, 1), "unclear"),
        (Mean(1.05, 0.1, 5), "holds"),
        (Mean(1.2, 0.1, 5), "fails"),
        (Mean(0.8, 0.1, 5), "fails"),
        (Mean(1.0 + 1e-13, 0.0, 5), "holds"),
    ],
)
def test_equals(mean, word):
    assert equals(mean, 1.0) == word


@pytest.mark.parametrize(
    ("slope", "word"),
    [
        (None, "no data"),
        (Slope(-1.0, math.nan, 0.0, 2), "unclear"),
        (Slope(-1.02, 0.03, 0.0, 9), "holds"),
        (Slope(-1.05, 0.03, 0.0, 9), "fails"),
        (Slope(-1.0, 2 * VAGUE, 0.0, 3), "unclear"),
        (Slope(-3.0, 2 * VAGUE, 0.0, 3), "fails"),
    ],
)
def test_slope_is(slope, word):
    assert slope_is(slope, -1.0) == word


@pytest.mark.parametrize(
    ("mean", "word"),
    [
        (None, "no data"),
        (Mean(0.9, math.nan, 1), "holds"),
        (Mean(1.1, math.nan, 1), "unclear"),
        (Mean(1.1, 0.2, 5), "holds"),
        (Mean(1.3, 0.2, 5), "fails"),
    ],
)
def test_stays_below(mean, word):
    assert stays_below(mean, 1.0) == word


def test_the_worst_word_rules():
    assert worst_of(["holds", "no data", "unclear"]) == "unclear"
    assert worst_of(["holds", "no data", "unclear"], ("no data", "fails")) == "no data"
    assert worst_of(["holds", "no data"]) == "holds"
    assert worst_of([]) == "holds"


def test_words():
    verdict = Verdict("it rains", "fails", "3 of 4 days dry")
    assert verdict.text() == "it rains: FAILS (3 of 4 days dry)."
    assert in_short([verdict, verdict]) == "Claims: it rains: FAILS; it rains: FAILS."
    assert slope_text(None) == "no slope"
    assert slope_text(Slope(-0.9991, 0.004, 0.0, 9)) == "slope -0.999 ± 0.004"
    assert slope_text(Slope(-0.9991, 0.04, 0.0, 9)) == "slope -1.00 ± 0.04"

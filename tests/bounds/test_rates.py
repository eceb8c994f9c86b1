"""Theorems 2 to 6 as numbers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightloom.bounds import METHODS, parameter_rates
from weightloom.errors import ConfigError

dims = st.integers(1, 5)
errors = st.floats(1e-6, 0.9)


def test_by_hand():
    """m1 = 2, m2 = 3, r = 1, eps = 1/10: powers of ten that can be read off."""
    result = parameter_rates(2, 3, 1, 0.1)
    wanted = {"plain": 5, "embedding": 5, "embedding_any": 4, "primary": 2}
    assert {rate.method: round(rate.log10, 9) for rate in result.rates()} == wanted
    assert result.primary.parameters == pytest.approx(100)
    assert result.advantage == pytest.approx(100)  # 10^4 / 10^2
    # r = 2: exponents halve, and the theorems on embeddings say nothing.
    smooth = parameter_rates(2, 3, 2, 0.1)
    assert {rate.method: rate.exponent for rate in smooth.rates()} == {"plain": 2.5, "primary": 1}
    assert smooth.embedding is None
    assert any("say nothing for r = 2" in text for text in smooth.assumptions)


def test_theorem_6_by_hand():
    """w^(1 + m2/r) eps^-(m2/r) + w N_g with w = 3, m2 = 2, r = 1, N_g = eps^-1 = 10."""
    result = parameter_rates(1, 2, 1, 0.1, selector=3)
    assert result.total is not None
    assert result.total.parameters == pytest.approx(3**3 * 10**2 + 3 * 10)
    assert result.total.exponent == 2


@given(dims, dims, st.integers(1, 4), errors, errors)
def test_smaller_errors_need_more(m1, m2, r, a, b):
    low, high = sorted((a, b))
    fine, coarse = (parameter_rates(m1, m2, r, eps, selector=2) for eps in (low, high))
    for first, second in zip(fine.rates(), coarse.rates(), strict=True):
        assert first.method == second.method
        assert first.log10 >= second.log10 - 1e-12


@given(dims, dims, st.integers(1, 4), errors)
def test_order_of_the_methods(m1, m2, r, eps):
    """g never needs more than its rivals; more dimensions never need less; smoother needs less."""
    result = parameter_rates(m1, m2, r, eps)
    rivals = [rate for rate in result.rates() if rate.method != "primary"]
    assert all(result.primary.log10 <= rate.log10 + 1e-12 for rate in rivals)
    if r == 1:
        assert result.embedding_any.log10 <= result.embedding.log10 + 1e-12
    wider = parameter_rates(m1, m2 + 1, r, eps)
    assert wider.plain.log10 > result.plain.log10
    assert wider.primary.log10 == result.primary.log10  # whatever the condition
    assert parameter_rates(m1, m2, r + 1, eps).plain.log10 < result.plain.log10


@given(dims, dims, st.integers(1, 3), errors, st.integers(1, 20))
def test_slope_is_the_exponent(m1, m2, r, eps, w):
    """log parameters against log 1/eps, by a difference quotient at tiny errors."""
    near, far = (parameter_rates(m1, m2, r, e * 1e-9, selector=w) for e in (eps, eps / 10))
    for first, second in zip(near.rates(), far.rates(), strict=True):
        slope = second.log10 - first.log10
        # Theorem 6 is a sum of two powers: the smaller one still shows a little when they are near.
        tolerance = 0.3 if first.method == "total" else 1e-6
        assert slope == pytest.approx(first.exponent, abs=tolerance)


def test_constants_multiply():
    plain = parameter_rates(1, 2, 1, 0.01, selector=2)
    scaled = parameter_rates(1, 2, 1, 0.01, 2, dict.fromkeys(METHODS, 7.0))
    for first, second in zip(plain.rates(), scaled.rates(), strict=True):
        assert second.parameters == pytest.approx(7 * first.parameters)
    assert any("it is 1 here" in text for text in plain.assumptions)
    assert any("it is the one given" in text for text in scaled.assumptions)


def test_huge_numbers_stay_finite_as_logarithms():
    result = parameter_rates(400, 400, 1, 1e-3)
    assert result.plain.log10 == pytest.approx(2400)
    assert result.plain.parameters == math.inf
    assert math.isfinite(result.advantage)


def test_assumptions_name_what_they_rest_on():
    text = " ".join(parameter_rates(1, 1, 1, 0.1).assumptions)
    for words in ("sup norm", "Assumptions 1 and 2", "very deep ReLU", "bounded spectral"):
        assert words in text
    assert "the theorems say nothing" in text  # about all of f
    with_selector = " ".join(parameter_rates(1, 1, 1, 0.1, selector=4).assumptions)
    assert "h of w = 4 numbers" in with_selector
    assert "a plain network that can multiply" in with_selector


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1, 1, 0.1), r"m1=0 \(wanted a whole number of at least 1\)"),
        ((1, 1, 1.5, 0.1), "smoothness=1.5"),
        ((1, 1, True, 0.1), "smoothness=True"),
        ((1, 1, 1, 0.0), r"eps=0.0 \(wanted a number between 0 and 1"),
        ((1, 1, 1, math.nan), "eps=nan"),
        ((1, 1, 1, 0.1, 0), "selector=0"),
        ((1, 1, 1, 0.1, None, {"primary": 0.0}), "wanted positive numbers under the names plain,"),
        ((1, 1, 1, 0.1, None, {"g": 1.0}), "constants={'g': 1.0} was given"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ConfigError, match=message):
        parameter_rates(*arguments)


def test_all_problems_at_once():
    with pytest.raises(ConfigError, match=r"m1=0 .*; m2=-1 .*; eps=2"):
        parameter_rates(0, -1, 1, 2.0)

"""Averages over draws: mean and standard error against numpy, coverage, and stopping early."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weightloom.errors import ConfigError, ShapeError
from weightloom.kernels import empirical


def normal(generator):
    return torch.randn(4, generator=generator, dtype=torch.float64)


@given(
    values=st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=20), offset=st.sampled_from([0, 1e9])
)
def test_mean_and_standard_error(values, offset):
    """Also far from zero, where a difference of squares would have lost everything."""
    values = np.array(values) + offset
    rest = iter(values)
    estimate = empirical.average(lambda _: next(rest), torch.tensor, len(values))
    spread = values.std(ddof=1) / np.sqrt(len(values))
    assert float(estimate.mean) == pytest.approx(values.mean(), rel=1e-14, abs=1e-12)
    assert float(estimate.standard_error) == pytest.approx(
        spread, rel=1e-6, abs=1e-15 * offset + 1e-12
    )
    assert estimate.draws == len(values)


def test_the_truth_is_within_standard_errors_as_often_as_it_should_be():
    inside = 0
    for seed in range(100):
        estimate = empirical.average(normal, lambda x: x, 40, seed=seed)
        inside += int((estimate.mean.abs() < 2.02 * estimate.standard_error).sum())
    # 400 trials at 95 percent (Student's t with 39 degrees): 380, standard deviation 4.4.
    assert 362 <= inside <= 398


def test_seeds():
    a, b, c = (empirical.average(normal, lambda x: x, 5, seed=s).mean for s in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_draws_are_independent():
    seen = []
    empirical.average(normal, lambda x: seen.append(x) or x, 3)
    assert not torch.equal(seen[0], seen[1])


def test_statistics_may_carry_a_graph_and_any_precision():
    leaf = torch.ones(2, requires_grad=True)
    estimate = empirical.average(lambda _: leaf, lambda x: x * 2, 3)
    assert not estimate.mean.requires_grad
    assert estimate.mean.dtype == torch.float64


def test_interruption_keeps_what_was_averaged():
    calls = iter(range(100))

    def statistic(x):
        if next(calls) == 7:
            raise KeyboardInterrupt
        return x

    with pytest.warns(RuntimeWarning, match=r"stopped after 7 of 50 draws; the mean of these"):
        estimate = empirical.average(normal, statistic, 50)
    assert estimate.draws == 7
    assert torch.equal(estimate.mean, empirical.average(normal, lambda x: x, 7).mean)


def test_interruption_before_anything_is_known():
    def statistic(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        empirical.average(normal, statistic, 50)


def test_progress_is_shown(capsys):
    empirical.average(normal, lambda x: x, 3, progress=True)
    assert "3/3" in capsys.readouterr().err


def test_too_few():
    with pytest.raises(ConfigError, match=r"draws is 1; a standard error needs at least 2"):
        empirical.average(normal, lambda x: x, 1)


def test_shapes_that_change():
    sizes = iter([2, 3])
    with pytest.raises(ShapeError, match=r"of draw 2 has shape \[3\], earlier ones \[2\]"):
        empirical.average(lambda _: next(sizes), torch.zeros, 5)

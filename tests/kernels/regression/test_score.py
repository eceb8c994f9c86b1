"""R^2 against scikit-learn's."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weightloom.errors import KernelError, ShapeError
from weightloom.kernels.regression.score import r2_score

metrics = pytest.importorskip("sklearn.metrics")


@given(n=st.integers(2, 6), channels=st.integers(1, 3), seed=st.integers(0, 99))
def test_as_scikit_learn(n, channels, seed):
    random = np.random.default_rng(seed)
    y, p, w = random.normal(size=(n, channels)), random.normal(size=(n, channels)), random.random(n)
    assert r2_score(y, p, None, False) == pytest.approx(metrics.r2_score(y, p))
    wanted = metrics.r2_score(y, p, sample_weight=w)
    assert r2_score(y, torch.tensor(p), w, False) == pytest.approx(wanted)
    assert r2_score(y[:, 0], p[:, 0], None, True) == pytest.approx(
        metrics.r2_score(y[:, 0], p[:, 0])
    )


def test_constant_targets():
    y = np.ones((3, 2))
    for p in (y, y + np.array([0, 1])):
        assert r2_score(y, p, None, False) == metrics.r2_score(y, p)


def test_a_mask_hides_nan():
    y = np.array([[1.0, 2.0, np.nan], [4.0, np.nan, 5.0]])
    p = np.array([[1.0, 2.5, 9.0], [4.5, 9.0, 5.0]])
    seen = ~np.isnan(y)
    assert r2_score(y, p, seen, True) == pytest.approx(metrics.r2_score(y[seen], p[seen]))


def test_messages():
    with pytest.raises(ShapeError, match=r"y has shape \(2,\), the predictions \(3,\)"):
        r2_score(np.ones(2), np.ones(3), None, True)
    with pytest.raises(ShapeError, match=r"sample_weight has 3 entries; wanted one for each of 2"):
        r2_score(np.ones(2), np.ones(2), np.ones(3), True)
    with pytest.raises(KernelError, match=r"weight 0"):
        r2_score(np.array([np.nan, 1]), np.ones(2), None, True)

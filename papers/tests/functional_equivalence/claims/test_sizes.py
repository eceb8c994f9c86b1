"""The printed range of hidden values, against the corrected one."""

import math

import pytest
import torch

from weightloom.bounds import log_ranges
from weightloom_papers.functional_equivalence.claims.sizes import printed_range


def test_the_printed_range_is_false():
    """101 is attained, 2 is printed; d_0 = 100, B_x = 10."""
    d = [100, 3, 1]
    assert math.exp(printed_range(d, 1, 1.0, [1.0])) == pytest.approx(2)
    assert math.exp(log_ranges(d, bound=1.0, radius=10.0)[0]) == pytest.approx(101)
    ones = torch.ones(1, 100, dtype=torch.float64)
    assert float(ones @ (10 * ones / 10).T + 1) == pytest.approx(101)  # all weights 1, |x| = 10
    assert math.exp(printed_range([1, 3, 5, 1], 2, 1.0, [2.0, 1.0])) == pytest.approx(4 * 2 * 3)

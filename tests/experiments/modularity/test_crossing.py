"""Where a falling curve crosses a goal."""

from __future__ import annotations

import math

import pytest

from weightloom.experiments.modularity.crossing import crossing


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
    found = crossing([1, 2, 4, 8], [0.6, 0.9, 0.9, 0.3], 0.5)
    assert found.size == pytest.approx(crossing([1, 8], [0.6, 0.3], 0.5).size)

"""Filters whose convolutions are the rows of a matrix."""

import itertools
import math

import torch

from weightloom_papers.functional_equivalence.claims.layers import factored


def test_factors_of_a_filter_by_hand():
    """Rows (2, 1), (6, 3) reversed in line: 1 + 2 z + 3 z^2 + 6 z^3 = (1 + 2 z) (1 + 3 z^2)."""
    filters = factored(torch.tensor([[2.0, 1.0], [6.0, 3.0]]).double())
    product = torch.ones(1).double()
    for taps in filters:
        longer = torch.zeros(len(product) + 2).double()
        for (i, a), (j, b) in itertools.product(enumerate(product), enumerate(taps)):
            longer[i + j] += a * b
        product = longer
    wanted = torch.tensor([1.0, 2, 3, 6]).double()
    assert torch.allclose(product[:4], wanted, rtol=0, atol=1e-13)
    assert float(product[4:].abs().max()) < 1e-13
    assert len(filters) == math.ceil(3 / 2)

"""Networks that read the digits of their weights."""

import pytest
import torch

from weightloom_papers.modularity.claims.lower_bounds import write


@pytest.mark.parametrize("groups", [4, 8])
def test_error_and_size(groups):
    """Half a step of the heights, and of the slope within a cell; parameters linear in K."""
    y = torch.sin
    net = write(lambda t: y(7 * t) / 7, groups, 1.0)
    t = torch.rand(4000, 1, dtype=torch.float64)
    with torch.no_grad():
        error = (net(t).squeeze() - y(7 * t[:, 0]) / 7).abs().max()
    assert float(error) <= 1.5 / groups**2
    rows = 2 * (groups + 1) + 1  # of the look-up
    digit = 9 * 6 + 9 + 6 * 9 + 6
    assert net.total_parameters() == 3 * (2 * rows + 6 * rows + 6 + digit * groups + 7) + 36


def test_the_same_architecture_for_every_function():
    shapes = [
        [tuple(p.shape) for p in write(y, 4, 1.0).parameters()]
        for y in (torch.sin, lambda t: (t - 0.2).abs() / 2)
    ]
    assert shapes[0] == shapes[1]

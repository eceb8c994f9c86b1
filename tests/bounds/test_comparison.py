"""The comparison table on networks, line by line by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from weightloom.bounds import compare
from weightloom.errors import ConfigError, UnsupportedModuleError


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(3, 6), nn.Sigmoid(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2)
    ).double()


def test_every_line_by_hand():
    net = network()
    s = [float(torch.linalg.svdvals(net[i].weight.detach())[0]) for i in (0, 2)]
    rs, Bx, eps = 0.25 * s[0] * s[1], 5.0, 0.01
    S, U, L, W = 3 * 6 + 6 + 6 * 4 + 4 + 4 * 2 + 2, 10, 2, 6
    wanted = [
        Bx**2 * rs**2 * U * math.log(W) / eps**2,
        Bx**2 * rs**2 * S * L**2 * math.log(W * L) / eps**2,
        Bx * rs * S**2 * L / eps,
        L * S * math.log(S) * math.log(rs * Bx / eps),
        # The last as printed, with its roots.
        L * S * math.log(
            rs * Bx ** (1 / L)
            / ((math.factorial(6) * math.factorial(4)) ** (1 / S) * eps) ** (1 / L)
        ),
    ]  # fmt: skip
    result = compare(net, Bx, eps)
    assert [row.value for row in result.rows] == pytest.approx(wanted, rel=1e-10)
    for row in result.rows:
        assert row.value <= 0 or row.log10 == pytest.approx(math.log10(row.value))
    assert result.quantities["S"] == S
    assert [row.permutations for row in result.rows] == [False] * 4 + [True]
    assert [row.bias for row in result.rows] == [False] * 3 + [True] * 2


def test_the_last_layer_is_not_in_the_products():
    net = network()
    before = compare(net, 1.0, 0.1)
    with torch.no_grad():
        net[4].weight.mul_(1000)
    assert compare(net, 1.0, 0.1) == before
    with torch.no_grad():
        net[2].weight.mul_(10)
    assert compare(net, 1.0, 0.1).rows[2].value == pytest.approx(10 * before.rows[2].value)


def test_rescaling_moves_nothing_that_it_should_not():
    """s is the product over layers: a factor moved between hidden layers cancels."""
    net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 1))
    before = compare(net, 1.0, 0.1)
    with torch.no_grad():
        net[0].weight.mul_(4)
        net[2].weight.div_(4)
    assert [r.value for r in compare(net, 1.0, 0.1).rows] == pytest.approx(
        [r.value for r in before.rows], rel=1e-6
    )


def test_no_overflow_and_where_a_line_says_nothing():
    deep = nn.Sequential(*[nn.Linear(40, 40) for _ in range(90)])
    for layer in deep:
        nn.init.constant_(layer.weight, 100.0)
    result = compare(deep, 1e3, 1e-6)
    assert result.rows[0].value == math.inf
    assert result.rows[0].log10 == pytest.approx(2 * (9 + 89 * math.log10(4000)) + 4.1, abs=0.1)
    assert all(row.log10 is not None for row in result.rows)
    coarse = compare(network(), 1.0, 1e6)
    assert [row.log10 is None for row in coarse.rows] == [False] * 3 + [True] * 2
    assert "says nothing" in str(coarse)
    lines = str(compare(network())).splitlines()
    assert len(lines) == 6
    assert lines[5].startswith("Shen 2024")


def test_messages():
    with pytest.raises(ConfigError, match=r"no hidden layer"):
        compare(nn.Sequential(nn.Linear(3, 1)))
    with pytest.raises(ConfigError, match=r"radius=0, epsilon=-1 was given"):
        compare(network(), 0, -1)
    with pytest.raises(UnsupportedModuleError, match=r"layer '0' \(Conv2d\) is not part of a full"):
        compare(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 1, 3)))
    with pytest.raises(UnsupportedModuleError, match=r"layer '0' is an activation in front"):
        compare(nn.Sequential(nn.ReLU(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)))

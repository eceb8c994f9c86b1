"""Learned and sampled conditions."""

from __future__ import annotations

import pytest
import torch

import weightloom as wl
from weightloom.errors import ShapeError, TrainingError
from weightloom.training import fit, fit_condition


def waves(phase: float, n: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.linspace(-2, 2, n)[:, None]
    return x, torch.sin(x + phase)


def test_a_condition_is_learned_for_a_new_task_and_nothing_else_moves() -> None:
    torch.manual_seed(0)
    table = wl.LearnedConditions(8, 4)
    hyper = wl.HyperNetwork(wl.mlp([1, 32, 1], activation="tanh"), table)
    data = [waves(0.25 * i) for i in range(8)]
    x, y = (torch.cat(column) for column in zip(*data, strict=True))
    ids = torch.arange(8).repeat_interleave(64)
    fit(hyper, (x, ids, y), epochs=60, lr=3e-3, batch_size=64, progress=False)
    before = {name: tensor.clone() for name, tensor in hyper.state_dict().items()}
    points, values = waves(0.9)
    middle = wl.Features(table.weight.detach().mean(0, keepdim=True), single=True)
    start = (hyper(points, middle) - values).square().mean().item()
    condition, history = fit_condition(hyper, (points, values), steps=300, lr=0.03, progress=False)
    after = (hyper(points, condition) - values).square().mean().item()
    assert after < 0.5 * start
    assert after == pytest.approx(history.losses[-1], rel=0.5)
    assert all(torch.equal(before[name], tensor) for name, tensor in hyper.state_dict().items())
    new = table.append(condition)
    assert new == 8
    torch.testing.assert_close(hyper(points, torch.tensor(8)), hyper(points, condition))
    torch.testing.assert_close(hyper.weights(torch.tensor(3))["0.bias"].shape, torch.Size([32]))


def test_spread_grows_away_from_the_data() -> None:
    torch.manual_seed(0)
    x = torch.cat([torch.linspace(-1, -0.2, 40), torch.linspace(0.2, 1, 40)])[:, None]
    y = torch.sin(3 * x)
    hyper = wl.HyperNetwork(wl.mlp([1, 64, 1]), features=8)
    ensemble = wl.SampledCondition(hyper, 8)
    fit(ensemble, (x, y), epochs=1000, lr=1e-2, batch_size=80, progress=False)
    networks = wl.sample_networks(ensemble, 64)
    mean, std = networks.predict(x)
    assert (mean - y).square().mean() < 0.02  # 0.002 to 0.007 over three seeds
    far = [networks.predict(torch.tensor([[d], [-d]])).std.mean() for d in (1.0, 2.0, 4.0)]
    assert std.mean() < 0.6 * far[1]  # a quarter to a third
    assert far[0] < far[1] < far[2]


def test_mean_and_spread_by_single_networks() -> None:
    torch.manual_seed(0)
    hyper = wl.HyperNetwork(wl.mlp([2, 8, 1]), features=3)
    networks = wl.sample_networks(hyper, 5, seed=1)
    x = torch.randn(7, 2)
    outputs = torch.stack([hyper.materialize(z)(x) for z in networks.conditions])
    torch.testing.assert_close(networks(x), outputs)
    mean, std = networks.predict(x)
    torch.testing.assert_close(mean, outputs.mean(0))
    torch.testing.assert_close(std, outputs.std(0))
    assert len(networks) == 5
    again = wl.sample_networks(hyper, 5, seed=1)
    assert torch.equal(again.conditions, networks.conditions)


def test_priors() -> None:
    table = wl.LearnedConditions(50, 3)
    hyper = wl.HyperNetwork(wl.mlp([2, 8, 1]), table)
    with torch.no_grad():
        table.weight += 5.0
    drawn = wl.sample_networks(hyper, 2000).conditions.values
    # Standard errors of 2000 draws: 0.022 of a deviation of 1.
    torch.testing.assert_close(drawn.mean(0), table.weight.mean(0), atol=0.12, rtol=0)
    encoded = wl.HyperNetwork(wl.mlp([2, 8, 1]), wl.mlp([4, 3], last_activation=True))
    with pytest.raises(TrainingError, match="pass prior= a function"):
        wl.sample_networks(encoded, 3)
    networks = wl.sample_networks(encoded, 3, prior=lambda n, g: torch.rand(n, 4, generator=g))
    assert networks(torch.zeros(6, 2)).shape == (3, 6, 1)


def test_messages() -> None:
    hyper = wl.HyperNetwork(wl.mlp([2, 8, 1]), features=3)
    with pytest.raises(TrainingError, match="n=1 was given; a spread needs at least 2"):
        wl.sample_networks(hyper, 1)
    with pytest.raises(TrainingError, match="pass start= a condition"):
        fit_condition(hyper, (torch.zeros(3, 2), torch.zeros(3, 1)))
    with pytest.raises(ShapeError, match="a row of this table has 3 numbers"):
        wl.LearnedConditions(2, 3).append(torch.zeros(4))

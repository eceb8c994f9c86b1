"""What is learned and by which networks: sizes, targets, and the same networks by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from weightloom.construct.deep import delta, triangle
from weightloom.construct.inner_products import SpherePairs, depth3
from weightloom.construct.pieces import affine_pieces
from weightloom.errors import ConfigError
from weightloom_papers.depth_separation.experiments.training import networks
from weightloom_papers.depth_separation.experiments.training.experiment import on_unit_interval


def config(task="sphere", d=3, level=2, hidden=(48, 48)):
    return {"task": task, "d": d, "level": level, "hidden": list(hidden), "depth": len(hidden) + 1}


@given(inputs=st.integers(1, 8), depth=st.integers(2, 6), parameters=st.integers(60, 3000))
@settings(deadline=None, max_examples=40)
def test_equal_sizes_are_the_nearest(inputs, depth, parameters):
    hidden = networks.equal_hidden(inputs, depth, parameters)
    assert len(hidden) == depth - 1
    assert len(set(hidden)) == 1

    def off(width):
        return abs(networks.parameters_of(inputs, [width] * (depth - 1)) - parameters)

    assert off(hidden[0]) == min(off(width) for width in range(1, hidden[0] + 5))


@pytest.mark.parametrize("hidden", [[7], [5, 9, 3]])
def test_parameters_without_building(hidden):
    model = networks.make_model(config(hidden=hidden), 0)
    assert networks.parameters_of(6, hidden) == sum(p.numel() for p in model.parameters())


def test_models_depend_on_the_seed_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    model, same, other = (networks.make_model(config(), seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(model[2].weight, same[2].weight)
    assert not torch.equal(model[2].weight, other[2].weight)
    # He: variance 2 / fan in; 48 x 48 weights know it within 3 / sqrt(1152) of itself.
    assert model[2].weight.var().item() * 24 == pytest.approx(1, abs=3 / math.sqrt(1152))


def test_targets():
    pairs = torch.tensor([[1.0, 0, 0, 1, 0, 0], [1, 0, 0, 0, 1, 0], [0.6, 0.8, 0, 0.6, 0, 0.8]])
    values = networks.target(config(level=2), pairs)
    wanted = [math.sin(2 * math.pi), 0.0, math.sin(2 * math.pi * 0.36)]
    assert values.tolist() == pytest.approx(wanted, abs=1e-6)  # the points are float32
    x = torch.linspace(-1, 1, 9, dtype=torch.float64)[:, None]
    values = networks.target(config("sawtooth", 1, 2), x)
    assert values.tolist() == [-0.5, 0, 0.5, 0, -0.5, 0, 0.5, 0, -0.5]
    with pytest.raises(ConfigError, match="task 'cube' is unknown"):
        networks.target(config("cube"), x)


def test_points_are_on_the_spheres():
    sampled = networks.sample(config(), 100, torch.Generator().manual_seed(0))
    assert torch.allclose(sampled.unflatten(-1, (2, 3)).norm(dim=-1), torch.ones(100, 2).double())
    sampled = networks.sample(config("sawtooth"), 100, torch.Generator().manual_seed(0))
    assert sampled.shape == (100, 1)
    assert sampled.abs().max() <= 1


@given(
    power=st.integers(1, 7),
    shape=st.sampled_from([[128], [140], [12, 30], [8, 4, 4], [11] * 8, [2] * 7, [1, 128]]),
)
@settings(deadline=None, max_examples=25)
def test_sawtooth_by_hand_is_the_sawtooth(power, shape):
    network = networks.sawtooth_by_hand(power, shape)
    assert [layer.out_features for layer in network if isinstance(layer, nn.Linear)] == [*shape, 1]
    x = torch.rand(500, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        given_values = network(2 * x - 1)[:, 0] + 0.5
        small = delta(power).network(x)[:, 0]
    _, bound, _ = networks.by_hand(config("sawtooth", 1, power, shape))
    assert bound < 1e-8
    assert (given_values - triangle(x[:, 0], power)).abs().max() <= bound
    assert (given_values - small).abs().max() <= bound
    assert affine_pieces(on_unit_interval(network), 0, 1).count == 2**power


def test_sawtooth_that_does_not_fit():
    with pytest.raises(ConfigError, match=r"Delta\^4 does not fit .* they hold Delta\^3"):
        networks.sawtooth_by_hand(4, [5, 3])


@pytest.mark.parametrize(("d", "frequency", "fits"), [(2, 8, True), (3, 4, True), (4, 16, False)])
def test_sphere_by_hand(d, frequency, fits):
    network, bound, widths = networks.sphere_by_hand(d, frequency, [48, 48])
    assert [network[0].bias.numel(), network[2].bias.numel()] == widths
    assert all(width <= 48 for width in widths) == fits
    points = SpherePairs.of(d).sample(3000, torch.Generator().manual_seed(0))
    with torch.no_grad():
        wrong = network(points)[:, 0] - networks.target(config(d=d, level=frequency), points)
    assert wrong.abs().max() <= bound
    assert wrong.square().mean() < 0.1 / 2


@pytest.mark.parametrize("eps", [0.11, 0.5, math.pi / 2])
@pytest.mark.parametrize("d", [2, 3])
def test_widths_without_building(d, eps):
    lipschitz = math.pi * 6
    network = depth3(lambda t: torch.sin(lipschitz * t), d, lipschitz=lipschitz, eps=eps).network
    wanted = (network[0].bias.numel(), network[2].bias.numel())
    assert networks.depth3_widths(d, lipschitz, eps) == wanted


def test_the_whole_network_sees_the_unit_interval():
    model = networks.make_model(config("sawtooth", 1, 3, (6, 5)), 0)
    x = torch.rand(50, 1, dtype=torch.float64)
    with torch.no_grad():
        wanted = model.double()(2 * x - 1) + 0.5
        assert torch.allclose(on_unit_interval(model)(x), wanted, atol=1e-14)

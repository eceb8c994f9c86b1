"""Both sides of functional-equivalence, Theorem 5: sampled, in closed form, enumerated."""

from __future__ import annotations

import math
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.symmetry.nets import ZOO, Residual, mlp

from weightloom.errors import ConfigError
from weightloom.symmetry.orbits import orbit, state_of
from weightloom.symmetry.reading.reader import read
from weightloom_papers.functional_equivalence.landscape import delta_max, delta_min, theorem5


def uniform(name, shape, generator):
    return 2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1


def network(*values, sizes=(1, 2, 1)):
    net = mlp("tanh", *sizes).double()
    for p, value in zip(net.parameters(), values, strict=True):
        p.data = torch.tensor(value, dtype=torch.float64)
    return net


SMALL = ([[-0.5], [0.5]], [-0.4, 0.4], [[0.3, -0.3]], [0.1])


def nearest_copy(net):
    """Delta_min by making every copy."""
    spec = read(net)
    state = {name: t.double() for name, t in state_of(net, spec).items()}
    gaps = [
        max(float((copy[name] - kept).abs().max()) for name, kept in state.items())
        for copy in orbit(state, spec)
    ]
    return min((gap for gap in gaps if gap > 0), default=math.inf)


class TestDelta:
    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(
        hidden=st.sampled_from([(3,), (5,), (3, 3), (2, 2, 3), (1, 4), (1,)]),
        levels=st.sampled_from([2, 3, 1000]),
        seed=st.integers(0, 2**20),
    )
    def test_against_all_copies(self, hidden, levels, seed):
        generator = torch.Generator().manual_seed(seed)
        net = mlp("relu", 2, *hidden, 1)
        for p in net.parameters():
            p.data = torch.randint(levels, p.shape, generator=generator) / levels
        wanted = nearest_copy(net)
        result = delta_min(net)
        assert result.exact
        assert result.lower == wanted
        bounds = delta_min(net, limit=0)
        assert bounds.lower <= wanted <= bounds.upper

    def test_bounds_of_wide_networks(self):
        result = delta_min(ZOO["mlp-relu-4"].make())
        assert 0 < result.lower <= result.upper

    def test_two_layers_together_can_be_nearer_than_one(self):
        # Swapping both layers moves theta by 0.1, swapping one of them by 1.
        net = network([[1.0], [1.1]], [0.0, 0.0], [[1.0, 2.0], [2.0, 1.0]], [0.0, 0.0],
                      [[1.0, 1.0]], [0.0], sizes=(1, 2, 2, 1))  # fmt: skip
        assert delta_min(net, limit=0).upper == pytest.approx(1.0)
        assert delta_min(net).lower == pytest.approx(0.1)

    def test_residual_streams(self):
        torch.manual_seed(0)
        net = Residual("tanh", width=3, hidden=2)
        assert delta_min(net).lower == pytest.approx(nearest_copy(net))

    def test_delta_max(self):
        assert delta_max({"a": torch.tensor([1.0, -3.0]), "b": torch.tensor(2.0)}) == 3.0


class TestTheorem5:
    def test_against_the_closed_form(self):
        net = network(*SMALL)
        result = theorem5(net, uniform, samples=200_000, seed=1)
        assert (result.copies, result.delta) == (2, 1.0)
        # Each entry lies within 1/2 of theta's: a share (min(t+1/2, 1) - max(t-1/2, -1)) / 2.
        entries = [-0.5, 0.5, -0.4, 0.4, 0.3, -0.3, 0.1]
        shares = [(min(t + 0.5, 1) - max(t - 0.5, -1)) / 2 for t in entries]
        exact = math.prod(shares)
        assert abs(result.probability_one - exact) < 4 * result.error_one
        # Disjoint balls of equal probability: the bound is attained.
        assert abs(result.probability_any - 2 * exact) < 4 * result.error_any
        assert result.holds
        assert result.lower_bound == 2 * result.probability_one
        assert result.error_one == pytest.approx(math.sqrt(exact * (1 - exact) / 200_000), rel=0.05)

    def test_any_ball_by_another_method(self):
        """Three units: units of the start are matched with those of theta one by one."""
        torch.manual_seed(0)
        units = torch.tensor([[-0.8, 0.6], [0.1, -0.7], [0.7, 0.7]]).double()
        net = network(units[:, :1].tolist(), units[:, 1].tolist(), [[0.0, 0.1, 0.2]], [0.0],
                      sizes=(1, 3, 1))  # fmt: skip
        result = theorem5(net, uniform, samples=60_000, seed=2)
        radius = delta_min(net).lower / 2
        generator = torch.Generator().manual_seed(9)
        start = torch.cat([uniform("", (60_000, 3, 3), generator)], 2)
        theta = torch.cat([units, torch.tensor([[0.0], [0.1], [0.2]], dtype=torch.float64)], 1)
        close = ((start[:, :, None] - theta).abs() < radius).all(-1)  # [samples, start, theta]
        hit = torch.zeros(60_000, dtype=torch.bool)
        for order in permutations(range(3)):
            hit |= close[:, range(3), order].all(1)
        hit &= uniform("", (60_000,), generator).abs() < radius  # the last bias
        share = float(hit.double().mean())
        error = math.sqrt(share * (1 - share) / 60_000)
        assert share > 20 * error / 4  # something was seen
        assert abs(share - result.probability_any) < 4 * math.hypot(error, result.error_any)

    def test_clones_are_counted_once(self):
        # Two of three units are equal in all weights: 3 copies, not 6.
        net = network([[0.6], [0.6], [-0.6]], [0.5, 0.5, -0.5], [[0.4, 0.4, -0.4]], [0.0],
                      sizes=(1, 3, 1))  # fmt: skip
        result = theorem5(net, uniform, samples=100_000, seed=3)
        assert result.copies == 3
        assert result.holds
        difference = abs(result.probability_any - result.lower_bound)
        assert difference < 4 * math.hypot(result.error_any, result.error_bound)
        assert result.probability_any > 10 * result.error_any

    def test_two_hidden_layers(self):
        # Widths 2 and 2 with biases only far apart: four copies.
        net = network([[-0.5], [0.5]], [-0.5, 0.5], [[0.5, -0.5], [-0.5, 0.5]], [0.5, -0.5],
                      [[0.5, -0.5]], [0.0], sizes=(1, 2, 2, 1))  # fmt: skip
        result = theorem5(net, uniform, samples=300_000, seed=4)
        assert (result.copies, result.delta) == (4, 1.0)
        # Eleven entries of +-1/2 in the middle of [0, 1] or [-1, 0], and one at 0.
        assert abs(result.probability_any - 4 * 0.5**13) < 4 * result.error_any
        assert result.holds

    def test_the_law_must_not_tell_units_apart(self):
        """A start that knows the order of theta's units breaks the bound."""
        net = network(*SMALL)

        def ordered(name, shape, generator):
            sample = uniform(name, shape, generator)
            return sample.sort(1).values if name == "0.bias" else sample

        result = theorem5(net, ordered, samples=100_000, seed=5)
        assert not result.holds

    def test_closed_balls_would_count_twice(self):
        """A start with an atom half way between two copies: the printed bound is 2, not 1."""
        net = network(*SMALL)
        middle = {"0.weight": 0.0, "0.bias": 0.0, "2.weight": 0.0, "2.bias": 0.1}
        result = theorem5(net, lambda name, shape, _: torch.full(shape, middle[name]), 10)
        assert (result.probability_one, result.probability_any) == (0, 0)
        state = dict(net.named_parameters())
        distance = delta_max({name: middle[name] - p.detach() for name, p in state.items()})
        assert distance <= result.delta / 2

    def test_the_default_of_pytorch(self):
        net = network(*SMALL)
        assert theorem5(net, "pytorch", samples=20_000, seed=6).holds

    def test_messages(self):
        with pytest.raises(ConfigError, match=r"hidden widths \[12\] have more than 50000"):
            theorem5(mlp("relu", 1, 12, 1), uniform, 10)
        with pytest.raises(ConfigError, match="initialisation 'he' is not known"):
            theorem5(network(*SMALL), "he", 10)
        with pytest.raises(ConfigError, match="samples is 0"):
            theorem5(network(*SMALL), uniform, 0)
        with pytest.raises(ConfigError, match="no two different permuted copies"):
            theorem5(mlp("relu", 1, 1, 1), uniform, 10)

"""distinct_permutations, against the enumeration of all copies."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.symmetry.nets import ZOO, mlp
from weightloom.symmetry.orbits import distinct_permutations, orbit, state_of
from weightloom.symmetry.reading.reader import read


def enumerated(net):
    """The number of distinct parameter vectors, by enumerating every copy."""
    spec = read(net)
    state = state_of(net, spec)
    copies = orbit(state, spec)
    return len({b"".join(t.numpy().tobytes() for t in copy.values()) for copy in copies})


class TestDistinctPermutations:
    def test_generic_networks(self):
        net = ZOO["mlp-tanh-4"].make()
        result = distinct_permutations(net)
        assert result.count == math.prod(math.factorial(n) for n in (6, 5, 7, 4))
        assert result.log == pytest.approx(math.log(result.count))
        assert result.stabiliser == 1

    @settings(max_examples=80, deadline=None, derandomize=True)
    @given(
        hidden=st.sampled_from([(4,), (5,), (3, 3), (2, 4), (4, 2), (2, 2, 2), (3, 2, 2)]),
        values=st.sampled_from([(0,), (0, 1), (0, 1, 2)]),
        seed=st.integers(0, 2**20),
    )
    def test_few_distinct_weights(self, hidden, values, seed):
        """Weights of two or three values: clones, partial clones, several layers permuted."""
        generator = torch.Generator().manual_seed(seed)
        net = mlp("relu", 1, *hidden, 1)
        for p in net.parameters():
            p.data = torch.randint(len(values), p.shape, generator=generator).float()
        assert distinct_permutations(net).count == enumerated(net)

    def test_permutations_that_need_two_layers(self):
        # Both layers must swap at once: no single swap leaves theta unchanged.
        net = mlp("relu", 1, 2, 2, 1)
        values = (
            [[1.0], [1.0]],
            [0.0, 0.0],
            [[1.0, 2.0], [2.0, 1.0]],
            [0.0, 0.0],
            [[1.0, 1.0]],
            [0.0],
        )
        for p, value in zip(net.parameters(), values, strict=True):
            p.data = torch.tensor(value)
        result = distinct_permutations(net)
        assert (result.stabiliser, result.count) == (2, 2)
        assert enumerated(net) == 2

    def test_full_clones(self):
        torch.manual_seed(0)
        net = mlp("tanh", 2, 40, 1)
        net[0].weight.data[:30], net[0].bias.data[:30] = net[0].weight[30], net[0].bias[30]
        net[2].weight.data[:, :30] = net[2].weight[:, 30:31]
        assert distinct_permutations(net).stabiliser == math.factorial(31)

    @pytest.mark.parametrize("name", ["conv-relu-0", "residual-tanh", "functional", "encoder"])
    def test_other_networks(self, name):
        result = distinct_permutations(ZOO[name].make())
        assert result.stabiliser == 1
        assert result.log == pytest.approx(sum(math.lgamma(width + 1) for width in result.widths))

    def test_flattened_channels(self):
        net = nn.Sequential(nn.Conv1d(1, 3, 1), nn.Tanh(), nn.Flatten(), nn.Linear(6, 1))
        net[0].weight.data.fill_(1.0)
        net[0].bias.data.fill_(0.0)
        # Two positions for each channel: (1, 2), (2, 1), (1, 2). Their order in a channel matters.
        net[3].weight.data = torch.tensor([[1.0, 2.0, 2.0, 1.0, 1.0, 2.0]])
        assert distinct_permutations(net).count == 3 == enumerated(net)

    def test_wide_networks(self):
        result = distinct_permutations(mlp("relu", 4, 1000, 1))
        assert result.log == pytest.approx(math.lgamma(1001))
        assert len(str(result.count)) == 2568  # digits of 1000!

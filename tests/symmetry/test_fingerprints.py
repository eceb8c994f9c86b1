"""fingerprint: equal for bitwise copies up to permutations, for nothing else."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.symmetry.nets import ZOO, Net, mlp
from weightloom.symmetry.fingerprints import fingerprint
from weightloom.symmetry.group import apply, random_element
from weightloom.symmetry.reading.reader import read
from weightloom.symmetry.spec import Element


def permuted(net, seed):
    """A copy that differs by permutations of units and heads only."""
    element = random_element(read(net), torch.Generator().manual_seed(seed))
    return apply(Element(permutation=element.permutation), net)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ZOO)
def test_exchanges_do_not_change_it_and_one_bit_does(name, dtype):
    net = ZOO[name].make(dtype)
    mark = fingerprint(net)
    assert len(mark) == 64
    for seed in range(2):
        twin = permuted(net, seed)
        assert fingerprint(twin) == mark
        tensor = list(twin.parameters())[seed % len(list(twin.parameters()))]
        with torch.no_grad():
            flat = tensor.view(-1)
            flat[seed % len(flat)] = torch.nextafter(
                flat[seed % len(flat)], torch.tensor(9.0).to(flat)
            )
        assert fingerprint(twin) != mark


def brute_force_same(a, b):
    """Whether any permutation of the two hidden layers makes the weights equal."""
    for p, q in itertools.product(itertools.permutations(range(3)), repeat=2):
        p, q = list(p), list(q)
        if (
            torch.equal(a[0].weight, b[0].weight[p])
            and torch.equal(a[0].bias, b[0].bias[p])
            and torch.equal(a[2].weight, b[2].weight[q][:, p])
            and torch.equal(a[2].bias, b[2].bias[q])
            and torch.equal(a[4].weight, b[4].weight[:, q])
            and torch.equal(a[4].bias, b[4].bias)
        ):
            return True
    return False


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_against_all_exchanges_of_networks_full_of_ties(data):
    """Weights are 0 or 1, so that clones, ties and symmetric graphs are the rule."""
    nets = []
    for _ in range(2):
        net = mlp("gelu", 1, 3, 3, 1)
        with torch.no_grad():
            for p in net.parameters():
                bits = data.draw(
                    st.lists(st.integers(0, 1), min_size=p.numel(), max_size=p.numel())
                )
                p.copy_(torch.tensor(bits, dtype=torch.float32).reshape(p.shape))
        nets.append(net)
    a, b = nets
    if data.draw(st.booleans()):
        b = permuted(a, data.draw(st.integers(0, 99)))
    assert (fingerprint(a) == fingerprint(b)) == brute_force_same(a, b)


def test_circles_that_refinement_cannot_tell_apart():
    """One circle of six units against two of three: every unit looks the same in both.

    Circles of two lengths together: units that look the same are not interchangeable. With
    (3, 3, 6) the search gives up, and copies must still agree.
    """

    def graph(*circles):
        size = sum(circles)
        net = mlp("gelu", 1, size, size, 1)
        start, order = 0, torch.zeros(size, size)
        for length in circles:
            for i in range(length):
                order[start + i, start + i] = order[start + i, start + (i + 1) % length] = 1.0
            start += length
        with torch.no_grad():
            for p in net.parameters():
                p.fill_(1.0)
            net[2].weight.copy_(order)
        return net

    assert fingerprint(graph(6)) != fingerprint(graph(3, 3))
    assert fingerprint(graph(6)) == fingerprint(permuted(graph(6), 4))
    assert fingerprint(graph(3, 3)) == fingerprint(permuted(graph(3, 3), 4))
    for circles in ((2, 3), (2, 4), (3, 3, 6)):
        for seed in range(3):
            twin = permuted(graph(*circles), seed)
            assert fingerprint(graph(*circles)) == fingerprint(twin)
    assert fingerprint(graph(2, 4)) != fingerprint(graph(6))


def test_many_interchangeable_units():
    net = mlp("relu", 2, 2000, 1)
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
    other = copy.deepcopy(net)
    assert fingerprint(net) == fingerprint(other)
    with torch.no_grad():
        other[2].weight[0, 17] = 1.0
    assert fingerprint(net) != fingerprint(other)


def test_what_counts_and_what_does_not():
    net = Net(lambda: mlp("relu", 3, 6, 2), (3,)).make(torch.float32)
    assert fingerprint(net) != fingerprint(copy.deepcopy(net).double())
    assert fingerprint(net) != fingerprint(nn.Sequential(net[0], nn.Tanh(), net[2]))
    assert fingerprint(net) != fingerprint(nn.Sequential(net[0], nn.LeakyReLU(), net[2]))
    renamed = nn.Sequential(net[0], nn.Dropout(), nn.ReLU(inplace=True), net[2])
    assert fingerprint(net) == fingerprint(renamed)
    scaled = copy.deepcopy(net)
    with torch.no_grad():
        scaled[0].weight[0] *= 2
        scaled[0].bias[0] *= 2
        scaled[2].weight[:, 0] /= 2
    assert fingerprint(net) != fingerprint(scaled)


class Around(nn.Module):
    """Two linear layers with any function around them."""

    def __init__(self, function):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.function = function

    def forward(self, x):
        return self.last(self.function(x, torch.relu(self.first(x))))


def pool(kind):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), kind(2), nn.Flatten())


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (pool(nn.MaxPool2d), pool(nn.AvgPool2d)),
        (Around(lambda x, y: y * 1), Around(lambda x, y: y * 3)),
        (Around(lambda x, y: x + y), Around(lambda x, y: x - y)),
        (Around(lambda x, y: x - y), Around(lambda x, y: y - x)),
    ],
    ids=["kind of pooling", "scalar", "sum and difference", "order"],
)
def test_operations_are_covered(a, b):
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    assert fingerprint(a) != fingerprint(b)


def test_ways_to_write_the_same_function_do_not_matter():
    a, b = Around(lambda x, y: x + y), Around(lambda x, y: torch.add(y, x))
    assert fingerprint(a) == fingerprint(b)

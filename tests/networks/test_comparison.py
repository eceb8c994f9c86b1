"""What counts as a difference between two networks that is not the value of a weight."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from weightloom.networks import difference, operations_of, structure, trace


class Calls(nn.Module):
    """Two linear layers and a function of both outputs."""

    def __init__(self, function):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.a, self.b = nn.Linear(4, 6), nn.Linear(4, 6)
        self.function = function

    def forward(self, x):
        return self.function(self.a(x), self.b(x))


class Masked(nn.Module):
    def __init__(self, mask=None, causal=False):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
            self.inner = nn.Linear(4, 4)
        self.register_buffer("mask", mask)
        self.causal = causal

    def forward(self, x):
        x = self.inner(x)
        mask = self.mask
        return self.attention(x, x, x, attn_mask=mask, is_causal=self.causal, need_weights=False)[0]


def image(*layers):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), *layers, nn.Flatten())


TRIANGLE = torch.triu(torch.ones(6, 6, dtype=torch.bool), 1)
PAIRS = {
    "a sum and a difference": (Calls(lambda a, b: a + b), Calls(lambda a, b: a - b)),
    "the order of a difference": (Calls(lambda a, b: a - b), Calls(lambda a, b: b - a)),
    "a scalar": (Calls(lambda a, b: a * 1.0 + b), Calls(lambda a, b: a * 1.001 + b)),
    "alpha": (Calls(torch.add), Calls(lambda a, b: torch.add(a, b, alpha=2))),
    "which branch is activated": (
        Calls(lambda a, b: a.tanh() + b), Calls(lambda a, b: a + b.tanh()),
    ),
    "an activation": (Calls(lambda a, b: F.gelu(a + b)), Calls(lambda a, b: F.silu(a + b))),
    "a slope": (
        Calls(lambda a, b: F.leaky_relu(a + b, 0.01)),
        Calls(lambda a, b: F.leaky_relu(a + b, 0.012)),
    ),
    "the approximation of gelu": (
        nn.Sequential(nn.Linear(2, 2), nn.GELU()),
        nn.Sequential(nn.Linear(2, 2), nn.GELU(approximate="tanh")),
    ),
    "the kind of pooling": (image(nn.MaxPool2d(2)), image(nn.AvgPool2d(2))),
    "the padding of pooling": (
        image(nn.AvgPool2d(3, 1, 1)), image(nn.AvgPool2d(3, 1, 1, count_include_pad=False)),
    ),
    "eps": (
        nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4)),
        nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4, eps=1e-3)),
    ),
    "no mask and a mask": (Masked(), Masked(TRIANGLE)),
    "the entries of a mask": (
        Masked(TRIANGLE),
        Masked(torch.triu(torch.ones(6, 6, dtype=torch.bool), 2)),
    ),
    "a mask of infinities": (
        Masked(torch.zeros(6, 6)),
        Masked(torch.zeros(6, 6).masked_fill(TRIANGLE, -torch.inf)),
    ),
    "which units are taken": (
        Calls(lambda a, b: a[:, [0, 1, 2]] + b[:, :3]),
        Calls(lambda a, b: a[:, [0, 2, 1]] + b[:, :3]),
    ),
    "which weights are used": (Calls(lambda a, b: a), Calls(lambda a, b: b)),
    "a written entry": (
        Calls(lambda a, b: a.index_fill(1, torch.tensor([0]), 0.0)), Calls(lambda a, b: a * 1),
    ),
    "the order of outputs": (Calls(lambda a, b: (a, b)), Calls(lambda a, b: (b, a))),
    "shapes": (nn.Linear(2, 3), nn.Linear(2, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_what_is_not_a_weight_differs(name):
    a, b = (operations_of(module) for module in PAIRS[name])
    assert difference(a, b)
    assert difference(b, a)
    assert structure(a) != structure(b)


@pytest.mark.parametrize("name", PAIRS)
def test_a_copy_with_other_weights_does_not_differ(name):
    for module in PAIRS[name]:
        twin = copy.deepcopy(module)
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.normal_()
        a, b = operations_of(module), operations_of(twin)
        assert difference(a, b) is None
        assert structure(a) == structure(b)


SAME = {
    "a function and a module": (
        Calls(lambda a, b: F.relu(a) + b), Calls(lambda a, b: nn.ReLU(inplace=True)(a) + b),
    ),
    "the order of a sum": (Calls(lambda a, b: a + b), Calls(lambda a, b: b + a)),
    "how it is rearranged": (
        Calls(lambda a, b: a.unsqueeze(1).transpose(1, 2).squeeze(2) + b),
        Calls(lambda a, b: a.view(-1, 6) + b),
    ),
    "split, chunk, narrow and slices": (
        Calls(lambda a, b: a.chunk(2, 1)[1] + b.split(3, 1)[0]),
        Calls(lambda a, b: a[:, 3:] + b.narrow(1, 0, 3)),
    ),
    "dropout, copies and casts": (
        Calls(lambda a, b: F.dropout(a, 0.5, False).clone() + b.to(b.dtype).contiguous()),
        Calls(lambda a, b: a + b),
    ),
    "a mask that is computed": (
        Masked(TRIANGLE),
        Masked(torch.arange(6)[None, :] > torch.arange(6)[:, None]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_ways_to_write_the_same_function_do_not_differ(name):
    a, b = SAME[name]
    x = torch.randn(2, 6, 4) if isinstance(a, Masked) else torch.randn(2, 4)
    torch.testing.assert_close(a.eval()(x), b.eval()(x))
    assert difference(operations_of(a), operations_of(b)) is None


def test_entries_that_are_written_in_place_are_seen():
    """An assignment to a slice must not be lost, whatever follows it."""

    def written(value):
        def function(a, b):
            a = a * 1
            a[:, 0] = value
            return a + b

        return Calls(function)

    assert difference(*(operations_of(written(value)) for value in (0.0, 1.0)))
    assert difference(operations_of(written(1.0)), operations_of(written(1.0))) is None


def test_hooks_are_part_of_the_network():
    plain, hooked = nn.Linear(2, 3), nn.Linear(2, 3)
    hooked.register_forward_hook(lambda module, given, output: 2 * output)
    assert "mul" in str(difference(operations_of(plain), operations_of(hooked)))


def test_graphs_of_calls_are_compared_by_their_operations():
    a, b = (trace(nn.Sequential(nn.Linear(2, 3), act)) for act in (nn.ReLU(), nn.LeakyReLU(0.2)))
    words = "at '1': relu(linear) in one network, leaky_relu(linear, 0.2) in the other"
    assert difference(a, b) == words


def test_the_dtype_of_a_copy_is_no_difference():
    net = Masked(TRIANGLE)
    a = operations_of(net)
    assert difference(a, operations_of(copy.deepcopy(net).double())) is None
    half = copy.deepcopy(net).to(torch.bfloat16)
    assert difference(a, operations_of(half)) is None
    half.causal, half.mask = False, None
    assert difference(a, operations_of(half))

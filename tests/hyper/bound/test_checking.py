"""Primaries that move rows about: right, or refused, and never silently wrong."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import weightloom as wl
from weightloom.errors import UnsupportedModuleError

from .transformers_zoo import moved


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 6)
        self.b = nn.Linear(6, 6)
        self.table = nn.Embedding(12, 6)
        self.queries = nn.Parameter(torch.randn(4, 6))
        self.scale = nn.Parameter(torch.ones(6))


def primary(forward):
    return type("Primary", (Parts,), {"forward": forward})()


def hypernetwork(forward, head, rows):
    return moved(wl.HyperNetwork(primary(forward), nn.Embedding(rows, 8), head))


def length_first(self, x):
    return self.b(torch.tanh(self.a(x.transpose(0, 1)))).transpose(0, 1)


def flattened(self, x):
    return self.b(torch.tanh(self.a(x.reshape(-1, 6)))).view_as(x)


def positions(self, x):
    return self.b(self.a(x) + self.table(torch.arange(x.shape[1])))


def shared_queries(self, x):
    return torch.softmax(self.b(self.queries) @ self.a(x).transpose(1, 2), -1) @ x


def expanded_queries(self, x):
    queries = self.b(self.queries.unsqueeze(0).expand(len(x), -1, -1))
    return torch.softmax(queries @ self.a(x).transpose(1, 2), -1) @ x


def repeated_queries(self, x):
    return self.b(torch.cat([self.queries.unsqueeze(0).repeat(len(x), 1, 1), self.a(x)], 1))


def queries_beside_heads(self, x):
    """As DeBERTa repeats its relative positions: heads and rows in one dimension."""
    heads = self.a(x).unflatten(-1, (2, 3)).transpose(1, 2).flatten(0, 1)  # [rows 2, length, 3]
    keys = self.b(self.queries).unflatten(-1, (2, 3)).transpose(0, 1)  # [2, 4, 3]
    scores = heads @ keys.repeat(len(x), 1, 1).transpose(1, 2)
    return scores.unflatten(0, (-1, 2)).sum(1)


def einsum(self, x):
    return torch.einsum("bli,oi->blo", x, self.a.weight) * self.scale + self.b.bias


def normalised_weight(self, x):
    return F.linear(x, self.a.weight / self.a.weight.norm(dim=1, keepdim=True), self.a.bias)


def used_three_times(self, x):
    return self.a(self.a(x)) + self.a(self.queries).sum()


def stacked_weight(self, x):
    return F.linear(x, torch.stack([self.scale, 2 * self.scale]))


RIGHT = [
    length_first, flattened, positions, shared_queries, expanded_queries, repeated_queries,
    queries_beside_heads, einsum, normalised_weight, used_three_times, stacked_weight,
]  # fmt: skip


@pytest.mark.parametrize("head", ["full", "delta"])
@pytest.mark.parametrize(("rows", "length"), [(3, 5), (4, 4), (2, 4), (3, 3)])
@pytest.mark.parametrize("forward", RIGHT)
def test_right(forward, rows, length, head):
    """Also where a number of positions could be taken for a number of rows."""
    hyper = hypernetwork(forward, "full" if head == "full" else wl.DeltaHead(2), rows)
    x, conditions = torch.randn(rows, length, 6), torch.arange(rows)
    output = hyper.bind(conditions)(x)
    for i in range(rows):
        expected = hyper.materialize(conditions[i])(x[i : i + 1])
        torch.testing.assert_close(output[i : i + 1], expected, rtol=1e-4, atol=1e-4)


def flipped(self, x):
    return self.b(self.a(x).flip(0)).flip(0)


def interleaved(self, x):
    """Flattened with positions first: row i is every b-th one, not a run of neighbours."""
    flat = self.a(x).transpose(0, 1).reshape(-1, 6)
    return self.b(flat).view(x.shape[1], x.shape[0], 6).transpose(0, 1)


def sorted_rows(self, x):
    order = x.sum((1, 2)).argsort()
    return self.b(self.a(x)[order])[order.argsort()]


def output_rolled(self, x):
    return self.a(x).roll(1, 0)


def centred(self, x):
    return self.b(self.a(x) - self.a(x).mean(0, keepdim=True))


def multiplied_after_flip(self, x):
    """The operator is called by PyTorch, which must not swallow the message."""
    return x.flip(0) * self.scale


def selected(self, x):
    y = self.a(x)
    chosen = y[..., 0] > 0
    return y.masked_scatter(chosen.unsqueeze(-1), self.b(y[chosen]))


MOVED = [
    flipped, interleaved, sorted_rows, output_rolled, centred, multiplied_after_flip, selected,
]  # fmt: skip


@pytest.mark.parametrize("head", ["full", "delta"])
@pytest.mark.parametrize(("rows", "length"), [(3, 5), (4, 4), (2, 4)])
@pytest.mark.parametrize("forward", MOVED)
def test_refused(forward, rows, length, head):
    hyper = hypernetwork(forward, "full" if head == "full" else wl.DeltaHead(2), rows)
    if forward is sorted_rows:
        x = torch.arange(rows, 0.0, -1).reshape(rows, 1, 1) + 0.1 * torch.randn(rows, length, 6)
    else:
        x = torch.randn(rows, length, 6)
    with pytest.raises(UnsupportedModuleError, match=r"row.*hyper\(x, condition\)"):
        hyper.bind(torch.arange(rows))(x)


@pytest.mark.parametrize("forward", RIGHT)
def test_right_with_matrices_and_queries_alone(forward):
    """Biases that are not generated let linear layers take their short way."""
    net = primary(forward)
    hyper = moved(
        wl.HyperNetwork(net, nn.Embedding(4, 8), wl.DeltaHead(2), generate=["*.weight", "queries"])
    )
    x, conditions = torch.randn(4, 4, 6), torch.arange(4)
    with torch.no_grad():
        bound = hyper.bind(conditions)
        first, second = bound(x), bound(x)
    for output in (first, second, hyper.bind(conditions)(x)):
        for i in range(4):
            expected = hyper.materialize(conditions[i])(x[i : i + 1])
            torch.testing.assert_close(output[i : i + 1], expected, rtol=1e-4, atol=1e-4)


def test_rows_with_equal_inputs_and_an_untrained_head_are_checked_too():
    """Equal prompts and a change of zero would hide any mistake; the check uses its own weights."""
    hyper = wl.HyperNetwork(primary(flipped), nn.Embedding(3, 8), wl.DeltaHead(2))
    x = torch.randn(1, 5, 6).expand(3, 5, 6)
    with pytest.raises(UnsupportedModuleError, match="rearranges"):
        hyper.bind(torch.arange(3))(x)


def noisy(self, x):
    return self.b(self.a(x) + 0.1 * torch.randn_like(x))


def test_random_primaries_are_not_checked_and_say_so():
    hyper = hypernetwork(noisy, wl.DeltaHead(2), 3)
    with pytest.warns(UserWarning, match="random numbers even in evaluation mode"):
        hyper.bind(torch.arange(3))(torch.randn(3, 5, 6))


def only_batches(self, x):
    if len(x) < 2:
        raise ValueError("too few rows")
    return self.b(self.a(x))


def test_a_primary_that_takes_no_single_row():
    hyper = hypernetwork(only_batches, wl.DeltaHead(2), 3)
    x = torch.randn(3, 5, 6)
    with pytest.warns(UserWarning, match="a call with one row failed .*too few rows"):
        output = hyper.bind(torch.arange(3))(x)
    for i in range(3):
        expected = hyper.materialize(torch.tensor(i))(x)[i]
        torch.testing.assert_close(output[i], expected, rtol=1e-4, atol=1e-4)


class Stateful(Parts):
    """Counts its calls, keeps what it saw, and has dropout and batch statistics."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.register_buffer("calls", torch.zeros(()))
        self.seen = []

    def forward(self, x):
        self.calls += 1
        self.seen.append(x)
        return F.dropout(self.norm(self.a(x)), 0.5, self.training)


def test_a_check_leaves_no_trace():
    hyper = moved(wl.HyperNetwork(Stateful(), nn.Embedding(3, 8), wl.DeltaHead(2)))
    hyper.train()
    events = []
    hyper.primary.a.register_forward_hook(lambda *_: events.append("hook"))
    before = torch.get_rng_state()
    net = hyper.bind(torch.arange(3))
    net(torch.randn(3, 6))
    assert hyper.primary.calls == 1
    assert len(net.seen) == 1
    assert events == ["hook"]
    assert hyper.primary.norm.num_batches_tracked == 1
    torch.set_rng_state(before)
    again = hyper.bind(torch.arange(3))
    x = torch.randn(3, 6)
    torch.manual_seed(7)
    first = net(x)
    torch.manual_seed(7)
    torch.testing.assert_close(again(x), first)


def test_values_of_generated_parameters_cannot_be_read():
    def by_sign(self, x):
        return self.b(x) if self.a.weight.sum() > 0 else self.a(x)

    def in_place(self, x):
        self.a.weight.mul_(2.0)
        return self.a(x)

    for forward, message in ((by_sign, "reads its values"), (in_place, "changes it in place")):
        hyper = hypernetwork(forward, wl.DeltaHead(2), 3)
        with pytest.raises(UnsupportedModuleError, match=message):
            hyper.bind(torch.arange(3))(torch.randn(3, 5, 6))


def test_results_without_rows():
    def with_penalty(self, x):
        return {"y": self.b(x), "penalty": self.a.weight.square().sum()}

    hyper = hypernetwork(with_penalty, wl.DeltaHead(2), 3)
    with pytest.raises(
        UnsupportedModuleError, match=r"returned the generated parameter 'a.weight'"
    ):
        hyper.bind(torch.arange(3))(torch.randn(3, 5, 6))

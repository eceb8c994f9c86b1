"""Units are found again by what they are on data: operations observed, correlations, matching."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.networks.models import call_of, in_double, make_model
from tests.symmetry.nets import ZOO, Net, mlp
from weightloom.errors import ConfigError
from weightloom.symmetry import align, apply, random_element, read
from weightloom.symmetry.aligning.activations import activation_matching, correlations
from weightloom.symmetry.aligning.batches import DataBatches
from weightloom.symmetry.aligning.observation import Observer
from weightloom.symmetry.group import tensors_of
from weightloom.symmetry.probes import run
from weightloom.symmetry.spec import Element

#: The maps inside attention heads are no permutations, and activation matching leaves them.
PERMUTED = [name for name in ZOO if not read(ZOO[name].make()).attentions]


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def disguised(net, seed):
    """Permuted and, where the activation allows it, with signs; no scales."""
    spec = read(net)
    element = random_element(spec, seeded(seed), (1.0, 1.0))
    return apply(Element(element.permutation, element.factor), net, spec)


def seen(net, inputs):
    """What `Observer` reports in one run: weight -> (places, call, affine, bias)."""
    uses = []
    with torch.no_grad(), Observer(net, uses.append):
        net(inputs)
    return {(use.weight, use.call): use for use in uses}


class Unusual(nn.Module):
    """Weights used without the modules that one would expect."""

    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.randn(6, 3))
        self.second = nn.Parameter(torch.randn(6, 5))  # stored [in, out]
        self.shift = nn.Parameter(torch.randn(5))
        self.third = nn.Parameter(torch.randn(5, 5))

    def forward(self, x):
        x = F.relu(F.linear(x, self.first), inplace=True)
        x = torch.addmm(self.shift, x, self.second)
        return (x @ self.third) @ self.third


def test_operations_are_found_by_their_weights():
    net, x = Unusual(), torch.randn(4, 3)
    uses = seen(net, x)
    assert set(uses) == {("first", 0), ("second", 0), ("third", 0), ("third", 1)}
    hidden = x @ net.first.T
    assert torch.equal(uses["second", 0].values(0), hidden.relu())
    shifted = hidden.relu() @ net.second + net.shift
    assert torch.allclose(uses["second", 0].values(1), shifted, atol=1e-6)
    assert torch.allclose(uses["third", 1].values(0), shifted @ net.third, atol=1e-5)
    assert uses["second", 0].affine
    assert uses["second", 0].bias == "shift"
    assert not uses["third", 0].affine


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv1d(3, 4, 2), (5, 3, 7)),
        (nn.Conv2d(3, 4, 2), (5, 3, 7, 6)),
        (nn.Conv2d(3, 4, 2), (3, 7, 6)),  # without a batch
        (nn.ConvTranspose2d(3, 4, 2), (5, 3, 7, 6)),
    ],
)
def test_channels_of_convolutions(layer, shape):
    x = torch.randn(shape)
    (use,) = seen(layer, x).values()
    transposed = isinstance(layer, nn.ConvTranspose2d)
    y = layer(x).detach()
    channel = 0 if len(shape) == 3 and isinstance(layer, nn.Conv2d) else 1
    for dim, tensor in ((1, y), (0, x)) if transposed else ((0, y), (1, x)):
        rows = tensor.movedim(channel, 0).flatten(1).T
        assert torch.equal(use.values(dim), rows)


def test_attention_is_one_operation():
    layer = nn.MultiheadAttention(6, 2, batch_first=True).eval()
    x = torch.randn(2, 4, 6)
    uses = []
    with torch.no_grad(), Observer(layer, uses.append):
        out = layer(x, x, x)[0]
    read_, written = uses
    assert (read_.weight, written.weight) == ("in_proj_weight", "out_proj.weight")
    assert torch.equal(read_.values(1).sort(0).values, x.reshape(-1, 6).sort(0).values)
    assert torch.equal(written.values(0).sort(0).values, out.reshape(-1, 6).sort(0).values)


def test_correlations_are_those_of_numpy_however_the_data_are_cut():
    a, b = (Net(lambda: mlp("tanh", 3, 6, 5, 2), (3,)).make(seed=seed) for seed in (0, 1))
    spec, x = read(a), torch.randn(90, 3, generator=seeded(0), dtype=torch.float64) + 5
    whole = correlations([a], b, spec, DataBatches(x), "")
    parts = correlations([a], b, spec, DataBatches([x[:7], x[7:40], x[40:]]), "")
    for name, layer, after in (("0", 1, 2), ("2", 3, 4)):
        for table, cut in ((whole.written, layer), (whole.read, after)):
            values = [net[:cut](x).detach().numpy() for net in (a, b)]
            size = values[0].shape[1]
            wanted = np.corrcoef(*values, rowvar=False)[:size, size:]
            assert np.allclose(table[name].numpy(), wanted, atol=1e-10)
        # Two roundings of sums of 90 terms.
        assert torch.allclose(whole.written[name], parts.written[name], atol=1e-12)
    assert whole.unseen(spec) == ()


def test_constant_units_are_correlated_with_nothing():
    a = mlp("relu", 3, 4, 2)
    with torch.no_grad():
        a[0].weight[2] = 0
    table = correlations([a], a, read(a), DataBatches(torch.randn(20, 3)), "")
    assert table.written["0"][2].abs().max() == 0
    assert torch.allclose(table.written["0"].diagonal(), torch.tensor([1.0, 1, 0, 1]).double())


@pytest.mark.parametrize("name", PERMUTED)
def test_known_permutations_are_recovered(name):
    net = ZOO[name].make()
    twin, spec = disguised(net, 2), read(net)
    data = ZOO[name].inputs(64)
    table = correlations([net], twin, spec, DataBatches(data), "")
    assert table.unseen(spec) == ()
    back = tensors_of(apply(activation_matching(spec, table), twin, spec))
    for key, tensor in tensors_of(net).items():
        assert torch.allclose(back[key], tensor, atol=1e-12), key


@settings(max_examples=25, deadline=None)
@given(
    widths=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    activation=st.sampled_from(["relu", "tanh", "sigmoid", "gelu", "sine", "bump"]),
    seed=st.integers(0, 1000),
)
def test_any_network_keeps_its_function_and_comes_back(widths, activation, seed):
    net = Net(lambda: mlp(activation, 3, *widths, 2), (3,)).make(seed=seed)
    twin, x = disguised(net, seed), torch.randn(50, 3, generator=seeded(seed)).double()
    result = align(net, twin, x, method="activations")
    assert result.distance_after <= result.distance_before + 1e-12
    assert torch.allclose(result.module(x), twin(x), atol=1e-9)
    hidden = net[:-1](x)
    if (hidden.std(0) > 1e-3).all() and len(widths) == 1:
        assert result.distance_after < 1e-9 * (1 + result.distance_before)


@pytest.mark.parametrize("name", ["attention", "encoder", "encoder-norm-first"])
def test_attention_keeps_its_function(name):
    net, other = ZOO[name].make(), ZOO[name].make(seed=7)
    x = ZOO[name].inputs(16)
    result = align(net, other, x, method="activations")
    assert torch.allclose(run(result.module, x), run(other, x), atol=1e-9)


def test_heads_are_permuted_back():
    """Heads are matched by weights after the units around them."""
    net = ZOO["encoder"].make()
    spec = read(net)
    element = random_element(spec, seeded(4), (1.0, 1.0))
    twin = apply(Element(element.permutation, element.factor), net, spec)
    result = align(net, twin, ZOO["encoder"].inputs(32), method="activations")
    assert result.distance_before > 1
    assert result.distance_after < 1e-9


class Hidden(nn.Module):
    """A weight that no known operation uses: its units cannot be seen."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.inner(x).relu())


def test_units_that_were_not_seen_are_aligned_by_weights(monkeypatch):
    from weightloom.symmetry.aligning import observation

    net = Hidden().double()
    twin = disguised(net, 1)
    monkeypatch.setattr(observation, "_OPERATIONS", {})
    result = align(net, twin, torch.randn(20, 3), method="activations")
    assert result.unseen == ("inner",)
    assert result.distance_after < 1e-9


# -- data ----------------------------------------------------------------------------------------
def loader(x, y):
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16)


X, Y = torch.randn(40, 3, generator=seeded(5)), torch.arange(40)
DATA = {
    "tensor": X,
    "pair": (X, Y),
    "list": [X[:16], X[16:32], X[32:]],
    "pairs": [(X[:16], Y[:16]), [X[16:], Y[16:]]],
    "dict": {"x": X, "label": Y},
    "dicts": [{"x": X[:20]}, {"x": X[20:]}],
    "loader": loader(X, Y),
    "double": X.double(),
}


@pytest.mark.parametrize("kind", DATA)
def test_data_in_every_form_give_the_same_alignment(kind, capsys):
    torch.manual_seed(0)
    net = Hidden()
    twin = disguised(net, 3)
    result = align(net, twin, DATA[kind], method="activations", progress=kind == "loader")
    assert result.distance_after < 1e-5
    assert ("matching" in capsys.readouterr().err) == (kind == "loader")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (iter([X]), "an iterator, which can be read once only"),
        ([], "data has no batches"),
        (X[:0], r"data has shape \[0, 3\]; rows of inputs"),
        (3, "data is a int; wanted are a tensor"),
        ([3], "a batch is a int; wanted are a tensor"),
        (torch.utils.data.TensorDataset(X, Y), "gives single samples; pass batches"),
    ],
)
def test_what_is_not_data_is_refused(data, message):
    net = Hidden()
    with pytest.raises(ConfigError, match=message):
        align(net, Hidden(), data)


def test_modes_and_gradients_are_left_as_they_were():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 1))
    other = copy.deepcopy(net).eval()
    net.train()
    align(net, other, X, method="activations")
    assert net.training
    assert net[2].training
    assert not other.training
    assert torch.is_grad_enabled()


def test_different_steps_for_the_same_batch_are_refused():
    class Once(Hidden):
        times = 1

        def forward(self, x):
            for _ in range(self.times):
                hidden = self.inner(x)
            return self.head(hidden.relu())

    net, other = Once(), Once()
    other.times = 2
    spec = read(net)
    with pytest.raises(ValueError, match=r"use 'inner.weight' a different number of times"):
        correlations([net], other, spec, DataBatches(X), "")


@pytest.mark.parametrize("name", ["convnext", "bert", "llama"])
def test_transformers_come_back(name):
    """Streams, heads, rotary embeddings and norms: nothing here knows the architecture."""
    net = make_model(name)
    with in_double():
        call, spec = call_of(net), read(net)
        element = Element(random_element(spec, seeded(1)).permutation)
        twin = apply(element, net, spec)
        table = correlations([net], twin, spec, DataBatches(call), "")
        assert table.unseen(spec) == ()
        result = align(net, twin, call, method="activations", repair=False)
    assert result.method in ("activations", "refined activations")
    assert result.distance_before > 1
    assert result.distance_after < 1e-9

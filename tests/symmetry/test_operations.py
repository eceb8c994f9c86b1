"""Symmetries that are read from operations, on small models of Hugging Face and by hand.

The proof is the same everywhere: a random element leaves the outputs as they are, and changes every
tensor that has a symmetry; a symmetry that is slightly wrong does not.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.networks.models import MODELS, call_of, in_double, make_model
from tests.symmetry.blocks import BLOCKS
from weightloom.networks import operations_of
from weightloom.symmetry import (
    Element,
    Kind,
    apply,
    compose,
    invert,
    random_element,
    random_equivalent,
    read,
)
from weightloom.symmetry.group import tensors_of
from weightloom.symmetry.reading.labels.result import read_operations

#: Tensors without a symmetry: biases of outputs; weights of single channels that BatchNorm follows;
#: what runs through the scan of a state space model or indexes all heads of a model.
STILL = {
    "resnet": ["classifier.1.bias"],
    "resnet, bottleneck": ["classifier.1.bias"],
    "convnext": ["classifier.bias"],
    "vit": ["classifier.bias"],
    "vit, eager": ["classifier.bias"],
    "bert": ["cls.predictions.bias"],
    "t5": ["relative_attention_bias"],
    "t5, gated": ["relative_attention_bias"],
    "mamba": ["A_log", ".D", "conv1d", "x_proj", "dt_proj"],
}


def deviation(a, b, call):
    with torch.no_grad():
        first, second = a(**call)[0], b(**call)[0]
    return float((first - second).abs().max() / first.abs().max())


@pytest.fixture(params=MODELS)
def name(request):
    return request.param


@pytest.fixture
def case(name):
    """A model, a call of it, and its symmetries; casts to float32 inside become float64."""
    net = make_model(name)
    with in_double():
        call = call_of(net)
        yield net, call, read(net)


def test_a_random_element_changes_the_weights_and_not_the_outputs(name, case):
    net, call, spec = case
    before, after = tensors_of(net), {}
    for seed in range(3):
        twin = apply(random_element(spec, torch.Generator().manual_seed(seed)), net, spec)
        assert deviation(net, twin, call) < 1e-10
        for key, tensor in tensors_of(twin).items():
            after[key] = after.get(key, False) or not torch.equal(tensor, before[key])
    kept = [key for key, changed in after.items() if not changed and before[key].numel() > 1]
    known = STILL.get(name, [])
    weights = [k for k in kept if before[k].is_floating_point() and "inv_freq" not in k]
    assert [key for key in weights if not any(part in key for part in known)] == []


def test_elements_form_a_group(case):
    net, _, spec = case
    first, second = (random_element(spec, torch.Generator().manual_seed(s)) for s in (1, 2))
    both = apply(compose(second, first), net, spec)
    twice = apply(second, apply(first, net, spec), spec)
    for key, tensor in tensors_of(both).items():
        torch.testing.assert_close(tensor, tensors_of(twice)[key], rtol=1e-9, atol=1e-11)
    back = apply(invert(first), apply(first, net, spec), spec)
    for key, tensor in tensors_of(back).items():
        torch.testing.assert_close(tensor, tensors_of(net)[key], rtol=1e-9, atol=1e-11)


def test_a_tensor_that_is_left_behind_changes_the_outputs(case):
    """Each axis is needed: moving all tensors but one changes the function."""
    net, call, spec = case
    element = random_element(spec, torch.Generator().manual_seed(5))
    twin = apply(element, net, spec)
    matrices = [a.tensor for a in spec.axes if tensors_of(net)[a.tensor].dim() > 1]
    for key in (matrices[0], matrices[len(matrices) // 2], matrices[-1]):
        wrong = apply(element, net, spec)
        with torch.no_grad():
            dict(wrong.named_parameters())[key].copy_(tensors_of(net)[key])
        assert deviation(net, wrong, call) > 1e-4, key
    assert deviation(net, twin, call) < 1e-10


WITH_HEADS = ["vit", "bert", "gpt2", "llama", "t5"]


@pytest.mark.parametrize("model", WITH_HEADS)
def test_maps_of_heads_are_read_exactly(model):
    """The maps alone leave the outputs as they are; another map of the keys does not."""
    net = make_model(model)
    with in_double():
        call, spec = call_of(net), read(net)
        element = random_element(spec, torch.Generator().manual_seed(0))
        maps = Element(maps=element.maps)
        assert deviation(net, apply(maps, net, spec), call) < 1e-10
        for attention in spec.attentions:
            half = apply(
                Element(maps={attention.query_map: maps.maps[attention.query_map]}), net, spec
            )
            keys = tensors_of(half)
            with torch.no_grad():
                keys[attention.key.weight].copy_(tensors_of(net)[attention.key.weight])
            assert deviation(net, half, call) > 1e-6


def test_rotary_embeddings_leave_only_maps_that_commute_with_them():
    net = make_model("llama")
    with in_double():
        call, spec = call_of(net), read(net)
        assert [a.rotary for a in spec.attentions] == ["half", "half"]
        free = replace(spec, attentions=tuple(replace(a, rotary=None) for a in spec.attentions))
        wrong = random_element(free, torch.Generator().manual_seed(0))
        assert deviation(net, apply(wrong, net, free), call) > 1e-3
        with pytest.raises(Exception, match="must commute with the rotary embedding"):
            apply(Element(maps=wrong.maps), net, spec)


def test_groups_of_heads_stay_together():
    net = make_model("llama")
    with in_double():
        call, spec = call_of(net), read(net)
        assert [(a.heads, a.kv_heads) for a in spec.attentions] == [(4, 2), (4, 2)]
        space = spec.attentions[0].head_space
        for order in ([1, 0, 2, 3], [2, 3, 0, 1], [3, 2, 0, 1]):
            twin = apply(Element({space: torch.tensor(order)}), net, spec)
            assert deviation(net, twin, call) < 1e-12
        with pytest.raises(Exception, match="must keep the 2 groups of 2 heads together"):
            apply(Element({space: torch.tensor([0, 2, 1, 3])}), net, spec)


@pytest.mark.parametrize("key", BLOCKS)
@torch.no_grad()
def test_blocks_as_people_write_them(key):
    case = BLOCKS[key]
    net, inputs = case.make(), case.inputs()
    spec = read_operations(operations_of(net, inputs))
    counts = len(spec.spaces), len(spec.attentions), len(spec.gains)
    assert counts == (case.spaces, case.attentions, case.gains)
    for seed in range(2):
        twin = apply(random_element(spec, torch.Generator().manual_seed(seed)), net, spec)
        torch.testing.assert_close(twin(*inputs), net(*inputs), rtol=1e-10, atol=1e-11)


# -- by hand -------------------------------------------------------------------------------------
class Attention(nn.Module):
    """Self-attention with something done to queries, keys or values on the way."""

    def __init__(self, inside=lambda x: x, where="q", split="view", heads=2, stored="fused"):
        super().__init__()
        self.heads, self.inside, self.where, self.split = heads, inside, where, split
        self.inner = nn.Linear(3, 8)
        if stored == "fused":
            self.qkv = nn.Linear(8, 24)
        else:
            self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
        self.out, self.mix = nn.Linear(8, 8), nn.Parameter(torch.randn(heads, heads))
        self.gain, self.last = nn.Parameter(torch.rand(4) + 0.5), nn.Linear(8, 2)

    def parts(self, x):
        if not hasattr(self, "qkv"):
            parts = self.q(x), self.k(x), self.v(x)
        elif self.split == "chunk":
            parts = self.qkv(x).chunk(3, -1)
        else:
            b, t, _ = x.shape
            parts = self.qkv(x).view(b, t, 3, -1).unbind(2)
        b, t, _ = x.shape
        return [p.reshape(b, t, self.heads, -1).transpose(1, 2) for p in parts]

    def forward(self, x):
        x = self.inner(x)
        q, k, v = (
            self.inside(self, part) if name in self.where else part
            for name, part in zip("qkv", self.parts(x), strict=True)
        )
        scores = (q @ k.transpose(-2, -1) * 0.5).softmax(-1)
        x = (scores @ v).transpose(1, 2).reshape(x.shape)
        return self.last(torch.tanh(self.out(x)))


def mixed(net, x):
    return torch.einsum("bhtd,hg->bgtd", x, net.mix)


def mixed_by_matmul(net, x):
    return (x.transpose(1, 3) @ net.mix).transpose(1, 3)


INSIDE = {
    "nothing": (lambda net, x: x, "q", 1),
    "a scalar": (lambda net, x: -0.3 * x, "qk", 1),
    "tanh": (lambda net, x: torch.tanh(x), "q", 0),
    "a gain": (lambda net, x: x * net.gain, "q", 0),
    "a norm": (lambda net, x: F.layer_norm(x, (4,)), "qk", 0),
    "a bias of all entries": (lambda net, x: x + 1.0, "q", 0),
    "a constant": (lambda net, x: x * torch.arange(1.0, 5.0, dtype=x.dtype), "q", 0),
    "heads mixed": (mixed, "q", 0),
    "heads mixed by a product": (mixed_by_matmul, "q", 0),
    "heads mixed in the values": (mixed_by_matmul, "v", 0),
    "the next head": (lambda net, x: x + x.roll(1, 1), "q", 0),
    "the mean of all heads": (lambda net, x: x + x.mean(1, keepdim=True), "k", 0),
    "entries reversed": (lambda net, x: x.flip(-1), "q", 0),
    "softmax over heads": (lambda net, x: x.softmax(1), "q", 0),
    "a norm of all entries": (lambda net, x: x / (x.norm(dim=-1, keepdim=True) + 1), "v", 0),
    "the sum of all entries": (lambda net, x: x + x.sum(-1, keepdim=True), "v", 0),
    "the largest entry": (lambda net, x: x - x.amax(-1, keepdim=True), "q", 0),
    "a sum over positions": (lambda net, x: x.cumsum(2), "v", 0),
}


@pytest.mark.parametrize("stored", ["fused", "separate"])
@pytest.mark.parametrize("split", ["view", "chunk"])
@pytest.mark.parametrize("key", INSIDE)
@torch.no_grad()
def test_heads_are_free_only_if_nothing_looks_inside(key, split, stored):
    inside, where, attentions = INSIDE[key]
    torch.manual_seed(0)
    net = Attention(inside, where, split, stored=stored).double()
    x = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(1)).double()
    spec = read_operations(operations_of(net, x))
    assert len(spec.attentions) <= attentions or key == "a sum over positions"
    assert len(spec.attentions) >= attentions
    for seed in range(2):
        element = random_element(spec, torch.Generator().manual_seed(seed))
        torch.testing.assert_close(apply(element, net, spec)(x), net(x), rtol=1e-10, atol=1e-11)


@torch.no_grad()
def test_what_is_read_from_the_output_of_attention_counts():
    """A norm of the values, outside of the attention, leaves no map of them."""

    class Normed(Attention):
        def forward(self, x):
            x = self.inner(x)
            q, k, v = self.parts(x)
            y = ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).reshape(x.shape)
            return self.last(y / (y.norm(dim=-1, keepdim=True) + 1))

    torch.manual_seed(0)
    net, x = Normed().double(), torch.randn(2, 5, 3).double()
    spec = read_operations(operations_of(net, x))
    assert spec.attentions == ()
    element = random_element(spec, torch.Generator().manual_seed(0))
    torch.testing.assert_close(apply(element, net, spec)(x), net(x), rtol=1e-10, atol=1e-11)


class Block(nn.Module):
    """A function of the outputs of three layers, and a layer that reads it."""

    def __init__(self, function, width=6, out=6):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, width) for _ in range(3))
        self.gain, self.shift = nn.Parameter(torch.randn(width)), nn.Parameter(torch.randn(width))
        self.last, self.function = nn.Linear(out, 3), function

    def forward(self, x):
        return self.last(self.function(self, self.a(x), self.b(x), self.c(x)))


FUNCTIONS = {
    "SwiGLU": (lambda net, a, b, c: F.silu(a) * b, {"a": Kind.FREE, "c": None}),
    "ReGLU": (lambda net, a, b, c: F.relu(a) * b, {"a": Kind.FREE}),
    "a product of two": (lambda net, a, b, c: a * b, {"a": Kind.FREE}),
    "a square": (lambda net, a, b, c: a * a, {"a": Kind.PERMUTE}),
    "a quotient": (lambda net, a, b, c: a / (1 + b * b), {"a": Kind.FREE}),
    "divided by itself": (lambda net, a, b, c: b / (2 + a.tanh()), {"a": Kind.FREE}),
    "ReLU of a sum": (lambda net, a, b, c: F.relu(a + b), {"a": Kind.SCALE}),
    "leaky slope": (lambda net, a, b, c: F.leaky_relu(a, 0.2) - c, {"a": Kind.SCALE}),
    "a sum after tanh": (lambda net, a, b, c: torch.tanh(a) + b, {"a": Kind.SIGN}),
    "a number added": (lambda net, a, b, c: a + 1.0, {"a": Kind.PERMUTE}),
    "a number times": (lambda net, a, b, c: 3.0 * a, {"a": Kind.FREE}),
    "a shift": (lambda net, a, b, c: F.relu(a + net.shift), {"a": Kind.SCALE}),
    "a gain": (lambda net, a, b, c: F.relu(a) * net.gain, {}),
    "a gain used twice": (lambda net, a, b, c: a * net.gain + (b * net.gain).tanh(), {}),
    "a gain and a sum with what it multiplies": (
        lambda net, a, b, c: a * net.gain + a, {"a": Kind.FREE},
    ),
    "a gain of a gain": (lambda net, a, b, c: (a * net.gain) * net.shift, {}),
    "a gain on both": (lambda net, a, b, c: (a * net.gain).tanh() * (b * net.gain), {}),
    "a norm by hand": (
        lambda net, a, b, c: a * torch.rsqrt(a.pow(2).mean(-1, keepdim=True) + 1e-5) * net.gain,
        {"a": Kind.PERMUTE},
    ),
    "a mask of units": (
        lambda net, a, b, c: a * torch.tensor([1.0, 0, 1, 1, 0, 1], dtype=a.dtype), {"a": None},
    ),
    "a maximum of two": (lambda net, a, b, c: torch.maximum(a, b), {"a": Kind.PERMUTE}),
    "where": (lambda net, a, b, c: torch.where(a > 0, a, b), {"a": Kind.PERMUTE}),
    "clamped": (lambda net, a, b, c: a.clamp(-1, 1), {"a": Kind.SIGN}),
    "the largest unit": (lambda net, a, b, c: a - a.amax(-1, keepdim=True), {"a": Kind.PERMUTE}),
    "normalised": (lambda net, a, b, c: F.normalize(a, dim=-1), {"a": Kind.PERMUTE}),
    "reversed": (lambda net, a, b, c: a + a.flip(-1), {"a": None}),
    "halves swapped": (lambda net, a, b, c: torch.cat(a.chunk(2, -1)[::-1], -1), {"a": None}),
    "halves added to whole": (
        lambda net, a, b, c: torch.cat([a[:, :3] + b[:, 3:], c[:, :3]], -1), {"a": None},
    ),
    "picked": (lambda net, a, b, c: a[:, [5, 4, 3, 2, 1, 0]], {"a": None}),
    "one unit": (lambda net, a, b, c: a * b[:, :1], {"b": None}),
    "sorted": (lambda net, a, b, c: a.sort(-1).values, {"a": None}),
    "an outer product": (
        lambda net, a, b, c: (a[:, :, None] * b[:, None, :]).mean(2), {"a": Kind.FREE},
    ),
    "a transposed square": (
        lambda net, a, b, c: (lambda m: (m + m.mT).mean(2))(a[:, :, None] * b[:, None]),
        {"a": Kind.PERMUTE},
    ),
    "in rows": (lambda net, a, b, c: a.view(-1, 2, 3).transpose(1, 2).reshape(-1, 6), {"a": None}),
    "softmax": (lambda net, a, b, c: a.softmax(-1) * b, {"a": Kind.FREE}),
}  # fmt: skip


@pytest.mark.parametrize("key", FUNCTIONS)
@torch.no_grad()
def test_functions_of_units(key):
    """What is claimed is true for any function; and what is known to hold is claimed."""
    function, kinds = FUNCTIONS[key]
    torch.manual_seed(0)
    net = Block(function).double()
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(1)).double()
    spec = read_operations(operations_of(net, x))
    for space, kind in kinds.items():
        assert spec.spaces[space].kind is kind if kind else space not in spec.spaces
    for seed in range(3):
        element = random_element(spec, torch.Generator().manual_seed(seed))
        torch.testing.assert_close(apply(element, net, spec)(x), net(x), rtol=1e-9, atol=1e-10)


def test_gains_move_into_the_next_layers():
    net = nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.Linear(5, 2)).double()
    x = torch.randn(4, 3).double()
    spec = read_operations(operations_of(net))
    (gain,) = spec.gains
    assert {(axis.tensor, axis.side) for axis in gain.axes} == {
        ("1.weight", "out"), ("1.bias", "out"), ("2.weight", "in"),
    }  # fmt: skip
    factor = torch.tensor([2.0, -1.0, 0.5, 3.0, 1.0]).double()
    twin = apply(Element(factor={gain.name: factor}), net, spec)
    torch.testing.assert_close(twin[1].weight, net[1].weight * factor)
    torch.testing.assert_close(twin(x), net(x), rtol=1e-12, atol=1e-12)


def test_an_example_can_be_given():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.last = nn.Linear(3, 6), nn.Linear(4, 6), nn.Linear(6, 2)

        def forward(self, x, y, scale=None):
            hidden = torch.relu(self.a(x) + self.b(y))
            return self.last(hidden if scale is None else scale * hidden)

    net = Two().double()
    inputs = {"x": torch.randn(2, 3).double(), "y": torch.randn(2, 4).double()}
    assert read(net, inputs).spaces["a"].kind is Kind.SCALE
    twin = random_equivalent(net, torch.Generator().manual_seed(0), inputs=inputs)
    torch.testing.assert_close(twin(**inputs), net(**inputs), rtol=1e-12, atol=1e-12)
    assert not torch.equal(twin.a.weight, net.a.weight)

"""Attention: what the maps of heads leave unchanged, and what has no effect at all."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from tests.symmetry.nets import ZOO, SelfAttention
from weightloom.errors import ShapeError, UnsupportedModuleError
from weightloom.symmetry.group import (
    apply,
    head_invariants,
    query_key,
    random_element,
    tensors_of,
    value_output,
)
from weightloom.symmetry.reading.reader import read
from weightloom.symmetry.spec import Element


@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(0)


NET = ZOO["attention"]


def maps(spec, seed=0):
    """A random element that touches the inside of attention only."""
    element = random_element(spec, torch.Generator().manual_seed(seed))
    (attention,) = spec.attentions
    return Element(
        {attention.head_space: element.permutation[attention.head_space]}, {}, element.maps
    )


@pytest.mark.parametrize("name", ["attention", "attention-no-bias", "encoder"])
def test_the_products_of_a_head_are_invariant(name):
    net = ZOO[name].make()
    spec = read(net)
    (attention,) = spec.attentions
    element = maps(spec)
    twin = apply(element, net)
    order = element.permutation[attention.head_space]
    for product in (query_key, value_output):
        before, after = product(tensors_of(net), attention), product(tensors_of(twin), attention)
        assert float((before - after).abs().max()) > 1e-3 or torch.equal(
            order, torch.arange(attention.heads)
        )
        torch.testing.assert_close(after, before[order], rtol=1e-11, atol=1e-12)
    for given, other in zip(tensors_of(net).items(), tensors_of(twin).items(), strict=True):
        if "in_proj" in given[0]:
            assert not torch.allclose(given[1], other[1])


def test_the_scores_are_the_bilinear_form():
    """Independently: scores and outputs of each head, as nn.MultiheadAttention has them."""
    net = ZOO["attention"].make()
    (attention,) = read(net).attentions
    x = net.inner(NET.inputs(2))  # [2, 4, 6]
    _, weights = net.attention(x, x, x, average_attn_weights=False)  # [2, heads, 4, 4]
    ones = torch.cat((x, torch.ones_like(x[..., :1])), -1)
    scores = torch.einsum("nie,hef,njf->nhij", ones, query_key(tensors_of(net), attention), ones)
    torch.testing.assert_close(torch.softmax(scores / attention.head_dim**0.5, -1), weights)
    seen = torch.einsum("nhij,njf->nhif", weights, ones)
    out = torch.einsum("nhif,hef->nie", seen, value_output(tensors_of(net), attention))
    wanted = net.attention(x, x, x)[0]
    torch.testing.assert_close(out + net.attention.out_proj.bias, wanted)


def test_every_order_of_heads_is_the_same_function():
    net, x = NET.make(), NET.inputs()
    (attention,) = read(net).attentions
    for order in itertools.permutations(range(attention.heads)):
        twin = apply(Element({attention.head_space: torch.tensor(order)}), net)
        torch.testing.assert_close(twin(x), net(x), rtol=1e-12, atol=1e-13)


def test_a_permutation_of_heads_alone_is_exact():
    net = NET.make(torch.float32)
    (attention,) = read(net).attentions
    order = torch.tensor([2, 0, 1])
    twin = apply(Element({attention.head_space: order}), net)
    blocks = net.attention.in_proj_weight.reshape(3, 3, 2, 6)[:, order].reshape(18, 6)
    assert torch.equal(twin.attention.in_proj_weight, blocks)


def test_the_key_bias_has_no_effect():
    net, x = NET.make(), NET.inputs()
    (attention,) = read(net).attentions
    wanted, counted = net(x), head_invariants(tensors_of(net), attention)
    with torch.no_grad():
        net.attention.in_proj_bias[6:12].add_(3.0)  # the keys
    torch.testing.assert_close(net(x), wanted, rtol=1e-11, atol=1e-12)
    again = head_invariants(tensors_of(net), attention)
    assert all(torch.equal(a, b) for a, b in zip(counted, again, strict=True))
    with torch.no_grad():
        net.attention.in_proj_bias[:6].add_(3.0)  # the queries
    assert not torch.allclose(net(x), wanted, rtol=1e-3)


def test_a_wrong_map_is_refused():
    net = NET.make()
    with pytest.raises(ShapeError, match=r"maps 'attention.query' have shape \[3, 2, 3\], not"):
        apply(Element(maps={"attention.query": torch.ones(3, 2, 3).double()}), net)


class Cross(SelfAttention):
    def forward(self, x):
        return self.attention(self.inner(x), x, x)[0]


def test_only_self_attention_is_read():
    with pytest.raises(
        UnsupportedModuleError, match=r"'attention' \(MultiheadAttention\).*only se"
    ):
        read(Cross())
    net = SelfAttention()
    net.attention = nn.MultiheadAttention(6, 3, kdim=4)
    with pytest.raises(UnsupportedModuleError, match="kdim and vdim are not supported"):
        read(net)

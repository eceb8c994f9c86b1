"""Attention: what the maps of heads leave alone, and what does not count at all."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from tests.symmetry.nets import ZOO, SelfAttention
from weightloom.errors import ShapeError, UnsupportedModuleError
from weightloom.symmetry.attention import query_key, value_output, weights_that_count
from weightloom.symmetry.group import apply, random_element, tensors_of
from weightloom.symmetry.read import read
from weightloom.symmetry.spec import Element


@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(0)


NET = ZOO["attention"]


def maps(spec, seed=0):
    """A random element that touches the inside of attention only."""
    element = random_element(spec, torch.Generator().manual_seed(seed))
    (one,) = spec.attentions
    return Element({one.head_space: element.permutation[one.head_space]}, {}, element.maps)


@pytest.mark.parametrize("name", ["attention", "attention-no-bias", "encoder"])
def test_the_products_of_a_head_are_invariant(name):
    net = ZOO[name].make()
    spec = read(net)
    (one,) = spec.attentions
    element = maps(spec)
    twin = apply(element, net)
    order = element.permutation[one.head_space]
    for product in (query_key, value_output):
        before, after = product(tensors_of(net), one), product(tensors_of(twin), one)
        assert float((before - after).abs().max()) > 1e-3 or torch.equal(
            order, torch.arange(one.heads)
        )
        torch.testing.assert_close(after, before[order], rtol=1e-11, atol=1e-12)
    for given, other in zip(tensors_of(net).items(), tensors_of(twin).items(), strict=True):
        if "in_proj" in given[0]:
            assert not torch.allclose(given[1], other[1])


def test_the_scores_are_the_bilinear_form():
    """An independent road: scores and outputs of each head, as nn.MultiheadAttention has them."""
    net = ZOO["attention"].make()
    (one,) = read(net).attentions
    x = net.inner(NET.inputs(2))  # [2, 4, 6]
    _, weights = net.attention(x, x, x, average_attn_weights=False)  # [2, heads, 4, 4]
    ones = torch.cat((x, torch.ones_like(x[..., :1])), -1)
    scores = torch.einsum("nie,hef,njf->nhij", ones, query_key(tensors_of(net), one), ones)
    torch.testing.assert_close(torch.softmax(scores / one.head_dim**0.5, -1), weights)
    seen = torch.einsum("nhij,njf->nhif", weights, ones)
    out = torch.einsum("nhif,hef->nie", seen, value_output(tensors_of(net), one))
    wanted = net.attention(x, x, x)[0]
    torch.testing.assert_close(out + net.attention.out_proj.bias, wanted)


def test_every_order_of_heads_is_the_same_function():
    net, x = NET.make(), NET.inputs()
    (one,) = read(net).attentions
    for order in itertools.permutations(range(one.heads)):
        twin = apply(Element({one.head_space: torch.tensor(order)}), net)
        torch.testing.assert_close(twin(x), net(x), rtol=1e-12, atol=1e-13)


def test_an_exchange_of_heads_alone_moves_bits():
    net = NET.make(torch.float32)
    (one,) = read(net).attentions
    order = torch.tensor([2, 0, 1])
    twin = apply(Element({one.head_space: order}), net)
    blocks = net.attention.in_proj_weight.reshape(3, 3, 2, 6)[:, order].reshape(18, 6)
    assert torch.equal(twin.attention.in_proj_weight, blocks)


def test_what_softmax_forgets_does_not_count():
    net, x = NET.make(), NET.inputs()
    (one,) = read(net).attentions
    wanted, counted = net(x), weights_that_count(tensors_of(net), one)
    with torch.no_grad():
        net.attention.in_proj_bias[6:12].add_(3.0)  # the keys
    torch.testing.assert_close(net(x), wanted, rtol=1e-11, atol=1e-12)
    again = weights_that_count(tensors_of(net), one)
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
    with pytest.raises(UnsupportedModuleError, match="kdim and vdim are not known"):
        read(net)

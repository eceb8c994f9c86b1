"""Encoders alone: how they are called, what is read from their layers, Features."""

from collections import UserDict
from typing import NamedTuple

import pytest
import torch
from torch import nn

import weightloom as wl
from tests.oracle import close
from weightloom.errors import ShapeError
from weightloom.hyper.encoders import (
    ConditionDims,
    condition_dims,
    encode,
    feature_statistics,
    is_frozen,
)


class Two(nn.Module):
    """Takes two tensors, by position or by keyword, and remembers how."""

    def __init__(self):
        super().__init__()
        self.from_a, self.from_b = nn.Linear(3, 4), nn.Linear(5, 4)
        self.calls = []

    def forward(self, a, b=None, **more):
        self.calls.append((a.shape, None if b is None else b.shape, sorted(more)))
        return self.from_a(a) if b is None else self.from_a(a) + self.from_b(b).mean(1)


A, B = torch.randn(2, 3), torch.randn(2, 6, 5)


@pytest.mark.parametrize("tree", [
    {"a": A, "b": B}, {"b": B, "a": A}, UserDict(a=A, b=B), (A, B), [A, B],
], ids=["dict", "other order", "user dict", "tuple", "list"])  # fmt: skip
def test_a_tree_is_passed_by_keyword_or_by_position(tree):
    encoder = Two()
    features, single = encode(encoder, tree, None)
    assert not single
    assert torch.equal(features, encoder(A, B))


def test_none_in_a_tree_is_passed_on():
    encoder = Two()
    features, _ = encode(encoder, {"a": A, "b": None}, None)
    assert torch.equal(features, encoder(A))


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class Nested(nn.Module):
    def forward(self, pair, extra):
        return torch.cat([pair.left, pair.right, extra["deep"][0]], 1)


@pytest.mark.parametrize("dims", [ConditionDims(None, 1), ConditionDims(None, {"pair": (1, 1)})])
def test_nested_trees_keep_their_structure(dims):
    def tree(rows):
        return {
            "pair": Pair(A[rows], B[rows, 0]),
            "extra": {"deep": [B[rows, 1]]},
        }

    batch, single = encode(Nested(), tree(slice(None)), dims)
    assert batch.shape == (2, 13)
    assert not single
    second, single = encode(Nested(), tree(1), dims)
    assert single
    assert torch.equal(second, batch[1:])


@pytest.mark.parametrize("given", [{"a": 1, "b": 2}, {"b": 2}, {"a": 1}, 1])
def test_a_single_tree_is_recognised_by_given_dims(given):
    encoder, dims = Two(), ConditionDims(None, given)
    batch, single = encode(encoder, {"a": A, "b": B}, dims)
    assert not single
    second, single = encode(encoder, {"a": A[1], "b": B[1]}, dims)
    assert single
    close(second, batch[1:])


def test_where_dims_are_not_given_a_tree_is_a_batch():
    """Which layer takes the first tensor cannot be read; the first layer need not be it."""
    assert condition_dims(Two()) == 1
    features, single = encode(Two(), (torch.randn(2, 3),), ConditionDims(5))
    assert features.shape == (2, 4)
    assert not single


@pytest.mark.parametrize(("tree", "dims", "message"), [
    ({"a": A, "b": B[:1]}, None, r"condition\['a'\] has 2 rows, condition\['b'\] has 1; all"),
    ((A, torch.tensor(3)), None, r"condition\[1\] has no rows.*condition_dims="),
    ({}, None, r"condition is \{\}, which holds no tensor"),
    ({"a": [[1, 2], [3]]}, None, r"condition\['a'\]\[0\]\[0\] is 1, not a tensor.*return_tensors="),
    (["a text"], None, r"condition\[0\] is 'a text', not a tensor"),
    ({"a": A, "b": B[0]}, {"a": 1, "b": 2},
     r"condition\['a'\] \(2, 3\) is a batch, condition\['b'\] \(6, 5\) is a single"),
    ({"a": A[None, None]}, {"a": 1}, r"'a'\] has shape \(1, 1, 2, 3\).*1 dimension here"),
    ((A, B), {"a": 1}, r"condition_dims=\{'a': 1\} describes a dict.*condition is a tuple"),
    ({"a": A}, {"wrong": 1}, r"condition_dims=.*'wrong'.*none of.*'a'"),
    ({"a": A}, (1,), r"condition_dims=\(1,\) describes a tuple.*condition is a dict"),
])  # fmt: skip
def test_trees_that_do_not_fit(tree, dims, message):
    with pytest.raises(ShapeError, match=f"(?s){message}"):
        encode(Two(), tree, ConditionDims(None, dims))


def test_a_tree_needs_an_encoder():
    with pytest.raises(ShapeError, match=r"no encoder.*one tensor \[b, k\].*encoder="):
        encode(nn.Identity(), {"a": A}, ConditionDims(1))


class Returns(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, a):
        return self.make(a)


def test_more_than_a_tensor_is_refused_and_the_wrapper_is_shown():
    encoder = Returns(lambda a: (a[:, None], a))
    message = (
        r"encoder \(Returns\) returned a tuple of \(2, 1, 3\) and \(2, 3\).*one tensor \[b, k\]"
        r".*class Encoder\(nn.Module\):.*def forward\(self, condition\).*self.model\(condition\)"
    )
    with pytest.raises(ShapeError, match=f"(?s){message}"):
        encode(encoder, A, 1)
    with pytest.raises(ShapeError, match=r"(?s)def forward\(self, \*\*condition\)"):
        encode(encoder, {"a": A}, None)
    with pytest.raises(ShapeError, match=r"(?s)def forward\(self, \*condition\)"):
        encode(encoder, (A,), None)
    with pytest.raises(ShapeError, match="returned a list of 3 items"):
        encode(Returns(lambda a: [1, 2, 3]), A, 1)


def test_the_wrapper_in_the_message_works():
    model = Returns(lambda a: (a[:, None], a))
    with pytest.raises(ShapeError) as caught:
        encode(model, {"a": A}, None)
    code = "\n".join(line for line in str(caught.value).splitlines() if line.startswith("    "))
    names = {"nn": nn, "pool": lambda output: output[1]}
    exec("if True:\n" + code, names)
    features, _ = encode(names["Encoder"](model), {"a": A}, None)
    assert torch.equal(features, A)


def test_rows_that_the_encoder_loses():
    with pytest.raises(ShapeError, match=r"returned features of 1 row for a condition of 2 rows"):
        encode(Returns(lambda a: a.mean(0, keepdim=True)), {"a": A}, None)
    with pytest.raises(ShapeError, match=r"features of shape \(2, 1, 3\).*'a': \(2, 3\)"):
        encode(Returns(lambda a: a[:, None]), {"a": A}, None)


# -- what is read from the layers -----------------------------------------------------------------


class Text(nn.Module):
    """A text encoder with a forward of its own: its first layer is an Embedding of tokens."""

    def __init__(self, words=11, width=4):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.drop = nn.Dropout(0.5)
        self.out = nn.Linear(width, width)

    def forward(self, ids, mask=None):
        rows = self.drop(self.out(self.words(ids)))
        mask = torch.ones_like(ids) if mask is None else mask
        return (rows * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)


@pytest.mark.parametrize(("encoder", "dims"), [
    (nn.Embedding(5, 6), 0),
    (nn.Sequential(nn.Embedding(5, 6)), 0),
    (nn.Sequential(nn.Embedding(5, 6), nn.Sequential(nn.Linear(6, 6), nn.Tanh()), nn.Dropout()), 0),
    (nn.Sequential(nn.Embedding(5, 6), nn.LayerNorm(6), nn.Identity()), 0),
    (nn.Sequential(nn.Embedding(5, 6), Mean()), None),
    (nn.Sequential(nn.Embedding(5, 6), nn.Flatten(), nn.Linear(12, 6)), None),
    (nn.Sequential(nn.Embedding(5, 6), nn.TransformerEncoderLayer(6, 1), Mean()), None),
    (Text(), None),
    (nn.Sequential(Text(), nn.Linear(4, 4)), None),
    (wl.SetEncoder(nn.Embedding(5, 6)), 1),
    (wl.mlp([3, 4]), 1),
    (nn.Conv2d(1, 2, 3), 3),
])  # fmt: skip
def test_only_plain_tables_take_task_ids(encoder, dims):
    assert condition_dims(encoder) == dims


def test_statistics_of_task_ids_are_those_of_all_ids():
    encoder = nn.Sequential(nn.Embedding(7, 20), nn.Linear(20, 6))
    known = feature_statistics(encoder, ConditionDims(0), None)
    assert known.source == "measured on all of its ids"
    want = encoder(torch.arange(7)).square().mean().item()
    assert known.moment == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize(
    "encoder", [Text(), nn.Sequential(nn.Embedding(5, 6), nn.TransformerEncoderLayer(6, 1), Mean())]
)
def test_text_encoders_are_not_fed_all_ids(encoder):
    called = []
    encoder.register_forward_hook(lambda *_: called.append(1))
    known = feature_statistics(encoder, ConditionDims(condition_dims(encoder)), None)
    assert "assumed" in known.source
    assert not called


def test_statistics_measured_on_a_tree():
    encoder = Text().eval()
    tree = {"ids": torch.arange(8).view(2, 4), "mask": torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])}
    known = feature_statistics(encoder, ConditionDims(None), tree)
    assert known.source == "measured on calibration"
    assert known.moment == pytest.approx(encoder(**tree).square().mean().item(), rel=1e-5)


def test_statistics_leave_every_mode_as_it_was():
    encoder = nn.Sequential(Text(), nn.Dropout(), nn.Linear(4, 4))
    encoder[0].drop.eval()
    before = [module.training for module in encoder.modules()]
    assert len(set(before)) == 2
    feature_statistics(encoder, ConditionDims(None), torch.arange(8).view(2, 4))
    assert [module.training for module in encoder.modules()] == before


def test_frozen():
    encoder = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    assert not is_frozen(encoder)
    encoder[0].requires_grad_(False)
    assert is_frozen(encoder[0])
    assert not is_frozen(encoder)
    assert is_frozen(encoder.requires_grad_(False))
    assert not is_frozen(nn.Dropout())  # there is nothing to freeze


# -- Features -------------------------------------------------------------------------------------


def test_features_are_indexed_like_a_batch():
    values = torch.randn(4, 3)
    features = wl.Features(values)
    assert len(features) == 4
    assert not features.single
    third = features[2]
    assert third.single
    assert torch.equal(third.values, values[2:3])
    assert torch.equal(features[-1].values, values[3:])
    assert torch.equal(features[torch.tensor(1)].values, values[1:2])
    for index in (slice(1, 3), torch.tensor([3, 0, 0]), torch.tensor([True, False, True, False])):
        assert torch.equal(features[index].values, values[index])
        assert not features[index].single
    assert not features[1:2].single
    with pytest.raises(IndexError):
        features[4]
    assert len(list(features)) == 4


def test_features_are_moved_detached_and_joined():
    values = torch.randn(4, 3, requires_grad=True)
    features = wl.Features(values)
    assert features.to(torch.float64).values.dtype == torch.float64
    assert features[0].to("cpu").single
    assert not features.detach().values.requires_grad
    joined = wl.Features.cat([features[2], features[:2]])
    assert torch.equal(joined.values, values[[2, 0, 1]])
    assert not joined.single
    assert not wl.Features.cat([features[2]]).single


def test_features_that_cannot_be():
    with pytest.raises(ShapeError, match=r"shape \(3,\).*\[b, k\]"):
        wl.Features(torch.randn(3))
    with pytest.raises(ShapeError, match="single=True was given with 2 rows"):
        wl.Features(torch.randn(2, 3), single=True)
    with pytest.raises(ShapeError, match="no features were given"):
        wl.Features.cat([])
    with pytest.raises(ShapeError, match="widths 3 and 4"):
        wl.Features.cat([wl.Features(torch.randn(1, 3)), wl.Features(torch.randn(1, 4))])
    with pytest.raises(ShapeError, match=r"condition\[0\] is Features.*hyper\.encode"):
        encode(Two(), [wl.Features(torch.randn(1, 3))], None)

"""Generated tensors in every layout and order against one einsum."""

import pytest
import torch

import weightloom.hyper.heads.full as full
from tests.oracle import close, gradients
from weightloom.hyper import FullHead, mlp
from weightloom.hyper.rows import Expanded, Factored, LinearCall, Written
from weightloom.hyper.rows.rules import Rules
from weightloom.networks import WeightSpec


@pytest.mark.parametrize("points", [1, 3])
@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("bias", ["none", "shared", "rows"])
def test_expanded(points, offset, bias):
    b, k, out, inner = 4, 5, 6, 9
    features = torch.randn(b, k, dtype=torch.float64, requires_grad=True)
    table = torch.randn(out, k, inner, dtype=torch.float64, requires_grad=True)
    given = torch.randn(out, inner, dtype=torch.float64, requires_grad=True)
    x = torch.randn(b, points, inner, dtype=torch.float64, requires_grad=True)
    shape = {"none": None, "shared": (out,), "rows": (b, out)}[bias]
    shift = None if shape is None else torch.randn(shape, dtype=torch.float64, requires_grad=True)
    inputs = [features, table, x] + [given] * offset + [shift] * (shift is not None)

    def value():
        return Expanded(features, table, given if offset else None)

    def plain():
        weight = torch.einsum("bk,oki->boi", features, table) + (given if offset else 0.0)
        y = torch.einsum("bni,boi->bno", x, weight)
        return weight, y if shift is None else y + shift.reshape(-1, 1, out)

    close(value().dense(), plain()[0])
    wanted = gradients(plain()[1], inputs)
    for order in ("write", "contract"):
        got = value().linear(x, shift, order)
        close(got, plain()[1])
        for a, c in zip(gradients(got, inputs), wanted, strict=True):
            close(a, c, 10)
        if points > 1:
            continue
        rows = value().row(x.squeeze(1), shift, order)
        close(rows, plain()[1].squeeze(1))
        for a, c in zip(gradients(rows, inputs), wanted, strict=True):
            close(a, c, 10)
        with torch.no_grad():  # may write over its own intermediate results, over nothing else
            close(value().row(x.squeeze(1), shift, order), rows)
            close(value().row(x.squeeze(1), shift, order), rows)
    base = torch.randn(out, inner, dtype=torch.float64)
    close(value().shifted(base).dense(), plain()[0] - (given if offset else 0.0) + base)
    assert set(value().orders(LinearCall(b, points, True, True))) == {"write", "contract"}


def test_others_can_be_shifted_too():
    base, tensor = torch.randn(6, 9).double(), torch.randn(4, 6, 9).double()
    close(Written(tensor).shifted(base).dense(), tensor + base)
    left, right = torch.randn(4, 6, 2).double(), torch.randn(4, 2, 9).double()
    factored = Factored(left, right, None, (6, 9))
    close(factored.shifted(base).dense(), left @ right + base)


@pytest.mark.parametrize("few", [0, 100])
def test_both_ways_to_write_the_joint_table(few, monkeypatch):
    """A few conditions and a large table: the product is turned round. Same values, gradients."""
    monkeypatch.setattr(full, "FEW_CONDITIONS", few)
    monkeypatch.setattr(full, "LARGE_TABLE", 1)
    primary = mlp([3, 4, 2]).double()
    head = FullHead()
    head.build(WeightSpec.from_module(primary), 6, dict(primary.named_parameters()))
    features = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    got = head.generate(features)["0.weight"].dense()
    want = torch.einsum("bk,koi->boi", features, head.table("0.weight")) + head.offset("0.weight")
    close(got, want)
    assert got[0].is_contiguous()
    inputs = [features, head.joint, head.joint_offset]
    for a, c in zip(gradients(got, inputs), gradients(want, inputs), strict=True):
        close(a, c, 10)


def test_rows_without_gradients_inside_a_transform():
    table = torch.randn(6, 5, 9, dtype=torch.float64)
    offset = torch.randn(6, 9, dtype=torch.float64)
    x = torch.randn(4, 9, dtype=torch.float64)
    features = torch.randn(3, 4, 5, dtype=torch.float64)  # more dimensions than x: not in place

    def row(phi):
        return Expanded(phi, table, offset).row(x, None, "contract")

    with torch.no_grad():
        got = torch.vmap(row)(features)
        close(got, torch.stack([row(phi) for phi in features]))


def test_inside_vmap_an_order_is_priced_as_training():
    """There no tensor says that it requires a gradient, and stacks of models are trained there."""
    features = torch.randn(3, 4, 5, requires_grad=True)
    table, offset = torch.randn(6, 5, 9), torch.randn(6, 9)
    priced = []

    def order(phi):
        decisions = []
        rules = Rules({}, decisions=decisions)
        rules._order("0.weight", Expanded(phi, table, offset), 4, 1, False)
        priced.append(decisions[0].costs["contract"])
        return phi

    torch.vmap(order)(features)
    order(features[0])
    order(features[0].detach())
    inside, training, inference = priced
    assert inside == training > inference

"""The order of contraction: chosen from shapes, explained, and never changing the result."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import weightloom as wl
from tests.hyper.zoo import make
from tests.oracle import close, gradients, loop
from weightloom.hyper.rows import Expanded, LinearCall


def chosen(k, inner, out, points, input_grad, training=True, conditions=200):
    table = torch.empty(out, k, inner, device="meta")
    value = Expanded(torch.empty(conditions, k, device="meta"), table, None)
    costs = value.orders(LinearCall(conditions, points, input_grad, training))
    return min(costs, key=costs.get)


def test_contracting_pays_for_one_input_and_few_features():
    assert chosen(k=100, inner=1000, out=10, points=1, input_grad=False) == "contract"
    assert chosen(k=100, inner=1000, out=10, points=1, input_grad=True) == "contract"


def test_contracting_does_not_pay_for_many_features_or_inputs():
    assert chosen(k=1000, inner=10, out=10, points=1, input_grad=True) == "write"
    assert chosen(k=100, inner=1000, out=10, points=50, input_grad=False) == "write"
    assert chosen(k=256, inner=64, out=64, points=1024, input_grad=True) == "write"


@given(
    k=st.integers(1, 512),
    inner=st.integers(1, 512),
    out=st.integers(1, 64),
    points=st.integers(1, 64),
    grad=st.booleans(),
)
def test_more_inputs_never_make_contracting_cheaper(k, inner, out, points, grad):
    if chosen(k, inner, out, points, grad) == "write":
        assert chosen(k, inner, out, points + 1, grad) == "write"


def test_the_plan_describes_the_computation(monkeypatch):
    """Contracting never writes the weights of that layer; writing does."""
    written = []
    original = Expanded._write

    def spy(self):
        written.append(self.shape)
        return original(self)

    monkeypatch.setattr(Expanded, "_write", spy)
    for name, shape in [("mlp one point", (12, 40)), ("custom forward", (12, 40))]:
        hyper, x, condition = make(name)
        assert "contract" in hyper.plan(x, condition).orders.values()
        written.clear()
        hyper(x, condition).sum().backward()
        assert shape not in written
        hyper.order = "write"
        hyper(x, condition)
        assert shape in written


def test_plan_explains():
    hyper, x, condition = make("mlp one point")
    text = str(hyper.plan(x, condition))
    assert "3 conditions" in text
    assert "the weights are never written" in text
    assert "write " in text
    assert "contract " in text
    hyper.order = "write"
    assert "was asked for" in str(hyper.plan(x, condition))
    low, x, condition = make("mlp one point", head=wl.LowRankHead(1))
    assert low.plan(x, condition).orders["0"] == "factor"


def test_plan_names_every_layer_once():
    """Orders that change within one run of layers: written, contracted, written."""
    hyper = wl.HyperNetwork(wl.mlp([3, 400, 2, 2]), None, features=5)
    plan = hyper.plan(torch.randn(4, 3), torch.randn(4, 5))
    assert [d.layer for d in plan.decisions] == ["0", "2", "4"]
    assert [d.order for d in plan.decisions] == ["write", "contract", "write"]


def test_plan_knows_inference_from_training():
    hyper, x, condition = make("mlp one point")
    assert "training" in str(hyper.plan(x, condition))
    with torch.no_grad():
        assert "inference" in str(hyper.plan(x, condition))


def test_plan_changes_nothing():
    hyper, x, condition = make("batch norm")
    hyper.train()
    state = {name: value.clone() for name, value in hyper.state_dict().items()}
    random = torch.random.get_rng_state()
    hyper.plan(x, condition)
    assert hyper.training
    assert all(module.training for module in hyper.modules())
    assert all(torch.equal(value, state[name]) for name, value in hyper.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), random)


def test_plan_of_one_condition():
    hyper, x, condition = make("mlp")
    assert "nothing to choose" in str(hyper.plan(x[0], condition[0]))


@pytest.mark.parametrize("head", ["full", wl.LowRankHead(2), wl.DeltaHead(), wl.DeltaHead(2)])
@pytest.mark.parametrize("points", [(), (3,), (2, 2)])
def test_every_order_against_the_plain_loop(head, points):
    hyper = wl.HyperNetwork(wl.mlp([40, 20, 20, 2], "tanh"), wl.mlp([4, 6], "tanh"),
                            copy_of(head)).double()  # fmt: skip
    for parameter in hyper.head.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    x = torch.randn(5, *points, 40, dtype=torch.float64, requires_grad=True)
    condition = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    inputs = [x, condition, *(p for p in hyper.parameters() if p.requires_grad)]
    want = loop(hyper, x, condition)
    wanted = gradients(want, inputs)
    for order in ("auto", "write", "contract", "factor"):
        hyper.order = order
        got = hyper(x, condition)
        close(got, want, 10)
        for a, b in zip(gradients(got, inputs), wanted, strict=True):
            close(a, b, 100)


def copy_of(head):
    if isinstance(head, str):
        return head
    return type(head)(head.rank) if isinstance(head, wl.LowRankHead) else wl.DeltaHead(
        getattr(head.change, "rank", None)
    )  # fmt: skip

"""A member that diverges stops, its report says where, and the others go on."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import weightloom as wl
from tests.training.problems import (
    CLOSE,
    assert_same_weights,
    copies,
    hyper,
    member,
    pairs,
    plain,
    points,
)
from weightloom.training import Member, Settings, Split, train


class Poison(nn.Module):
    """Becomes infinite when it has been called so many times with gradients."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after
        self.register_buffer("calls", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        return x / (self.after - self.calls).clamp(min=0)


def poisoned(seed: int, after: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), Poison(after), nn.Linear(5, 1)).double()


@pytest.mark.parametrize("company", [0, 2])
def test_step_and_layer_are_named(company: int) -> None:
    """x / 0 in the sixth call is infinite; it shows in layer 1 first."""
    bad = Member(poisoned(0, after=6), points(0), {"test": points(1)}, name="bad")
    others = [Member(poisoned(s, after=10**6), points(s), {"test": points(1)}) for s in (1, 2)]
    members = [bad, *others[:company]]
    for poisoned_member in members:
        poisoned_member.model[1].after = 10**6
        poisoned_member.model[1].calls.fill_(0.0)
    bad.model[1].calls.fill_(10**6 - 6.0)
    reports = train(members, Settings(epochs=4, batch_size=10))
    assert reports[0].status == "diverged"
    assert reports[0].steps == 5
    message = reports[0].message
    assert message.startswith("step 6: the output of layer '1' (Poison) is not finite (loss at the")
    assert all(math.isnan(value) for value in reports[0].final.values())
    assert reports[0].curves["test"][0] == [4]
    assert [report.status for report in reports[1:]] == ["done"] * company
    assert [report.steps for report in reports[1:]] == [16] * company
    assert torch.isfinite(bad.model[0].weight).all()  # as they were before the step


def test_the_others_go_on_as_in_separate_runs() -> None:
    rates = (0.05, 1e6, 0.02, 1e9)
    members = [member(hyper, pairs, seed, rate) for seed, rate in enumerate(rates)]
    settings = Settings(epochs=6, batch_size=10, optimiser="momentum")
    alone = copies(members)
    reports = train(members, settings)
    assert [report.status for report in reports] == ["done", "diverged", "done", "diverged"]
    for number in (0, 2):
        other = alone[number]
        assert train([other], settings)[0].steps == reports[number].steps == 24
        assert_same_weights(members[number].model, other.model, **CLOSE)
    for number in (1, 3):
        report_alone = train([alone[number]], settings)[0]
        assert (report_alone.status, report_alone.steps) == ("diverged", reports[number].steps)
        assert reports[number].message.split(" (")[0] == report_alone.message.split(" (")[0]
        assert (
            "layer" in report_alone.message
            or "weight" in report_alone.message
            or "overflows" in report_alone.message
        )


class Root(nn.Module):
    """sqrt(w x): finite everywhere, but the gradient at 0 is not."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.ones((), dtype=torch.float64))  # before it, and finite
        self.inner = nn.Linear(6, 1, bias=False).double()
        self.outer = nn.Linear(1, 1).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.first * self.outer(self.inner(x).square().sqrt())


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("company", [0, 1])
def test_a_gradient_that_is_not_finite(clip: float | None, company: int) -> None:
    split = points(0)
    x = split.inputs[0].clone()
    hurt = Split((x,), split.target)
    x[:] = 0.0  # |inner| = 0: the derivative of the root is 0 * infinity
    members = [Member(Root(), hurt), *(Member(Root(), split, seed=1) for _ in range(company))]
    reports = train(members, Settings(epochs=3, batch_size=10, clip_norm=clip))
    assert reports[0].status == "diverged"
    assert "step 1: the gradient of 'inner.weight'" in reports[0].message
    assert reports[0].steps == 0
    if clip is not None:
        assert torch.isfinite(members[0].model.inner.weight).all()
    assert all(report.status == "done" for report in reports[1:])


def test_a_gradient_that_is_not_finite_in_the_last_step() -> None:
    split = Split((torch.zeros(8, 6).double(),), torch.ones(8, 1).double())
    report = train([Member(Root(), split)], Settings(epochs=1, batch_size=8))[0]
    assert report.status == "diverged"
    assert "step 1: the parameter 'inner.weight' is not finite after it" in report.message


@pytest.mark.parametrize(("which", "culprit"), [(0, "input 0 of the model"), (1, "the target")])
def test_data_that_are_not_finite(which: int, culprit: str) -> None:
    split = points(0)
    split.columns[which][7] = float("inf")
    report = train([Member(plain(0), split)], Settings(epochs=1, batch_size=40))[0]
    assert report.message == f"step 1: {culprit} is not finite"
    assert report.curves == {}
    assert report.final == {}


def test_a_loss_that_overflows() -> None:
    split = Split((torch.ones(4, 1),), torch.full((4, 1), 3e25))
    report = train([Member(nn.Linear(1, 1), split)], Settings(epochs=1, batch_size=4))[0]
    assert report.status == "diverged"
    assert report.message.startswith("step 1: the loss overflows: the model's output reaches")


def test_weights_that_were_never_finite() -> None:
    model = hyper(0)
    with torch.no_grad():
        model.head.joint_offset[-1] = float("inf")
    member = Member(model, pairs(0))
    report = train([member], Settings(epochs=1, batch_size=8))[0]
    assert report.message.startswith("step 1: 'head.joint_offset' was not finite before it")


def test_inside_the_hypernetwork() -> None:
    """The encoder is finite, the head's product is not; then the primary's own layer."""
    torch.manual_seed(0)
    model = wl.HyperNetwork(wl.mlp([6, 7, 1]), wl.mlp([5, 4], last_activation=True))
    data = Split(tuple(t.float() for t in pairs(0).inputs), pairs(0).target.float())
    settings = Settings(epochs=1, batch_size=8)
    with torch.no_grad():
        model.head.joint[-1] = 3e38
        model.encoder[0].bias.fill_(10.0)
    report = train([Member(model, data)], settings)[0]
    assert "the head (FullHead), the generated weight '2.bias', is not finite" in report.message
    with torch.no_grad():
        model.head.joint[-1] = 0.0
        model.head.joint[:7] = 0.0
        model.head.joint_offset[:49] = 1e30
        model.head.joint_offset[49:56] = 1e30
    report = train([Member(model, data)], settings)[0]
    assert "the output of layer 'primary.2' (Linear) is not finite" in report.message


def test_paper_setting_that_diverges_is_reported_not_raised() -> None:
    """Default initialisation of a deep head at d = 200 explodes; train() says so and returns."""
    torch.manual_seed(0)
    encoder = wl.mlp([200, 100, 100], last_activation=True)
    model = wl.HyperNetwork(wl.mlp([200, 10, 1]), encoder, init="default")
    x, condition = torch.randn(2, 400, 200)
    data = Split((x, condition), 10 * (x * condition).sum(1, keepdim=True))
    report = train([Member(model, data)], Settings(epochs=3, batch_size=200, learning_rate=1.0))[0]
    assert report.status == "diverged"
    assert report.message.startswith("step ")

"""Linear layers of a stack: the same numbers as plain vmap, gradients in the weights' order."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap

from tests.training.problems import CLOSE, assert_same_weights, copies, hyper, member, pairs
from weightloom.training import Settings, train
from weightloom.training import linear as ordered
from weightloom.training.choices import OBJECTIVES
from weightloom.training.linear import LARGE, OrderedGradients
from weightloom.training.stack import Stacked

S, OUT, IN = 3, 128, 130
assert OUT * IN >= LARGE


def draw(*shape: int) -> Tensor:
    g = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=g, dtype=torch.float64).requires_grad_()


# (rows; over which dimension x, weight and bias are mapped): something is mapped over, and only
# what has rows has a second dimension.
CASES = [
    case
    for case in product([(), (5,), (2, 5)], [0, 1, None], [0, 1, None], [None, 0, "shared"])
    if (case[1], case[2]) != (None, None) or case[3] == 0
    if case[0] or case[1] != 1
]


@pytest.mark.parametrize(("rows", "x", "weight", "bias"), CASES)
def test_values_and_gradients(rows: tuple[int, ...], x: Any, weight: Any, bias: Any) -> None:
    def batched(shape: tuple[int, ...], dim: int | None) -> Tensor:
        return draw(*shape) if dim is None else draw(*shape[:dim], S, *shape[dim:])

    args = [batched((*rows, IN), x), batched((OUT, IN), weight)]
    dims: list[int | None] = [x, weight]
    if bias is not None:
        args.append(batched((OUT,), 0 if bias == 0 else None))
        dims.append(0 if bias == 0 else None)
    mapped = vmap(lambda *given: F.linear(*given), in_dims=tuple(dims))
    want = mapped(*args)
    with OrderedGradients():
        got = mapped(*args)
    torch.testing.assert_close(got, want, **CLOSE)
    noise = torch.randn_like(want)
    ours = torch.autograd.grad((got * noise).sum(), args)
    theirs = torch.autograd.grad((want * noise).sum(), args)
    torch.testing.assert_close(ours, theirs, **CLOSE)


def test_gradients_have_the_strides_of_the_weights() -> None:
    """Otherwise every step copies them, number by number. Plain vmap does not: hence all this."""

    def strides(inside: Any) -> tuple[int, ...]:
        x, weight = draw(S, 5, IN), draw(S, OUT, IN)
        seen: list[Tensor] = []
        weight.register_hook(lambda grad: seen.append(grad))
        with inside:
            vmap(F.linear)(x, weight).sum().backward()
        return seen[0].stride()

    from contextlib import nullcontext

    assert strides(OrderedGradients()) == (OUT * IN, IN, 1)
    assert strides(nullcontext()) != (OUT * IN, IN, 1)


def test_it_is_not_used_where_it_does_not_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(ordered._Linear, "apply", never)
    x, weight = draw(S, 5, IN), draw(S, OUT, IN)
    with OrderedGradients():
        F.linear(x, weight[0])  # no vmap
        vmap(F.linear)(x, weight[:, :9])  # small
        vmap(vmap(F.linear, in_dims=(0, None)))(x, weight)  # two levels
        with pytest.raises(AssertionError):
            vmap(F.linear)(x, weight)


def test_a_stack_uses_it_and_gives_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = ordered._Linear.apply
    monkeypatch.setattr(ordered, "LARGE", 1)
    monkeypatch.setattr("weightloom.training.stack.LARGE", 1)
    monkeypatch.setattr(ordered._Linear, "apply", lambda *args: (calls.append(0), real(*args))[1])
    members = [member(hyper, pairs, seed) for seed in range(3)]
    alone = copies(members)
    settings = Settings(epochs=2, batch_size=12, optimiser="adam")
    train(members, settings)
    assert calls
    for stacked, separate in zip(members, alone, strict=True):
        train([separate], settings)
        assert_same_weights(stacked.model, separate.model, **CLOSE)


def test_second_derivatives() -> None:
    """A model that differentiates inside its forward still trains."""

    class Slope(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(IN, OUT).double()

        def forward(self, x: Tensor) -> Tensor:
            def height(x: Tensor) -> Tensor:
                return torch.tanh(self.layer(x)).sum()

            return vmap(torch.func.grad(height))(x).sum(1, keepdim=True)

    torch.manual_seed(0)
    models = [Slope(), Slope()]
    stack = Stacked.of(models, OBJECTIVES["mse"])
    x = draw(2, 4, IN).detach()
    loss = stack([x, torch.zeros(2, 4, 1).double()], [False, False], 1.0)
    loss.sum().backward()
    for i, model in enumerate(models):
        F.mse_loss(model(x[i]), torch.zeros(4, 1).double()).backward()
        named = dict(zip(stack.names, stack.trained, strict=True))
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(named[name].grad[i], parameter.grad, **CLOSE)

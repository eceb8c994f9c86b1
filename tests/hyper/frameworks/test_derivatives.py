"""Derivatives of both kinds and of second order, against networks that are called one by one."""

import pytest
import torch
from torch.func import functional_call, grad, jacfwd, jacrev, jvp, vjp, vmap

import weightloom as wl
from tests.hyper.frameworks.models import adapted, learned, one_by_one, pairs, sentences, small
from tests.oracle import close, loop


def double(rows=3):
    hyper = small(torch.float64)
    x, condition = pairs(rows, points=1, dtype=torch.float64)
    return hyper, x[:, 0], condition


def change(dtype=torch.float64):
    """A network of which a head writes low-rank changes; the third matrix is left alone."""
    torch.manual_seed(0)
    hyper = wl.HyperNetwork(
        wl.mlp([3, 6, 6, 2], activation="tanh"),
        None,
        wl.DeltaHead(rank=1),
        generate=["0.weight", "2.weight"],
        features=4,
    ).to(dtype)
    with torch.no_grad():
        for parameter in hyper.head.parameters():
            parameter.normal_(std=0.3)
    return hyper


MODELS = {"weights": lambda: small(torch.float64), "changes": change}
WAYS = {
    "bind": lambda hyper, x, condition: hyper.bind(condition)(x),
    "call": lambda hyper, x, condition: hyper(x.unsqueeze(1), condition).squeeze(1),
}
everything = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
models = pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)


def oracle(hyper, x, condition):
    return loop(hyper, x.unsqueeze(1), condition).squeeze(1)


def directions(*tensors):
    generator = torch.Generator().manual_seed(2)
    return tuple(torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in tensors)


@models
@everything
def test_forward_mode(build, way):
    hyper = build()
    _, x, condition = double()
    along = directions(x, condition)
    got = jvp(lambda *given: way(hyper, *given), (x, condition), along)
    want = jvp(lambda *given: oracle(hyper, *given), (x, condition), along)
    close(got[0], want[0])
    close(got[1], want[1])
    assert float(want[1].abs().max()) > 0.01


@models
@everything
def test_reverse_mode_jacobians(build, way):
    hyper = build()
    _, x, condition = double()
    for argument in (0, 1):
        got = jacrev(lambda *given: way(hyper, *given), argument)(x, condition)
        want = jacrev(lambda *given: oracle(hyper, *given), argument)(x, condition)
        close(got, want)
        close(jacfwd(lambda *given: way(hyper, *given), argument)(x, condition), want)
        # Row i depends on its own x and condition, and on no other.
        for i in range(len(x)):
            assert float(got[i, :, (i + 1) % len(x)].abs().max()) == 0
            assert float(got[i, :, i].abs().max()) > 0


@models
@everything
def test_parameters_of_the_hypernetwork(build, way):
    hyper = build()
    _, x, condition = double()
    parameters = {name: p.detach() for name, p in learned(hyper).items()}

    class Caller(torch.nn.Module):
        def __init__(self, function):
            super().__init__()
            self.hyper, self.function = hyper, function

        def forward(self, x, condition):
            return self.function(self.hyper, x, condition)

    def loss(function):
        def of(parameters):
            named = {f"hyper.{name}": p for name, p in parameters.items()}
            return functional_call(Caller(function), named, (x, condition)).square().sum()

        return of

    got, want = grad(loss(way))(parameters), grad(loss(oracle))(parameters)
    for name, value in want.items():
        close(got[name], value)
    along = dict(zip(parameters, directions(*parameters.values()), strict=True))
    close(jvp(loss(way), (parameters,), (along,))[1], jvp(loss(oracle), (parameters,), (along,))[1])


@models
@everything
def test_gradients_of_first_and_second_order(build, way):
    hyper = build()
    _, x, condition = double(2)
    given = (x.requires_grad_(), condition.requires_grad_())
    function = lambda *given: way(hyper, *given)  # noqa: E731
    assert torch.autograd.gradcheck(function, given, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, given)


@everything
def test_hessian_vector_products(way):
    hyper, x, condition = double()
    along = directions(condition)

    def gradient(function):
        return grad(lambda c: function(hyper, x, c).square().sum())

    got = jvp(gradient(way), (condition,), along)[1]
    close(got, jvp(gradient(oracle), (condition,), along)[1])


def test_an_index_is_differentiable():
    hyper, x, condition = double()
    owner = torch.tensor([2, 0, 0, 1, 2, 2])
    points = torch.cat([x, x + 1])
    along = directions(points, condition)

    def bound(points, condition):
        return hyper.bind(condition, index=owner)(points)

    def wanted(points, condition):
        return oracle(hyper, points, condition[owner])

    got, want = (jvp(f, (points, condition), along)[1] for f in (bound, wanted))
    close(got, want)
    mix = directions(want)[0]
    for a, b in zip(*(vjp(f, points, condition)[1](mix) for f in (bound, wanted)), strict=True):
        close(a, b)


def test_vmap_over_batches_of_conditions():
    hyper, x, condition = double()
    several = torch.stack([condition, condition.flip(0), condition + 1])
    got = vmap(lambda c: hyper.bind(c)(x))(several)
    close(got, torch.stack([oracle(hyper, x, c) for c in several]))


def test_transformer():
    """Forward mode through adapters of a Llama, with respect to the head's parameters."""
    hyper, batch = adapted().double().eval(), sentences(3)
    hyper.primary.config._attn_implementation = "eager"  # the fused one has no forward mode
    parameters = {name: p.detach() for name, p in hyper.head.named_parameters()}
    along = dict(zip(parameters, directions(*parameters.values()), strict=True))

    class Logits(torch.nn.Module):
        def __init__(self, oracle):
            super().__init__()
            self.hyper, self.oracle = hyper, oracle

        def forward(self):
            if self.oracle:
                return one_by_one(self.hyper, batch)
            given = {name: batch[name] for name in ("input_ids", "attention_mask")}
            return self.hyper.bind(batch["task"])(**given).logits

    def logits(oracle):
        model = Logits(oracle)
        return lambda p: functional_call(model, {f"hyper.head.{n}": v for n, v in p.items()}, ())

    got, want = (jvp(logits(oracle), (parameters,), (along,)) for oracle in (False, True))
    close(got[0], want[0])
    close(got[1], want[1], 10)
    assert float(want[1].abs().max()) > 0.01

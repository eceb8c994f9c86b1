"""The fused run of linear layers against the same layers one by one."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.oracle import close, gradients
from weightloom.hyper.rows import fused
from weightloom.hyper.rows.fused import WrittenLayer, _FusedChain, chain


@pytest.fixture(autouse=True)
def _fuse_small_ones_too(monkeypatch):
    monkeypatch.setattr(fused, "_SMALL", 0)


def test_small_runs_are_not_fused(monkeypatch):
    layers = build([3, 4, 2], 2, [True, False], [True, True])
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    assert chain(x, layers).grad_fn.name() == "_FusedChainBackward"
    monkeypatch.setattr(fused, "_SMALL", 2**14)
    assert chain(x, layers).grad_fn.name() != "_FusedChainBackward"
    close(chain(x, layers), one_by_one(x, layers))


def build(sizes, b, relus, biases, grad=True):
    layers = []
    for inner, out, relu, bias in zip(sizes[:-1], sizes[1:], relus, biases, strict=True):
        weight = torch.randn(b, out, inner, dtype=torch.float64, requires_grad=grad)
        shift = torch.randn(b, out, dtype=torch.float64, requires_grad=grad) if bias else None
        layers.append(WrittenLayer(weight, shift, relu))
    return layers


def one_by_one(x, layers):
    for weight, bias, relu in layers:
        x = torch.einsum("bni,boi->bno", x, weight)
        x = x if bias is None else x + bias[:, None]
        x = torch.relu(x) if relu else x
    return x


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(1, 12), min_size=2, max_size=5),
    b=st.integers(1, 3),
    n=st.integers(1, 4),
    flags=st.integers(0, 255),
    input_grad=st.booleans(),
)
def test_values_and_gradients(sizes, b, n, flags, input_grad):
    depth = len(sizes) - 1
    relus = [bool(flags >> i & 1) for i in range(depth)]
    biases = [bool(flags >> (4 + i) & 1) for i in range(depth)]
    layers = build(sizes, b, relus, biases)
    x = torch.randn(b, n, sizes[0], dtype=torch.float64, requires_grad=input_grad)
    inputs = [t for layer in layers for t in (layer.weight, layer.bias) if t is not None]
    inputs += [x] if input_grad else []
    got, want = chain(x, layers), one_by_one(x, layers)
    close(got, want)
    for a, c in zip(gradients(got, inputs), gradients(want, inputs), strict=True):
        close(a, c, 10)


def test_second_derivatives():
    layers = build([3, 9, 9, 2], 2, [True, True, False], [True, False, True])
    x = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    tensors = [t for layer in layers for t in (layer.weight, layer.bias) if t is not None]

    def f(x, w0, b0, w1, w2, b2):
        return chain(
            x,
            [WrittenLayer(w0, b0, True), WrittenLayer(w1, None, True), WrittenLayer(w2, b2, False)],
        )

    assert f(x, *tensors).grad_fn.name() == "_FusedChainBackward"
    assert torch.autograd.gradcheck(f, (x, *tensors))
    assert torch.autograd.gradgradcheck(f, (x, *tensors))


def test_gradients_that_come_in_are_left_alone():
    layers = build([3, 4, 2], 2, [True, True], [True, True])
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    out = chain(x, layers)
    grad = torch.randn_like(out)
    before = grad.clone()
    out.backward(grad)
    assert torch.equal(grad, before)


@pytest.mark.parametrize("transform", ["vmap", "jvp", "no_grad", "frozen"])
def test_other_contexts_use_the_ordinary_operations(transform, monkeypatch):
    def forbidden(*_):
        raise AssertionError("the fused function was used")

    monkeypatch.setattr(_FusedChain, "apply", forbidden)
    layers = build([3, 4, 2], 2, [True, False], [True, True], grad=transform != "frozen")
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    want = one_by_one(x, layers)
    if transform == "vmap":
        close(torch.vmap(lambda x: chain(x, layers))(x.expand(3, *x.shape))[1], want)
    elif transform == "jvp":
        got, tangent = torch.func.jvp(lambda x: chain(x, layers), (x,), (torch.ones_like(x),))
        close(got, want)
        close(
            tangent, torch.func.jvp(lambda x: one_by_one(x, layers), (x,), (torch.ones_like(x),))[1]
        )
    elif transform == "no_grad":
        with torch.no_grad():
            close(chain(x, layers), want)
    else:
        close(chain(x, layers), want)

"""Remembered routes: used again while nothing changed, and never after something did."""

import copy
import pickle

import pytest
import torch
from torch import nn

import weightloom as wl
from tests.oracle import close, gradients
from weightloom.hyper.rows import rowwise
from weightloom.hyper.rows.fused import _contracted, contract
from weightloom.hyper.rows.routes import ElementwiseStep, UnwrittenStep, WrittenStep, sequence


def make(primary=None):
    torch.manual_seed(0)
    primary = primary or nn.Sequential(
        nn.Linear(60, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 2)
    )
    return wl.HyperNetwork(primary, nn.Linear(3, 4))


def data(rows=5, points=None):
    torch.manual_seed(1)
    return torch.randn(rows, *([] if points is None else [points]), 60), torch.randn(rows, 3)


def loop(hyper, x, condition):
    return torch.stack([hyper.materialize(c)(row) for row, c in zip(x, condition, strict=True)])


def routes(hyper):
    return list(hyper._rowwise._routes.values())


@pytest.mark.parametrize("points", [None, 1, 7])
def test_the_second_call_takes_the_route_of_the_first(points, monkeypatch):
    hyper, (x, condition) = make(), data(points=points)
    first = hyper(x, condition)
    (route,) = routes(hyper)
    monkeypatch.setattr(rowwise, "sequence", None)  # exploring again would fail
    close(hyper(x, condition), first)
    assert routes(hyper) == [route]
    close(first, loop(hyper, x, condition))


def test_what_a_route_is_made_of():
    hyper, (x, condition) = make(), data()
    with torch.no_grad():
        hyper(x, condition)
    (route,) = routes(hyper)
    assert [type(step) for step in route.steps] == [
        UnwrittenStep,
        WrittenStep,
        ElementwiseStep,
        WrittenStep,
    ]
    assert hyper.plan(x, condition).orders["0"] == route.steps[0].order == "contract"


def test_training_inference_and_shapes_have_their_own():
    hyper, (x, condition) = make(), data()
    hyper(x, condition)
    hyper(x.requires_grad_(), condition)
    with torch.no_grad():
        hyper(x, condition)
    hyper(*data(3))
    hyper(*data(3, 6))
    assert len(routes(hyper)) == 5
    for rows in range(1, 40):
        hyper(*data(rows))
    assert len(routes(hyper)) <= 16


def test_a_replaced_layer_is_seen():
    hyper, (x, condition) = make(), data()
    before = hyper(x, condition)
    hyper.primary[1] = nn.Tanh()
    after = hyper(x, condition)
    assert not torch.allclose(before, after)
    close(after, loop(hyper, x, condition))
    hyper.primary[2][1] = nn.Sigmoid()  # inside a nested container
    close(hyper(x, condition), loop(hyper, x, condition))


@pytest.mark.parametrize("where", ["0", "1", "2", "2.1"])
def test_a_hook_is_called(where):
    hyper, (x, condition) = make(), data()
    plain = hyper(x, condition)
    seen = []
    handle = hyper.primary.get_submodule(where).register_forward_hook(
        lambda module, given, output: seen.append(module)
    )
    close(hyper(x, condition), plain)
    assert seen
    handle.remove()
    count = len(seen)
    close(hyper(x, condition), plain)
    assert len(seen) == count


def test_freezing_the_head_changes_the_choice_as_plan_says():
    """Training or inference decides whether the weights are written; so does freezing."""
    hyper = wl.HyperNetwork(nn.Sequential(nn.Linear(60, 8), nn.ReLU(), nn.Linear(8, 2)), None,
                            features=4)  # fmt: skip
    x, phi = torch.randn(5, 4, 60), torch.randn(5, 4)

    def orders():
        hyper(x, phi)
        taken = {}
        for step in routes(hyper)[-1].steps:
            layers = step.layers if isinstance(step, WrittenStep) else [step.layer]
            order = "write" if isinstance(step, WrittenStep) else step.order
            taken.update({layer.weight.removesuffix(".weight"): order for layer in layers})
        return taken

    assert orders() == dict(hyper.plan(x, phi).orders)
    for parameter in hyper.parameters():
        parameter.requires_grad_(False)
    (old,) = routes(hyper)
    assert not old.holds(hyper.primary, hyper.head.generate(phi))
    assert orders() == dict(hyper.plan(x, phi).orders)


def test_a_forced_order_has_its_own_route():
    hyper, (x, condition) = make(), data()
    results = []
    for order in ("auto", "write", "contract"):
        hyper.order = order
        results += [hyper(x, condition), hyper(x, condition)]
    for result in results:
        close(result, results[0])
    assert len(routes(hyper)) == 3
    assert isinstance(hyper._rowwise._routes[_key_of(hyper, x, "write")].steps[0], WrittenStep)


def _key_of(hyper, x, order):
    (key,) = [key for key in hyper._rowwise._routes if key[3] == order]
    return key


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda h: pickle.loads(pickle.dumps(h))])
def test_copies_begin_without_routes(duplicate):
    hyper, (x, condition) = make(), data()
    expected = hyper(x, condition)
    twin = duplicate(hyper)
    assert routes(twin) == []
    close(twin(x, condition), expected)
    assert all(route is not routes(twin)[0] for route in routes(hyper))


def test_a_memory_that_an_older_version_pickled():
    memory = rowwise.RowwiseCall.__new__(rowwise.RowwiseCall)
    memory.__setstate__({"_slow": {"": "a reason"}, "_routes": {}})
    hyper, (x, condition) = make(), data()
    hyper._rowwise = memory
    close(hyper(x, condition), loop(hyper, x, condition))
    assert len(memory._routes) == 1


def test_inside_vmap_and_out_again():
    hyper, (x, condition) = make(), data(4)
    expected = hyper(x, condition)
    stacked = torch.vmap(hyper)(x.expand(3, 4, 60), condition.expand(3, 4, 3))
    close(stacked, expected.expand(3, 4, 2))
    close(hyper(x, condition), expected)


def test_other_layers_leave_no_route():
    hyper = make(nn.Sequential(nn.Linear(60, 8), nn.LayerNorm(8), nn.Linear(8, 2)))
    x, condition = data()
    close(hyper(x, condition), loop(hyper, x, condition))
    assert routes(hyper) == []


def test_sequence_names_nested_layers():
    names = [prefix for prefix, _ in sequence(make().primary, "")]
    assert names == ["0.", "1.", "2.0.", "2.1.", "3."]


# -- the contraction as one function --------------------------------------------------------------


def tensors(bias, dtype=torch.float64):
    torch.manual_seed(2)
    x, phi = torch.randn(4, 5, dtype=dtype), torch.randn(4, 3, dtype=dtype)
    table, offset = torch.randn(2, 3, 5, dtype=dtype), torch.randn(2, 5, dtype=dtype)
    biases = {"rows": torch.randn(4, 2, dtype=dtype), "one": torch.randn(2, dtype=dtype)}
    given = [x, phi, table, offset, biases.get(bias)]
    return [t if t is None else t.requires_grad_() for t in given]


@pytest.mark.parametrize("bias", ["rows", "one", None])
class TestContract:
    def test_value_is_the_sum_as_written(self, bias):
        x, phi, table, offset, b = given = tensors(bias)
        expected = torch.einsum("bk,oki,bi->bo", phi, table, x) + x @ offset.T
        close(contract(*given), expected if b is None else expected + b)

    def test_gradients_are_those_of_the_plain_operations(self, bias):
        given = tensors(bias)
        wanted = [t for t in given if t is not None]
        actual = gradients(contract(*given).square().sum(), wanted)
        for grad, plain in zip(
            actual, gradients(_contracted(*given).square().sum(), wanted), strict=True
        ):
            close(grad, plain)

    def test_first_and_second_derivatives_by_differences(self, bias):
        given = tensors(bias)
        wanted = [t for t in given if t is not None]

        def run(*args):
            return contract(*args, *([None] * (5 - len(args))))

        assert torch.autograd.gradcheck(run, wanted)
        assert torch.autograd.gradgradcheck(run, wanted)

    def test_only_the_gradients_that_are_needed(self, bias):
        x, phi, table, *_ = given = tensors(bias)
        for skipped in (x, table):
            skipped.requires_grad_(False)
        contract(*given).sum().backward()
        assert x.grad is None
        assert table.grad is None
        close(phi.grad, torch.einsum("oki,bi->bk", table, x))

"""torch.compile, torch.export and ONNX of hypernetworks and of bound networks."""

import pytest
import torch
from torch import nn
from torch.export import Dim

import weightloom as wl
from tests.hyper.frameworks.models import adapted, learned, one_by_one, pairs, sentences, small
from tests.oracle import close, loop

# aot_eager traces and differentiates as inductor does, without minutes of C++.
BACKEND = "aot_eager"


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Binds(nn.Module):
    """Binds and calls in one forward."""

    def __init__(self, hyper):
        super().__init__()
        self.hyper = hyper

    def forward(self, x, condition):
        return self.hyper.bind(condition)(x)


class Tasks(nn.Module):
    def __init__(self, hyper):
        super().__init__()
        self.hyper = hyper

    def forward(self, task, input_ids, attention_mask):
        net = self.hyper.bind(task)
        return net(input_ids=input_ids, attention_mask=attention_mask).logits


def rows_of(rows, seed=1):
    x, condition = pairs(rows, points=1, seed=seed)
    return x[:, 0], condition


def oracle(hyper, x, condition):
    return loop(hyper, x.unsqueeze(1), condition).squeeze(1)


def compare_gradients(hyper, got, want):
    parameters = list(learned(hyper).values())
    grads = (torch.autograd.grad(y.square().mean(), parameters) for y in (got, want))
    for a, b in zip(*grads, strict=True):
        close(a, b, 50)


# -- torch.compile, with nothing called before --------------------------------------------------


def test_compile_binds_inside():
    hyper = small()
    model = torch.compile(Binds(hyper), fullgraph=True, backend=BACKEND)
    for rows in (3, 5):  # the second number of rows compiles once more, with dynamic shapes
        x, condition = rows_of(rows)
        got, want = model(x, condition), oracle(hyper, x, condition)
        close(got, want, 10)
        compare_gradients(hyper, got, want)


def test_compile_a_bound_network():
    hyper = small()
    x, condition = rows_of(3)
    net = torch.compile(hyper.bind(condition), fullgraph=True, backend=BACKEND)
    got, want = net(x), oracle(hyper, x, condition)
    close(got, want, 10)
    compare_gradients(hyper, got, want)
    twice = torch.cat([x, x + 1]).unflatten(0, (2, 3)).transpose(0, 1).flatten(0, 1)
    close(net(twice), oracle(hyper, twice, condition.repeat_interleave(2, 0)), 10)


def test_compile_an_index():
    hyper = small()
    x, condition = rows_of(6)
    owner = torch.tensor([2, 0, 0, 1, 2, 2])
    net = torch.compile(hyper.bind(condition[:3], index=owner), fullgraph=True, backend=BACKEND)
    close(net(x), oracle(hyper, x, condition[owner]), 10)


@pytest.mark.parametrize("single", [False, True])
def test_compile_the_call(single):
    hyper = small()
    x, condition = pairs(3)
    model = torch.compile(hyper, fullgraph=True, backend=BACKEND)
    want = loop(hyper, x, condition)
    if single:
        got, want = model(x[0], condition[0]), want[0]
    else:
        got = model(x, condition)
    close(got, want, 10)
    compare_gradients(hyper, got, want)


def test_compile_a_transformer_that_binds_inside():
    hyper, batch = adapted(layers=1), sentences(3)
    model = torch.compile(Tasks(hyper), fullgraph=True, backend=BACKEND)
    got, want = model(**batch), one_by_one(hyper, batch)
    close(got, want, 10)
    compare_gradients(hyper, got, want)


def test_compile_a_bound_transformer():
    hyper, batch = adapted(layers=1), sentences(3)
    net = torch.compile(hyper.bind(batch["task"]), fullgraph=True, backend=BACKEND)
    got = net(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    want = one_by_one(hyper, batch)
    close(got, want, 10)
    compare_gradients(hyper, got, want)


def test_compile_as_many_words_as_rows():
    """Shapes alone do not tell rows from positions; compiled, no other call can tell either."""
    hyper, batch = adapted(layers=1), sentences(4, length=4)
    model = torch.compile(Tasks(hyper), fullgraph=True, backend="eager")
    with torch.no_grad():
        close(model(**batch), one_by_one(hyper, batch), 10)


@pytest.mark.slow
def test_compile_for_real():
    """Once with the compiler that users have."""
    hyper = small()
    x, condition = rows_of(3)
    with torch.no_grad():
        got = torch.compile(Binds(hyper), fullgraph=True)(x, condition)
        close(got, oracle(hyper, x, condition), 10)


# -- torch.export -------------------------------------------------------------------------------

ROWS = (2, 5, 33, 100)


def test_export_binds_inside_with_dynamic_rows():
    hyper = small()
    rows = Dim("rows", min=2)
    program = torch.export.export(
        Binds(hyper), rows_of(3), dynamic_shapes={"x": {0: rows}, "condition": {0: rows}}
    )
    for number in ROWS:
        given = rows_of(number)
        close(program.module()(*given), oracle(hyper, *given), 10)


def test_export_the_call_with_dynamic_rows_and_points():
    hyper = small()
    rows, points = Dim("rows", min=2), Dim("points", min=2)
    program = torch.export.export(
        hyper,
        (pairs(3)[0],),
        {"condition": pairs(3)[1]},
        dynamic_shapes={"args": ({0: rows, 1: points},), "condition": {0: rows}},
    )
    for number in ROWS:
        x, condition = pairs(number, points=number + 1)
        close(program.module()(x, condition=condition), loop(hyper, x, condition), 10)


def test_export_a_bound_network_with_dynamic_rows():
    """k b rows: the number of conditions is fixed, the number of rows for each is not."""
    hyper = small()
    condition = rows_of(3)[1]
    each = Dim("each", min=2)
    with torch.no_grad():
        net = hyper.bind(condition)
        program = torch.export.export(net, (rows_of(6)[0],), dynamic_shapes=({0: 3 * each},))
    for number in (2, 11, 50):
        x = rows_of(3 * number)[0]
        want = oracle(hyper, x, condition.repeat_interleave(number, 0))
        close(program.module()(x), want.detach(), 10)


def test_export_a_transformer_with_dynamic_rows():
    hyper = adapted(layers=1).eval()
    rows, length = Dim("rows", min=2), Dim("length", min=2, max=32)
    shapes = {
        "task": {0: rows},
        "input_ids": {0: rows, 1: length},
        "attention_mask": {0: rows, 1: length},
    }
    program = torch.export.export(Tasks(hyper), (), sentences(3), dynamic_shapes=shapes)
    for number in ROWS:
        batch = sentences(number, length=4 if number == 5 else 7)
        close(program.module()(**batch), one_by_one(hyper, batch), 10)


# -- ONNX ---------------------------------------------------------------------------------------


def run_onnx(path, *inputs):
    session = pytest.importorskip("onnxruntime").InferenceSession(str(path))
    names = [given.name for given in session.get_inputs()]
    fed = dict(zip(names, (value.numpy() for value in inputs), strict=True))
    return torch.tensor(session.run(None, fed)[0])


@pytest.fixture
def onnx_path(tmp_path):
    pytest.importorskip("onnxscript")
    return tmp_path / "network.onnx"


def test_onnx_of_a_model_that_binds_inside(onnx_path):
    hyper = small()
    wl.export(Binds(hyper), onnx_path, *rows_of(3))
    for number in ROWS:
        given = rows_of(number)
        close(run_onnx(onnx_path, *given), oracle(hyper, *given).detach(), 10)


def test_onnx_of_a_bound_network(onnx_path):
    hyper = small()
    x, condition = rows_of(3)
    wl.export(hyper.bind(condition), onnx_path, x)
    close(run_onnx(onnx_path, x), oracle(hyper, x, condition).detach(), 10)


def test_onnx_of_the_call(onnx_path):
    hyper = small()
    wl.export(hyper, onnx_path, *pairs(3))
    for number in ROWS:
        given = pairs(number)
        close(run_onnx(onnx_path, *given), loop(hyper, *given).detach(), 10)


@pytest.mark.slow
def test_onnx_of_a_transformer(onnx_path):
    hyper = adapted(layers=1).eval()
    wl.export(Tasks(hyper), onnx_path, *sentences(3).values())
    for number in (3, 40):
        batch = sentences(number)
        close(run_onnx(onnx_path, *batch.values()), one_by_one(hyper, batch).detach(), 10)

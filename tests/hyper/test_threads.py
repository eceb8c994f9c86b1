"""One hypernetwork, eight threads: 10,000 calls, all of them right, and nothing left behind."""

import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import weightloom as wl
from tests.hyper.zoo import Custom, Tied
from tests.oracle import close
from weightloom.errors import SlowPathWarning

THREADS = 8
ROWS = 3


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.GRU(4, 5, batch_first=True)

    def forward(self, x):
        return self.inner(x)[0]


def layer():
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)


# builder, shape of x for one condition, how many calls: 10,000 together
MODELS = {
    "sequential": (lambda: wl.mlp([6, 8, 8, 2], "tanh"), (6,), 4000),
    "points": (lambda: nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)), (4, 3), 2000),
    "convolutions": (
        lambda: nn.Sequential(nn.Conv1d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)),
        (2, 2, 6),
        1000,
    ),
    "own module": (Custom, (40,), 800),
    "tied weights": (Tied, (4, 6), 800),
    "transformer": (layer, (2, 5, 8), 800),
    "GRU": (Recurrent, (2, 3, 4), 600),
}


def weighted(output):
    """A loss with a gradient for every output; the plain sum of a normalised row has none."""
    return (output * torch.arange(1.0, output.shape[-1] + 1).to(output)).sum()


def test_the_number_of_calls():
    assert sum(calls for _, _, calls in MODELS.values()) == 10_000


class Requests:
    """Calls of one hypernetwork in every form, and the answers, found one after the other."""

    def __init__(self, build, shape):
        torch.manual_seed(0)
        self.hyper = wl.HyperNetwork(build(), wl.mlp([3, 4], "tanh")).eval()
        self.x = [torch.randn(ROWS, *shape) for _ in range(4)]
        self.condition = [torch.randn(ROWS, 3) for _ in range(4)]
        self.answers = [self.answer(k) for k in range(4)]

    def answer(self, k):
        """Outputs and the gradient with respect to the condition, from materialized networks."""
        condition = self.condition[k].clone().requires_grad_()
        weights = self.hyper.weights(condition)
        outputs = []
        for i in range(ROWS):
            network = self.hyper.materialize(self.condition[k][i])
            row = {name: value[i] for name, value in weights.items()}
            outputs.append(torch.func.functional_call(network, row, (self.x[k][i],)))
        output = torch.stack(outputs)
        (grad,) = torch.autograd.grad(weighted(output), condition)
        return output.detach(), grad

    def check(self, n):
        """The n-th call: batched or single, with or without gradients, or bound."""
        k, form = n % 4, (n // 4) % 6
        want, grad = self.answers[k]
        x, condition = self.x[k], self.condition[k]
        if form == 0:
            with torch.no_grad():
                close(self.hyper(x, condition), want, 10)
        elif form == 1:
            condition = condition.clone().requires_grad_()
            output = self.hyper(x, condition)
            close(output.detach(), want, 10)
            close(torch.autograd.grad(weighted(output), condition)[0], grad, 100)
        elif form == 2:
            with torch.no_grad():
                close(self.hyper(x[n % ROWS], condition[n % ROWS]), want[n % ROWS], 10)
        elif form == 3:
            single = condition[n % ROWS].clone().requires_grad_()
            output = self.hyper(x[n % ROWS], single)
            close(torch.autograd.grad(weighted(output), single)[0], grad[n % ROWS], 100)
        elif form == 4:
            with torch.no_grad():
                close(self.hyper.bind(condition[n % ROWS])(x[n % ROWS]), want[n % ROWS], 10)
        else:  # one batch for the primary: three dimensions are its batch and two more
            batch = (lambda t: t.flatten(0, 1)) if x.dim() == 4 else (lambda t: t)
            with torch.no_grad():
                close(self.hyper.bind(condition)(batch(x)), batch(want), 10)


@pytest.fixture
def switching():
    """Threads that take turns often: a race that needs luck has hundreds of chances."""
    before, fast = sys.getswitchinterval(), torch.backends.mha.get_fastpath_enabled()
    intra = torch.get_num_threads()
    torch.set_num_threads(1)
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)
    torch.set_num_threads(intra)
    assert torch.backends.mha.get_fastpath_enabled() is fast


def in_threads(work, calls):
    """``work(n)`` for n < calls in eight threads that begin together; the first error is raised."""
    gate = threading.Barrier(THREADS)

    def thread(number):
        gate.wait()
        for n in range(number, calls, THREADS):
            work(n)

    with ThreadPoolExecutor(THREADS) as pool:
        for future in [pool.submit(thread, number) for number in range(THREADS)]:
            future.result()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore::weightloom.errors.SlowPathWarning")
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_calls_from_eight_threads(name, switching):
    build, shape, calls = MODELS[name]
    requests = Requests(build, shape)
    hyper = requests.hyper
    state = {
        key: (id(value), value.clone()) for key, value in hyper.state_dict(keep_vars=True).items()
    }
    modules = [(key, id(module), type(module)) for key, module in hyper.named_modules()]
    in_threads(requests.check, calls)
    after = hyper.state_dict(keep_vars=True)
    assert list(after) == list(state)
    for key, (identity, value) in state.items():
        assert id(after[key]) == identity
        assert torch.equal(after[key], value)
    assert [(key, id(module), type(module)) for key, module in hyper.named_modules()] == modules
    assert all(p is None for p in hyper.primary.parameters())
    for module in hyper.primary.modules():
        for leaf in module._parameters:
            assert module._parameters[leaf] is None


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_attention_with_and_without_gradients_side_by_side(switching):
    """Training must not take the fused path of inference, whatever other threads do."""
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(layer(), 2, enable_nested_tensor=False)
    hyper = wl.HyperNetwork(encoder, wl.mlp([3, 4], "tanh")).eval()
    x, condition = torch.randn(ROWS, 2, 5, 8), torch.randn(ROWS, 3)
    given = condition.clone().requires_grad_()
    want = torch.autograd.grad(hyper(x, given).square().sum(), given)[0]
    plain = torch.stack([hyper.materialize(c)(row) for c, row in zip(condition, x, strict=True)])

    def work(n):
        if n % 2:
            given = condition.clone().requires_grad_()
            close(torch.autograd.grad(hyper(x, given).square().sum(), given)[0], want, 100)
        else:
            with torch.no_grad():
                close(hyper(x, condition), plain.detach(), 10)

    in_threads(work, 160)


def test_one_warning_for_all_threads(switching):
    hyper = wl.HyperNetwork(Recurrent(), wl.mlp([3, 4], "tanh"))
    x, condition = torch.randn(ROWS, 2, 3, 4), torch.randn(ROWS, 3)
    with pytest.warns(SlowPathWarning, match="GRU"):
        hyper(x, condition)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        in_threads(lambda n: hyper(x, condition), 80)


def test_routes_that_are_forgotten_while_others_follow_them(switching):
    """More shapes than routes are kept for: one thread clears what the others look up."""
    hyper = wl.HyperNetwork(wl.mlp([3, 4, 1]), wl.mlp([3, 4], "tanh"))
    x, condition = torch.randn(40, 3), torch.randn(40, 3)
    with torch.no_grad():
        want = torch.stack([hyper.materialize(c)(row) for c, row in zip(condition, x, strict=True)])

        def work(n):
            with torch.no_grad():
                rows = 1 + n % 40
                close(hyper(x[:rows], condition[:rows]), want[:rows], 10)

        in_threads(work, 1600)
    assert len(hyper._rowwise._routes) <= 16 + THREADS

"""The Taylor model against explicit Jacobians, finite differences and the network itself."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from weightloom.construct import TaylorModel, linearize
from weightloom.errors import PatternError, ShapeError, UnsupportedModuleError


class Tied(nn.Module):
    """One matrix used twice, under two names."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTM(4, 3, batch_first=True)

    def forward(self, x):
        return self.cell(x)[0]


def conv():
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.GroupNorm(3, 3), nn.SiLU(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(12, 2),
    )  # fmt: skip


CASES = {
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)), (5, 4)),
    "relu": (lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1)), (5, 4)),
    "conv": (conv, (3, 1, 6, 6)),
    "layernorm": (
        lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 2)),
        (5, 4),
    ),
    "tied": (Tied, (5, 4)),
    "batchnorm": (lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh()), (5, 4)),
    "attention": (Attention, (2, 3, 4)),
    "lstm": (Recurrent, (2, 3, 4)),
}


@pytest.fixture(params=CASES)
def case(request):
    torch.manual_seed(0)
    make, shape = CASES[request.param]
    return make().double(), torch.randn(shape, dtype=torch.float64)


def moved(model, size=1.0, seed=1):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for part in model.displacement.values():
            part.copy_(size * torch.randn(part.shape, generator=generator, dtype=part.dtype))
    return model


def plain_jacobian(module, x):
    """[outputs, p] by one backward pass for each output, parameters in `named_parameters` order."""
    rows = []
    for output in module(x).reshape(-1):
        rows.append(torch.autograd.grad(output, list(module.parameters()), retain_graph=True))
    return torch.stack([torch.cat([g.reshape(-1) for g in row]) for row in rows])


def test_starts_as_the_network(case):
    module, x = case
    expected = copy.deepcopy(module)(x)
    assert torch.allclose(linearize(module)(x), expected, atol=1e-14)


def test_equals_the_explicit_jacobian(case):
    """Two other computations of dF: reverse mode by hand, and the model's own `jacobian`."""
    module, x = case
    model = moved(linearize(module))
    jacobian = plain_jacobian(copy.deepcopy(module), x)
    assert torch.allclose(model.jacobian(x), jacobian, atol=1e-12)
    start = copy.deepcopy(module)(x)
    expected = start + (jacobian @ model.flat().detach()).reshape(start.shape)
    assert torch.allclose(model(x), expected, atol=1e-11)


@pytest.mark.parametrize("name", ["mlp", "conv", "layernorm", "tied", "attention"])
def test_equals_finite_differences(name):
    """Central differences of F along w - w0: off by h^2 |F'''| / 6, and by rounding / h."""
    torch.manual_seed(0)
    make, shape = CASES[name]
    module, x = make().double(), torch.randn(shape, dtype=torch.float64)
    model, h = moved(linearize(module)), 1e-4

    def at(t):
        scaled = linearize(module)
        scaled.move_to({n: w + t * (model.weights()[n] - w) for n, w in model.start().items()})
        return scaled.network()(x)

    slope = (at(h) - at(-h)) / (2 * h)
    change = (model(x) - module(x)).detach()
    assert torch.allclose(slope, change, atol=1e-5 * float(change.abs().max()))


def test_error_is_of_second_order():
    module, x = conv().double(), torch.randn(3, 1, 6, 6, dtype=torch.float64)
    errors = []
    for size in (1e-2, 5e-3):
        model = moved(linearize(module), size)
        errors.append(float((model(x) - model.network()(x)).abs().max().detach()))
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.1)


def test_gradient_with_respect_to_the_displacement(case):
    """d/dw of <c, F_0> is J^T c, wherever w is."""
    module, x = case
    model = moved(linearize(module))
    given = model(x)
    c = torch.randn(given.shape, dtype=torch.float64)
    (given * c).sum().backward()
    names = [name.replace(".", "/") for name in model.spec]
    result = torch.cat([model.displacement[name].grad.reshape(-1) for name in names])
    expected = plain_jacobian(copy.deepcopy(module), x).T @ c.reshape(-1)
    assert torch.allclose(result, expected, atol=1e-11)
    assert all(p.grad is None for p in model.module.parameters())


def test_gradient_with_respect_to_x():
    module, x = CASES["mlp"][0]().double(), torch.randn(3, 4, dtype=torch.float64)
    model = moved(linearize(module))
    assert torch.autograd.gradcheck(model, (x.requires_grad_(),))


@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.Adam])
def test_trains_with_ordinary_optimisers(optimiser):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 1)).double()
    x = torch.randn(8, 2, dtype=torch.float64)
    y = x[:, :1].sin()
    model, before = linearize(module), copy.deepcopy(module.state_dict())
    optimise = optimiser(model.parameters(), lr=0.02)
    losses = []
    for _ in range(80):
        optimise.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimise.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 5
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())
    assert all(torch.equal(before[k], v) for k, v in model.module.state_dict().items())
    assert model.distance() > 0


def test_only_some_parameters_move():
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    module[2].bias.requires_grad_(False)
    assert set(linearize(module).spec) == {"0.weight", "0.bias", "2.weight"}
    model = moved(linearize(module, train="0.*"))
    x = torch.randn(5, 4, dtype=torch.float64)
    start = linearize(module, train="0.*").start()
    hidden = torch.tanh(module[0](x))
    move = {n: model.weights()[n] - start[n] for n in start}
    change = (1 - hidden**2) * (x @ move["0.weight"].T + move["0.bias"]) @ module[2].weight.T
    assert torch.allclose(model(x), module(x) + change, atol=1e-12)


def test_copies_and_checkpoints():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1)).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    model = moved(linearize(module))
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.displacement["0/weight"].zero_()
    assert not torch.equal(model(x), other(x))
    other.load_state_dict(model.state_dict())
    assert torch.equal(model(x), other(x))
    assert {"displacement.0/weight", "module.0.weight", "module.1.running_mean"} <= set(
        model.state_dict()
    )


def test_buffers_are_read_and_not_written():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)).double()
    x = torch.randn(50, 4, dtype=torch.float64)
    for _ in range(3):
        module(x)
    model = linearize(module)
    before = {n: b.clone() for n, b in model.module.named_buffers()}
    training = model(x)
    assert all(torch.equal(before[n], b) for n, b in model.module.named_buffers())
    assert torch.allclose(training, module(x))
    assert torch.allclose(model.eval()(x), module.eval()(x)) is False  # module(x) moved its own
    module[1].load_state_dict(model.module[1].state_dict())
    assert torch.allclose(model(x), module(x), atol=1e-12)


def test_errors():
    module = nn.Linear(3, 2)
    with pytest.raises(PatternError, match="'bais' selects no parameter"):
        linearize(module, train="bais")
    with pytest.raises(UnsupportedModuleError, match=r"no parameter of Linear .* requires a grad"):
        TaylorModel(nn.Linear(3, 2).requires_grad_(False))
    with pytest.raises(ShapeError, match=r"missing .*weight"):
        linearize(module).move_to({"bias": torch.zeros(2)})
    stacked = {"weight": torch.zeros(5, 2, 3), "bias": torch.zeros(2)}
    with pytest.raises(ShapeError, match=r"'weight' has shape \(5, 2, 3\), but \(2, 3\) is wanted"):
        linearize(module).move_to(stacked)

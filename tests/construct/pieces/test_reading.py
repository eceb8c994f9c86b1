"""Which layers can be read as affine maps and kinks, and the messages about the others."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.construct.pieces.networks import Step, check_values, mlp, triangle
from weightloom.construct.layers import SparseLinear, dense_layer
from weightloom.construct.pieces import affine_pieces
from weightloom.errors import ConfigError, ShapeError, UnsupportedModuleError

INF = math.inf


def test_convolutions_pooling_and_norms():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.LeakyReLU(0.1)),
        nn.AvgPool2d(2), nn.Conv2d(3, 4, 3), nn.Dropout(0.5), nn.ReLU(),
        nn.Flatten(), nn.Linear(16, 5), nn.Hardtanh(), nn.Identity(), nn.Linear(5, 2),
    )  # fmt: skip
    with torch.no_grad():
        net[0][1].running_mean.normal_()
        net[0][1].running_var.uniform_(0.5, 2)
    net = net.eval().double()
    low, high = torch.randn(2, 1, 8, 8, dtype=torch.float64)
    result = affine_pieces(net, low, high)
    assert result.count > 50
    assert result.points.shape == (result.count + 1, 1, 8, 8)
    b = result.breakpoints
    t = b[:-1] + 0.37 * (b[1:] - b[:-1])
    with torch.no_grad():
        direct = net(torch.lerp(low, high, t[:, None, None, None]))
    assert torch.allclose(result(t), direct, rtol=0, atol=1e-12)
    net1 = nn.Sequential(nn.Conv1d(2, 3, 2), nn.ReLU6(), nn.AvgPool1d(2), nn.Flatten())
    assert affine_pieces(net1, torch.zeros(2, 5), 9 * torch.ones(2, 5)).slopes.shape[1] == 6
    net3 = nn.Sequential(nn.Conv3d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(2, 1))
    assert affine_pieces(net3, -torch.ones(1, 2, 2, 2), torch.ones(1, 2, 2, 2)).count <= 3


def test_jumps():
    """A staircase: 1[x >= 0] + 1[x >= 1/2] + 1[x >= 1], then ReLU on top of steps."""
    first = dense_layer(torch.ones(3, 1), torch.tensor([0.0, -0.5, -1.0]))
    net = nn.Sequential(first, Step(), dense_layer(torch.ones(1, 3), torch.zeros(1)))
    result = affine_pieces(net, -INF, INF)
    assert result.jumps.tolist() == [0.0, 0.5, 1.0]
    assert result.starts.flatten().tolist() == [0.0, 1.0, 2.0, 3.0]
    assert not result.slopes.any()
    deeper = nn.Sequential(
        *net, dense_layer(torch.tensor([[2.0]]), torch.tensor([-2.0])), nn.ReLU()
    )
    result = affine_pieces(deeper, -1, 2)
    assert result.values.flatten().tolist() == [0.0, 2.0, 4.0, 4.0]
    assert result.breakpoints.tolist() == [-1.0, 0.5, 1.0, 2.0]
    shifted = nn.Sequential(nn.Linear(1, 1), nn.Threshold(0.5, -1.0))
    with torch.no_grad():
        shifted[0].weight.fill_(1)
        shifted[0].bias.zero_()
    result = affine_pieces(shifted, 0, 2)
    assert result.jumps.tolist() == [0.5]
    assert result(torch.tensor([0.25, 0.75, 2.0])).flatten().tolist() == [-1.0, 0.75, 2.0]


@settings(max_examples=20)
@given(st.integers(0, 1000))
def test_random_step_networks(seed):
    torch.manual_seed(seed)
    layers = [nn.Linear(1, 6), Step(), nn.Linear(6, 6), Step(), nn.Linear(6, 5), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Linear(5, 1)).double()
    result = affine_pieces(net, -3, 3)
    b = result.breakpoints
    for part in (0.01, 0.99):
        t = b[:-1] + part * (b[1:] - b[:-1])
        check_values(net, result(t), t)
    assert result.count <= 7


def test_a_module_that_stands_in_two_places_counts_twice():
    """One ReLU after two layers is what many people write; Delta o Delta has 4 + 2 pieces."""
    first, second, relu = *(mlp(1, 4, 4, 1)[i].double() for i in (0, 2)), nn.ReLU()
    shared = nn.Sequential(first, relu, second, relu)
    apart = nn.Sequential(first, nn.ReLU(), second, nn.ReLU())
    ends = -math.inf, math.inf
    result = affine_pieces(shared, *ends)
    assert torch.equal(result.breakpoints, affine_pieces(apart, *ends).breakpoints)
    t = torch.linspace(-3, 3, 50, dtype=torch.float64)
    check_values(shared, result(t), t)
    hat = triangle(1)
    assert affine_pieces(nn.Sequential(hat, hat), *ends).count == 6


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (nn.Sequential(nn.Linear(1, 2), nn.Tanh()), r"layer 1 \(Tanh\) is not known to be affine"),
        (nn.Sequential(nn.Sequential(nn.Linear(1, 2), nn.GELU())), r"layer 0.1 \(GELU\)"),
        (nn.Softmax(0), "^Softmax is not known"),
        (nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2)), r"BatchNorm1d\) uses the statistics"),
        (nn.Sequential(nn.Linear(1, 2), nn.Dropout()), r"Dropout\) is in training mode"),
    ],
)
def test_unsupported_layers_are_named(net, message):
    with pytest.raises(UnsupportedModuleError, match=message):
        affine_pieces(net, 0, 1)


class Written(nn.Module):
    """A chain with a forward of its own, functions and methods, and a sparse layer."""

    def __init__(self, last=F.relu6):
        super().__init__()
        matrix = torch.randn(4, 5).to_sparse()
        self.first, self.third, self.last = nn.Linear(1, 5), nn.Linear(4, 2), last
        self.second = SparseLinear(matrix.indices(), matrix.values(), torch.randn(4), 5)

    def forward(self, x):
        x = F.leaky_relu(self.first(x), 0.2)
        x = F.dropout(self.second(x).relu(), 0.5, self.training)
        return self.last(self.third(x))


def test_chains_that_are_not_sequential():
    torch.manual_seed(0)
    net = Written().eval()
    layers = nn.Sequential(
        net.first, nn.LeakyReLU(0.2), net.second, nn.ReLU(), nn.Dropout(), net.third, nn.ReLU6()
    )
    result, wanted = affine_pieces(net, -INF, INF), affine_pieces(layers.eval(), -INF, INF)
    assert result.count == wanted.count > 3
    assert torch.equal(result.breakpoints, wanted.breakpoints)
    assert torch.equal(result.slopes, wanted.slopes)


def test_functions_that_are_not_affine_between_kinks_are_named():
    with pytest.raises(UnsupportedModuleError, match=r"layer tanh \(tanh\) is not known"):
        affine_pieces(Written(torch.tanh).eval(), 0, 1)
    with pytest.raises(UnsupportedModuleError, match=r"layer dropout \(Dropout\) is in training"):
        affine_pieces(Written(), 0, 1)


def test_kinks_are_checked():
    class Bent(nn.Module):
        kinks = (0.0,)

        def forward(self, z):
            return z**2

    with pytest.raises(UnsupportedModuleError, match="Bent is not affine between -4 and 0"):
        affine_pieces(nn.Sequential(nn.Linear(1, 1), Bent()), 0, 1)


def test_bounded_activations_on_the_line():
    net = nn.Sequential(nn.Linear(1, 1), nn.Hardtanh(-0.5, 2.0))
    with torch.no_grad():
        net[0].weight.fill_(1.0)
        net[0].bias.zero_()
    result = affine_pieces(net, -INF, INF)
    assert result.breakpoints.tolist() == [-INF, -0.5, 2.0, INF]
    assert result.slopes.flatten().tolist() == [0.0, 1.0, 0.0]
    assert result.values.flatten().tolist() == [-0.5, -0.5, 2.0, 2.0]


# -- networks that are read from their operations --------------------------------------------------


def require_pieces(net, *shape, reach=3.0):
    """Between breakpoints the pieces are what the network computes, and nothing is missing."""
    generator = torch.Generator().manual_seed(0)
    low, high = reach * torch.randn(2, *shape, generator=generator, dtype=torch.float64)
    high = 0.1 * high - low  # past the origin, where much bends
    result = affine_pieces(net, low, high)
    b = result.breakpoints
    for part in (0.001, 0.4, 0.999):
        t = b[:-1] + part * (b[1:] - b[:-1])
        x = torch.lerp(low, high, t.reshape(-1, *[1] * len(shape)))
        with torch.no_grad():
            direct = net.double()(x).flatten(1)
        assert torch.allclose(
            result(t), direct, rtol=0, atol=1e-11 * (1 + float(direct.abs().max()))
        )
    assert result.count > 1
    return result


class Own(nn.Sequential):
    def forward(self, x):
        return super().forward(x) * 2 - x[:, :1]


class Halved(nn.ReLU):
    def forward(self, x):
        return super().forward(x) / 2


def hooked(where, hook):
    net = mlp(3, 8, 1)
    getattr(net if where is None else net[where], f"register_forward_{hook.__name__}")(hook)
    return net


def hook(module, given, output):
    return 3 * output


def pre_hook(module, given):
    return (given[0].flip(1),)


def replaced():
    net = mlp(3, 8, 1)
    net.forward = lambda x: torch.relu(x.sum(1, keepdim=True))
    return net


CODE = {
    "a Sequential with a forward of its own": lambda: Own(*mlp(3, 8, 1)),
    "one inside another": lambda: nn.Sequential(Own(*mlp(3, 8, 1)), nn.ReLU()),
    "a subclass of ReLU": lambda: mlp(3, 8, 1, activation=Halved),
    "a hook on a layer": lambda: hooked(1, hook),
    "a hook on the network": lambda: hooked(None, hook),
    "a hook before the network": lambda: hooked(None, pre_hook),
    "a hook before a layer": lambda: hooked(2, pre_hook),
    "a replaced forward": replaced,
}


@pytest.mark.parametrize("build", CODE.values(), ids=CODE)
def test_code_of_its_own_is_read(build):
    """All of these were taken for the plain layers, and the pieces were wrong."""
    torch.manual_seed(0)
    require_pieces(build(), 3)


class Residual(nn.Module):
    def __init__(self, width=6, inner=nn.Linear):
        super().__init__()
        self.first, self.second = inner(width, width), inner(width, width)
        self.last = nn.Linear(2 * width, 2)

    def forward(self, x):
        y = x + self.second(F.relu(self.first(x)))
        z = y - torch.relu(self.first(y))
        return self.last(torch.cat([z, x], 1))


class Block(nn.Module):
    """A block of a ResNet with its norms and a shortcut."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += self.shortcut(x)
        return self.relu(y)


def resnet():
    blocks = [Block(2, 3, 1), nn.MaxPool2d(3, 2, 1), Block(3, 4, 2)]
    net = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2)
            nn.init.normal_(layer.weight)
            nn.init.normal_(layer.bias)
    return net.eval()


def test_skip_connections():
    torch.manual_seed(0)
    require_pieces(Residual(), 6)
    require_pieces(resnet(), 2, 8, 8)


def test_a_skip_connection_along_the_whole_line():
    """x + relu(x - 1) - relu(-x): values that are kept are directions at infinity, too."""

    class Skip(nn.Module):
        def forward(self, x):
            return x + F.relu(x - 1.0) - F.relu(-x)

    result = affine_pieces(Skip(), -INF, INF)
    assert result.breakpoints.tolist() == [-INF, 0.0, 1.0, INF]
    assert result.slopes.flatten().tolist() == [2.0, 1.0, 2.0]
    assert result(torch.tensor([-2.0, 0.5, 3.0])).flatten().tolist() == [-4.0, 0.5, 5.0]


def test_jumps_beside_a_skip_connection():
    class Stairs(nn.Module):
        def __init__(self):
            super().__init__()
            self.step = Step()

        def forward(self, x):
            return self.step(x) + F.hardshrink(x, 2.0) + x

    with pytest.raises(UnsupportedModuleError):  # a layer with kinks stands in chains only
        affine_pieces(Stairs(), -3, 3)

    class Shrunk(nn.Module):
        def forward(self, x):
            return F.hardshrink(x, 2.0) + F.relu(x - 1) + x

    result = affine_pieces(Shrunk(), -3, 3)
    assert result.jumps.tolist() == [-2.0, 2.0]
    assert result.breakpoints.tolist() == [-3.0, -2.0, 1.0, 2.0, 3.0]
    t = torch.tensor([-2.5, -1.0, 1.5, 2.5])
    assert torch.allclose(result(t)[:, 0], Shrunk()(t).double())


class Called(nn.Module):
    """One operation between two linear layers."""

    def __init__(self, operation, shape=(8,)):
        super().__init__()
        self.first, self.operation = nn.Linear(3, 8), operation
        with torch.no_grad():
            self.last = nn.Linear(operation(torch.zeros(1, 8)).flatten(1).shape[1], 2)

    def forward(self, x):
        return self.last(self.operation(self.first(x)).flatten(1))


BENT = {
    "F.relu": F.relu,
    "torch.relu": torch.relu,
    "relu_": lambda z: z.relu_(),
    "clamp(min=0)": lambda z: z.clamp(min=0),
    "clamp": lambda z: torch.clamp(z, -0.3, 0.4),
    "clamp_max": lambda z: z.clamp_max(0.2),
    "clip with a tensor": lambda z: torch.clip(z, torch.tensor(-0.1)),
    "F.threshold": lambda z: F.threshold(z, 0.1, 0.1),
    "F.leaky_relu": lambda z: F.leaky_relu(z, 0.3),
    "F.hardtanh": lambda z: F.hardtanh(z, -0.2, 0.1),
    "F.relu6": lambda z: F.relu6(20 * z),
    "F.hardsigmoid": lambda z: F.hardsigmoid(9 * z),
    "F.softshrink": lambda z: F.softshrink(z, 0.1),
    "F.rrelu": lambda z: F.rrelu(z),
    "abs": lambda z: z.abs(),
    "maximum": lambda z: torch.maximum(z[:, :4], 2 * z[:, 4:]),
    "maximum of a constant": lambda z: torch.maximum(z, torch.linspace(-1, 1, 8)),
    "minimum": lambda z: torch.minimum(z[:, :4], z[:, 4:] - 1),
    "max of a dimension": lambda z: z.reshape(-1, 2, 4).max(2).values,
    "amax": lambda z: z.reshape(-1, 2, 4).amax((1, 2), keepdim=True),
    "max_pool1d": lambda z: F.max_pool1d(z[:, None], 3, 2, 1, ceil_mode=True),
    "max_pool1d, dilated": lambda z: F.max_pool1d(z.reshape(-1, 2, 4), 2, 1, 0, 2),
    "max_pool2d": lambda z: F.max_pool2d(z.reshape(-1, 2, 2, 2), 2, 1, 1),
    "max_pool3d": lambda z: F.max_pool3d(z.reshape(-1, 1, 2, 2, 2), 2),
    "adaptive_max_pool1d": lambda z: F.adaptive_max_pool1d(z[:, None], 3),
    "adaptive_max_pool2d": lambda z: F.adaptive_max_pool2d(z.reshape(-1, 1, 2, 4), (1, 3)),
}  # fmt: skip


@pytest.mark.parametrize("operation", BENT.values(), ids=BENT)
def test_functions_that_bend(operation):
    torch.manual_seed(0)
    require_pieces(Called(operation).double().eval(), 3)


def line(z, *shape):
    """A constant in the dtype of the values."""
    return torch.linspace(-1, 1, math.prod(shape), dtype=z.dtype).reshape(shape)


STRAIGHT = {
    "a scale and a shift": lambda z: 3 - 2 * z / 5 + line(z, 8),
    "sub with a factor": lambda z: torch.sub(z[:, :4], z[:, 4:], alpha=2.0),
    "rsub": lambda z: torch.rsub(z, 1.5, alpha=3.0),
    "add with a factor": lambda z: torch.add(z, line(z, 8), alpha=2.0),
    "neg": lambda z: -z,
    "cat with a constant": lambda z: torch.cat([z[:, :2], torch.ones_like(z), -z], 1),
    "stack": lambda z: torch.stack([z[:, :4], z[:, 4:]], 2),
    "mean": lambda z: z.reshape(-1, 2, 4).mean(2),
    "sum": lambda z: z.reshape(-1, 2, 4).sum(1),
    "matmul": lambda z: z.reshape(-1, 2, 4) @ line(z, 4, 3),
    "matmul from the left": lambda z: line(z, 3, 2) @ z.reshape(-1, 2, 4),
    "einsum": lambda z: torch.einsum("bij,jk->bik", z.reshape(-1, 2, 4), line(z, 4, 2)),
    "addmm": lambda z: torch.addmm(line(z, 5), z, line(z, 8, 5)),
    "conv1d": lambda z: F.conv1d(z[:, None], line(z, 1, 1, 3), line(z, 2)[:1], 2, 1),
    "conv_transpose1d": lambda z: F.conv_transpose1d(z[:, None], line(z, 1, 2, 3), line(z, 2)),
    "pad": lambda z: F.pad(z, (1, 2)),
    "avg_pool1d": lambda z: F.avg_pool1d(z[:, None], 2),
    "permute": lambda z: z.reshape(-1, 2, 2, 2).permute(0, 3, 1, 2),
    "index": lambda z: z[:, [3, 1, -1]],
    "flip and roll": lambda z: z.flip(1).roll(2, 1),
    "interpolate": lambda z: F.interpolate(z[:, None], scale_factor=2),
}  # fmt: skip


@pytest.mark.parametrize("operation", STRAIGHT.values(), ids=STRAIGHT)
def test_functions_that_are_affine(operation):
    torch.manual_seed(0)
    require_pieces(Called(lambda z: operation(F.relu(z))).double(), 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_casts_are_not_part_of_the_pieces(dtype):
    """They are those of the weights, in double precision; the network may round on its way."""
    torch.manual_seed(0)
    plain, cast = (
        Called(operation)
        for operation in (F.relu, lambda z: F.relu(z.float() + 1).to(z.dtype) - 0.0 * z)
    )
    cast.load_state_dict(plain.state_dict())
    with torch.no_grad():
        plain.first.bias += 1
    low, high = torch.randn(2, 3, dtype=torch.float64)
    wanted, result = (affine_pieces(net.to(dtype), low, high) for net in (plain, cast))
    assert result.count == wanted.count > 1
    assert torch.allclose(result.breakpoints, wanted.breakpoints, rtol=1e-6)


def test_slopes_of_one_per_channel():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(1, 3, 2), nn.PReLU(3), nn.Flatten(), nn.Linear(9, 2)).double()
    with torch.no_grad():
        net[1].weight.copy_(torch.tensor([0.1, -0.5, 2.0]))
    plain = require_pieces(net, 1, 4)

    class Function(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = net

        def forward(self, x):
            z = F.prelu(self.layers[0](x), self.layers[1].weight)
            return self.layers[3](z.flatten(1))

    again = require_pieces(Function(), 1, 4)
    assert torch.allclose(plain.breakpoints, again.breakpoints, rtol=1e-12)


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (torch.tanh, r"tanh in the network: it is not known to be affine"),
        (lambda z: z * z, "it multiplies values that both depend on the input"),
        (lambda z: 1 / z, "reciprocal in the network"),
        (lambda z: z / z.sum(), "it divides by a value that depends on the input"),
        (lambda z: z.softmax(1), "softmax in the network"),
        (lambda z: (z > 0).to(z.dtype), "gt in the network"),
        (lambda z: z.long().double(), r"it turns numbers into torch\.int64"),
        (lambda z: F.pad(z[:, None], (1, 1), value=1.0), "only zeros are known as padding"),
        (lambda z: F.layer_norm(z, (8,)), "layer_norm in the network"),
    ],
)  # fmt: skip
def test_operations_that_are_not_piecewise_affine_are_named(operation, message):
    with pytest.raises(UnsupportedModuleError, match=message):
        affine_pieces(Called(operation).double(), torch.zeros(3), torch.ones(3))


def test_the_layer_is_named_too():
    class Inner(nn.Module):
        def forward(self, x):
            return torch.sin(x)

    with pytest.raises(UnsupportedModuleError, match=r"sin in 1\.0: it is not known"):
        affine_pieces(nn.Sequential(nn.Linear(1, 2), nn.Sequential(Inner())), 0, 1)


def test_rows_that_depend_on_each_other_are_refused():
    class Centred(nn.Module):
        def forward(self, x):
            return F.relu(x - x.mean(0, keepdim=True))

    with pytest.raises(UnsupportedModuleError, match="rows of a batch depend on each other"):
        affine_pieces(Centred(), torch.zeros(3), torch.ones(3))


def test_hidden_state_is_refused():
    class Dropped(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(1, 50), nn.Linear(50, 1)

        def forward(self, x):
            return self.last(F.relu(F.dropout(self.first(x), 0.5, self.training)))

    with pytest.raises(UnsupportedModuleError, match=r"in training mode.*call network\.eval"):
        affine_pieces(Dropped(), 0, 1)
    assert affine_pieces(Dropped().eval(), -5, 5).count > 10
    with pytest.raises(UnsupportedModuleError, match=r"layer 0\.bn1 \(BatchNorm2d\) uses the stat"):
        affine_pieces(resnet().train(), torch.zeros(2, 8, 8), torch.ones(2, 8, 8))


def test_networks_with_other_inputs_and_outputs_are_refused():
    class Pair(nn.Module):
        def forward(self, x):
            return x, F.relu(x)

    with pytest.raises(UnsupportedModuleError, match="returns 2 values"):
        affine_pieces(Pair(), 0, 1)
    broken = Residual()
    with torch.no_grad():
        broken.first.weight[0, 0] = math.inf
    with pytest.raises(ConfigError, match=r"'first.weight' holds NaN or infinity"):
        affine_pieces(broken, torch.zeros(6), torch.ones(6))
    with pytest.raises((ShapeError, UnsupportedModuleError), match="Residual"):
        affine_pieces(Residual(), torch.zeros(5), torch.ones(5))


@settings(max_examples=10)
@given(st.integers(0, 1000), st.integers(1, 9))
def test_operations_and_layers_give_the_same_pieces(seed, width):
    """Two ways to read one network: its layers, and its operations."""
    torch.manual_seed(seed)
    net = mlp(2, width, width, 2).double()

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net(x)

    low, high = torch.randn(2, 2, dtype=torch.float64) * 3
    layers, operations = affine_pieces(net, low, high), affine_pieces(Wrapped(), low, high)
    assert layers.count == operations.count
    assert torch.allclose(layers.breakpoints, operations.breakpoints, rtol=1e-12, atol=1e-14)
    assert torch.allclose(layers.values, operations.values, rtol=0, atol=1e-13)

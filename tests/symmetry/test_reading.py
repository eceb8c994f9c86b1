"""Reading a network: the spaces it finds, against what the function itself lets through."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.symmetry.nets import ZOO, Residual, conv, mlp
from weightloom.errors import UnsupportedModuleError
from weightloom.networks import example_call
from weightloom.symmetry import Kind, random_equivalent, read


@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(0)


L = nn.Linear

OF_ACTIVATION = {
    "relu": Kind.SCALE, "leaky": Kind.SCALE, "prelu": Kind.SCALE, "tanh": Kind.SIGN,
    "sigmoid": Kind.FLIP, "gelu": Kind.PERMUTE, "softplus": Kind.PERMUTE, "identity": Kind.FREE,
    "sine": Kind.SIGN, "bump": Kind.EVEN, "absolute": Kind.ABSOLUTE,
}  # fmt: skip
EXPECTED = {
    "mlp-no-bias": {"0": Kind.SIGN, "2": Kind.SIGN},
    "mlp-sigmoid-no-bias": {"0": Kind.PERMUTE, "2": Kind.PERMUTE},
    "nested": {"0.0": Kind.SCALE, "0.2": Kind.SIGN, "1.1.0": Kind.SCALE},
    "conv-relu-0": {"0": Kind.SCALE, "2": Kind.SCALE, "5": Kind.SCALE},
    "conv-relu-1": {"0": Kind.SCALE, "2": Kind.SCALE, "5": Kind.SCALE},
    "conv-sigmoid-0": {"0": Kind.FLIP, "2": Kind.FLIP, "5": Kind.FLIP},
    # zeros at the border are no constant; the second convolution is read by a linear layer
    "conv-sigmoid-1": {"0": Kind.PERMUTE, "2": Kind.FLIP, "5": Kind.FLIP},
    "functional": {"first": Kind.SCALE, "second": Kind.SIGN, "third": Kind.FLIP},
    "residual-relu": {"stem": Kind.FREE, "blocks.0.0": Kind.SCALE, "blocks.1.0": Kind.SCALE},
    "on-input": {"body.0": Kind.SIGN},
    "batch-norm": {"0": Kind.SCALE, "3": Kind.SIGN},
    "layer-norm": {"0": Kind.PERMUTE, "3": Kind.PERMUTE},
    "resnet": {"stem": Kind.SCALE, "one": Kind.SCALE},
    "attention": {"inner": Kind.FREE, "attention": Kind.FREE},
    "encoder": {"0": Kind.PERMUTE, "1.linear1": Kind.SCALE},
    "encoder-norm-first": {"0": Kind.PERMUTE, "1.linear1": Kind.PERMUTE},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_spaces_of_the_zoo(name):
    assert {key: space.kind for key, space in read(ZOO[name].make()).spaces.items()} == EXPECTED[
        name
    ]


@pytest.mark.parametrize("activation", OF_ACTIVATION)
def test_kinds_of_activations(activation):
    spec = read(mlp(activation, 3, 6, 5, 2))
    assert [space.kind for space in spec.spaces.values()] == [OF_ACTIVATION[activation]] * 2
    assert [space.size for space in spec.spaces.values()] == [6, 5]
    constants = [space.constant for space in spec.spaces.values()]
    assert constants == [1.0 if activation == "sigmoid" else 0.0] * 2


def acted(net, spec, space, f, outgoing):
    """An independent, plain action on the first unit: incoming times f, outgoing over f."""
    net = copy.deepcopy(net)
    tensors = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    with torch.no_grad():
        for axis in spec.axes_of(space):
            part = tensors[axis.tensor].narrow(axis.dim, 0, axis.repeat)
            if axis.side == "out":
                part.mul_(f)
            elif axis.side == "in":
                part.div_(outgoing)
    return net


# Left out: scales of the space behind LayerNorm's own eps would be almost, not exactly, allowed.
@pytest.mark.parametrize("name", sorted(set(ZOO) - {"mlp-sigmoid-no-bias"}))
@torch.no_grad()
def test_a_kind_says_all_that_the_function_lets_through(name):
    """Scales, signs, and signs of the incoming side alone change the function or do not, exactly as
    the kind of the space says: neither more nor less."""
    net, x = ZOO[name].make(), ZOO[name].inputs(40)
    spec, wanted = read(net), net(ZOO[name].inputs(40))
    for key, space in spec.spaces.items():
        kind = space.kind
        for f, outgoing, allowed in (
            (2.0, 2.0, kind.scales),
            (-1.0, -1.0, kind in (Kind.SIGN, Kind.FREE)),
            (-1.0, 1.0, kind in (Kind.EVEN, Kind.ABSOLUTE)),
        ):
            off = float((acted(net, spec, key, f, outgoing)(x) - wanted).abs().max())
            assert (off < 1e-12) == allowed, (key, kind, f, outgoing, off)


def axes(spec, tensor):
    return {(axis.dim, axis.space, axis.side, axis.repeat) for axis in spec.axes_of_tensor(tensor)}


def test_axes_of_a_convolutional_network():
    spec = read(conv("relu", 1))
    assert axes(spec, "0.weight") == {(0, "0", "out", 1)}
    assert axes(spec, "2.weight") == {(0, "2", "out", 1), (1, "0", "in", 1)}
    assert axes(spec, "5.weight") == {(0, "5", "out", 1), (1, "2", "in", 36)}
    assert axes(spec, "7.weight") == {(1, "5", "in", 1)}
    assert axes(spec, "7.bias") == set()


def test_layers_in_order_of_execution():
    spec = read(ZOO["functional"].make())
    assert [(layer.name, layer.input, layer.output, layer.activation) for layer in spec.layers] == [
        ("first", None, "first", "relu"),
        ("second", "first", "second", "tanh"),
        ("third", "second", "third", "sigmoid"),
        ("last", "third", None, None),
    ]
    spec = read(Residual())
    assert [layer.name for layer in spec.producers("stem")] == ["stem", "blocks.0.2", "blocks.1.2"]
    assert [layer.name for layer in spec.consumers("stem")] == ["blocks.0.0", "blocks.1.0", "head"]


def test_a_layer_alone_has_nothing_to_exchange():
    spec = read(nn.Linear(3, 2))
    assert spec.spaces == {}
    assert [layer.weight for layer in spec.layers] == ["weight"]
    assert read(nn.MultiheadAttention(4, 2)).attentions[0].heads == 2
    assert read(nn.Sequential()).layers == ()


def chain(*modules):
    return nn.Sequential(nn.Conv2d(1, 3, 2), *modules, nn.Flatten(), nn.LazyLinear(2))


@pytest.mark.parametrize(
    ("modules", "kind"),
    [
        ((nn.Tanh(), nn.MaxPool2d(2)), Kind.PERMUTE),
        ((nn.MaxPool2d(2), nn.ReLU()), Kind.SCALE),
        ((nn.Tanh(), nn.AvgPool2d(2)), Kind.SIGN),
        ((nn.Sigmoid(), nn.AvgPool2d(2)), Kind.FLIP),
        ((nn.Sigmoid(), nn.AvgPool2d(2, padding=1)), Kind.PERMUTE),
        ((nn.Sigmoid(), nn.AdaptiveAvgPool2d(1)), Kind.FLIP),
        ((nn.Sigmoid(), nn.Dropout()), Kind.FLIP),
        ((nn.Tanh(), nn.Sigmoid()), Kind.FLIP),
        ((nn.Sigmoid(), nn.Tanh()), Kind.PERMUTE),
        ((nn.Sigmoid(), nn.LeakyReLU(1.0)), Kind.PERMUTE),
        ((nn.Tanh(), nn.LeakyReLU(-1.0)), Kind.EVEN),
        ((nn.LeakyReLU(-1.0), nn.ReLU()), Kind.ABSOLUTE),
        ((nn.LeakyReLU(-1.0), nn.GELU()), Kind.EVEN),
        ((nn.ReLU(), nn.LeakyReLU(-1.0)), Kind.SCALE),
        ((nn.LeakyReLU(-1.0), nn.MaxPool2d(2)), Kind.ABSOLUTE),
        ((nn.MaxPool2d(2), nn.LeakyReLU(-1.0)), Kind.SCALE),
        ((nn.GroupNorm(3, 3), nn.Tanh()), Kind.SIGN),
        ((nn.GroupNorm(1, 3), nn.Tanh()), Kind.PERMUTE),
        ((nn.Softmax(1),), Kind.PERMUTE),
    ],
    ids=lambda layers: (
        "-".join(type(m).__name__ for m in layers) if isinstance(layers, tuple) else None
    ),
)
@torch.no_grad()
def test_chains_of_operations(modules, kind):
    x = torch.randn(4, 1, 7, 7, generator=torch.Generator().manual_seed(0)).double()
    torch.manual_seed(0)
    net = chain(*modules).double().eval()
    wanted = net(x)
    assert read(net).spaces["0"].kind is kind
    twin = random_equivalent(net, torch.Generator().manual_seed(2))
    torch.testing.assert_close(twin(x), wanted, rtol=1e-10, atol=1e-12)


class Custom(nn.Module):
    """Every operation that has no module: parameters, products, views, functional layers."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 4)
        self.positions = nn.Parameter(torch.randn(3, 4))
        self.w, self.b = nn.Parameter(torch.randn(5, 4)), nn.Parameter(torch.randn(5))
        self.gate, self.last = nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x):
        x = self.table(x) + self.positions
        x = F.linear(x, self.w, self.b) * torch.sigmoid(self.gate(x))
        return self.last(F.leaky_relu(x, 0.2) - 2 * x)


@torch.no_grad()
def test_functions_and_parameters():
    net = Custom().double()
    spec = read(net)
    assert {key: (space.size, space.kind) for key, space in spec.spaces.items()} == {
        "table": (4, Kind.FREE), "w": (5, Kind.PERMUTE),
    }  # fmt: skip
    assert axes(spec, "positions") == {(1, "table", "out", 1)}
    x = torch.randint(0, 9, (6, 3), generator=torch.Generator().manual_seed(0))
    twin = random_equivalent(net, torch.Generator().manual_seed(1))
    torch.testing.assert_close(twin(x), net(x), rtol=1e-11, atol=1e-12)


class Views(nn.Module):
    """Pooling, views and means as functions and methods, as old code has them."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 3, 3), nn.Conv2d(3, 4, 1)
        self.three, self.four = nn.Linear(16, 5), nn.Linear(5, 2)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.one(x), 2))
        x = F.avg_pool2d(F.dropout(self.two(x), training=self.training), 1)
        x = F.relu(self.three(x.view(x.size(0), -1)))
        return F.log_softmax(self.four(torch.flatten(x, 1)), dim=1)


@torch.no_grad()
def test_functional_pooling_and_views():
    net = Views().double().eval()
    spec = read(net)
    kinds = {key: space.kind for key, space in spec.spaces.items()}
    assert kinds == {"one": Kind.SCALE, "two": Kind.FREE, "three": Kind.SCALE}
    x = torch.randn(3, 1, 6, 6, generator=torch.Generator().manual_seed(0)).double()
    twin = random_equivalent(net, torch.Generator().manual_seed(1))
    torch.testing.assert_close(twin(x), net(x), rtol=1e-11, atol=1e-12)


class Tied(nn.Module):
    """The embedding is also the weight of the last layer, as in language models."""

    def __init__(self):
        super().__init__()
        self.table, self.block, self.head = nn.Embedding(9, 4), mlp("relu", 4, 6, 4), L(4, 9)
        self.head.weight = self.table.weight

    def forward(self, x):
        x = self.table(x)
        return self.head(x + self.block(x))


@torch.no_grad()
def test_tied_weights():
    """One axis multiplied by f and divided by f: only signs are left of any factor."""
    net = Tied().double()
    spec = read(net)
    assert spec.spaces["table"].kind is Kind.SIGN
    assert [axis.tensor for axis in spec.axes].count("table.weight") == 1
    x = torch.arange(9)[None]
    twin = random_equivalent(net, torch.Generator().manual_seed(1))
    assert twin.head.weight is twin.table.weight
    torch.testing.assert_close(twin(x), net(x), rtol=1e-11, atol=1e-12)


class Branch(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Cat(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        return torch.cat((x, self.layer(x)), -1)


def hooked():
    net = mlp("relu", 2, 3, 1)
    net[0].register_forward_hook(lambda module, given, output: output * 0.5)
    return net


REFUSED = {
    "recurrent": (nn.Sequential(L(2, 2), nn.LSTM(2, 3)), r"'lstm.input' in module '1' cannot be"),
    "train mode": (nn.Sequential(L(2, 3), nn.BatchNorm1d(3)), r"'1' \(BatchNorm1d\).*\.eval\(\)"),
    "lazy": (nn.Sequential(nn.LazyLinear(3)), r"'0' \(LazyLinear\).*run the network once first"),
    "positions": (nn.Sequential(L(2, 3), nn.Flatten(), L(5, 2)), "'2'.*reads 5 numbers from 3"),
    "branches": (nn.Sequential(L(2, 2), Branch()), r"\(Sequential\).*torch.fx could not trace"),
    "max norm": (nn.Sequential(nn.Embedding(3, 2, max_norm=1.0)), r"'0' \(Embedding\).*max_norm"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_named(name):
    module, message = REFUSED[name]
    with pytest.raises(UnsupportedModuleError, match=message):
        read(module)


C = nn.Conv1d
BY_OPERATIONS = {
    "grouped": (
        nn.Sequential(nn.Conv2d(4, 8, 1), nn.Conv2d(8, 4, 3, groups=2), nn.Conv2d(4, 1, 1)), 1,
    ),
    "grouped outputs": (nn.Sequential(nn.Conv2d(4, 8, 1), nn.Conv2d(8, 4, 3, groups=2)), 0),
    "transposed": (nn.Sequential(nn.ConvTranspose2d(2, 3, 2), nn.ReLU(), nn.Conv2d(3, 1, 1)), 1),
    "transposed, grouped": (
        nn.Sequential(C(2, 6, 1), nn.ConvTranspose1d(6, 9, 2, groups=3), C(9, 1, 1)),
        1,
    ),
    "groups": (nn.Sequential(nn.Conv2d(1, 4, 1), nn.GroupNorm(2, 4), nn.Conv2d(4, 2, 1)), 1),
    "gated": (nn.Sequential(L(2, 4), nn.GLU(), L(2, 3), nn.Tanh(), L(3, 1)), 1),
    "layout": (nn.Sequential(nn.Conv1d(2, 3, 1), L(32, 4), nn.ReLU(), L(4, 2)), 1),
    "weight norm": (nn.Sequential(nn.utils.parametrizations.weight_norm(L(2, 2)), L(2, 1)), 0),
    "hooks": (hooked(), 1),
    "joined": (Cat(), 0),
    "layer norm": (nn.Sequential(nn.Conv1d(2, 3, 1), nn.LayerNorm(32), nn.Conv1d(3, 1, 1)), 1),
    "root mean square": (nn.Sequential(L(2, 5), nn.RMSNorm(5), L(5, 2)), 1),
    "instance norm": (
        nn.Sequential(nn.Conv1d(2, 3, 1), nn.InstanceNorm1d(3, affine=True), nn.Conv1d(3, 1, 1)), 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_OPERATIONS)
@torch.no_grad()
def test_what_has_no_rule_as_a_layer_is_read_by_its_operations(name):
    """The number of spaces, and a random element that leaves the outputs as they are."""
    net, spaces = BY_OPERATIONS[name]
    net = copy.deepcopy(net).double().eval()
    for parameter in net.parameters():
        parameter.add_(
            0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
        )
    x = example_call(net).args[0]
    assert len(read(net).spaces) == spaces
    twin = random_equivalent(net, torch.Generator().manual_seed(1))
    assert all(
        torch.equal(p, q) for p, q in zip(net.parameters(), twin.parameters(), strict=True)
    ) == (not spaces)
    torch.testing.assert_close(twin(x), net(x), rtol=1e-11, atol=1e-12)


class Sum(nn.Module):
    """Two layers, each with something after it, added and read by a third."""

    def __init__(self, left, right, shared=False):
        super().__init__()
        self.a, self.b, self.last = L(3, 5), L(3, 5), L(5, 2)
        self.left, self.right, self.shared = left, right, shared

    def forward(self, x):
        a = self.a(x)
        return self.last(self.left(a) + self.right(a if self.shared else self.b(x)))


SUMS = [
    (nn.Tanh(), nn.Tanh(), False, Kind.SIGN),
    (nn.ReLU(), nn.Tanh(), False, Kind.PERMUTE),
    (nn.Identity(), nn.ReLU(), False, Kind.SCALE),
    (nn.Sigmoid(), nn.Sigmoid(), False, Kind.PERMUTE),  # the constants would add up
    (nn.LeakyReLU(-1.0), nn.LeakyReLU(-1.0), False, Kind.ABSOLUTE),
    (nn.LeakyReLU(-1.0), nn.Identity(), False, Kind.SCALE),
    (nn.LeakyReLU(-1.0), nn.Identity(), True, Kind.SCALE),
    (nn.Identity(), nn.LeakyReLU(-1.0), True, Kind.SCALE),
    (nn.Sigmoid(), nn.Identity(), True, Kind.PERMUTE),
]


@pytest.mark.parametrize(("left", "right", "shared", "kind"), SUMS)
@torch.no_grad()
def test_sums_keep_what_both_sides_let_through(left, right, shared, kind):
    torch.manual_seed(0)
    net, x = Sum(left, right, shared).double(), torch.randn(6, 3).double()
    assert read(net).spaces["a"].kind is kind
    twin = random_equivalent(net, torch.Generator().manual_seed(4))
    torch.testing.assert_close(twin(x), net(x), rtol=1e-11, atol=1e-12)

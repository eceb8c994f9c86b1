"""Primaries of many kinds, each with the shape of one x."""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

import weightloom as wl


@dataclass
class Case:
    build: object
    x: tuple
    integer: int = 0
    slow: bool = False
    generate: object = "*"
    heads: bool = field(default=False)


class Custom(nn.Module):
    """Functional activations, a residual, a layer used twice, a loop, nested modules."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(40, 12)
        self.repeated = nn.Linear(12, 12)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(12, 12), nn.Tanh()) for _ in range(2))
        self.last = nn.Linear(12, 2, bias=False)

    def forward(self, x):
        x = F.relu(self.first(x))
        for _ in range(3):
            x = x + torch.tanh(self.repeated(x))
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class Pointwise(nn.Module):
    """A 1x1 convolution inside a module that vmap runs; x with and without a batch dimension."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Conv2d(30, 12, 1)

    def forward(self, x):
        return torch.sin(self.mix(x)) + torch.sin(self.mix(x[0])).sum(0)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(6, 6)
        self.decode = nn.Linear(6, 6)
        self.decode.weight = self.encode.weight

    def forward(self, x):
        return self.decode(torch.relu(self.encode(x)))


def tied_sequential():
    layer = nn.Linear(5, 5)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(5, 2))


class BranchOnValue(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        y = self.layer(x)
        return y if y.sum().item() > 0 else 2 * y


class WritesInPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        out = torch.zeros(x.shape)
        out[..., :4] = self.layer(x)
        return out


class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 6)
        self.norm = nn.LayerNorm(6)
        self.out = nn.Linear(6, 3)

    def forward(self, ids):
        return self.out(self.norm(self.table(ids)).mean(-2))


class Attend(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


ZOO = {
    "linear": Case(lambda: nn.Linear(3, 2), (7, 3)),
    "mlp one point": Case(lambda: wl.mlp([40, 12, 1]), (40,), heads=True),
    "mlp": Case(lambda: wl.mlp([3, 8, 8, 2]), (7, 3), heads=True),
    "mlp points in a grid": Case(lambda: wl.mlp([3, 8, 2], "gelu"), (2, 5, 3)),
    "mlp without bias": Case(lambda: wl.mlp([3, 30, 30, 2], "tanh", bias=False), (5, 3)),
    "conv1d": Case(lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), (3, 4, 9)),
    "conv1d unbatched": Case(lambda: nn.Conv1d(4, 6, 3, bias=False), (4, 9)),
    "conv2d": Case(
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=1, dilation=2),
            nn.ReLU(),
            nn.Conv2d(4, 6, 3, padding="same", groups=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(24, 3),
        ),
        (3, 2, 9, 8),
        heads=True,
    ),
    "conv2d reflect": Case(
        lambda: nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"), (3, 2, 5, 5)
    ),
    "conv2d 1x1": Case(lambda: nn.Conv2d(30, 12, 1), (1, 30, 1, 1), heads=True),
    "conv3d": Case(lambda: nn.Conv3d(2, 4, (1, 2, 3), stride=(1, 2, 1), groups=2), (2, 2, 3, 4, 5)),
    "transposed conv": Case(
        lambda: nn.Sequential(
            nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2), nn.ConvTranspose2d(6, 1, 2)
        ),
        (2, 4, 4, 3),
    ),
    "group norm": Case(lambda: nn.Sequential(nn.Conv2d(2, 4, 1), nn.GroupNorm(2, 4)), (3, 2, 5, 5)),
    "layer norm": Case(lambda: nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.GELU()), (4, 3)),
    "batch norm": Case(
        lambda: nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)),
        (6, 3),
    ),
    "embedding": Case(Text, (2, 5), integer=9),
    "attention": Case(Attend, (2, 5, 8)),
    "transformer layer": Case(
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (2, 5, 8)
    ),
    "custom forward": Case(Custom, (40,), heads=True),
    "custom 1x1": Case(Pointwise, (2, 30, 1, 2), heads=True),
    "tied": Case(Tied, (4, 6)),
    "tied sequential": Case(tied_sequential, (4, 5)),
    "weight norm": Case(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)), (4, 3)),
    "only the last layer": Case(lambda: wl.mlp([3, 8, 2]), (7, 3), generate="2.*"),
    "only biases": Case(
        lambda: nn.Sequential(wl.mlp([3, 8]), nn.Conv1d(1, 2, 3)), (1, 3), generate="*.bias"
    ),
    "GRU": Case(lambda: nn.GRU(3, 4, batch_first=True), (2, 5, 3), slow=True),
    "LSTM inside": Case(lambda: nn.Sequential(nn.Linear(3, 3), nn.LSTM(3, 4)), (5, 3), slow=True),
    "GRUCell": Case(lambda: nn.GRUCell(3, 4), (2, 3)),
    "branch on value": Case(BranchOnValue, (2, 4), slow=True),
    "writes in place": Case(WritesInPlace, (2, 4), slow=True),
}


def make(name, b=3, head="full", dtype=torch.float64, **options):
    """The hypernetwork, x and conditions of one case."""
    case = ZOO[name]
    options.setdefault("generate", case.generate)
    hyper = wl.HyperNetwork(
        case.build(), wl.mlp([4, 6], "tanh", last_activation=True), head, **options
    ).to(dtype)
    shape = (b, *case.x)
    x = torch.randint(case.integer, shape) if case.integer else torch.randn(shape, dtype=dtype)
    return hyper, x, torch.randn(b, 4, dtype=dtype)

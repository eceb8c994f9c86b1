"""Networks of blocks that are read from their operations, as people write them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Translator(nn.Module):
    """torch's own transformer, with an encoder, a decoder and attention between them."""

    def __init__(self):
        super().__init__()
        self.transformer = nn.Transformer(8, 2, 1, 2, 12, dropout=0.0, batch_first=True)
        self.source, self.target, self.last = nn.Linear(3, 8), nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, x, y):
        return self.last(self.transformer(self.source(x), self.target(y)))


class Masked(nn.Module):
    """torch's encoder with a causal mask among its buffers."""

    def __init__(self, norm_first=True):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 2)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(5))

    def forward(self, x):
        return self.last(self.encoder(self.first(x), mask=self.mask))


class Unbound(nn.Module):
    """Attention as timm writes it, with LayerScale."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.qkv = nn.Linear(3, 8), nn.LayerNorm(8), nn.Linear(8, 24)
        self.proj, self.scale, self.last = (
            nn.Linear(8, 8),
            nn.Parameter(torch.rand(8)),
            nn.Linear(8, 2),
        )

    def forward(self, x):
        x = self.first(x)
        b, n, c = x.shape
        qkv = self.qkv(self.norm(x)).reshape(b, n, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        weights = ((q * 0.5) @ k.transpose(-2, -1)).softmax(-1)
        return self.last(x + self.scale * self.proj((weights @ v).transpose(1, 2).reshape(b, n, c)))


class Dense(nn.Module):
    """Channels that are joined: their places in the joined layer are no single space."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.c, self.last = nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1), nn.Linear(4, 2)

    def forward(self, x):
        a = F.relu(self.a(x))
        joined = torch.cat([a, F.relu(self.b(a))], 1)
        return self.last(F.relu(self.c(self.norm(joined))).mean((2, 3)))


class Squeezed(nn.Module):
    """Channels times a gate that is computed from all of them."""

    def __init__(self):
        super().__init__()
        self.a, self.c = nn.Conv2d(1, 6, 3), nn.Conv2d(6, 2, 1)
        self.down, self.up = nn.Linear(6, 3), nn.Linear(3, 6)

    def forward(self, x):
        x = F.relu(self.a(x))
        gate = torch.sigmoid(self.up(F.relu(self.down(x.mean((2, 3))))))
        return self.c(x * gate[:, :, None, None])


class Joint(nn.Module):
    """Gate and up projection in one matrix: two halves that move together, which is not said."""

    def __init__(self):
        super().__init__()
        self.first, self.both = nn.Linear(3, 8), nn.Linear(8, 24, bias=False)
        self.down, self.last = nn.Linear(12, 8), nn.Linear(8, 2)

    def forward(self, x):
        x = self.first(x)
        gate, up = self.both(F.rms_norm(x, (8,))).chunk(2, -1)
        return self.last(x + self.down(F.silu(gate) * up))


@dataclass(frozen=True)
class Blocks:
    """How to make a network, shapes of its inputs, and how many symmetries of a kind it has."""

    build: Any
    shapes: tuple[tuple[int, ...], ...]
    spaces: int
    attentions: int
    gains: int

    def make(self):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            net = self.build().double().eval()
            for parameter in net.parameters():
                parameter.data.add_(0.2 * torch.randn_like(parameter))
        return net

    def inputs(self):
        generator = torch.Generator().manual_seed(1)
        return tuple(torch.randn(s, generator=generator).double() for s in self.shapes)


SEQUENCE = ((2, 5, 3),)
IMAGE = ((2, 1, 6, 6),)
BLOCKS = {
    "translator": Blocks(Translator, ((2, 5, 3), (2, 4, 3)), 4, 5, 1),
    "masked, norms first": Blocks(Masked, SEQUENCE, 3, 2, 4),
    "masked, norms last": Blocks(lambda: Masked(False), SEQUENCE, 3, 2, 1),
    "unbound": Blocks(Unbound, SEQUENCE, 1, 1, 2),
    "dense": Blocks(Dense, IMAGE, 1, 0, 0),
    "squeezed": Blocks(Squeezed, IMAGE, 2, 0, 0),
    "joint": Blocks(Joint, SEQUENCE, 1, 0, 0),
}

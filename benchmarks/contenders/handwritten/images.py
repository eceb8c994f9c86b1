"""Workload (c): a few images for each condition, convolutions, and a head of 16 million numbers.

Two things cost: the convolutions, where one grouped convolution does all conditions at once if the
layout [images, conditions * channels, h, w] is kept from layer to layer; and the head, which is
65 MB to read, 65 MB of gradient to write and 65 MB to update. Contracting the input first does not
pay in the last layer: four images for each condition would quadruple the products.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap
from workloads import Start, Workload, fill

from contenders.base import Contender
from contenders.written import WrittenWeights

__all__ = ["contenders"]

FAMILY = "hand-written"


def last_layer(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """[b, images, i], [b, o, i], [b, o] -> [b, images, o], with the weight on the left.

    So its gradient comes out as [b, o, i], as it is kept; with the weight on the right autograd
    makes [b, i, o], 16 MB that have to be copied into place.
    """
    return torch.baddbmm(bias.unsqueeze(2), weight, hidden.transpose(1, 2)).transpose(1, 2)


class Images(WrittenWeights):
    """Convolutions as a subclass does them, then the last layer."""

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        *convolutions, weight, bias = self.weights(condition)
        return last_layer(self.convolve(x, *convolutions), weight, bias)

    def convolve(self, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        raise NotImplementedError


class Grouped(Images):
    """One grouped convolution for each layer, the layout kept between them."""

    def convolve(self, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        hidden = x.transpose(0, 1).flatten(1, 2)  # [images, conditions * channels, h, w]
        for weight, bias in ((w1, b1), (w2, b2)):
            kernels, groups = weight.flatten(0, 1), len(weight)
            hidden = F.conv2d(hidden, kernels, bias.flatten(), padding=1, groups=groups).relu_()
        return hidden.view(x.shape[1], len(x), -1).transpose(0, 1)


class GroupedChunkedHead(Grouped):
    """The head cut into equal blocks and multiplied by bmm, so that a block stays in cache.

    The blocks are views of one parameter, so nothing changes for the optimiser.
    """

    blocks = 110  # divides N_g = 127,930; 1,163 rows of 128 numbers are 0.6 MB

    def flat(self, condition: Tensor) -> Tensor:
        features = self.encoder(condition)
        tables = self.head.weight.view(self.blocks, -1, features.shape[1]).transpose(1, 2)
        flat = torch.matmul(features, tables)  # [blocks, b, N_g / blocks]
        return flat.transpose(0, 1).flatten(1) + self.head.bias


class OwnHead(nn.Module):
    """Grouped convolutions; the last layer's tensor has a head of its own, kept as [k, o * i].

    A parameter of its own: no gradient has to be concatenated. [k, o * i] rather than nn.Linear's
    [o * i, k]: with 32 conditions MKL is faster on it, forward and backward.
    """

    def __init__(self, workload: Workload, start: Start) -> None:
        super().__init__()
        *small, (_, self.last), _ = start.shapes.items()
        self.shapes = [shape for _, shape in small] + [(self.last[0],)]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self.encoder = start.make_encoder()
        blocks = list(start.blocks().values())
        weight, bias = blocks.pop(-2)
        self.table = nn.Parameter(self.store(weight))
        self.offset = nn.Parameter(bias.clone())
        self.small = nn.Linear(start.features, sum(self.sizes))
        fill(self.small, torch.cat([w for w, _ in blocks]), torch.cat([b for _, b in blocks]))

    def store(self, weight: Tensor) -> Tensor:
        return weight.t().contiguous()

    def write(self, features: Tensor) -> Tensor:  # [b, o * i]
        return torch.addmm(self.offset, features, self.table)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        features = self.encoder(condition)
        pieces = zip(self.small(features).split(self.sizes, 1), self.shapes, strict=True)
        *convolutions, bias = [piece.view(-1, *shape) for piece, shape in pieces]
        hidden = Grouped.convolve(self, x, *convolutions)  # type: ignore[arg-type]
        return last_layer(hidden, self.write(features).view(-1, *self.last), bias)


class OwnHeadRows(OwnHead):
    """The same, kept as nn.Linear keeps it."""

    def store(self, weight: Tensor) -> Tensor:
        return weight.clone()

    def write(self, features: Tensor) -> Tensor:
        return F.linear(features, self.table, self.offset)


class Vmapped(Images):
    """vmap over the convolutions only; it becomes a grouped convolution for each layer."""

    def convolve(self, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        def convolve_condition(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
            hidden = F.conv2d(x, w1, b1, padding=1).relu_()
            return F.conv2d(hidden, w2, b2, padding=1).relu_().flatten(1)

        return vmap(convolve_condition)(x, w1, b1, w2, b2)


class Loop(Images):
    """One condition after another: small convolutions, each dense. unbind, not indexing."""

    def convolve(self, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        outputs = []
        rows = zip(x.unbind(), w1.unbind(), b1.unbind(), w2.unbind(), b2.unbind(), strict=True)
        for image, k1, c1, k2, c2 in rows:
            hidden = F.conv2d(image, k1, c1, padding=1).relu_()
            outputs.append(F.conv2d(hidden, k2, c2, padding=1).relu_().flatten(1))
        return torch.stack(outputs)


class Unfold(Images):
    """Patches as columns, then a product for each image."""

    def convolve(self, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        hidden = x
        for weight, bias in ((w1, b1), (w2, b2)):
            columns = F.unfold(hidden.flatten(0, 1), 3, padding=1)
            columns = columns.view(*x.shape[:2], -1, columns.shape[-1])
            hidden = torch.matmul(weight.flatten(2).unsqueeze(1), columns)
            hidden = (hidden + bias[:, None, :, None]).relu_().view(*x.shape[:2], -1, 28, 28)
        return hidden.flatten(2)


def contenders() -> list[Contender]:
    return [
        *Contender("grouped convolution", FAMILY, Grouped).also_compiled(),
        Contender("grouped, head in blocks", FAMILY, GroupedChunkedHead),
        *Contender("grouped, last layer's own head [k, N]", FAMILY, OwnHead).also_compiled(),
        *Contender("grouped, last layer's own head [N, k]", FAMILY, OwnHeadRows).also_compiled(),
        Contender("vmapped convolution", FAMILY, Vmapped),
        Contender("loop over conditions", FAMILY, Loop),
        Contender("unfold + bmm", FAMILY, Unfold),
    ]

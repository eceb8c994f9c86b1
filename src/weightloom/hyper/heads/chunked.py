"""The chunked head: one small network writes the weights piece by piece."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from weightloom.errors import HeadError
from weightloom.hyper.heads.base import Head, InitTarget, like
from weightloom.hyper.rows import Generated, Written
from weightloom.networks import WeightSpec

__all__ = ["ChunkedHead"]


class ChunkedHead(Head):
    """Chunk j of the flat weights is N(phi, c_j): N small and shared, c_j a learned embedding.

    As in "Continual learning with hypernetworks" (von Oswald and others, 2020): the number of
    learned parameters hardly depends on the size of the primary. The part that all conditions share
    (with ``init="primary"``, or the ones of a norm layer) is a constant and is not learned.
    """

    direct = False
    scale: Tensor
    constant: Tensor

    def __init__(self, size: int = 256, embedding: int = 16, hidden: int = 64) -> None:
        super().__init__()
        for label, value in (("size", size), ("embedding", embedding), ("hidden", hidden)):
            if value < 1:
                raise HeadError(f"{label}={value} was given; a chunked head needs at least 1")
        self.size = size
        self.embedding = embedding
        self.hidden = hidden

    def _allocate(self, spec: WeightSpec, features: int, values: Mapping[str, Tensor]) -> None:
        options = like(values)
        self.count = math.ceil(spec.size / self.size)
        self.chunks = nn.Parameter(torch.empty(self.count, self.embedding, **options))
        # First layer of N on [phi, c], kept in two parts: phi's part is the same for all chunks.
        self.from_features = nn.Linear(features, self.hidden, **options)
        self.from_chunk = nn.Linear(self.embedding, self.hidden, bias=False, **options)
        self.write = nn.Linear(self.hidden, self.size, **options)
        self.register_buffer("scale", torch.ones(spec.size, **options))
        self.register_buffer("constant", torch.zeros(spec.size, **options))

    @property
    def learns_constant(self) -> bool:
        return False

    def generate(self, features: Tensor) -> dict[str, Generated]:
        if self.spec is None:
            raise HeadError("this head was not built; pass it to a HyperNetwork first")
        flat = self._raw(features).to(self.scale.dtype) * self.scale + self.constant
        return {name: Written(tensor) for name, tensor in self.spec.split(flat).items()}

    def _raw(self, features: Tensor) -> Tensor:
        hidden = self.from_features(features).unsqueeze(1) + self.from_chunk(self.chunks)
        written = self.write(torch.relu(hidden))  # [b, count, size]
        return written.flatten(1)[:, : self.scale.numel()]

    @torch.no_grad()
    def initialise(self, targets: Mapping[str, InitTarget], moment: float) -> None:
        if self.spec is None:
            raise HeadError("this head was not built; pass it to a HyperNetwork first")
        # Half of the hidden layer's variance from phi, half from the chunk; ReLU halves it again.
        half = 0.5
        self.chunks.normal_()
        self.from_features.weight.normal_(0.0, math.sqrt(half / (self.features * moment)))
        self.from_chunk.weight.normal_(0.0, math.sqrt(half / self.embedding))
        self.from_features.bias.zero_()
        self.write.weight.normal_(0.0, math.sqrt(2.0 / self.hidden))
        self.write.bias.zero_()
        scale, constant = self.spec.split(self.scale), self.spec.split(self.constant)
        for name, target in targets.items():
            scale[name].fill_(math.sqrt(target.variance))
            constant[name].zero_()
            if target.offset is not None:
                constant[name].copy_(target.offset)

    @torch.no_grad()
    def default(self) -> None:
        self.chunks.normal_()
        for layer in (self.from_features, self.from_chunk, self.write):
            layer.reset_parameters()
        self.scale.fill_(1.0)
        self.constant.zero_()

    @torch.no_grad()
    def zero(self, moment: float) -> None:
        self.default()
        self.write.weight.zero_()
        self.write.bias.zero_()

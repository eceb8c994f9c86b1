"""The full linear head: every generated number is its own linear function of the features."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from weightloom.models.heads.base import Head, Target, key, like
from weightloom.weights import Expanded, Generated, WeightSpec, Written

__all__ = ["FullHead"]

# Tensors of at most this many numbers (biases, last layers) are generated together, by one matrix
# product; each larger tensor has a table of its own, so that its layer may contract it with x.
SMALL = 256


class FullHead(Head):
    """W = offset + sum_k phi_k table_k for every tensor: `nn.Linear(k, N_g)`, cut into tables.

    One parameter per table rather than one big matrix: a slice of a parameter costs a full-size
    gradient buffer in every backward pass.
    """

    def __init__(self, offset: bool = True) -> None:
        super().__init__()
        self.has_offset = offset
        self.scales: dict[str, float] = {}

    def _allocate(self, spec: WeightSpec, features: int, values: Mapping[str, Tensor]) -> None:
        options = like(values)
        self.large = [name for name, size in spec.sizes.items() if size > SMALL]
        self.small = spec.subset(name for name in spec if name not in self.large)
        self.tables = nn.ParameterDict()
        self.offsets = nn.ParameterDict()
        for name in self.large:
            self._add(key(name), features, spec.shapes[name], options)
        if self.small.size:
            self._add("small", features, (self.small.size,), options)

    def _add(
        self, name: str, features: int, shape: tuple[int, ...], options: dict[str, Any]
    ) -> None:
        self.tables[name] = nn.Parameter(torch.empty(features, *shape, **options))
        if self.has_offset:
            self.offsets[name] = nn.Parameter(torch.zeros(shape, **options))

    def generate(self, features: Tensor) -> dict[str, Generated]:
        generated: dict[str, Generated] = {}
        for name in self.large:
            scaled = features * self.scales[name] if name in self.scales else features
            generated[name] = self._expand(key(name), scaled)
        if self.small.size:
            for name, tensor in self.small.split(self._expand("small", features).dense()).items():
                scaled = tensor * self.scales[name] if name in self.scales else tensor
                generated[name] = Written(scaled)
        return generated

    def _expand(self, name: str, features: Tensor) -> Expanded:
        offset = self.offsets[name] if self.has_offset else None
        return Expanded(features, self.tables[name], offset)

    def _views(self, name: str) -> tuple[Tensor, Tensor | None]:
        """The table [k, *shape] and offset [*shape] of one tensor, to be written in place."""
        if name in self.large:
            offset = self.offsets[key(name)] if self.has_offset else None
            return self.tables[key(name)].data, None if offset is None else offset.data
        table = self.small.split(self.tables["small"].data)[name]
        if not self.has_offset:
            return table, None
        return table, self.small.split(self.offsets["small"].data)[name]

    def initialise(self, targets: Mapping[str, Target], moment: float) -> None:
        for name, target in targets.items():
            table, offset = self._views(name)
            table.normal_(0.0, math.sqrt(target.variance / (self.features * moment)))
            if offset is not None:
                offset.zero_() if target.offset is None else offset.copy_(target.offset)

    def default(self) -> None:
        bound = 1.0 / math.sqrt(self.features)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def zero(self, moment: float) -> None:
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

"""The low-rank head: each generated matrix is a product of two thin generated factors."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from weightloom.errors import HeadError
from weightloom.hyper.heads.base import Head, InitTarget, key, like
from weightloom.hyper.heads.full import FullHead
from weightloom.hyper.rows import Factored, Generated
from weightloom.networks import WeightSpec

__all__ = ["LowRankHead"]


class LowRankHead(Head):
    """W = offset + left(phi) right(phi), with left [out, r] and right [r, in] linear in phi.

    Quadratic in phi: features twice as long give a change four times as large. The offset is one
    learned matrix that all conditions share. Tensors that a factorisation would not make smaller
    (vectors, matrices thinner than the rank) are written by a `FullHead`.
    """

    degree = 2

    def __init__(self, rank: int = 4, offset: bool = True) -> None:
        super().__init__()
        if rank < 1:
            raise HeadError(f"rank={rank} was given; a low-rank head needs a rank of at least 1")
        self.rank = rank
        self.has_offset = offset

    def _allocate(self, spec: WeightSpec, features: int, values: Mapping[str, Tensor]) -> None:
        options = like(values)
        self.factored = [name for name, shape in spec.shapes.items() if self._pays(shape)]
        self.left = nn.ParameterDict()
        self.right = nn.ParameterDict()
        self.offsets = nn.ParameterDict()
        for name in self.factored:
            shape = spec.shapes[name]
            out, inner = shape[0], math.prod(shape[1:])
            self.left[key(name)] = nn.Parameter(torch.empty(features, out, self.rank, **options))
            self.right[key(name)] = nn.Parameter(torch.empty(features, self.rank, inner, **options))
            if self.has_offset:
                self.offsets[key(name)] = nn.Parameter(torch.zeros(shape, **options))
        rest = spec.subset(name for name in spec if name not in self.factored)
        self.rest = FullHead(offset=self.has_offset) if len(rest) else None
        if self.rest is not None:
            self.rest.build(rest, features, values)

    def _pays(self, shape: tuple[int, ...]) -> bool:
        if len(shape) < 2:
            return False
        out, inner = shape[0], math.prod(shape[1:])
        return self.rank * (out + inner) < out * inner

    def generate(self, features: Tensor) -> dict[str, Generated]:
        if self.spec is None:
            raise HeadError("this head was not built; pass it to a HyperNetwork first")
        generated: dict[str, Generated] = {}
        for name in self.factored:
            left = torch.einsum("bk,kor->bor", features, self.left[key(name)])
            right = torch.einsum("bk,kri->bri", features, self.right[key(name)])
            offset = self.offsets[key(name)] if self.has_offset else None
            # Under autocast products come back in half precision; weights keep the head's type.
            dtype = self.left[key(name)].dtype
            shape = self.spec.shapes[name]
            generated[name] = Factored(left.to(dtype), right.to(dtype), offset, shape)
        if self.rest is not None:
            generated.update(self.rest.generate(features))
        return generated

    @torch.no_grad()
    def initialise(self, targets: Mapping[str, InitTarget], moment: float) -> None:
        for name in self.factored:
            target = targets[name]
            # Each entry is a sum of r products, so each factor carries sqrt(variance / r).
            each = math.sqrt(target.variance / self.rank)
            for table in (self.left[key(name)], self.right[key(name)]):
                table.normal_(0.0, math.sqrt(each / (self.features * moment)))
            if self.has_offset:
                offset = self.offsets[key(name)]
                offset.zero_() if target.offset is None else offset.copy_(target.offset)
        if self.rest is not None:
            self.rest.initialise({n: t for n, t in targets.items() if n in self._rest()}, moment)

    def _rest(self) -> WeightSpec:
        if self.rest is None or self.rest.spec is None:
            return WeightSpec({}, {})
        return self.rest.spec

    def default(self) -> None:
        bound = 1.0 / math.sqrt(self.features)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    @torch.no_grad()
    def zero(self, moment: float) -> None:
        """left is zero and right is not, as in LoRA: the output is zero, the gradients are not."""
        for name in self.factored:
            self.left[key(name)].zero_()
            table = self.right[key(name)]
            table.normal_(0.0, 1.0 / math.sqrt(self.features * moment * table.shape[2]))
            if self.has_offset:
                self.offsets[key(name)].zero_()
        if self.rest is not None:
            self.rest.zero(moment)

"""The full linear head: every generated number is its own linear function of the features."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weightloom.hyper.heads.base import Head, InitTarget, key, like
from weightloom.hyper.rows import Expanded, Generated, Written
from weightloom.networks import WeightSpec

__all__ = ["FullHead"]

# Tensors of at most this many numbers (biases, last layers) never have a table of their own.
SMALL = 256

# Up to this many numbers one call of F.linear is fastest, though it makes one more pass.
SMALL_JOINT = 2**14

# With few conditions and a table too large for the caches, table @ phi^T and a transposed copy take
# two thirds of the time of phi @ table^T (MKL, 4 to 16 conditions, 2^21 to 2^23 numbers).
FEW_CONDITIONS = 32
LARGE_TABLE = 2**20


class FullHead(Head):
    """W = offset + sum_k phi_k table_k for every tensor: `nn.Linear(k, N_g)` in parts.

    A matrix with more inputs than there are features has a table of its own, [out, k, in], so that
    its layer can contract the table with x. All other tensors are written by one joint product.
    The tables are separate parameters and not slices of one matrix, because a slice of a parameter
    costs a full-size gradient buffer in every backward pass.
    """

    def __init__(self, offset: bool = True) -> None:
        super().__init__()
        self.has_offset = offset
        self.scales: dict[str, float] = {}

    def _allocate(self, spec: WeightSpec, features: int, values: Mapping[str, Tensor]) -> None:
        options = like(values)
        own = [name for name, shape in spec.shapes.items() if _may_contract(features, shape)]
        self.rest = spec.subset(name for name in spec if name not in own)
        self.tables = nn.ParameterDict()
        self.offsets = nn.ParameterDict()
        self.own = {name: key(name) for name in own}
        for name, stored in self.own.items():
            shape = spec.shapes[name]
            table = (shape[0], features, *shape[1:])
            self.tables[stored] = nn.Parameter(torch.empty(table, **options))
            if self.has_offset:
                self.offsets[stored] = nn.Parameter(torch.zeros(shape, **options))
        size = self.rest.size
        self.joint = nn.Parameter(torch.empty(size, features, **options)) if size else None
        learns = size and self.has_offset
        self.joint_offset = nn.Parameter(torch.zeros(size, **options)) if learns else None

    def generate(self, features: Tensor) -> dict[str, Generated]:
        generated: dict[str, Generated] = {}
        scales = self.scales
        if self.own:
            tables, offsets = self.tables, self.offsets
            for name, stored in self.own.items():
                scaled = features * scales[name] if name in scales else features
                offset = getattr(offsets, stored) if self.has_offset else None
                generated[name] = Expanded(scaled, getattr(tables, stored), offset)
        joint = self.joint
        if joint is not None:
            for name, tensor in self.rest.split(self._write(features, joint)).items():
                generated[name] = Written(tensor * scales[name] if name in scales else tensor)
        return generated

    def _write(self, features: Tensor, joint: Tensor) -> Tensor:
        """The tensors that have no table of their own, as one flat tensor [b, size]."""
        if joint.numel() <= SMALL_JOINT:
            return F.linear(features, joint, self.joint_offset).to(joint.dtype)
        if features.shape[0] <= FEW_CONDITIONS and joint.numel() >= LARGE_TABLE:
            written = torch.mm(joint, features.t()).t().contiguous()
        else:
            written = torch.mm(features, joint.t())
        # Under autocast products come back in half precision; weights keep the head's type.
        written = written.to(joint.dtype)
        # In place behind mm: addmm copies the offset to every row first, at twice the cost.
        return written if self.joint_offset is None else written.add_(self.joint_offset)

    def table(self, name: str) -> Tensor:
        """The table of one tensor, which multiplies the features: [k, *shape]; a view."""
        if name in self.own:
            return self.tables[self.own[name]].transpose(0, 1)
        if self.joint is None:
            raise KeyError(name)
        pieces = dict(zip(self.rest, self.joint.split(list(self.rest.sizes.values())), strict=True))
        return pieces[name].view(*self.rest.shapes[name], -1).movedim(-1, 0)

    def offset(self, name: str) -> Tensor | None:
        """The part of one tensor that all conditions share, [*shape]; a view, or None."""
        if not self.has_offset:
            return None
        if name in self.own:
            return self.offsets[self.own[name]]
        return None if self.joint_offset is None else self.rest.split(self.joint_offset)[name]

    @torch.no_grad()
    def initialise(self, targets: Mapping[str, InitTarget], moment: float) -> None:
        for name, target in targets.items():
            std = math.sqrt(target.variance / (self.features * moment))
            self.table(name).normal_(0.0, std)
            offset = self.offset(name)
            if offset is not None:
                offset.zero_() if target.offset is None else offset.copy_(target.offset)

    def default(self) -> None:
        bound = 1.0 / math.sqrt(self.features)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def zero(self, moment: float) -> None:
        for parameter in self.parameters():
            nn.init.zeros_(parameter)


def _may_contract(features: int, shape: tuple[int, ...]) -> bool:
    """Whether this is a matrix (or 1x1 kernel) for which contracting the input first can pay."""
    if len(shape) < 2 or any(size != 1 for size in shape[2:]) or math.prod(shape) <= SMALL:
        return False
    return features + 1 < shape[1]

"""The delta head: a given primary plus a generated change that starts at zero."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from weightloom.models.heads.base import Head, Target, key
from weightloom.models.heads.full import FullHead
from weightloom.models.heads.low_rank import LowRankHead
from weightloom.weights import Generated, WeightSpec

__all__ = ["DeltaHead"]


class DeltaHead(Head):
    """W = W_0 + change(phi). W_0 is the primary as it was given, pretrained or not.

    ``rank=None``: the change is a full linear function of the features. ``rank=r``: a low-rank
    change per matrix, as LoRA does. At the start the change is exactly zero, so the hypernetwork
    computes what the primary computed. ``train_base=True`` also trains W_0.
    """

    def __init__(self, rank: int | None = None, train_base: bool = False) -> None:
        super().__init__()
        self.change: Head = FullHead(False) if rank is None else LowRankHead(rank, offset=False)
        self.train_base = train_base

    def _allocate(self, spec: WeightSpec, features: int, values: Mapping[str, Tensor]) -> None:
        self.change.build(spec, features, values)
        self.base = nn.ParameterDict(
            {
                key(name): nn.Parameter(values[name].clone(), requires_grad=self.train_base)
                for name in spec
            }
        )

    def generate(self, features: Tensor) -> dict[str, Generated]:
        generated = self.change.generate(features)
        return {name: value.shifted(self.base[key(name)]) for name, value in generated.items()}

    def initialise(self, targets: Mapping[str, Target], moment: float) -> None:
        """A change of the asked variance around W_0; offsets of ``targets`` are not used."""
        plain = {name: Target(target.variance) for name, target in targets.items()}
        self.change.initialise(plain, moment)

    def default(self) -> None:
        self.zero(1.0)

    def zero(self, moment: float) -> None:
        """No change: what is generated is W_0."""
        with torch.no_grad():
            self.change.zero(moment)

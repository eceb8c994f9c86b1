"""The part that hand-written contenders share: an encoder and a head that writes every weight."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from workloads import Start, Workload, fill

__all__ = ["TransposedHead", "WrittenWeights"]


class WrittenWeights(nn.Module):
    """The usual design: one nn.Linear writes all numbers, which are cut into tensors."""

    def __init__(self, workload: Workload, start: Start) -> None:
        super().__init__()
        self.shapes = list(start.shapes.values())
        self.sizes = start.sizes
        self.encoder = start.make_encoder()
        self.head = nn.Linear(start.features, len(start.head_weight))
        fill(self.head, start.head_weight, start.head_bias)

    def flat(self, condition: Tensor) -> Tensor:  # [b, N_g]
        return self.head(self.encoder(condition))

    def weights(self, condition: Tensor) -> list[Tensor]:
        """[b, *shape] for each parameter of the primary. `split` has a cheap backward: one cat."""
        pieces = self.flat(condition).split(self.sizes, 1)
        pairs = zip(pieces, self.shapes, strict=True)
        return [piece.view(-1, *shape) for piece, shape in pairs]


class TransposedHead(WrittenWeights):
    """The head's product written as W f^T: with few conditions MKL is faster on the tall side."""

    def flat(self, condition: Tensor) -> Tensor:
        features = self.encoder(condition)
        flat = torch.addmm(self.head.bias.unsqueeze(1), self.head.weight, features.t())
        return flat.t().contiguous()

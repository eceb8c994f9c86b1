"""Small hypernetworks in float64, and the gradients of what they put out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from weightloom.kernels import FiniteHypernetwork, Tower

__all__ = ["RELU", "draw", "gradients"]

RELU = Tower(depth=2), Tower(depth=2)


def draw(n: int, m: int) -> FiniteHypernetwork:
    """One with n neurons in f and m in g; the claim's own seed decides which."""
    generator = torch.Generator().manual_seed(int(torch.randint(2**31, ())))
    return FiniteHypernetwork(*RELU, [3, n], [3, m, 1], generator=generator, dtype=torch.float64)


def gradients(outputs: Tensor, of: Sequence[Tensor]) -> Tensor:
    """Gradients of each output: [outputs, numbers]."""
    rows = []
    for one in outputs.flatten():
        parts = torch.autograd.grad(one, list(of), retain_graph=True)
        rows.append(torch.cat([p.flatten() for p in parts]))
    return torch.stack(rows)

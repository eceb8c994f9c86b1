"""Many networks of one shape at once: outputs, distances, packings, smallest covers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import functional_call

from weightloom.verify.equivalence.nets import network

__all__ = ["ball", "cover_size", "distances", "outputs", "packing_size"]


@torch.no_grad()
def outputs(sizes: Sequence[int], theta: Tensor, x: Tensor) -> Tensor:
    """ReLU networks with parameters theta [n, S] at inputs [p, d_0]: [n, p * outputs].

    One real module, called with each row in place of its own weights and biases.
    """
    net = network(sizes)
    names = list(dict(net.named_parameters()))
    shapes = [p.shape for p in net.parameters()]
    parts = theta.split([shape.numel() for shape in shapes], 1)
    stacked = {
        name: part.reshape(-1, *shape)
        for name, part, shape in zip(names, parts, shapes, strict=True)
    }
    made = torch.vmap(lambda weights: functional_call(net, weights, (x,)))(stacked)
    return made.flatten(1)


def ball(count: int, size: int, radius: float) -> Tensor:
    """Inputs of 2-norm at most ``radius``: random ones, and those along the diagonal and axes."""
    drawn = torch.randn(count, size, dtype=torch.float64)
    drawn *= radius * torch.rand(count, 1, dtype=torch.float64) / drawn.norm(dim=1, keepdim=True)
    diagonal = torch.full((1, size), radius / size**0.5, dtype=torch.float64)
    axes = radius * torch.eye(size, dtype=torch.float64)
    return torch.cat([drawn, diagonal, -diagonal, axes, -axes])


def distances(values: Tensor) -> Tensor:
    """Largest difference of outputs between any two rows: [n, n]."""
    return torch.cdist(values, values, p=float("inf"))


def packing_size(apart: Tensor, radius: float) -> int:
    """Members found one by one that are more than ``radius`` from all before.

    No ball of half the radius holds two of them: a cover with that radius needs as many.
    """
    free = torch.ones(len(apart), dtype=torch.bool)
    found = 0
    for one in range(len(apart)):
        if bool(free[one]):
            found += 1
            free &= apart[one] > radius
    return found


def cover_size(apart: Tensor, radius: float) -> int:
    """The least number of members so that each is within ``radius`` of one: Definition 2.

    All subsets are tried.
    """
    count = len(apart)
    near = [sum(1 << j for j in range(count) if float(apart[i, j]) <= radius) for i in range(count)]
    best = count
    for chosen in range(1, 1 << count):
        if chosen.bit_count() < best:
            covered = 0
            for i in range(count):
                if chosen >> i & 1:
                    covered |= near[i]
            if covered == (1 << count) - 1:
                best = chosen.bit_count()
    return best

"""Whether the primary can fit the targets at all: networks of its kind, trained one by one.

Plain MLPs on coordinates learn slow changes first and fast ones hardly (spectral bias). No
hypernetwork can do better than the networks that it writes, so a few of them are trained by
themselves. That is cheap for coordinate networks, and only they are tried.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weightloom.hyper.diagnosis.hooks import Inputs
from weightloom.hyper.hypernetwork import HyperNetwork

__all__ = ["unexplained_alone"]

STEPS, RATES, ENOUGH = 200, (1e-2, 1e-3), 0.1
"""Adam; the better rate counts, because a SIREN wants the lower one; the second is not tried if the
first leaves no more than this share. At 1e-2 a ReLU network 2-32-32
reaches 1 to 9 percent of the variance of 8 x 8 digits, and 64 to 100 percent of that of waves with
up to eight periods on 16 x 16 pixels."""
NETWORKS, COORDINATES, WEIGHTS, POINTS = 4, 4, 100_000, 4096
"""how many are trained; what counts as coordinates; primaries and inputs that are small enough"""


def unexplained_alone(
    hyper: HyperNetwork, weights: dict[str, Tensor], inputs: Inputs, target: Any
) -> float | None:
    """Median over conditions of error / variance of a network trained by itself on one of them.

    ``weights`` [b, *shape] is where they start. None if the primary is no small coordinate network.
    """
    (x, *rest), kwargs = inputs
    if rest or kwargs or not _is_small(hyper, x, target):
        return None
    count = min(NETWORKS, x.shape[0])
    target = target[:count].detach()
    variance = target.flatten(1).var(1, unbiased=False)
    known = variance > 0
    if not known.any():
        return None
    start = {name: value[:count] for name, value in weights.items()}
    best = torch.full_like(variance, torch.inf)
    for rate in RATES:
        errors = _errors(hyper, start, x[:count], target, rate)
        best = torch.minimum(best, errors.nan_to_num(torch.inf))
        if (share := (best / variance)[known].median().item()) <= ENOUGH:
            break
    return share


def _errors(
    hyper: HyperNetwork, start: dict[str, Tensor], x: Tensor, target: Tensor, rate: float
) -> Tensor:
    """Mean square error of each network after training."""
    leaves = {name: value.detach().clone().requires_grad_() for name, value in start.items()}
    optimiser = torch.optim.Adam(leaves.values(), lr=rate)
    for _ in range(STEPS):
        errors = (hyper.run(x, leaves) - target).square().flatten(1).mean(1)
        optimiser.zero_grad()
        errors.sum().backward()
        optimiser.step()
    with torch.no_grad():
        return (hyper.run(x, leaves) - target).square().flatten(1).mean(1)


def _is_small(hyper: HyperNetwork, x: Any, target: Any) -> bool:
    if not (isinstance(x, Tensor) and isinstance(target, Tensor)):
        return False
    coordinates = x.is_floating_point() and x.dim() == 3 and x.shape[-1] <= COORDINATES
    matching = target.is_floating_point() and target.shape[:2] == x.shape[:2]
    small = hyper.spec.size <= WEIGHTS and x.shape[1] <= POINTS
    return coordinates and matching and target.dim() == 3 and small

"""Multipliers of all activations chosen together: LipSDP's bound by descent, with torch and scipy.

The problem is convex in the multipliers (Fazlyab et al. 2019), so descent ends near the best one.
Every step on the way is a bound, and the smallest is returned.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from weightloom.bounds.chain import Chain
from weightloom.bounds.network_norms import Bound
from weightloom.bounds.semidefinite.recursion import Multipliers, Norms, WorkLimits, propagated

__all__ = ["tuned"]

ITERATIONS = 60


def tuned(chain: Chain, iterations: int = ITERATIONS, limits: WorkLimits | None = None) -> Bound:
    """The smallest 2-norm bound that quasi-Newton steps from the closed form find.

    Costs about four times the closed form for each step.
    """
    limits, norms = limits or WorkLimits(), Norms(chain)
    sizes = Multipliers()
    with torch.no_grad():
        start = float(propagated(chain, sizes, limits, norms))
    best = [start]

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        point = torch.from_numpy(flat.copy()).requires_grad_()
        try:
            log = propagated(chain, Multipliers(_split(point, sizes.sizes)), limits, norms)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            return math.inf, np.zeros_like(flat)  # scales so far apart that rounding decides
        value = float(log.detach())
        if math.isfinite(value):
            best[0] = min(best[0], value)
        if not log.requires_grad:  # the layers behind are too large, so no multiplier counts
            return value, np.zeros_like(flat)
        (gradient,) = torch.autograd.grad(log, point)
        return value, torch.nan_to_num(gradient).numpy()

    if sizes.sizes and math.isfinite(start):
        first = np.zeros(sum(sizes.sizes) + len(sizes.sizes))
        bounds = [(-12.0, 12.0)] * len(first)
        minimize(objective, first, jac=True, method="L-BFGS-B", bounds=bounds,
                 options={"maxiter": iterations, "maxcor": 20})  # fmt: skip
    return Bound(min(best[0], norms.product.log), "layer by layer, tuned (LipSDP)")


def _split(point: Tensor, sizes: list[int]) -> list[tuple[Tensor, Tensor]]:
    """(log scales [n], slack) of each activation."""
    parts = point.split([n + 1 for n in sizes])
    return [(part[:-1], part[-1]) for part in parts]

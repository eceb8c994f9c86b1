"""Smooth targets with proven bounds on their derivatives, and the networks built for them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from weightloom.construct import Box, sobolev
from weightloom.construct.deep import sobolev_nodes
from weightloom.construct.deep.hats import hat_units
from weightloom.construct.deep.horner import Horner
from weightloom.construct.deep.sobolev import SHARE
from weightloom.construct.deep.taylor import remainder
from weightloom.errors import ConfigError
from weightloom.lab import Outcome

__all__ = ["TARGETS", "bound_of", "measure", "plan", "printed", "printed_nodes", "target_of"]

TARGETS = ("wave", "fast wave", "bump", "reciprocal")
WAVES = {"wave": (2.0, -1.5, 1.0), "fast wave": (6.0, 4.0, -5.0)}
WIDTH = 0.3
# Largest |He_r(t)| exp(-t^2 / 2), rounded up: derivatives of exp(-t^2 / 2) of order 0 to 4.
HERMITE = (1.0, 0.60654, 1.0, 1.38012, 3.0)
# Cells per axis of the grid on which the sizes of derivatives are looked up, by dimension.
FINEST = {1: 64, 2: 16, 3: 6}


def target_of(name: str, d: int) -> Callable[[Tensor], Tensor]:
    """The function, [n, d] to [n].

    Waves are sin(<a, x> + 0.3) / 2, the bump is exp(-|x - 0.4|^2 / (2 0.3^2)), the reciprocal is
    1 / (1 + x_1 + ... + x_d).
    """
    if name in WAVES:
        a = torch.tensor(WAVES[name][:d], dtype=torch.float64)
        return lambda p: (p @ a + 0.3).sin() / 2
    if name == "bump":
        return lambda p: ((p - 0.4).square().sum(-1) / (-2 * WIDTH**2)).exp()
    if name == "reciprocal":
        return lambda p: 1 / (1 + p.sum(-1))
    raise ConfigError(f"the target {name!r} is unknown; wanted one of {', '.join(TARGETS)}")


def bound_of(name: str, r: int) -> float:
    """M: no partial derivative of order r is larger on the cube, whatever its dimension.

    Waves: max |a_i|^r / 2. Bump: derivatives are products of those along the axes, and the largest
    has all of them along one axis (r >= 2). Reciprocal: r! / (1 + sum x)^(r+1), largest at 0.
    """
    if not 2 <= r <= 4:
        raise ConfigError(f"r={r} was given; 2, 3 or 4 is wanted")
    if name in WAVES:
        return max(abs(a) for a in WAVES[name]) ** r / 2
    if name == "bump":
        return HERMITE[r] / WIDTH**r
    return float(math.factorial(r))


def plan(name: str, d: int, r: int, eps: float) -> tuple[int, int]:
    """Cells s and levels k that `sobolev` chooses for an error of ``eps``, without building.

    Exact where s is at most `FINEST`; beyond, the amplitude that decides k is taken to fall as 1/s
    from there on (its leading term does), which can be off by one level.
    """
    box, bound = Box.cube(d, 0, 1), bound_of(name, r)
    whole = bound * remainder(r, (1.0,) * d)
    s = max(1, math.ceil((whole / (SHARE * eps)) ** (1 / r) * (1 - 1e-12)))
    known = min(s, FINEST[d])
    worst = Horner(target_of(name, d), box, known, r).worst * known / s
    left = eps - bound * remainder(r, (1 / s,) * d)
    return s, max(1, math.ceil(math.log(max(worst, 1e-300) / left, 4) - 1 + 1e-9))


def printed(bound: float, d: int, s: int, k: int, r: int) -> float:
    """Theorem 5.4's error as printed: M r d^r (s^-r + 4 d 2^d 4^-k) + 3 d 2^d 4^-k."""
    levels = d * 2.0**d * 4.0**-k
    return bound * r * d**r * (s**-r + 4 * levels) + 3 * levels


def printed_nodes(d: int, s: int, k: int, r: int) -> float:
    """Theorem 5.4's nodes as printed, with constant one: (k d + d^2 + r^2 d^r + k r d^r) s^d."""
    return float((k * d + d * d + r * r * d**r + k * r * d**r) * s**d)


def measure(config: Mapping[str, Any], seed: int) -> Outcome:
    """Count, and if there are at most ``max_nodes`` units build and look for the largest error.

    ``cells`` are the units that grow with s^d (hats), the rest are products. Not built: error, rms,
    bound and layers are NaN.
    """
    began = time.perf_counter()
    name, d, r, eps = config["target"], config["d"], config["r"], config["eps"]
    s, k = plan(name, d, r, eps)
    unknown = dict.fromkeys(("error", "rms", "bound", "layers", "nonzeros"), math.nan)
    metrics: dict[str, float] = {"nodes": sobolev_nodes(d, s, k, r), **unknown}
    if metrics["nodes"] <= config["max_nodes"]:
        made = sobolev(target_of(name, d), d, eps=eps, r=r, derivative_bound=bound_of(name, r))
        s, k = made.s, made.k
        found = made.measure(points=config["points"], rounds=4, seed=seed)
        metrics |= {
            "nodes": made.nodes,
            "error": found.error,
            "rms": found.rms,
            "bound": made.error_bound,
            "layers": made.layers,
            "nonzeros": made.nonzeros,
        }
    metrics |= {
        "s": s,
        "k": k,
        "cells": hat_units(d, s, True),
        "printed_bound": printed(bound_of(name, r), d, s, k, r),
        "printed_nodes": printed_nodes(d, s, k, r),
    }
    return Outcome("done", metrics, seconds=time.perf_counter() - began)

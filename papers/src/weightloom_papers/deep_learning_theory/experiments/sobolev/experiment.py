"""Smooth functions by depth: Theorem 5.4 of "Deep learning theory", sizes against errors.

The targets have known bounds on their derivatives. Networks that are too large to build are only
counted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weightloom.construct import Box, sobolev
from weightloom.construct.deep import sobolev_nodes
from weightloom.construct.deep.partition import hat_units
from weightloom.construct.deep.smooth import SHARE
from weightloom.construct.deep.taylor import Horner, remainder
from weightloom.errors import ConfigError
from weightloom_papers.lab import Experiment, Outcome, Result, ResultTable, Run, Workspace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "Sobolev",
    "TARGETS",
    "bound_of",
    "measure",
    "plan",
    "printed",
    "printed_nodes",
    "target_of",
]


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
    """M, a bound on all partial derivatives of order r on the cube, in any dimension.

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

    Exact where s is at most `FINEST`. Beyond it, the amplitude that determines k is assumed to fall
    as 1/s (its leading term does), so k can be off by one.
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
    """Count the units; if there are at most ``max_nodes``, build and search the largest error.

    ``cells`` are the units that grow with s^d (hats); the rest are products. Error, rms, bound and
    layers are NaN where the network is not built.
    """
    began = time.perf_counter()
    name, d, r, eps = config["target"], config["d"], config["r"], config["eps"]
    s, k = plan(name, d, r, eps)
    unknown = dict.fromkeys(("error", "rms", "bound", "layers", "nonzeros"), math.nan)
    metrics: dict[str, float] = {"nodes": sobolev_nodes(d, s, k, r), **unknown}
    if metrics["nodes"] <= config["max_nodes"]:
        certified = sobolev(target_of(name, d), d, eps=eps, r=r, derivative_bound=bound_of(name, r))
        s, k = certified.s, certified.k
        measured = certified.measure(points=config["points"], rounds=4, seed=seed)
        metrics |= {
            "nodes": certified.nodes,
            "error": measured.error,
            "rms": measured.rms,
            "bound": certified.error_bound,
            "layers": certified.layers,
            "nonzeros": certified.nonzeros,
        }
    metrics |= {
        "s": s,
        "k": k,
        "cells": hat_units(d, s, True),
        "printed_bound": printed(bound_of(name, r), d, s, k, r),
        "printed_nodes": printed_nodes(d, s, k, r),
    }
    return Outcome("done", metrics, seconds=time.perf_counter() - began)


SMOOTHNESS = (2, 3, 4)


@dataclass(frozen=True)
class SobolevSizes:
    """Targets, accuracies and limits of one scale."""

    digits: Mapping[int, int]
    """by dimension: eps falls from 0.1 to 10^-digits, two values to a factor of ten"""
    targets: Sequence[str]
    max_nodes: int
    """networks with more units are counted, not built"""
    points: int


PLANS = {
    "smoke": SobolevSizes({1: 2, 2: 1}, TARGETS[:1], 1_500, 300),
    "laptop": SobolevSizes({1: 9, 2: 8, 3: 7}, TARGETS, 10_000, 2_000),
    "paper": SobolevSizes({1: 11, 2: 9, 3: 8}, TARGETS, 150_000, 20_000),
}


class Sobolev(Experiment):
    """Taylor networks for four smooth targets, three orders r and three dimensions d."""

    name = "deep-learning-theory/sobolev"
    title = "Networks for smooth functions: nodes against error"
    claim = (
        "A function on [0, 1]^d whose derivatives up to order r are at most M is approximated "
        "within M r d^r (s^-r + 4 d 2^d 4^-k) + 3 d 2^d 4^-k by O(k (r + d)) layers and "
        "O((k d + d^2 + r^2 d^r + k r d^r) s^d) nodes, hence about eps^-(d/r) ln(1/eps) nodes."
    )
    paper = "deep-learning-theory, Theorem 5.4"
    main_metrics = ("error", "bound", "nodes", "cells", "s", "k")

    def runs(self, scale: str) -> list[Run]:
        chosen = PLANS[scale]
        return [
            Run(
                self.name,
                {
                    "part": "built",
                    "target": target,
                    "d": d,
                    "r": r,
                    "eps": round(10 ** (-half / 2), 15),
                    "max_nodes": chosen.max_nodes,
                    "points": chosen.points,
                },
                0,
            )
            for d, digits in chosen.digits.items()
            for r in SMOOTHNESS
            for target in chosen.targets
            for half in range(2, 2 * digits + 1)
        ]

    def group(self, run: Run) -> str:
        return f"{run.config['target']}-{run.config['d']}-{run.config['r']}"

    def size_limit(self) -> int:
        return 32

    def cost(self, run: Run) -> float:
        """Seconds on one core: derivatives and the search for the largest error."""
        config = run.config
        return float(0.1 + config["d"] * config["points"] * config["max_nodes"] ** 0.5 / 2e6)

    def execute(self, runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
        for run in runs:
            yield run, measure(run.config, run.seed)

    def figures(self, results: Sequence[Result]) -> Mapping[str, Figure]:
        from weightloom_papers.deep_learning_theory.experiments.sobolev.figure import draw_sobolev

        return draw_sobolev(results)

    def table(self, results: Sequence[Result]) -> ResultTable:
        from weightloom_papers.deep_learning_theory.experiments.sobolev.analysis import (
            sobolev_table,
        )

        return sobolev_table(results, self.title)

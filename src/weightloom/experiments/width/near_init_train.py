"""What the experiment ``near-init`` measures: networks that were moved, and networks that learned.

A trained network is F(x; V) = (1 / sqrt m) sum_j a_j sigma(v_j . x) (NTK parametrisation, only V
learns) under full-batch gradient descent on the mean squared error, on points of the unit sphere.
Its Taylor model F_0 is taken at the V that training found, so |F - F_0| is what the bounds of
Propositions 3.4 and 3.7 are about, with |V - V0| as their radius.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weightloom.construct.near_init import (
    Shallow,
    attack,
    relu_bound,
    relu_worst,
    smooth_bound,
    taylor_errors,
)
from weightloom.lab import Outcome

__all__ = [
    "MEASURES",
    "Data",
    "Descent",
    "descend",
    "make_data",
    "measure_moved",
    "measure_trained",
]

DELTA = 0.01
RECORDS = 40  # points of a curve, at most


def measure_moved(config: Mapping[str, Any], seed: int) -> Outcome:
    """One row of `taylor_errors`: V moved by ``radius`` in three ways, beside three bounds."""
    started = time.perf_counter()
    (row,) = taylor_errors(
        [config["width"]],
        radius=config["radius"],
        seeds=[seed],
        activation=config["activation"],
        dims=config["dims"],
        delta=DELTA,
    )
    names = ("random", "aligned", "worst", "bound", "corrected", "printed")
    metrics = {name: getattr(row, name) for name in names}
    return Outcome("done", metrics, seconds=time.perf_counter() - started)


@dataclass(frozen=True)
class Data:
    """A small regression: points on the unit sphere, and a smooth function of them."""

    x: Tensor
    y: Tensor
    test: Tensor
    """[points, d], from the same distribution"""


def make_data(samples: int, dims: int, seed: int, points: int = 64) -> Data:
    """y = sin(4 u.x) + u'.x for random orthogonal u, u'; the same for all widths of a seed."""
    generator = torch.Generator().manual_seed(1_000 + seed)
    drawn = torch.randn(samples + points, dims, dtype=torch.float64, generator=generator)
    x = drawn / drawn.norm(dim=-1, keepdim=True)
    u = torch.linalg.qr(torch.randn(dims, 2, dtype=torch.float64, generator=generator)).Q
    y = (4 * x @ u[:, 0]).sin() + x @ u[:, 1]
    return Data(x[:samples], y[:samples], x[samples:])


@dataclass(frozen=True)
class Descent:
    """Where gradient descent ended, and what was seen on the way."""

    hidden: Tensor
    steps: int
    first: float
    last: float
    """mean squared error at the start and at the end"""
    curves: dict[str, tuple[list[int], list[float]]]


@torch.no_grad()
def descend(net: Shallow, data: Data, *, rate: float, goal: float, max_steps: int) -> Descent:
    """Gradient descent on V until the error is ``goal`` times that of the start, or no steps left.

    Written out: with residuals r, row j of the gradient is 2/n sum_i r_i out_j sigma'(v_j.x_i) x_i.
    """
    hidden, n = net.hidden.clone(), len(data.y)
    every = max(1, max_steps // RECORDS)
    steps: list[int] = []
    losses: list[float] = []
    moved: list[float] = []
    first = loss = math.nan
    step = 0
    for step in range(max_steps + 1):
        at = data.x @ hidden.T
        residual = net.sigma.function(at) @ net.out - data.y
        loss = float(residual.square().mean())
        first = loss if step == 0 else first
        done = step == max_steps or not goal * first < loss < math.inf
        if done or step % every == 0:
            steps.append(step)
            losses.append(loss)
            moved.append(float((hidden - net.hidden).norm()))
        if done:
            break
        pull = net.sigma.slope(at) * net.out * residual[:, None]
        hidden -= rate * 2 / n * pull.T @ data.x
    curves = {"loss": (steps, losses), "distance": (steps, moved)}
    return Descent(hidden, step, first, loss, curves)


def measure_trained(config: Mapping[str, Any], seed: int) -> Outcome:
    """``rms`` and ``sup`` of F - F_0 on test points at the end; ``bound`` of the propositions at
    the distance travelled; ``worst``, how bad V could be at that distance (at the first point)."""
    started = time.perf_counter()
    width, name = config["width"], config["activation"]
    data = make_data(config["samples"], config["dims"], seed)
    net = Shallow.draw(width, config["dims"], name, seed=seed * 7919 + width)
    found = descend(
        net, data, rate=config["rate"], goal=config["goal"], max_steps=config["max_steps"]
    )
    if not math.isfinite(found.last):
        message = f"the error is {found.last} after {found.steps} steps"
        return Outcome("diverged", {"loss": found.last}, found.curves, message)
    gap = net(data.test, found.hidden) - net.taylor(data.test, found.hidden)
    distance = float((found.hidden - net.hidden).norm())
    if name == "relu":
        bound = relu_bound(width, distance, DELTA, net.largest_out, form="sharp", around="init")
        worst = relu_worst(net, data.test[0], distance).error
    else:
        bound = smooth_bound(net.sigma.smoothness, distance, net.largest_out)
        worst = attack(net, distance, x=data.test[0], steps=40, seed=seed).error
    metrics = {
        "rms": float(gap.square().mean().sqrt()),
        "sup": float(gap.abs().max()),
        "distance": distance,
        "largest_row": float((found.hidden - net.hidden).norm(dim=-1).max()),
        "bound": bound,
        "worst": worst,
        "first_loss": found.first,
        "loss": found.last,
        "steps": found.steps,
        "change": float((net(data.test, found.hidden) - net(data.test)).square().mean().sqrt()),
    }
    seconds = time.perf_counter() - started
    return Outcome("done", metrics, found.curves, seconds=seconds)


#: By ``part`` of a run's configuration.
MEASURES: dict[str, Callable[[Mapping[str, Any], int], Outcome]] = {
    "moved": measure_moved,
    "trained": measure_trained,
}

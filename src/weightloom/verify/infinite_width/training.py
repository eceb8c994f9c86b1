"""A trained hypernetwork against regression with its limit."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.kernels import FiniteHypernetwork, HyperKernel
from weightloom.verify.claim import Claim, Evidence, Size, Statement
from weightloom.verify.infinite_width.finite import RELU, draw, gradients

__all__ = ["CLAIMS"]


@dataclass(frozen=True)
class Trained:
    """Relative distance of a trained network from regression with K and with the prior, medians."""

    tangent: dict[tuple[int, int], float]
    prior: dict[tuple[int, int], float]
    left: float
    """training error at the end, relative"""


def _measure_trained(size: Size) -> Trained:
    # inputs at right angles: few steps are enough
    x = z = math.sqrt(3) * torch.eye(3, dtype=torch.float64)
    x2, z2 = torch.randn(8, 3, dtype=torch.float64), torch.randn(8, 3, dtype=torch.float64)
    y = torch.tensor([[1.0], [-0.5], [0.7]], dtype=torch.float64)
    limits = {kind: HyperKernel(*RELU, kind=kind) for kind in ("ntk", "nngp")}
    tangent, prior, left = {}, {}, 0.0
    steps, seeds = (25, 3) if size == "quick" else (60, 12)
    for widths in ((16, 16), (512, 128)):
        off: dict[str, list[Tensor]] = {"ntk": [], "nngp": []}
        for _ in range(seeds):
            h = draw(*widths)
            with torch.no_grad():
                start, start2 = h(x, z), h(x2, z2)
            left = max(left, _descend(h, x, z, y, steps))
            with torch.no_grad():
                after = h(x2, z2) - start2
            for kind, k in limits.items():
                wanted = k(x2, z2, x, z) @ torch.linalg.solve(k(x, z), y - start)
                off[kind].append((after - wanted).norm() / wanted.norm())
        tangent[widths] = float(torch.stack(off["ntk"]).median())
        prior[widths] = float(torch.stack(off["nngp"]).median())
    return Trained(tangent, prior, left)


def _descend(h: FiniteHypernetwork, x: Tensor, z: Tensor, y: Tensor, steps: int) -> float:
    """Gradient descent with steps that the first kernel allows; the error left, relative."""
    parameters = list(h.parameters())
    with torch.enable_grad():
        rows = gradients(h(x, z), parameters)
    rate = 1.0 / float(torch.linalg.eigvalsh(rows @ rows.T)[-1])
    sizes = []
    for _ in range(steps):
        with torch.enable_grad():
            error = h(x, z) - y
            moves = torch.autograd.grad(error.square().sum() / 2, parameters)
        sizes.append(float(error.detach().norm()))
        with torch.no_grad():
            for p, d in zip(parameters, moves, strict=True):
                p.sub_(rate * d)
    return sizes[-1] / sizes[0]


def _regression(seen: Trained, distances: dict[tuple[int, int], float]) -> Evidence:
    (narrow, first), (wide, second) = distances.items()
    at = (
        f"L = H = 2, 3 training points (error left {seen.left:.1e}), distance of what was learned "
        f"at 8 others from what the regression adds there, relative: {first:.3f} at widths "
        f"{narrow}, {second:.3f} at {wide}"
    )
    return Evidence(second / first, 0.5, at)


TRAINING = Claim(
    name="001/training-is-regression",
    place="Section 4, Eq. 18",
    items=(26, 14),
    measure=_measure_trained,
    printed=Statement(
        "gradient descent on a wide hypernetwork ends at regression with its hyperkernel (checked: "
        "the distance falls as the widths grow)",
        lambda seen: _regression(seen, seen.tangent),
    ),
    wrong=Statement(
        "it ends at regression with the prior's kernel",
        lambda seen: _regression(seen, seen.prior),
    ),
)

CLAIMS = (TRAINING,)

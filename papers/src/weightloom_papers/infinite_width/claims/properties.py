"""What the kernels depend on, and that training is regression with them.

Corollary 1, Fourier features (Remarks 2 and 3), positive semi-definiteness, Eq. 18.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.kernels import FiniteHypernetwork, HyperKernel, Tower
from weightloom_papers.claims import Evidence, PaperClaim, Size, Statement
from weightloom_papers.infinite_width.claims.kernels import X, Z
from weightloom_papers.infinite_width.claims.reference import (
    TOWERS,
    SampledHypernetworks,
    finite_network,
    gradients,
)
from weightloom_papers.lab.statistics import mean_and_error

__all__ = ["CLAIMS"]


# -- Corollary 1 -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class PriorDependence:
    """Prior covariance Lam^H(u, u') of sampled networks, with standard errors, by inputs."""

    mean: dict[str, float]
    error: dict[str, float]


def _measure_dependence(size: Size) -> PriorDependence:
    rotation = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64)).Q
    # The products x . x' and z . z' are the same, except for the doubled ones. For other norms, a
    # vector orthogonal to x and x' is added to x.
    normal = torch.linalg.cross(X[0], X[1])
    pairs = {
        "as they are": (X, Z),
        "turned": (X @ rotation, Z @ rotation),
        "other norms": (X + torch.stack([normal, 0 * normal]), Z),
        "x and x' doubled": (2 * X, Z),
    }
    width, draws = (1000, 100) if size == "quick" else (4000, 400)
    mean, error = {}, {}
    for name, (x, z) in pairs.items():
        value, noise = mean_and_error(
            SampledHypernetworks(x, z, (3, 3), (width, width), draws).prior()[:, 0, 1]
        )
        mean[name], error[name] = float(value), float(noise)
    return PriorDependence(mean, error)


def _same(measured: PriorDependence, other: str) -> Evidence:
    off = abs(measured.mean[other] - measured.mean["as they are"])
    noise = measured.error[other] + measured.error["as they are"]
    values = ", ".join(f"{n}: {m:.3f} +- {measured.error[n]:.3f}" for n, m in measured.mean.items())
    return Evidence(off / noise, 4, f"L = H = 3, Lam^H(u, u') for inputs {values}")


COROLLARY_1 = PaperClaim(
    name="infinite-width/corollary-1",
    place="Corollary 1, Eq. 11",
    items=(10,),
    measure=_measure_dependence,
    printed=Statement(
        "Lam^H(u, u') is a function of the two numbers Sigma^0(z, z') and S^0(x, x')",
        lambda measured: _same(measured, "other norms"),
    ),
    corrected=Statement(
        "it is one of these and the norms, Sigma^0(z, z), Sigma^0(z', z'), S^0(x, x), S^0(x', x')",
        lambda measured: _same(measured, "turned"),
    ),
    wrong=Statement(
        "it is a function of the correlations of x, x' and z, z' alone",
        lambda measured: _same(measured, "x and x' doubled"),
    ),
)


# -- Remarks 2 and 3 -------------------------------------------------------------------------------


@dataclass(frozen=True)
class PointFeatures:
    """p(z) . p(z') / k, with standard errors, at pairs of points and shifted pairs."""

    mean: Tensor
    error: Tensor
    distance: Tensor
    shifted: Tensor


def _measure_features(size: Size) -> PointFeatures:
    count, pairs = 20_000 if size == "quick" else 400_000, 12
    z = torch.randn(2, pairs, 2, dtype=torch.float64)
    w = torch.randn(count, 2, dtype=torch.float64)
    b = (2 * torch.rand(count, 1, dtype=torch.float64) - 1) * math.pi
    both = [torch.cos(w @ p.T + b) for p in z]
    moved = [torch.cos(w @ (p + 3.0).T + b) for p in z]
    mean, error = mean_and_error(both[0] * both[1])
    return PointFeatures(mean, error, (z[0] - z[1]).square().sum(-1), (moved[0] * moved[1]).mean(0))


def _features(measured: PointFeatures, factor: float) -> Evidence:
    wanted = factor * torch.exp(-measured.distance / 2)
    off = ((measured.mean - wanted).abs() / measured.error).max()
    shift = ((measured.mean - measured.shifted).abs() / measured.error).max() / 1.5
    i = int(((measured.mean - wanted).abs() / measured.error).argmax())
    at = (
        f"{len(wanted)} pairs of points, worst at distance "
        f"{float(measured.distance[i].sqrt()):.2f}: "
        f"{float(measured.mean[i]):.4f} +- {float(measured.error[i]):.4f} against "
        f"{float(wanted[i]):.4f}; "
        f"shifting both points by (3, 3) moves it by {float(shift) * 1.5:.1f} standard errors"
    )
    return Evidence(max(float(off), float(shift)), 5, at)


REMARK_2 = PaperClaim(
    name="infinite-width/fourier-features",
    place="Remarks 2 and 3, Eq. 77",
    items=(11,),
    measure=_measure_features,
    printed=Statement(
        "p(z) . p(z') / k -> exp(-|z - z'|^2 / 2) / 2 for p = cos(W z + b): kernels depend on z "
        "and z' through their difference alone",
        lambda measured: _features(measured, 0.5),
    ),
    wrong=Statement("-> exp(-|z - z'|^2 / 2)", lambda measured: _features(measured, 1.0)),
)


# -- positive semi-definiteness --------------------------------------------------------------------


def _measure_positive(size: Size) -> dict[str, tuple[float, float]]:
    """Least eigenvalue over the largest: for random points, and with a multiple of one added."""
    count, ratios = 60 if size == "quick" else 400, {}
    x, z = torch.randn(count, 3, dtype=torch.float64), torch.randn(count, 4, dtype=torch.float64)
    x2, z2 = torch.cat([x, x[:1]]), torch.cat([z, 2 * z[:1]])
    for kind in ("ntk", "nngp"):
        kernel = HyperKernel(Tower(depth=3), Tower(depth=3), kind=kind)
        ends = []
        for a, b in ((x, z), (x2, z2)):
            values = torch.linalg.eigvalsh(kernel(a, b))
            ends.append(float(values[0] / values[-1]))
        ratios[kind] = (ends[0], ends[1])
    return ratios


def _positive(measured: dict[str, tuple[float, float]], strictly: float) -> Evidence:
    worst = min(min(ends) for ends in measured.values())
    ratios = ", ".join(f"{k}: {a:.1e}, with a multiple {b:.1e}" for k, (a, b) in measured.items())
    at = f"L = H = 3, random points, least eigenvalue over largest, {ratios}"
    return Evidence(strictly - worst, 1e-12, at)


POSITIVE = PaperClaim(
    name="infinite-width/positive-kernels",
    place="Theorems 2 and 3",
    items=(25,),
    measure=_measure_positive,
    printed=Statement(
        "both limits are covariances: their matrices have no negative eigenvalues",
        lambda measured: _positive(measured, 0.0),
    ),
    wrong=Statement(
        "their least eigenvalue is positive (1e-6 of the largest) for any distinct points: a point "
        "and twice the same, for ReLU",
        lambda measured: _positive(measured, 1e-6),
    ),
)


# -- Eq. 18: training is regression ----------------------------------------------------------------


@dataclass(frozen=True)
class TrainedDistance:
    """Median relative distance of trained networks from regression with each kernel, by widths."""

    tangent: dict[tuple[int, int], float]
    prior: dict[tuple[int, int], float]
    left: float
    """training error at the end, relative"""


def _measure_trained(size: Size) -> TrainedDistance:
    # orthogonal inputs: few steps are enough
    x = z = math.sqrt(3) * torch.eye(3, dtype=torch.float64)
    x2, z2 = torch.randn(8, 3, dtype=torch.float64), torch.randn(8, 3, dtype=torch.float64)
    y = torch.tensor([[1.0], [-0.5], [0.7]], dtype=torch.float64)
    limits = {kind: HyperKernel(*TOWERS, kind=kind) for kind in ("ntk", "nngp")}
    tangent, prior, left = {}, {}, 0.0
    steps, seeds = (25, 3) if size == "quick" else (60, 12)
    for widths in ((16, 16), (512, 128)):
        off: dict[str, list[Tensor]] = {"ntk": [], "nngp": []}
        for _ in range(seeds):
            h = finite_network(*widths)
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
    return TrainedDistance(tangent, prior, left)


def _descend(h: FiniteHypernetwork, x: Tensor, z: Tensor, y: Tensor, steps: int) -> float:
    """Gradient descent with a rate from the initial kernel; last error over the first."""
    parameters = list(h.parameters())
    with torch.enable_grad():
        rows = gradients(h(x, z), parameters)
    rate = 1.0 / float(torch.linalg.eigvalsh(rows @ rows.T)[-1])
    sizes = []
    for _ in range(steps):
        with torch.enable_grad():
            error = h(x, z) - y
            directions = torch.autograd.grad(error.square().sum() / 2, parameters)
        sizes.append(float(error.detach().norm()))
        with torch.no_grad():
            for p, d in zip(parameters, directions, strict=True):
                p.sub_(rate * d)
    return sizes[-1] / sizes[0]


def _regression(measured: TrainedDistance, distances: dict[tuple[int, int], float]) -> Evidence:
    (narrow, first), (wide, second) = distances.items()
    at = (
        f"L = H = 2, 3 training points (error left {measured.left:.1e}), distance of what "
        "was learned "
        f"at 8 others from what the regression adds there, relative: {first:.3f} at widths "
        f"{narrow}, {second:.3f} at {wide}"
    )
    return Evidence(second / first, 0.5, at)


TRAINING = PaperClaim(
    name="infinite-width/training-is-regression",
    place="Section 4, Eq. 18",
    items=(26, 14),
    measure=_measure_trained,
    printed=Statement(
        "gradient descent on a wide hypernetwork ends at regression with its hyperkernel (checked: "
        "the distance falls as the widths grow)",
        lambda measured: _regression(measured, measured.tangent),
    ),
    wrong=Statement(
        "it ends at regression with the prior's kernel",
        lambda measured: _regression(measured, measured.prior),
    ),
)


CLAIMS = (COROLLARY_1, REMARK_2, POSITIVE, TRAINING)

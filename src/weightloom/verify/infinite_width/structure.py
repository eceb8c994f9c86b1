"""What a kernel depends on: Corollary 1, Fourier features (Remarks 2 and 3), positivity."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.kernels import HyperKernel, Tower
from weightloom.verify.claim import Claim, Evidence, Size, Statement
from weightloom.verify.infinite_width.kernels import X, Z
from weightloom.verify.infinite_width.sampled import Sampled
from weightloom.verify.sampling import mean_and_error

__all__ = ["CLAIMS"]

# -- Corollary 1 -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dependence:
    """Prior covariance Lam^H(u, u') of sampled networks, with standard errors, by inputs."""

    mean: dict[str, float]
    error: dict[str, float]


def _measure_dependence(size: Size) -> Dependence:
    turn = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64)).Q
    # the same products x . x' and z . z'; for other norms a part that x' does not see is added to x
    aside = torch.linalg.cross(X[0], X[1])
    pairs = {
        "as they are": (X, Z),
        "turned": (X @ turn, Z @ turn),
        "other norms": (X + torch.stack([aside, 0 * aside]), Z),
        "x and x' doubled": (2 * X, Z),
    }
    width, draws = (1000, 100) if size == "quick" else (4000, 400)
    mean, error = {}, {}
    for name, (x, z) in pairs.items():
        value, noise = mean_and_error(Sampled(x, z, (3, 3), (width, width), draws).prior()[:, 0, 1])
        mean[name], error[name] = float(value), float(noise)
    return Dependence(mean, error)


def _same(seen: Dependence, other: str) -> Evidence:
    off = abs(seen.mean[other] - seen.mean["as they are"])
    noise = seen.error[other] + seen.error["as they are"]
    said = ", ".join(f"{n}: {m:.3f} +- {seen.error[n]:.3f}" for n, m in seen.mean.items())
    return Evidence(off / noise, 4, f"L = H = 3, Lam^H(u, u') for inputs {said}")


COROLLARY_1 = Claim(
    name="001/corollary-1",
    place="Corollary 1, Eq. 11",
    items=(10,),
    measure=_measure_dependence,
    printed=Statement(
        "Lam^H(u, u') is a function of the two numbers Sigma^0(z, z') and S^0(x, x')",
        lambda seen: _same(seen, "other norms"),
    ),
    corrected=Statement(
        "it is one of these and the norms, Sigma^0(z, z), Sigma^0(z', z'), S^0(x, x), S^0(x', x')",
        lambda seen: _same(seen, "turned"),
    ),
    wrong=Statement(
        "it is a function of the correlations of x, x' and z, z' alone",
        lambda seen: _same(seen, "x and x' doubled"),
    ),
)


# -- Remarks 2 and 3 -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Features:
    """p(z) . p(z') / k, with standard errors, at pairs of points and shifted pairs."""

    mean: Tensor
    error: Tensor
    distance: Tensor
    shifted: Tensor


def _measure_features(size: Size) -> Features:
    count, pairs = 20_000 if size == "quick" else 400_000, 12
    z = torch.randn(2, pairs, 2, dtype=torch.float64)
    w = torch.randn(count, 2, dtype=torch.float64)
    b = (2 * torch.rand(count, 1, dtype=torch.float64) - 1) * math.pi
    both = [torch.cos(w @ p.T + b) for p in z]
    moved = [torch.cos(w @ (p + 3.0).T + b) for p in z]
    mean, error = mean_and_error(both[0] * both[1])
    return Features(mean, error, (z[0] - z[1]).square().sum(-1), (moved[0] * moved[1]).mean(0))


def _features(seen: Features, factor: float) -> Evidence:
    wanted = factor * torch.exp(-seen.distance / 2)
    off = ((seen.mean - wanted).abs() / seen.error).max()
    shift = ((seen.mean - seen.shifted).abs() / seen.error).max() / 1.5
    i = int(((seen.mean - wanted).abs() / seen.error).argmax())
    at = (
        f"{len(wanted)} pairs of points, worst at distance {float(seen.distance[i].sqrt()):.2f}: "
        f"{float(seen.mean[i]):.4f} +- {float(seen.error[i]):.4f} against {float(wanted[i]):.4f}; "
        f"shifting both points by (3, 3) moves it by {float(shift) * 1.5:.1f} standard errors"
    )
    return Evidence(max(float(off), float(shift)), 5, at)


REMARK_2 = Claim(
    name="001/fourier-features",
    place="Remarks 2 and 3, Eq. 77",
    items=(11,),
    measure=_measure_features,
    printed=Statement(
        "p(z) . p(z') / k -> exp(-|z - z'|^2 / 2) / 2 for p = cos(W z + b): kernels depend on z "
        "and z' through their difference alone",
        lambda seen: _features(seen, 0.5),
    ),
    wrong=Statement("-> exp(-|z - z'|^2 / 2)", lambda seen: _features(seen, 1.0)),
)


# -- positivity ------------------------------------------------------------------------------------


def _measure_positive(size: Size) -> dict[str, tuple[float, float]]:
    """Least eigenvalue over the largest, of random points, and of points with a multiple added."""
    count, found = 60 if size == "quick" else 400, {}
    x, z = torch.randn(count, 3, dtype=torch.float64), torch.randn(count, 4, dtype=torch.float64)
    x2, z2 = torch.cat([x, x[:1]]), torch.cat([z, 2 * z[:1]])
    for kind in ("ntk", "nngp"):
        kernel = HyperKernel(Tower(depth=3), Tower(depth=3), kind=kind)
        ends = []
        for a, b in ((x, z), (x2, z2)):
            values = torch.linalg.eigvalsh(kernel(a, b))
            ends.append(float(values[0] / values[-1]))
        found[kind] = (ends[0], ends[1])
    return found


def _positive(seen: dict[str, tuple[float, float]], strictly: float) -> Evidence:
    worst = min(min(ends) for ends in seen.values())
    said = ", ".join(f"{k}: {a:.1e}, with a multiple {b:.1e}" for k, (a, b) in seen.items())
    at = f"L = H = 3, random points, least eigenvalue over largest, {said}"
    return Evidence(strictly - worst, 1e-12, at)


POSITIVE = Claim(
    name="001/positive-kernels",
    place="Theorems 2 and 3",
    items=(25,),
    measure=_measure_positive,
    printed=Statement(
        "both limits are covariances: their matrices have no negative eigenvalues",
        lambda seen: _positive(seen, 0.0),
    ),
    wrong=Statement(
        "their least eigenvalue is positive (1e-6 of the largest) for any distinct points: a point "
        "and twice the same, for ReLU",
        lambda seen: _positive(seen, 1e-6),
    ),
)

CLAIMS = (COROLLARY_1, REMARK_2, POSITIVE)

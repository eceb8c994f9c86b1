"""Exact and structural statements: Eq. 12, Corollary 1, Fourier features, positivity, training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.kernels import (
    FiniteHypernetwork,
    FiniteTower,
    HyperKernel,
    Tower,
)
from weightloom.verify.claim import Claim, Evidence, Size, Statement
from weightloom.verify.infinite_width.kernels import X, Z
from weightloom.verify.infinite_width.sampled import Sampled
from weightloom.verify.sampling import mean_and_error

__all__ = ["CLAIMS"]

RELU = Tower(depth=2), Tower(depth=2)


def _network(n: int, m: int) -> FiniteHypernetwork:
    generator = torch.Generator().manual_seed(int(torch.randint(2**31, ())))
    return FiniteHypernetwork(*RELU, [3, n], [3, m, 1], generator=generator, dtype=torch.float64)


def _rows(outputs: Tensor, of: Sequence[Tensor]) -> Tensor:
    """Gradients of each output: [outputs, numbers]."""
    rows = []
    for one in outputs.flatten():
        parts = torch.autograd.grad(one, list(of), retain_graph=True)
        rows.append(torch.cat([p.flatten() for p in parts]))
    return torch.stack(rows)


def _primary(v: Tensor, z: Tensor, m: int) -> Tensor:
    """g of one hidden layer by hand, with the weights v that f wrote: [rows]."""
    first, second = v[:, : 3 * m].reshape(-1, m, 3), v[:, 3 * m :]
    hidden = math.sqrt(2) * torch.relu((first * z[:, None]).sum(-1) / math.sqrt(3))
    return (second * hidden).sum(-1) / math.sqrt(m)


# -- Eq. 12 ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Factors:
    """K^h of written networks; its relative distance to J_g K^f J_g^T and to Theta_f J_g J_g^T."""

    exact: float
    diagonal: float


def _measure_factors(size: Size) -> Factors:
    exact = diagonal = 0.0
    for _ in range(1 if size == "quick" else 20):
        h = _network(20, 4)
        with torch.enable_grad():
            whole = _rows(h(X, Z), list(h.parameters()))
            written = h.f(X)
            kernel_f = _rows(written, list(h.f.parameters()))
        count = written.shape[1]
        with torch.enable_grad():
            v = written.detach().requires_grad_()
            (by_v,) = torch.autograd.grad(_primary(v, Z, 4).sum(), v)
        k = whole @ whole.T
        kf = (kernel_f @ kernel_f.T).reshape(2, count, 2, count)
        product = torch.einsum("ia,iajb,jb->ij", by_v, kf, by_v)
        mean = torch.einsum("iaja->ij", kf) / count
        exact = max(exact, float((product - k).abs().max() / k.abs().max()))
        rough = mean * (by_v @ by_v.T)
        diagonal = max(diagonal, float((rough - k).abs().max() / k.abs().max()))
    return Factors(exact, diagonal)


EQ_12 = Claim(
    name="001/kernel-factors",
    place="Eq. 12",
    items=(12,),
    measure=_measure_factors,
    printed=Statement(
        "K^h(u, u') = dg/df(x) K^f(x, x') dg/df(x')^T, at any width",
        lambda seen: Evidence(
            seen.exact, 1e-11, f"ReLU 3-20-16, g 3-4-1: off by {seen.exact:.1e} of its size"
        ),
    ),
    wrong=Statement(
        "at any width K^f may be replaced by its mean diagonal times the identity",
        lambda seen: Evidence(
            seen.diagonal, 1e-11, f"ReLU 3-20-16, g 3-4-1: off by {seen.diagonal:.2g} of its size"
        ),
    ),
)


# -- Eq. 15: the kernel of f is diagonal in the limit ----------------------------------------------


@dataclass(frozen=True)
class KernelOfF:
    """K^f of written networks with 4 outputs: its diagonal; root mean square off it, by width."""

    mean: float
    error: float
    limit: float
    off: dict[int, float]


def _measure_kernel_f(size: Size) -> KernelOfF:
    tower, draws = Tower(depth=3), 12 if size == "quick" else 40
    off: dict[int, float] = {}
    inside = torch.zeros(1)
    for n in (30, 480):
        found, outside = [], []
        for _ in range(draws):
            seed = int(torch.randint(2**31, ()))
            f = FiniteTower(tower, [3, n, n, 4], seed=seed, dtype=torch.float64)
            with torch.enable_grad():
                rows = _rows(f(X), list(f.parameters()))
            kernel = (rows @ rows.T).reshape(2, 4, 2, 4)[0, :, 1]  # of x and x'
            found.append(kernel.diagonal().mean())
            outside.append(kernel[~torch.eye(4, dtype=torch.bool)].square().mean())
        off[n] = float(torch.stack(outside).mean().sqrt())
        inside = torch.stack(found)
    mean, error = mean_and_error(inside)
    return KernelOfF(float(mean), float(error), float(tower(X)[0, 1]), off)


def _off_diagonal(seen: KernelOfF, power: float) -> Evidence:
    narrow, wide = seen.off[30], seen.off[480]
    found = math.log(narrow / wide) / math.log(16)
    at = (
        f"L = 3, 4 outputs: diagonal {seen.mean:.3f} +- {seen.error:.3f} against Theta_f = "
        f"{seen.limit:.3f} at width 480; off it {narrow:.3f} at width 30 and {wide:.3f} at 480, "
        f"n^-{found:.2f}"
    )
    bad = abs(seen.mean - seen.limit) > 4 * seen.error + seen.limit * 3 / 480
    return Evidence(abs(found - power) + bad, 0.25, at)


EQ_15 = Claim(
    name="001/kernel-of-f",
    place="Eqs. 15 and 83",
    items=(13, 20),
    measure=_measure_kernel_f,
    printed=Statement(
        "K^f(x, x') -> Theta_f(x, x') I (checked: the diagonal, and n^-1/2 off it)",
        lambda seen: _off_diagonal(seen, 0.5),
    ),
    wrong=Statement("1 / n off it", lambda seen: _off_diagonal(seen, 1.0)),
)


# -- Eq. 16: the kernel stands still ---------------------------------------------------------------


@dataclass(frozen=True)
class Motion:
    """|K after a small step - K before| over K and the step, medians, by widths (n, m)."""

    median: dict[tuple[int, int], float]


def _measure_motion(size: Size) -> Motion:
    draws = 12 if size == "quick" else 60
    found = {}
    for n, m in ((32, 8), (512, 8), (512, 128)):
        rates = []
        for _ in range(draws):
            h = _network(n, m)
            parameters, kernels = list(h.parameters()), []
            for step in (0.0, 1e-4):
                with torch.enable_grad():
                    rows = _rows(h(X, Z), parameters)
                kernels.append(float(rows[0] @ rows[0]))
                if step == 0.0:  # gradient flow on h(u) alone, with loss h
                    along = rows[0]
                    with torch.no_grad():
                        for p, d in zip(
                            parameters, along.split([p.numel() for p in parameters]), strict=True
                        ):
                            p.sub_(1e-4 * d.view_as(p))
            if kernels[0] > 0:  # a narrow g may have all of its neurons off
                rates.append(abs(kernels[1] - kernels[0]) / kernels[0] / 1e-4)
        found[n, m] = float(torch.tensor(rates).median())
    return Motion(found)


def _moves(seen: Motion, to: tuple[int, int]) -> Evidence:
    ratio = seen.median[to] / seen.median[32, 8]
    said = ", ".join(f"({n}, {m}): {v:.3g}" for (n, m), v in seen.median.items())
    at = f"L = H = 2: |dK/dt| / K at t = 0, median, at widths {said}"
    return Evidence(ratio, 0.5, at)


EQ_16 = Claim(
    name="001/kernel-stands-still",
    place="Theorem 3, Eq. 16",
    items=(14,),
    measure=_measure_motion,
    printed=Statement(
        "dK^h/dt -> 0 at t = 0 as both widths grow (checked: it falls by half or more from widths "
        "32, 8 to 512, 128)",
        lambda seen: _moves(seen, (512, 128)),
    ),
    wrong=Statement("it does so as f alone grows", lambda seen: _moves(seen, (512, 8))),
)


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


# -- training --------------------------------------------------------------------------------------


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
            h = _network(*widths)
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
        rows = _rows(h(x, z), parameters)
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


CLAIMS = (EQ_12, EQ_15, EQ_16, COROLLARY_1, REMARK_2, POSITIVE, TRAINING)

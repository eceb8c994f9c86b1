"""The tangent kernel of a finite hypernetwork: its factors (Eqs. 12, 15), its change (Eq. 16)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.kernels import FiniteTower, Tower
from weightloom_papers.claims import Evidence, PaperClaim, Size, Statement
from weightloom_papers.infinite_width.claims.kernels import X, Z
from weightloom_papers.infinite_width.claims.reference import finite_network, gradients
from weightloom_papers.lab.statistics import mean_and_error

__all__ = ["CLAIMS"]


def _primary(v: Tensor, z: Tensor, m: int) -> Tensor:
    """g with one hidden layer and the generated weights v, without the library: [rows]."""
    first, second = v[:, : 3 * m].reshape(-1, m, 3), v[:, 3 * m :]
    hidden = math.sqrt(2) * torch.relu((first * z[:, None]).sum(-1) / math.sqrt(3))
    return (second * hidden).sum(-1) / math.sqrt(m)


# -- Eq. 12 ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Factors:
    """Relative distance of K^h to J_g K^f J_g^T, and to (mean diagonal of K^f) J_g J_g^T."""

    exact: float
    diagonal: float


def _measure_factors(size: Size) -> Factors:
    exact = diagonal = 0.0
    for _ in range(1 if size == "quick" else 20):
        h = finite_network(20, 4)
        with torch.enable_grad():
            whole = gradients(h(X, Z), list(h.parameters()))
            generated = h.f(X)
            rows_f = gradients(generated, list(h.f.parameters()))
        count = generated.shape[1]
        with torch.enable_grad():
            v = generated.detach().requires_grad_()
            (by_v,) = torch.autograd.grad(_primary(v, Z, 4).sum(), v)
        k = whole @ whole.T
        kf = (rows_f @ rows_f.T).reshape(2, count, 2, count)
        product = torch.einsum("ia,iajb,jb->ij", by_v, kf, by_v)
        mean = torch.einsum("iaja->ij", kf) / count
        exact = max(exact, float((product - k).abs().max() / k.abs().max()))
        approximate = mean * (by_v @ by_v.T)
        diagonal = max(diagonal, float((approximate - k).abs().max() / k.abs().max()))
    return Factors(exact, diagonal)


EQ_12 = PaperClaim(
    name="infinite-width/kernel-factors",
    place="Eq. 12",
    items=(12,),
    measure=_measure_factors,
    printed=Statement(
        "K^h(u, u') = dg/df(x) K^f(x, x') dg/df(x')^T, at any width",
        lambda measured: Evidence(
            measured.exact, 1e-11, f"ReLU 3-20-16, g 3-4-1: off by {measured.exact:.1e} of its size"
        ),
    ),
    wrong=Statement(
        "at any width K^f may be replaced by its mean diagonal times the identity",
        lambda measured: Evidence(
            measured.diagonal,
            1e-11,
            f"ReLU 3-20-16, g 3-4-1: off by {measured.diagonal:.2g} of its size",
        ),
    ),
)


# -- Eq. 15: the kernel of f is diagonal in the limit ----------------------------------------------


@dataclass(frozen=True)
class KernelOfF:
    """K^f of networks with 4 outputs: mean of the diagonal; root mean square off it, by width."""

    mean: float
    error: float
    limit: float
    off: dict[int, float]


def _measure_kernel_f(size: Size) -> KernelOfF:
    tower, draws = Tower(depth=3), 12 if size == "quick" else 40
    off: dict[int, float] = {}
    inside = torch.zeros(1)
    for n in (30, 480):
        diagonals, outside = [], []
        for _ in range(draws):
            seed = int(torch.randint(2**31, ()))
            f = FiniteTower(tower, [3, n, n, 4], seed=seed, dtype=torch.float64)
            with torch.enable_grad():
                rows = gradients(f(X), list(f.parameters()))
            kernel = (rows @ rows.T).reshape(2, 4, 2, 4)[0, :, 1]  # of x and x'
            diagonals.append(kernel.diagonal().mean())
            outside.append(kernel[~torch.eye(4, dtype=torch.bool)].square().mean())
        off[n] = float(torch.stack(outside).mean().sqrt())
        inside = torch.stack(diagonals)
    mean, error = mean_and_error(inside)
    return KernelOfF(float(mean), float(error), float(tower(X)[0, 1]), off)


def _off_diagonal(measured: KernelOfF, power: float) -> Evidence:
    narrow, wide = measured.off[30], measured.off[480]
    exponent = math.log(narrow / wide) / math.log(16)
    at = (
        f"L = 3, 4 outputs: diagonal {measured.mean:.3f} +- {measured.error:.3f} against Theta_f = "
        f"{measured.limit:.3f} at width 480; off it {narrow:.3f} at width 30 and "
        f"{wide:.3f} at 480, "
        f"n^-{exponent:.2f}"
    )
    bad = abs(measured.mean - measured.limit) > 4 * measured.error + measured.limit * 3 / 480
    return Evidence(abs(exponent - power) + bad, 0.25, at)


EQ_15 = PaperClaim(
    name="infinite-width/kernel-of-f",
    place="Eqs. 15 and 83",
    items=(13, 20),
    measure=_measure_kernel_f,
    printed=Statement(
        "K^f(x, x') -> Theta_f(x, x') I (checked: the diagonal, and n^-1/2 off it)",
        lambda measured: _off_diagonal(measured, 0.5),
    ),
    wrong=Statement("1 / n off it", lambda measured: _off_diagonal(measured, 1.0)),
)


# -- Eq. 16: the kernel does not change ------------------------------------------------------------


@dataclass(frozen=True)
class KernelChange:
    """Median of |K after a small step - K before| / (K step), by widths (n, m)."""

    median: dict[tuple[int, int], float]


def _measure_change(size: Size) -> KernelChange:
    draws = 12 if size == "quick" else 60
    medians = {}
    for n, m in ((32, 8), (512, 8), (512, 128)):
        rates = []
        for _ in range(draws):
            h = finite_network(n, m)
            parameters, kernels = list(h.parameters()), []
            for step in (0.0, 1e-4):
                with torch.enable_grad():
                    rows = gradients(h(X, Z), parameters)
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
        medians[n, m] = float(torch.tensor(rates).median())
    return KernelChange(medians)


def _moves(measured: KernelChange, to: tuple[int, int]) -> Evidence:
    ratio = measured.median[to] / measured.median[32, 8]
    rates = ", ".join(f"({n}, {m}): {v:.3g}" for (n, m), v in measured.median.items())
    at = f"L = H = 2: |dK/dt| / K at t = 0, median, at widths {rates}"
    return Evidence(ratio, 0.5, at)


EQ_16 = PaperClaim(
    name="infinite-width/kernel-stands-still",
    place="Theorem 3, Eq. 16",
    items=(14,),
    measure=_measure_change,
    printed=Statement(
        "dK^h/dt -> 0 at t = 0 as both widths grow (checked: it falls by half or more from widths "
        "32, 8 to 512, 128)",
        lambda measured: _moves(measured, (512, 128)),
    ),
    wrong=Statement("it does so as f alone grows", lambda measured: _moves(measured, (512, 8))),
)


CLAIMS = (EQ_12, EQ_15, EQ_16)

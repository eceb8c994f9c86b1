"""Ellipsoids that contain the difference of two outputs, and what an activation does to them.

The ellipsoid of a Hermitian matrix X >= 0 holds the z with z z* <= X. If two inputs of a network
differ by a vector of length at most 1, their difference lies in the ellipsoid of the identity. A
matrix W maps the ellipsoid of X to that of G = W X W*, without loss. An activation with slopes in
[low, high] maps a difference v to D v with an unknown diagonal D, and for every diagonal S > r^2 G

    X' = S + m^2 (G + r^2 G (S - r^2 G)^-1 G),    m = (high + low) / 2,    r = (high - low) / 2

contains all of them. Why: D v = m v + r e with |e_i| <= |v_i|, so for every diagonal T >= 0 we have
e* T e <= v* T v, and v* G^-1 v <= 1 gives v* (G^-1 - r^2 T) v + r^2 e* T e <= 1. So (v, r e) is in
the ellipsoid of diag((G^-1 - r^2 T)^-1, T^-1), and S = T^-1 (Woodbury). This is the condition of
LipSDP (Fazlyab et al. 2019), solved layer by layer (ECLipsE: Xu and Sivaranjani 2024, who follow
X^-1). With S a multiple of the identity, the smallest largest axis of X' is high^2 times that of G,
which is what the product of norms would give; all other axes are shorter.

All functions take stacks of matrices [..., n, n]: one matrix for each frequency of an image.
Rounding is covered: `allowance` times the largest entry sums is added to what is computed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["after_slopes", "largest", "log_of", "sandwich", "summed_sandwich"]

# Products, factorisations and eigenvalues of n x n matrices are backward stable: their errors are
# at most a small multiple of n eps times the size of what goes in (Higham 2002, sections 3.5, 8.1
# and 10.1). 32 covers the constants, also those of complex arithmetic and of FFTs.
SAFETY = 32

# From this many matrices on, those that cannot have the largest eigenvalue are left out.
FEW = 8


def allowance(n: int) -> float:
    """Relative error that a chain of a few operations on n x n matrices may have."""
    return SAFETY * (n + 8) * torch.finfo(torch.float64).eps


def inflated(matrices: Tensor, error: Tensor | float) -> Tensor:
    """The matrices plus ``error`` times the identity, which covers errors of that 2-norm."""
    eye = torch.eye(matrices.shape[-1], dtype=matrices.dtype)
    return matrices + torch.as_tensor(error).to(matrices.dtype) * eye


def largest(matrices: Tensor) -> Tensor:
    """An upper bound on the largest eigenvalue of Hermitian matrices [..., n, n] >= 0, over all."""
    stack = matrices.flatten(0, -3) if matrices.dim() > 2 else matrices[None]
    stack = stack[_candidates(stack)] if len(stack) > FEW else stack
    top = torch.linalg.eigvalsh(stack).amax().clamp_min(0)
    return top + allowance(matrices.shape[-1]) * _size(matrices)


@torch.no_grad()
def _candidates(matrices: Tensor) -> Tensor:
    """The indices that can have the largest eigenvalue of all; products are cheap, LAPACK is not.

    t = ||A^16||_F^(1/16) is at least the largest eigenvalue of A >= 0, and at most n^(1/32) times
    it.
    """
    scale = _size(matrices)
    if scale == 0:
        return torch.zeros(1, dtype=torch.int64)
    power = matrices / scale
    for _ in range(4):
        power = power @ power
    above = _lengths(power) ** (1 / 16)
    below = above.max() / matrices.shape[-1] ** (1 / 32)
    return torch.nonzero(above >= 0.999 * below).flatten()


def sandwich(maps: Tensor, matrices: Tensor | None) -> Tensor:
    """W X W* for maps W [..., out, in]; None stands for the identity."""
    product = maps @ maps.mH if matrices is None else maps @ matrices @ maps.mH
    inner = 1.0 if matrices is None else _size(matrices)
    n = max(maps.shape[-2:])
    return inflated(_hermitian(product), allowance(n) * _size(maps) ** 2 * inner)


def summed_sandwich(maps: Tensor, matrices: Tensor | None) -> Tensor:
    """sum_f W_f X_f W_f* for maps [f, out, in], real: [1, out, out]."""
    left = maps if matrices is None else maps @ matrices
    flat, other = left.movedim(0, 1).flatten(1), maps.movedim(0, 1).flatten(1)
    product = (flat @ other.mH).real[None]
    inner = 1.0 if matrices is None else _size(matrices)
    scale = float(torch.linalg.vector_norm(maps)) ** 2 * inner
    return inflated(_hermitian(product), allowance(flat.shape[1]) * scale)


def after_slopes(
    g: Tensor, low: float, high: float, log_scales: Tensor | None = None, slack: Tensor | float = 0
) -> Tensor:
    """X' for slopes in [low, high], with S proportional to exp(log_scales) [n] (None: to ones).

    S is as large as it has to be, times a factor: ``slack`` = 0 is the best one if all scales are
    equal. Every value of ``log_scales`` and ``slack`` gives an ellipsoid that is large enough.
    """
    m, r = abs(high + low) / 2, (high - low) / 2
    if r == 0:
        return m * m * g
    scales = torch.ones(g.shape[-1], dtype=torch.float64)
    if log_scales is not None:
        scales = torch.exp(log_scales - log_scales.mean())
    root = scales.sqrt().to(g.dtype)
    top = largest(g / (root[:, None] * root))
    room = m * torch.exp(torch.as_tensor(slack, dtype=torch.float64))
    s = r * top * (r + room) * scales  # [n]
    diagonal = torch.diag(s.to(g.dtype)).expand(g.shape)
    if m == 0:
        return diagonal
    # Eigenvalues of S^-1/2 (S - r^2 G) S^-1/2 are at least room / (r + room).
    chol = torch.linalg.cholesky(diagonal - r * r * g)
    half = torch.linalg.solve_triangular(chol, r * g, upper=False)
    out = _hermitian(diagonal + m * m * (g + half.mH @ half))
    condition = float((scales.max() / scales.min() * (r + room) / room).detach())
    return inflated(out, allowance(out.shape[-1]) * condition * _size(out))


def _size(matrices: Tensor) -> float:
    """The largest Frobenius norm, which bounds every 2-norm; a number, without gradients."""
    return float(_lengths(matrices.detach()).max())


def _lengths(matrices: Tensor) -> Tensor:
    """Frobenius norms [...]; of complex matrices as real ones, which is three times as fast."""
    flat = torch.view_as_real(matrices).flatten(-2) if matrices.is_complex() else matrices
    return torch.linalg.vector_norm(flat, dim=(-2, -1))


def _hermitian(matrices: Tensor) -> Tensor:
    return (matrices + matrices.mH) / 2


def log_of(value: Tensor) -> Tensor:
    """The logarithm, minus infinity at zero."""
    return value.log() if float(value.detach()) > 0 else torch.tensor(-math.inf)

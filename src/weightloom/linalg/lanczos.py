"""Log determinants and smallest eigenvalues from products alone."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from weightloom.errors import KernelError, NotPositiveDefiniteError
from weightloom.linalg.hutchinson import check_probes, random_signs
from weightloom.linalg.operator import Operator, check_shift, multiply
from weightloom.linalg.preconditioners import Preconditioner
from weightloom.linalg.solution import Estimate

__all__ = ["estimate_logdet", "smallest_eigenvalue"]

# Lanczos steps at the most; when the quadrature is looked at; and when what is missing from it no
# longer matters: below a tenth of the sampling error, or below so many epsilons per row.
STEPS, LOOKS = 300, (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768)
SMALL_SHARE, SMALL = 0.1, 500
# Up to this size the smallest eigenvalue is computed, above it is estimated.
EXACT_SIZE, RITZ_STEPS = 512, 60


@torch.no_grad()
def estimate_logdet(
    operator: Operator,
    shift: float | Tensor = 0.0,
    *,
    preconditioner: Preconditioner | None = None,
    probes: int = 16,
    steps: int | None = None,
    seed: int = 0,
) -> Estimate:
    """log det(A + shift I) by stochastic Lanczos quadrature.

    With M = A + shift I = P (P^-1 M) it is log det P + tr log(P^-1/2 M P^-1/2). The trace is the
    mean of w^T log(..) w over random signs w, each by Gauss quadrature from at most ``steps``
    Lanczos steps (default 300), fewer when more would not change the mean by a tenth of its
    standard error. What more steps would change is extrapolated and is part of the standard error,
    which is infinite after steps that are too few to tell. A preconditioner is used if it has
    ``root`` and is precise enough: one whose rounding makes Ritz values negative is left out.

    >>> from weightloom.linalg.operator import Dense
    >>> estimate = estimate_logdet(Dense(torch.eye(3, dtype=torch.float64)), 1.0)
    >>> round(float(estimate) / math.log(2), 9)
    3.0
    """
    check_probes(probes)
    shift = check_shift(shift, operator)
    root = getattr(preconditioner, "root", None)
    signs = random_signs(operator, probes, torch.Generator().manual_seed(seed))
    limit = STEPS if steps is None else steps
    if preconditioner is not None and root is not None:
        try:
            rest = _trace_of_log(operator, shift, root(signs), preconditioner, limit)
        except NotPositiveDefiniteError:
            pass
        else:
            return Estimate(preconditioner.logdet() + rest.value, rest.standard_error)
    return _trace_of_log(operator, shift, signs, None, limit)


def _trace_of_log(
    operator: Operator,
    shift: Tensor,
    begin: Tensor,
    preconditioner: Preconditioner | None,
    limit: int,
) -> Estimate:
    probes = begin.shape[1]
    inner = getattr(preconditioner, "dtype", None) or operator.dtype
    small = SMALL * max(torch.finfo(inner).eps, torch.finfo(operator.dtype).eps)
    for number, (alphas, betas) in enumerate(_lanczos(operator, shift, begin, preconditioner), 1):
        complete = not bool((betas[-1] > 0).any())
        ended = complete or number >= limit
        if number not in LOOKS and not ended:
            continue
        values = operator.size * _quadrature(alphas, betas)
        mean, error = values.mean(), values.std() / math.sqrt(probes)
        missing = 0.0 if complete else operator.size * _missing(alphas, betas, small)
        if ended or missing <= max(SMALL_SHARE * float(error), small * operator.size):
            break
    return Estimate(mean, (error.square() + missing**2).sqrt())


def _missing(alphas: list[Tensor], betas: list[Tensor], small: float) -> float:
    """What more steps would change in the mean of `_quadrature`, extrapolated.

    The leading part of a tridiagonal matrix is what fewer steps would have given. From a half,
    three quarters and all of the steps: two changes, whose ratio is continued as a geometric sum,
    unless they are ``small``, which is rounding.
    """
    quarter = len(alphas) // 4
    if quarter < 2:
        return math.inf
    counts = [len(alphas) - 2 * quarter, len(alphas) - quarter, len(alphas)]
    half, most, whole = (float(_quadrature(alphas[:m], betas[:m]).mean()) for m in counts)
    first, second = abs(most - half), abs(whole - most)
    if first <= small:
        return max(first, second)
    ratio = second / first
    return second * ratio / (1 - ratio) if ratio < 1 else math.inf


def _lanczos(
    operator: Operator, shift: Tensor, begin: Tensor, preconditioner: Preconditioner | None
) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Grows the tridiagonal matrices of P^-1/2 M P^-1/2, one row per step, one matrix per column.

    Yields (diagonals, off-diagonals), lists of [k] in float64; an off-diagonal 0 says that the
    column's Krylov space is complete. Without reorthogonalisation: copies of eigenvalues that
    rounding brings back share the weight of the original, so quadrature does not suffer, and the
    basis need not be kept.
    """
    inner = getattr(preconditioner, "dtype", None) or operator.dtype

    def precondition(vectors: Tensor) -> Tensor:
        if preconditioner is None:
            return vectors
        return preconditioner.apply(vectors.to(inner)).to(vectors.dtype)

    alphas: list[Tensor] = []
    betas: list[Tensor] = []
    r = begin
    z = precondition(r)
    beta = _length(r, z, inner)
    # Random signs have length sqrt(N), also after the preconditioner's root and inverse root.
    if preconditioner is not None and bool(((beta.square() / len(r) - 1).abs() > 0.01).any()):
        raise NotPositiveDefiniteError("the preconditioner's root and inverse do not fit together")
    before = torch.zeros_like(r)
    off = torch.zeros_like(beta)
    noise = 10 * torch.finfo(r.dtype).eps
    largest = torch.zeros_like(beta)
    while True:
        alive = beta > noise * largest
        v = torch.where(alive, r / beta, 0.0)
        s = torch.where(alive, z / beta, 0.0)
        r = multiply(operator, shift, s)
        alpha = torch.linalg.vecdot(s, r, dim=0)
        r.addcmul_(v, -alpha.expand_as(v)).addcmul_(before, -off.expand_as(before))
        z = precondition(r)
        before = v
        beta = _length(r, z, inner)
        largest = torch.maximum(largest, alpha.abs() + beta)
        beta = torch.where(alive & (beta > noise * largest), beta, 0.0)
        off = beta
        # A column that is complete goes on with ones on the diagonal: log 1 = 0, and no weight.
        alphas.append(torch.where(alive, alpha, 1.0).to(torch.float64))
        betas.append(beta.to(torch.float64))
        yield alphas, betas


def _length(r: Tensor, z: Tensor, dtype: torch.dtype) -> Tensor:
    """sqrt(r^T z), z = P^-1 r, for each column; raises if that is negative beyond rounding."""
    square = torch.linalg.vecdot(r, z, dim=0)
    if not bool(torch.isfinite(square).all()):
        raise KernelError("a product with the matrix gave NaN or infinity; check the operator")
    size = torch.linalg.vector_norm(r, dim=0) * torch.linalg.vector_norm(z, dim=0)
    if bool((square < -100 * torch.finfo(dtype).eps * size).any()):
        raise NotPositiveDefiniteError("the preconditioner is not positive definite; use another")
    return square.clamp(min=0).sqrt()


def _tridiagonal(alphas: list[Tensor], betas: list[Tensor]) -> Tensor:
    """[k, m, m] from m diagonals and m - 1 off-diagonals, each [k]."""
    matrix = torch.diag_embed(torch.stack(alphas, 1))
    if len(alphas) > 1:
        off = torch.stack(betas[: len(alphas) - 1], 1)
        matrix += torch.diag_embed(off, 1) + torch.diag_embed(off, -1)
    return matrix


def _quadrature(alphas: list[Tensor], betas: list[Tensor]) -> Tensor:
    """e_1^T log(T) e_1 for each tridiagonal matrix, [k]."""
    values, vectors = torch.linalg.eigh(_tridiagonal(alphas, betas))
    if bool((values <= 0).any()):
        raise NotPositiveDefiniteError(
            f"the matrix is not positive definite: Lanczos found a Ritz value of "
            f"{float(values.min()):.3g}, and the smallest eigenvalue is below that; raise the "
            f"ridge (shift)"
        )
    return (vectors[:, 0].square() * values.log()).sum(1)


@torch.no_grad()
def smallest_eigenvalue(operator: Operator, shift: float | Tensor = 0.0, *, seed: int = 0) -> float:
    """Of A + shift I: exact up to N = 512; above, a Ritz value, which is never too small."""
    shift = check_shift(shift, operator)
    if operator.size <= EXACT_SIZE:
        matrix = operator.dense()
        matrix.diagonal().add_(shift)
        return float(torch.linalg.eigvalsh(matrix)[0])
    begin = torch.randn(operator.size, 1, generator=torch.Generator().manual_seed(seed))
    begin = begin.to(operator.dtype).to(operator.device)
    ritz = math.inf
    for number, (alphas, betas) in enumerate(_lanczos(operator, shift, begin, None), 1):
        if number >= RITZ_STEPS or not float(betas[-1]) > 0:
            ritz = float(torch.linalg.eigvalsh(_tridiagonal(alphas, betas)).min())
            break
    return ritz

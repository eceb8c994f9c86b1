"""Estimates from products and solutions alone: inverse diagonals, log determinants, eigenvalues."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from weightloom.errors import ConfigError, KernelError, NotPositiveDefiniteError
from weightloom.linalg.certificates import StochasticEstimate
from weightloom.linalg.operator import Operator, check_shift, multiply
from weightloom.linalg.preconditioners import Preconditioner

__all__ = [
    "check_probes",
    "estimate_inverse_diagonal",
    "estimate_logdet",
    "random_signs",
    "smallest_eigenvalue",
]

# Probes that are solved for at once.
TOGETHER = 32
# The largest number of Lanczos steps, and the steps at which the quadrature is evaluated.
STEPS, LOOKS = 300, (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768)
# Stop when the missing part is below this share of the sampling error, or SMALL epsilons per row.
SMALL_SHARE, SMALL = 0.1, 500
# Up to this size the smallest eigenvalue is computed, above it is estimated.
EXACT_SIZE, RITZ_STEPS = 512, 60


# -- inverse diagonals -----------------------------------------------------------------------------


@torch.no_grad()
def estimate_inverse_diagonal(
    solve: Callable[[Tensor], Tensor],
    operator: Operator,
    shift: float | Tensor = 0.0,
    *,
    preconditioner: Preconditioner | None = None,
    probes: int = 64,
    seed: int = 0,
) -> StochasticEstimate:
    """The diagonal of M^-1, M = A + shift I, from solutions ``solve(B [N, k]) -> M^-1 B``.

    The mean of w * (M^-1 w) over random signs w (Hutchinson; Bekas, Kokiopoulou and Saad 2007). If
    the preconditioner has ``inverse_diagonal``, the diagonal of P^-1 serves as a control variate:
    it is estimated with the same signs, and its known error reduces that of M^-1. With ``probes``
    >= N every column is solved for and the standard error is 0 (up to the tolerance of ``solve``).
    Estimates are clamped to [1 / (diagonal of M), 1 / shift], which holds for every positive
    semidefinite A.
    """
    check_probes(probes)
    shift = check_shift(shift, operator)
    size = operator.size
    if probes >= size:
        value = torch.cat([_columns(solve, operator, b) for b in range(0, size, TOGETHER)])
        return StochasticEstimate(value, torch.zeros_like(value))
    known = _inverse_diagonal(preconditioner)
    generator = torch.Generator().manual_seed(seed)
    sums = torch.zeros(5, size, dtype=torch.float64, device=operator.device)
    for begin in range(0, probes, TOGETHER):
        signs = random_signs(operator, min(TOGETHER, probes - begin), generator)
        sample = (solve(signs) * signs).to(torch.float64)
        control = torch.zeros_like(sample)
        if known is not None and preconditioner is not None:
            inner = getattr(preconditioner, "dtype", None) or operator.dtype
            control = preconditioner.apply(signs.to(inner)).to(torch.float64) * signs
            control -= known[:, None]
        for row, term in enumerate((sample, control, sample**2, sample * control, control**2)):
            sums[row] += term.sum(1)
    estimate = _combine(sums / probes, probes, 1 / (operator.diagonal() + shift), 1 / shift)
    return StochasticEstimate(
        estimate.value.to(operator.dtype), estimate.standard_error.to(operator.dtype)
    )


def _inverse_diagonal(preconditioner: Preconditioner | None) -> Tensor | None:
    method = getattr(preconditioner, "inverse_diagonal", None)
    return None if method is None else method().to(torch.float64)


def _combine(means: Tensor, probes: int, low: Tensor, high: Tensor) -> StochasticEstimate:
    """The estimate from the means of a, b, a^2, ab, b^2, where b is known to have the mean 0."""
    a, b, aa, ab, bb = means
    cross, spread = ab - a * b, bb - b * b
    # One factor for all rows: fitting it to the sample then hardly biases the standard error.
    share = cross.sum() / spread.sum().clamp(min=torch.finfo(means.dtype).tiny)
    variance = (aa - a * a - 2 * share * cross + share**2 * spread).clamp(min=0)
    value = torch.minimum(torch.maximum(a - share * b, low), high)
    return StochasticEstimate(value, (variance / (probes - 1)).sqrt())


def _columns(solve: Callable[[Tensor], Tensor], operator: Operator, begin: int) -> Tensor:
    end = min(begin + TOGETHER, operator.size)
    unit = torch.zeros(operator.size, end - begin, dtype=operator.dtype, device=operator.device)
    unit[begin:end].fill_diagonal_(1.0)
    return solve(unit)[begin:end].diagonal()


def random_signs(operator: Operator, probes: int, generator: torch.Generator) -> Tensor:
    """+1 and -1 with equal chances, [N, probes]."""
    bits = torch.randint(0, 2, (operator.size, probes), generator=generator)
    return (2 * bits - 1).to(operator.dtype).to(operator.device)


def check_probes(probes: int) -> None:
    """Raise unless there are two or more."""
    if probes < 2:
        raise ConfigError(f"{probes} probes give no standard error; use at least 2")


# -- log determinants and eigenvalues -------------------------------------------------------------


@torch.no_grad()
def estimate_logdet(
    operator: Operator,
    shift: float | Tensor = 0.0,
    *,
    preconditioner: Preconditioner | None = None,
    probes: int = 16,
    steps: int | None = None,
    seed: int = 0,
) -> StochasticEstimate:
    """log det(A + shift I) by stochastic Lanczos quadrature.

    With M = A + shift I = P (P^-1 M) it is log det P + tr log(P^-1/2 M P^-1/2). The trace is the
    mean of w^T log(..) w over random signs w, each by Gauss quadrature from at most ``steps``
    Lanczos steps (default 300), fewer when more would not change the mean by a tenth of its
    standard error. The effect of further steps is extrapolated and is part of the standard error,
    which is infinite if there are too few steps to extrapolate. A preconditioner is used if it has
    ``root`` and is precise enough: if its rounding makes Ritz values negative, it is not used.

    >>> from weightloom.linalg.operator import DenseOperator
    >>> estimate = estimate_logdet(DenseOperator(torch.eye(3, dtype=torch.float64)), 1.0)
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
            return StochasticEstimate(preconditioner.logdet() + rest.value, rest.standard_error)
    return _trace_of_log(operator, shift, signs, None, limit)


def _trace_of_log(
    operator: Operator,
    shift: Tensor,
    begin: Tensor,
    preconditioner: Preconditioner | None,
    limit: int,
) -> StochasticEstimate:
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
    return StochasticEstimate(mean, (error.square() + missing**2).sqrt())


def _missing(alphas: list[Tensor], betas: list[Tensor], small: float) -> float:
    """How much more steps would change the mean of `_quadrature`, extrapolated.

    The leading part of a tridiagonal matrix is the result of fewer steps. Half, three quarters and
    all of the steps give two changes, which are continued as a geometric series. Changes below
    ``small`` are rounding.
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
    column's Krylov space is complete. There is no reorthogonalisation: copies of eigenvalues that
    rounding produces share the weight of the original, so the quadrature is still right, and the
    basis need not be stored.
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
        # A complete column continues with ones on the diagonal, which add nothing: log 1 = 0.
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

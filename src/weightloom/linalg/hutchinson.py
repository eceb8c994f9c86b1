"""The diagonal of an inverse, from solutions for random right-hand sides."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from weightloom.errors import ConfigError
from weightloom.linalg.operator import Operator, check_shift
from weightloom.linalg.preconditioners import Preconditioner
from weightloom.linalg.solution import Estimate

__all__ = ["check_probes", "estimate_inverse_diagonal", "random_signs"]

# Probes that are solved for at once.
TOGETHER = 32


@torch.no_grad()
def estimate_inverse_diagonal(
    solve: Callable[[Tensor], Tensor],
    operator: Operator,
    shift: float | Tensor = 0.0,
    *,
    preconditioner: Preconditioner | None = None,
    probes: int = 64,
    seed: int = 0,
) -> Estimate:
    """The diagonal of M^-1, M = A + shift I, from solutions ``solve(B [N, k]) -> M^-1 B``.

    The mean of w * (M^-1 w) over random signs w (Hutchinson; Bekas, Kokiopoulou and Saad 2007). If
    the preconditioner knows its own ``inverse_diagonal``, that of P^-1 is estimated with the same
    signs, and as much of its known error is taken away as the two have in common. With ``probes``
    >= N every column is solved for, and the standard error is 0 (what is left is the tolerance of
    ``solve``). Estimates are kept above 1 / (diagonal of M) and below 1 / shift, where the truth is
    for any A that is positive semidefinite.
    """
    check_probes(probes)
    shift = check_shift(shift, operator)
    size = operator.size
    if probes >= size:
        value = torch.cat([_columns(solve, operator, b) for b in range(0, size, TOGETHER)])
        return Estimate(value, torch.zeros_like(value))
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
    found = _combine(sums / probes, probes, 1 / (operator.diagonal() + shift), 1 / shift)
    return Estimate(found.value.to(operator.dtype), found.standard_error.to(operator.dtype))


def _inverse_diagonal(preconditioner: Preconditioner | None) -> Tensor | None:
    method = getattr(preconditioner, "inverse_diagonal", None)
    return None if method is None else method().to(torch.float64)


def _combine(means: Tensor, probes: int, low: Tensor, high: Tensor) -> Estimate:
    """The estimate from the means of a, b, a^2, ab, b^2, where b is known to have the mean 0."""
    a, b, aa, ab, bb = means
    cross, spread = ab - a * b, bb - b * b
    # One factor for all rows, so that fitting it to the sample costs no honesty of the error.
    share = cross.sum() / spread.sum().clamp(min=torch.finfo(means.dtype).tiny)
    variance = (aa - a * a - 2 * share * cross + share**2 * spread).clamp(min=0)
    value = torch.minimum(torch.maximum(a - share * b, low), high)
    return Estimate(value, (variance / (probes - 1)).sqrt())


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

"""Choose a solver, give the reason, and prepare a system for solving."""

from __future__ import annotations

import torch
from torch import Tensor

from weightloom.errors import ConfigError
from weightloom.linalg.certificates import SolverFactor, SolverPlan
from weightloom.linalg.cg import CGFactor, Progress
from weightloom.linalg.direct import BLOCK, CholeskyFactor, LUFactor
from weightloom.linalg.memory import available, check, parse, readable
from weightloom.linalg.operator import DenseOperator, Operator, check_shift
from weightloom.linalg.preconditioners import (
    IdentityPreconditioner,
    Jacobi,
    Nystrom,
    PivotedCholesky,
    Preconditioner,
)

__all__ = ["SOLVERS", "make_plan", "prepare"]

SOLVERS = ("auto", "cholesky", "lu", "cg")
PRECONDITIONERS = ("pivoted_cholesky", "nystrom", "jacobi", "none")

# Above this size a Cholesky factor takes more than about ten minutes on two cores (N^3 / 3 flops).
LARGEST_DENSE = 40_000
# Conjugate gradients are used if products cost less than this share of a full matrix's, unless the
# matrix is small.
CHEAP, SMALL = 0.1, 2_000
# Ranks of a preconditioner beyond this are seldom worth their N x rank numbers.
LARGEST_RANK = 500


@torch.no_grad()
def prepare(
    operator: Operator,
    shift: float | Tensor = 0.0,
    solver: str = "auto",
    *,
    preconditioner: Preconditioner | str | None = None,
    tolerance: float | None = None,
    max_iterations: int | None = None,
    memory: int | str | None = None,
    progress: Progress | None = None,
) -> SolverFactor:
    """A + shift I, ready to be solved: factorise once, solve often.

    ``solver``: "cholesky", "lu", "cg", or "auto": Cholesky where the matrix fits into ``memory``
    (bytes or "2 GB"; default: what is free) and is not too large, else conjugate gradients;
    ``factor.plan`` says which, and why. ``shift`` >= 0 is one number, or one for each row.

    The rest is for conjugate gradients. ``preconditioner``: an object, "pivoted_cholesky" (what
    None stands for), "nystrom", "jacobi" or "none"; ``tolerance``: the relative residual to reach
    (default 1e-8, in float32 1e-5); ``progress(iteration, residual)`` is called at each iteration.

    >>> A = DenseOperator(torch.tensor([[3.0, 1.0], [1.0, 2.0]], dtype=torch.float64))
    >>> factor = prepare(A, 1.0)
    >>> factor.plan.solver
    'cholesky'
    >>> factor.solve(torch.tensor([1.0, 0.0], dtype=torch.float64)).value * 11
    tensor([ 3., -1.], dtype=torch.float64)
    """
    shift = check_shift(shift, operator)
    room = parse(memory)
    plan = make_plan(operator, solver, memory=room)
    if plan.solver != "cg":
        advice = 'use solver="cg"'
        if isinstance(operator, DenseOperator):
            advice += " or DenseOperator(matrix, overwrite=True)"
        check(plan.bytes, f"the {plan.solver} factor of {operator!r}", advice, room)
        factor = CholeskyFactor if plan.solver == "cholesky" else LUFactor
        return factor(operator, shift, plan)
    return CGFactor(
        operator,
        shift,
        plan,
        preconditioner=_preconditioner(operator, shift, preconditioner, room),
        tolerance=tolerance,
        max_iterations=max_iterations,
        progress=progress,
    )


def make_plan(operator: Operator, solver: str = "auto", *, memory: int | None = None) -> SolverPlan:
    """The plan of `prepare`, without preparing anything."""
    if solver not in SOLVERS:
        raise ConfigError(f"there is no solver {solver!r}; choose from {', '.join(SOLVERS)}")
    chosen, reason = (
        _choose(operator, memory) if solver == "auto" else (solver, f"{solver} was asked for")
    )
    return SolverPlan(chosen, reason, *_cost(operator, chosen, memory))


def _choose(operator: Operator, memory: int | None) -> tuple[str, str]:
    size, needed = operator.size, _cost(operator, "cholesky", memory)[0]
    room = available() if memory is None else memory
    share = operator.flops / (2 * size**2)
    if size > SMALL and share < CHEAP:
        return "cg", (
            f"conjugate gradients, because products with this operator cost {1 / share:.0f} times "
            f"less than those with a full matrix"
        )
    if size > LARGEST_DENSE:
        return "cg", (
            f"conjugate gradients, because N = {size} is above {LARGEST_DENSE}, where a Cholesky "
            f"factor takes too long"
        )
    if needed > room:
        return "cg", (
            f"conjugate gradients, because a Cholesky factor needs {readable(needed)} and there "
            f"are {readable(room)}"
        )
    return "cholesky", (
        f"Cholesky, because the factor of N = {size} needs {readable(needed)}, which fits, and is "
        f"exact"
    )


def _cost(operator: Operator, solver: str, memory: int | None) -> tuple[int, float]:
    """Bytes on top of the operator, and flops as in `SolverPlan`."""
    size, item = operator.size, torch.finfo(operator.dtype).bits // 8
    square = size**2 * item
    if solver == "cg":
        # Six vectors, and a preconditioner with its three temporaries while it is built.
        rank = _default_rank(operator, memory)
        return size * item * (6 + 4 * rank), operator.flops + 4.0 * size * rank
    if solver == "lu":
        return 2 * square, 2 * size**3 / 3
    given = isinstance(operator, DenseOperator) and operator.overwrite
    return (0 if given else square) + 2 * size * min(size, BLOCK) * item, size**3 / 3


def _default_rank(operator: Operator, memory: int | None) -> int:
    """A row costs little compared with a product, so the rank can be large."""
    room = available() if memory is None else memory
    vector = operator.size * torch.finfo(operator.dtype).bits // 8
    return max(1, min(operator.size // 4, LARGEST_RANK, room // (8 * vector)))


def _preconditioner(
    operator: Operator, shift: Tensor, given: Preconditioner | str | None, memory: int | None
) -> Preconditioner:
    if given is not None and not isinstance(given, str):
        return given
    if given == "none":
        return IdentityPreconditioner()
    if given == "jacobi":
        return Jacobi(operator, shift)
    rank = _default_rank(operator, memory)
    if given == "nystrom":
        return Nystrom(operator, rank, shift)
    if given in (None, "pivoted_cholesky"):
        return PivotedCholesky(operator, rank, shift)
    raise ConfigError(
        f"there is no preconditioner {given!r}; choose from {', '.join(PRECONDITIONERS)} or pass "
        f"an object with apply and logdet"
    )

"""One solve of operators.py, in a process of its own: PART CONTENDER IMAGES SIDE THREADS DATA.

Prints JSON: seconds, CPU seconds, memory beyond the problem's, and the relative residual, which is
taken the same way for everybody, after the clock has stopped.
"""

from __future__ import annotations

import ctypes
import json
import math
import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from linear_systems.problems import RIDGE, Grid, TorusProblem, grid_problem, torus_problem
from weightloom.linalg import (
    CGFactor,
    KroneckerSum,
    KroneckerTerms,
    MaskedOperator,
    Operator,
    SolverPlan,
    SpectralBlocks,
    Torus,
    TorusFactor,
    estimate_logdet,
    prepare,
)
from weightloom.linalg.certificates import relative_residual

TOLERANCE = 1e-6
ITERATIONS = 2000  # that linear_operator may take: twice its default
PRECISE = 2**29  # bytes
ROOM = 2.5  # limit: matrices that fit into memory
# Its conjugate gradients take p^T A p < 1e-10 for zero and stop there, about 1e-5 before the end. A
# multiple of a preconditioner is as good as itself and keeps that product larger.
SCALE = 1e6
RANK = 100  # of the larger of the two preconditioners that it gets; its default is 15

Answer = dict[str, Any]  # "value": the solution, and whatever else is to be reported


# Every pixel observed, on a torus


def torus_weightloom(problem: TorusProblem) -> Answer:
    solution = TorusFactor(Torus(problem.blocks, problem.shape), RIDGE).solve(problem.values)
    return {"value": solution.value, "certificate": solution.residual}


def torus_batch(problem: TorusProblem) -> Answer:
    """linear_operator with the Fourier basis of weightloom around it: a batch of blocks."""
    from linear_operator import settings
    from linear_operator.operators import DenseLinearOperator

    torus = Torus(problem.blocks, problem.shape)
    n, P = torus.items, math.prod(torus.shape)
    inner = torus.transform(problem.values.view(n, P, 1))
    rhs = torch.zeros(len(torus.members), n, 4, dtype=inner.dtype)  # a frequency and its signs
    for c, members in enumerate(torus.members):
        rhs[c, :, : len(members)] = inner[:, members, 0]
    with settings.max_cholesky_size(n):
        solved = DenseLinearOperator(problem.blocks).add_jitter(RIDGE).solve(rhs)
    out = torch.empty_like(inner)
    for c, members in enumerate(torus.members):
        out[:, members, 0] = solved[c, :, : len(members)]
    return {"value": torus.transform(out, back=True).reshape(-1, 1)}


# Any coordinates; all pixels observed, or a part of them


def spectral_blocks(terms: KroneckerTerms) -> SpectralBlocks:
    """In double precision while they are small, as the regression does it."""
    n, P = terms.left.shape[1], terms.right.shape[1]
    return SpectralBlocks(
        terms, RIDGE, dtype=torch.float64 if 8 * n * n * P < PRECISE else torch.float32
    )


class _OnMask:
    """The preconditioner of the whole grid, between its observed rows."""

    def __init__(self, whole: SpectralBlocks, mask: MaskedOperator) -> None:
        self.whole, self.mask, self.dtype = whole, mask, whole.dtype

    def apply(self, residuals: Tensor) -> Tensor:
        return self.whole.apply(self.mask.spread(residuals))[self.mask.index]

    def logdet(self) -> float:
        return self.whole.logdet()


def grid_weightloom(problem: Grid) -> Answer:
    operator = MaskedOperator(KroneckerSum(problem.terms), problem.mask)
    plan = SolverPlan("kronecker", "a benchmark", operator.bytes, operator.flops)
    preconditioner = _OnMask(spectral_blocks(problem.terms), operator)
    shift = torch.tensor(RIDGE, dtype=torch.float64)
    factor = CGFactor(operator, shift, plan, preconditioner=preconditioner, tolerance=TOLERANCE)
    solution = factor.solve(problem.values)
    return {
        "value": solution.value,
        "certificate": solution.residual,
        "iterations": solution.iterations,
    }


def peer_operator(problem: Grid, **options: Any) -> Any:
    """The same matrix as operators of linear_operator."""
    from linear_operator.operators import (
        AddedDiagLinearOperator,
        ConstantDiagLinearOperator,
        DenseLinearOperator,
        DiagLinearOperator,
        KroneckerProductLinearOperator,
        MaskedLinearOperator,
        SumLinearOperator,
    )

    terms, size = problem.terms, int(problem.mask.sum())
    products = [
        KroneckerProductLinearOperator(DenseLinearOperator(left), DenseLinearOperator(right))
        for left, right in zip(terms.left, terms.right, strict=True)
    ]
    if terms.weights is not None:
        corner = DenseLinearOperator(terms.corner)
        products.append(KroneckerProductLinearOperator(DiagLinearOperator(terms.weights), corner))
    matrix = SumLinearOperator(*products)
    if not bool(problem.mask.all()):
        matrix = MaskedLinearOperator(matrix, problem.mask, problem.mask)
    ridge = ConstantDiagLinearOperator(torch.tensor([RIDGE], dtype=torch.float64), size)
    return AddedDiagLinearOperator(matrix, ridge, **options)


def grid_peer(rank: int | None, tolerance: float | None) -> Callable[[Grid], Answer]:
    """Its conjugate gradients; ``rank`` None stands for weightloom's preconditioner inside it."""

    def solve(problem: Grid) -> Answer:
        from linear_operator import settings
        from linear_operator.operators import AddedDiagLinearOperator

        options: dict[str, Any] = {}
        if rank is None:
            mask = MaskedOperator(KroneckerSum(problem.terms), problem.mask)
            inner = _OnMask(spectral_blocks(problem.terms), mask)

            def apply(residuals: Tensor) -> Tensor:
                return SCALE * inner.apply(residuals.to(inner.dtype)).to(residuals.dtype)

            options["preconditioner_override"] = lambda _: (apply, None, None)
        operator = peer_operator(problem, **options)
        with (
            counted(AddedDiagLinearOperator) as products,
            settings.max_preconditioner_size(rank or 15),
            settings.min_preconditioning_size(2000 if tolerance is None else 1),
            settings.max_cg_iterations(1000 if tolerance is None else ITERATIONS),
            settings.cg_tolerance(1 if tolerance is None else tolerance),
        ):
            value = operator.solve(problem.values)
        return {"value": value, "iterations": products[0]}

    return solve


@contextmanager
def counted(kind: type) -> Iterator[list[int]]:
    """Counts the products with operators of a class: [count]."""
    inner, count = kind._matmul, [-1]  # the first product is that of the first residual

    def matmul(self: Any, vectors: Tensor) -> Tensor:
        count[0] += 1
        return inner(self, vectors)

    kind._matmul = matmul
    try:
        yield count
    finally:
        kind._matmul = inner


# Log determinants


def logdet_weightloom(problem: Grid) -> Answer:
    """Of the whole grid, with its preconditioner: SpectralBlocks has a root."""
    whole = KroneckerSum(problem.terms)
    blocks = SpectralBlocks(problem.terms, RIDGE, dtype=torch.float64)
    estimate = estimate_logdet(whole, RIDGE, preconditioner=blocks, probes=10)
    return {"logdet": float(estimate), "standard error": float(estimate.standard_error)}


def logdet_peer(tight: bool) -> Callable[[Grid], Answer]:
    def solve(problem: Grid) -> Answer:
        from linear_operator import settings

        torch.manual_seed(0)
        operator = peer_operator(problem)
        with (
            settings.max_preconditioner_size(RANK if tight else 15),
            settings.max_lanczos_quadrature_iterations(300 if tight else 20),
            settings.max_cg_iterations(ITERATIONS if tight else 1000),
            settings.cg_tolerance(TOLERANCE if tight else 1),
            settings.num_trace_samples(10),
            settings.max_cholesky_size(0),
        ):
            return {"logdet": float(operator.logdet())}

    return solve


# A dense factor with little memory


def limit_weightloom(problem: Grid) -> Answer:
    whole = KroneckerSum(problem.terms)
    limit = int(ROOM * 8 * whole.size**2)
    return {"value": prepare(whole, RIDGE, "cholesky", memory=limit).solve(problem.values).value}


def limit_peer(problem: Grid) -> Answer:
    from linear_operator import settings

    with settings.max_cholesky_size(len(problem.values)):
        return {"value": peer_operator(problem).solve(problem.values)}


def _forbid(size: int) -> None:
    """Limit the memory of this process to ``ROOM`` times that of a matrix, from here on."""
    room = _status("VmSize") + int(ROOM * 8 * size**2)
    _allow(room)


def _allow(room: int | None = None) -> None:
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (hard if room is None else room, hard))


GRID: dict[str, Callable[[Any], Answer]] = {
    "weightloom": grid_weightloom,
    "linear_operator, rank 15": grid_peer(15, TOLERANCE),
    f"linear_operator, rank {RANK}": grid_peer(RANK, TOLERANCE),
    "linear_operator, our preconditioner": grid_peer(None, TOLERANCE),
    "linear_operator, as it comes": grid_peer(15, None),
}
CONTENDERS: dict[str, dict[str, Callable[[Any], Answer]]] = {
    "torus": {"weightloom": torus_weightloom, "linear_operator": torus_batch},
    "grid": GRID,
    "masked": GRID,
    "logdet": {
        "weightloom": logdet_weightloom,
        "linear_operator, as it comes": logdet_peer(False),
        "linear_operator, tight": logdet_peer(True),
    },
    "limit": {"weightloom": limit_weightloom, "linear_operator": limit_peer},
}


def main() -> None:
    part, name = sys.argv[1:3]
    images, side, threads = (int(a) for a in sys.argv[3:6])
    torch.set_num_threads(threads)
    data = Path(sys.argv[6])
    warm = problem_of(part, 8, 8, data)  # untimed: imports, and what is compiled at first use
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with suppress(MemoryError):  # so small that a limit of some matrices is not enough
            CONTENDERS[part][name](warm)
    problem = problem_of(part, images, side, data)
    blocks = problem.blocks.clone() if isinstance(problem, TorusProblem) else None
    held = _reset_peak()
    with warnings.catch_warnings(record=True) as raised, torch.no_grad():
        warnings.simplefilter("always")
        begin, cpu = time.perf_counter(), time.process_time()
        answer = _call(CONTENDERS[part][name], problem, limited=part == "limit")
        seconds, spent = time.perf_counter() - begin, time.process_time() - cpu
    answer |= {"seconds": seconds, "cpu": spent, "peak": _peak() - held}
    answer["warnings"] = sorted({str(w.message).split(".")[0] for w in raised})
    if part == "limit":
        _allow()
    if "value" in answer:
        answer["residual"] = _residual(problem, blocks, answer.pop("value"))
    if "logdet" in answer:
        answer["exact"] = _exact_logdet(problem)
    print(json.dumps(answer))


def _call(solve: Callable[[Any], Answer], problem: Any, *, limited: bool) -> Answer:
    if not limited:
        return solve(problem)
    _forbid(len(problem.values))
    try:
        return {**solve(problem), "outcome": "solved"}
    except (MemoryError, RuntimeError) as error:
        return {"outcome": f"{type(error).__name__}: {error}".splitlines()[0]}


def problem_of(part: str, images: int, side: int, data: Path) -> TorusProblem | Grid:
    if part == "torus":
        return torus_problem(images, side, data)
    return grid_problem(images, side, data, gaps=part == "masked")


def _residual(problem: TorusProblem | Grid, blocks: Tensor | None, value: Tensor) -> float:
    operator: Operator
    if isinstance(problem, TorusProblem):
        operator = Torus(blocks if blocks is not None else problem.blocks, problem.shape)
    else:
        operator = MaskedOperator(KroneckerSum(problem.terms), problem.mask)
    shift = torch.tensor(RIDGE, dtype=torch.float64)
    return relative_residual(operator, shift, value, problem.values)


def _exact_logdet(problem: Grid) -> float:
    matrix = KroneckerSum(problem.terms).dense()
    matrix.diagonal().add_(RIDGE)
    return float(2 * torch.linalg.cholesky(matrix).diagonal().log().sum())


def _reset_peak() -> int:
    """Reset the high-water mark of memory (Linux); returns the bytes in use."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # memory that is free again is not in use
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    main()

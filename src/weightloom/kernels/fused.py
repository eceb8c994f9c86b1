"""Kernel matrices in one pass over their entries, by compiled loops, on all cores.

The parts that depend on the conditions alone, or on the points alone, are given as tables
over distinct rows. The rest is done for each entry in registers and in the cache: look up the gaps,
run the recursion of g, write the entry, and for a Gram matrix its mirror image.

It needs numba, and a piecewise-linear activation in g (see `supports`). Otherwise `HyperKernel`
uses plain torch. numba was chosen by measurement (benchmarks/compiled_loops.py): it
needs a third of the CPU time of torch.compile on blocks that fit the cache, and a seventh of plain
torch on the same blocks; and it needs no compiler on the user's machine.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from weightloom.errors import KernelError, MissingDependencyError, ShapeError
from weightloom.kernels.activations import PiecewiseLinear
from weightloom.kernels.covariance import Covariance

if TYPE_CHECKING:
    from weightloom.kernels.hyperkernel import ConditionPart, HyperKernel

__all__ = ["join", "supports"]

Array = np.ndarray[Any, Any]
Index = tuple[Tensor | None, Tensor | None]

_SMALL = 1 << 15
"""entries below which more threads do not pay"""


def supports(kernel: HyperKernel, dtype: torch.dtype = torch.float64) -> bool:
    """Whether `join` can fill matrices of this kernel; the activation of f does not matter.

    Not if a number of g requires a gradient: compiled loops record none.
    """
    g = kernel.g
    return (
        dtype in (torch.float32, torch.float64)
        and isinstance(g.nonlinearity, PiecewiseLinear)
        and not g.requires_grad
        and _loops() is not None
    )


def join(
    kernel: HyperKernel,
    condition: ConditionPart,
    points: Covariance,
    rows: Index,
    columns: Index,
    out: Tensor,
    *,
    symmetric: bool = False,
) -> Tensor:
    """Fill out[i, j] with the kernel of row i and column j, and return it.

    condition holds S and Theta_f for distinct conditions, left [u, 1], right [1, u'], gap and ntk
    [u, u']; points holds Q^0 for distinct points, left [p, 1], right [1, p'], gap [p, p']. rows
    says which condition and which point each row has: two index vectors [n], None for 0, 1, 2, ...;
    columns likewise. So for points that never repeat, pass Q^0 of the block and (index, None).
    With `symmetric` (rows and columns the same) the upper half is computed and mirrored.

    The same numbers as `kernel.join` up to rounding, a few units in the last place of
    sqrt(K_ii K_jj). float32 tables are read as they are, and all that follows is done in float64.
    """
    loops = _loops()
    if loops is None:
        raise MissingDependencyError(
            "fused kernels need numba; install it (pip install numba), or use HyperKernel.join"
        )
    task = _prepare(kernel, condition, points, rows, columns, out, symmetric)
    if task.rows.condition.size == 0 or task.columns.condition.size == 0:
        return out

    def band(start: int) -> None:
        loops.fill(*task.arguments, start)

    threads = torch.get_num_threads() if out.numel() > _SMALL else 1
    _spread(band, range(0, len(out), loops.TILE), threads)
    return out


@cache
def _loops() -> Any:
    """The compiled loops, or None without a numba that works."""
    try:
        import numba  # noqa: F401  only numba may be missing: an error in our own file is an error
    except ImportError:
        return None
    from weightloom.kernels import fused_loops

    return fused_loops


@dataclass(frozen=True)
class _LoopSide:
    """What the loops read for every row, or for every column."""

    condition: Array  # [n] unsigned: which row of the table of conditions
    point: Array  # [n] unsigned
    factor: Array  # [n] the part of the result's scale that belongs to this point
    layers: Array  # [2 H, n]: roots u, v of the weights' and the biases' shares of each A^l


@dataclass(frozen=True)
class _FillTask:
    rows: _LoopSide
    columns: _LoopSide
    tables: tuple[Array, Array, Array]  # gap of S [u, u'], Theta_f [u, u'], gap of Q^0 [p, p']
    even: float  # share of |t| in the activation's second moment: 1/2 for ReLU, 1 for abs
    flags: tuple[bool, bool]  # tangent kernel, biases
    symmetric: bool
    out: Tensor

    @property
    def arguments(self) -> tuple[Any, ...]:
        sides = [(s.condition, s.point, s.factor, s.layers) for s in (self.rows, self.columns)]
        flat = self.out.as_strided((_span(self.out),), (1,)).numpy()
        stride = self.out.stride(0)
        return (flat, stride, self.tables, *sides, self.even, self.flags, self.symmetric)


def _prepare(
    kernel: HyperKernel,
    condition: ConditionPart,
    points: Covariance,
    rows: Index,
    columns: Index,
    out: Tensor,
    symmetric: bool,
) -> _FillTask:
    _check(kernel, condition, out, symmetric)
    weights, tangent = condition.covariance, condition.ntk
    tables = (weights.gap, weights.gap if tangent is None else tangent, points.gap)
    left = _side(kernel, weights.left, points.left, rows, len(out), tables, 0)
    right = left
    if not symmetric:
        right = _side(kernel, weights.right, points.right, columns, out.shape[1], tables, 1)
    activation = cast(PiecewiseLinear, kernel.g.nonlinearity)
    linear = (activation.positive + activation.negative) ** 2
    even = (activation.positive - activation.negative) ** 2
    return _FillTask(
        left,
        right,
        (_table(tables[0], out), _table(tables[1], out), _table(tables[2], out)),
        even / (linear + even),
        (tangent is not None, float(kernel.g.sigma_b) != 0),
        symmetric,
        out,
    )


def _check(kernel: HyperKernel, condition: ConditionPart, out: Tensor, symmetric: bool) -> None:
    if not supports(kernel, out.dtype):
        raise KernelError(
            f"{kernel.g!r} in {out.dtype} cannot be fused; wanted a piecewise-linear activation, "
            "float32 or float64 and no gradients: use HyperKernel.join"
        )
    if (condition.ntk is not None) != (kernel.kind == "ntk"):
        seen = "missing" if condition.ntk is None else "given"
        raise KernelError(
            f"kind is {kernel.kind!r} but condition.ntk is {seen}; pass what "
            "kernel.condition_part returns"
        )
    if out.ndim != 2 or (out.numel() and out.stride(1) != 1):
        raise ShapeError(
            f"out has shape {list(out.shape)} and strides {list(out.stride())}; wanted a matrix "
            "whose rows are contiguous, such as torch.empty(n, m)"
        )
    if symmetric and out.shape[0] != out.shape[1]:
        raise ShapeError(f"out has shape {list(out.shape)}; a symmetric matrix is square")


def _side(
    kernel: HyperKernel,
    weights: Tensor,
    points: Tensor,
    index: Index,
    count: int,
    tables: tuple[Tensor, Tensor, Tensor],
    axis: int,
) -> _LoopSide:
    """What depends on one point and not on a pair, so that the loops need no divisions or roots.

    With a the variance of A^l, the gap of A^l = sigma_w^2 Q^(l-1) + sigma_b^2 is

        u u' gap(Q) + ((u - u')^2 + (v - v')^2) / 2,   u^2 = sigma_w^2 Q / a,  v^2 = sigma_b^2 / a,

    because (u, v) are unit vectors: nothing cancels. The recursion of the tangent kernel, divided
    by sqrt(a a'), becomes T^(l+1) = correlation(A^(l+1)) + correlation(S) slope u u' T^l.
    """
    sizes = tables[0].shape[axis], tables[2].shape[axis]
    condition, point = (_index(index[k], count, sizes[k], k, axis) for k in range(2))
    s = weights.detach().reshape(-1).double().numpy()[condition]
    q = points.detach().reshape(-1).double().numpy()[point]
    g, activation = kernel.g, cast(PiecewiseLinear, kernel.g.nonlinearity)
    w2, b2 = float(g.sigma_w) ** 2, float(g.sigma_b) ** 2
    growth = float(g.gain) ** 2 * (activation.positive**2 + activation.negative**2) / 2
    layers = np.empty((g.depth, 2, count))
    variance = w2 * q + b2
    for layer in range(g.depth):
        if layer:
            q = growth * s * variance
            variance = w2 * q + b2
        # Without biases the shares are the same for all points, also for those of variance 0.
        shares = (w2 * q / variance, b2 / variance) if b2 else ((1.0,), (0.0,))
        layers[layer] = np.sqrt(shares)
    factor = np.sqrt(variance) if kernel.kind == "ntk" else np.sqrt(variance) * np.sqrt(s)
    index32 = condition.astype(np.uint32), point.astype(np.uint32)
    return _LoopSide(*index32, factor, layers.reshape(2 * g.depth, count))


def _index(given: Tensor | None, count: int, size: int, part: int, axis: int) -> Array:
    """Checked here, because the loops do not check: a wrong index would read other memory."""
    what = f"index of {('rows', 'columns')[axis]} into the {('conditions', 'points')[part]}"
    index = np.arange(count) if given is None else given.detach().numpy()
    if index.shape != (count,):
        raise ShapeError(f"{what} has shape {list(index.shape)}; out wants [{count}]")
    if count and not (index.min() >= 0 and index.max() < size):
        raise ShapeError(
            f"{what} runs from {index.min()} to {index.max()}; the table has {size} entries"
        )
    return index


def _table(table: Tensor, out: Tensor) -> Array:
    if table.dtype != out.dtype or table.ndim != 2:
        raise ShapeError(
            f"a table is {table.dtype} with shape {list(table.shape)} but out is {out.dtype}; "
            "wanted matrices of one type"
        )
    return table.detach().contiguous().numpy()


def _span(out: Tensor) -> int:
    """How many numbers lie between the first and the last of the matrix, both included."""
    return (out.shape[0] - 1) * out.stride(0) + out.shape[1]


def _spread(work: Callable[[int], None], items: Iterable[int], threads: int) -> None:
    """work(item) for every item, on ``threads`` threads that take the next item when free.

    Python's threads, not numba's: the loops release the lock, and numba's own pool cannot be
    entered from two threads at once.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for item in items:
        waiting.put(item)
    stopped = threading.Event()

    def run() -> None:
        while not stopped.is_set():
            try:
                item = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                work(item)
            except BaseException:
                stopped.set()
                raise

    threads = min(threads, waiting.qsize())
    if threads <= 1:
        run()
        return
    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(run) for _ in range(threads)]
        try:
            for future in running:
                future.result()
        finally:  # after an error or Ctrl-C the threads stop after their current item
            stopped.set()

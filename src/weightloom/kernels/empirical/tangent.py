"""Kernels of finite networks: tangent kernel and covariance of outputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from weightloom.errors import ShapeError
from weightloom.kernels.empirical.jacobian import Jacobian, Products, groups
from weightloom.kernels.empirical.planning import KernelPlan, Probe, choose
from weightloom.kernels.empirical.rows import (
    InputRows,
    Inputs,
    Network,
    as_rows,
    blocks,
    budget,
    flat,
    squeeze,
)
from weightloom.kernels.empirical.structured import NotStructuredError, Structured
from weightloom.linalg import memory as room

__all__ = ["nngp", "ntk", "plan"]


def ntk(
    h: nn.Module,
    u: Inputs,
    u2: Inputs | None = None,
    *,
    method: str = "auto",
    memory: int | str | None = None,
) -> Tensor:
    """The tangent kernel of a network: J(u) J(u2)^T over its trainable parameters.

    ``u`` is what the network is called with: ``(x, z)`` for ``h(x, z)``, a tensor for ``h(x)``;
    rows first, and a row's output must not depend on other rows. Only parameters that require a
    gradient count. Returns [n, m] for one output, [n, m, c, c] for c outputs (trailing dimensions
    are flattened), exactly symmetric when ``u2`` is omitted, without a graph.

    ``method``: "structured" sums (a . a') (d . d') over linear layers (a a layer's input, d the
    gradient at its output) and forms Jacobians only for what is in no linear layer; "jacobian"
    forms Jacobians of blocks of rows, some parameters at a time; "products" takes forward
    derivatives along gradients. "auto" takes the cheapest that fits in ``memory`` (bytes or "2 GB",
    beside the result; by default a quarter of what is free); `plan` says which one and why.

    >>> h = nn.Linear(3, 1)
    >>> x = torch.eye(3)
    >>> ntk(h, x)
    tensor([[2., 1., 1.],
            [1., 2., 1.],
            [1., 1., 2.]])
    """
    network = Network(h)
    rows, columns = _both(u, u2)
    probe = Probe.of(network, rows, columns)
    allowed = budget(memory)
    size = probe.n * probe.m * probe.outputs**2 * probe.itemsize
    room.check(size, "the tangent kernel", "ask for fewer rows at a time")
    chosen = choose(probe, method, allowed)
    try:
        kernel = _compute(network, rows, columns, chosen, probe)
    except NotStructuredError as error:
        # Two rows were structured, more are not: a network may depend on the number of rows.
        if method != "auto":
            raise
        without = Probe(**{**vars(probe), "kept": None, "refused": str(error)})
        chosen = choose(without, method, allowed)
        kernel = _compute(network, rows, columns, chosen, probe)
    return squeeze(kernel)


def plan(
    h: nn.Module,
    u: Inputs,
    u2: Inputs | None = None,
    *,
    method: str = "auto",
    memory: int | str | None = None,
) -> KernelPlan:
    """How `ntk` would be computed with these arguments: method, reason, memory, operations.

    >>> h = nn.Sequential(nn.Linear(20, 20), nn.Linear(20, 1))
    >>> plan(h, torch.eye(20)).method
    'structured'
    """
    rows, columns = _both(u, u2)
    return choose(Probe.of(Network(h), rows, columns), method, budget(memory))


def nngp(h: nn.Module, u: Inputs, u2: Inputs | None = None) -> Tensor:
    """Products of outputs, h(u) h(u2)^T averaged over the c outputs, [n, m].

    For one sampled network this estimates the Gaussian-process covariance, the better the more
    outputs it has. Its mean over sampled networks is the covariance at this width.

    >>> nngp(nn.Identity(), torch.tensor([[1.0, 3.0], [2.0, 0.0]]))
    tensor([[5., 1.],
            [1., 2.]])
    """
    rows, columns = _both(u, u2)
    with torch.no_grad():
        left = flat(h(*rows.arguments), len(rows))
        right = left if columns is None else flat(h(*columns.arguments), len(columns))
    return left @ right.T / left.shape[1]


def _both(u: Inputs, u2: Inputs | None) -> tuple[InputRows, InputRows | None]:
    rows = as_rows(u, "u")
    if u2 is None:
        return rows, None
    columns = as_rows(u2, "u2")
    if len(columns.arguments) != len(rows.arguments):
        raise ShapeError(
            f"u holds {len(rows.arguments)} tensors but u2 {len(columns.arguments)}; both are what "
            f"the network is called with"
        )
    return rows, columns


def _compute(
    network: Network, rows: InputRows, columns: InputRows | None, chosen: KernelPlan, probe: Probe
) -> Tensor:
    shape = (probe.n, probe.m, probe.outputs, probe.outputs)
    kernel = torch.zeros(shape, dtype=probe.dtype, device=rows.arguments[0].device)
    if chosen.method == "products":
        _add_products(kernel, Products(network), rows, columns, chosen)
    elif chosen.method == "structured":
        _add_pairs(kernel, Structured(network), rows, columns, chosen.rows)
    else:
        for group in groups(network.parameters, chosen.group):
            _add_pairs(kernel, Jacobian(network, group), rows, columns, chosen.rows)
    return kernel


def _add_pairs(
    kernel: Tensor, method: Any, rows: InputRows, columns: InputRows | None, block: int
) -> None:
    """Add the kernel of all pairs of blocks; a block on the diagonal is computed once."""
    symmetric = columns is None
    columns = rows if columns is None else columns
    for i in blocks(len(rows), block):
        left = method.rows(rows[i])
        for j in blocks(len(columns), block):
            if symmetric and j.start < i.start:
                continue
            right = left if symmetric and j == i else method.rows(columns[j])
            _add(kernel, i, j, method.pair(left, right), symmetric)


def _add_products(
    kernel: Tensor, method: Products, rows: InputRows, columns: InputRows | None, chosen: KernelPlan
) -> None:
    symmetric = columns is None
    columns = rows if columns is None else columns
    for j in blocks(len(columns), chosen.columns):
        directions = method.columns(columns[j])
        for i in _left_of(j, len(rows), chosen, symmetric):
            _add(kernel, i, j, method.pair(rows[i], directions), symmetric)


def _left_of(j: slice, count: int, chosen: KernelPlan, symmetric: bool) -> Iterator[slice]:
    """Blocks of rows against the columns ``j``: the square on the diagonal, then what is after."""
    start = 0
    if symmetric:
        yield j
        start = j.stop
    for i in blocks(count - start, chosen.rows):
        yield slice(i.start + start, i.stop + start)


def _add(kernel: Tensor, i: slice, j: slice, part: Tensor, symmetric: bool) -> None:
    mirrored = part.permute(1, 0, 3, 2)
    if symmetric and i == j:
        part = (part + mirrored) / 2
    kernel[i, j] += part
    if symmetric and i != j:
        kernel[j, i] += mirrored

"""Terms of the Taylor series of one gradient step: the kernels K^(r)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

import torch
from torch import Tensor, nn
from torch.func import grad, jvp, vmap

from weightloom.errors import ConfigError, KernelError, ShapeError
from weightloom.kernels.empirical.rows import (
    InputRows,
    Inputs,
    Network,
    Parameters,
    as_rows,
    budget,
)

__all__ = ["higher_order"]

Derivatives = tuple[Tensor, ...]


@overload
def higher_order(
    h: nn.Module, u_i: Inputs, u_j: Inputs, order: int, *, memory: int | str | None = None
) -> Tensor: ...
@overload
def higher_order(
    h: nn.Module, u_i: Inputs, u_j: Inputs, order: Sequence[int], *, memory: int | str | None = None
) -> tuple[Tensor, ...]: ...
def higher_order(
    h: nn.Module,
    u_i: Inputs,
    u_j: Inputs,
    order: int | Sequence[int] = 1,
    *,
    memory: int | str | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """K^(r) = <grad^r h(u_i), (grad h(u_j))^(x r)>, "On Infinite-Width Hypernetworks", Eq. 5.

    It is the r-th derivative of h(u_i; w + e grad h(u_j; w)) at e = 0, and is computed so: r nested
    forward derivatives, no tensor larger than the parameters. K^(0) is h(u_i), K^(1) the tangent
    kernel. Rows of ``u_i`` and ``u_j`` are paired; returns [n]. A sequence of orders gives a tuple,
    from one nest as deep as the largest. For piecewise-linear activations derivatives at kinks
    count as 0. ``memory`` bounds how many rows are computed at once.

    >>> h = nn.Linear(2, 1, bias=False)
    >>> u = torch.tensor([[1.0, 2.0]])
    >>> higher_order(h, u, u, order=(1, 2))
    (tensor([5.]), tensor([0.]))
    """
    wanted = _orders(order)
    network = Network(h)
    left, right = as_rows(u_i, "u_i"), as_rows(u_j, "u_j")
    _check(network, left, right)
    deepest = max(wanted)
    # Each level doubles what is alive; a row moves all parameters in a direction of its own.
    each = network.size * network.itemsize * (2**deepest + 2)
    together = max(1, min(len(left), budget(memory) // each))
    parts = [
        _terms(network, left[start : start + together], right[start : start + together], deepest)
        for start in range(0, len(left), together)
    ]
    by_order = [torch.cat(terms) for terms in zip(*parts, strict=True)]
    chosen = tuple(by_order[r] for r in wanted)
    return chosen[0] if isinstance(order, int) else chosen


def _terms(network: Network, left: InputRows, right: InputRows, deepest: int) -> Derivatives:
    """K^(0) .. K^(deepest), [n] each."""

    def of_row(*arguments: Tensor) -> Derivatives:
        half = len(arguments) // 2
        return _row(network, arguments[:half], arguments[half:], deepest)

    arguments = (*left.arguments, *right.arguments)
    with torch.no_grad():
        if len(left) == 1:  # no vmap: networks that it refuses still have their terms
            return tuple(term.unsqueeze(0) for term in of_row(*(a[0] for a in arguments)))
        return vmap(of_row)(*arguments)


def _row(
    network: Network, left: tuple[Tensor, ...], right: tuple[Tensor, ...], deepest: int
) -> Derivatives:
    def of_j(parameters: Parameters) -> Tensor:
        return network.of_row(parameters, right)[0]

    direction = grad(of_j)(network.parameters)

    def moved(step: Tensor) -> Derivatives:
        parameters = {
            name: value + step * direction[name] for name, value in network.parameters.items()
        }
        return (network.of_row(parameters, left)[0],)

    nest: Callable[[Tensor], Derivatives] = moved
    for _ in range(deepest):
        nest = _with_derivative(nest)
    some = next(iter(network.parameters.values()))
    return nest(torch.zeros((), dtype=some.dtype, device=some.device))


def _with_derivative(terms: Callable[[Tensor], Derivatives]) -> Callable[[Tensor], Derivatives]:
    """(h, .., h^(k)) as functions of the step, to (h, .., h^(k + 1))."""

    def deeper(step: Tensor) -> Derivatives:
        nested = jvp(terms, (step,), (torch.ones_like(step),))
        return (*nested[0], nested[1][-1])

    return deeper


def _orders(order: int | Sequence[int]) -> tuple[int, ...]:
    orders = (order,) if isinstance(order, int) else tuple(order)
    if not orders or any(r < 0 for r in orders):
        raise ConfigError(f"order is {order}; it must be 0, 1, 2, ... or a sequence of these")
    return orders


def _check(network: Network, left: InputRows, right: InputRows) -> None:
    if len(left) != len(right):
        raise ShapeError(
            f"u_i has {len(left)} rows but u_j has {len(right)}; they are paired row by row"
        )
    if len(left.arguments) != len(right.arguments):
        raise ShapeError(
            f"u_i holds {len(left.arguments)} tensors but u_j {len(right.arguments)}; both are "
            f"what the network is called with"
        )
    outputs, _ = network.check_rows(left)
    if outputs != 1:
        raise KernelError(
            f"the network has {outputs} outputs; K^(r) is defined for one: wrap it in a module "
            f"that returns the output you mean"
        )

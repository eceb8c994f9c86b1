"""Tangent kernels of any network: from Jacobians, or from derivatives along gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import jacrev, jvp, vmap

from weightloom.errors import SlowPathWarning
from weightloom.hyper.rows.any_module import VMAP_REFUSALS
from weightloom.kernels.empirical.rows import InputRows, Network, Parameters

__all__ = ["Jacobian", "Products", "groups"]


class Jacobian:
    """Inner products of per-row Jacobians, for one group of parameter tensors at a time."""

    name = "jacobian"

    def __init__(self, network: Network, parameters: Parameters) -> None:
        self.network = network
        self.parameters = parameters

    def rows(self, rows: InputRows) -> Parameters:
        """The Jacobian of some rows, [n, c, *shape] for each parameter."""
        return jacobian(self.network, self.parameters, rows)

    def pair(self, left: Parameters, right: Parameters) -> Tensor:
        return sum_of_products(left, right)


class Products:
    """Derivatives of all rows along the gradients of others: no Jacobian of the former."""

    name = "products"

    def __init__(self, network: Network) -> None:
        self.network = network

    def columns(self, rows: InputRows) -> Parameters:
        """Gradients of some columns, [m c, *shape]: the directions."""
        gradients = jacobian(self.network, self.network.parameters, rows)
        return {name: value.flatten(0, 1) for name, value in gradients.items()}

    def pair(self, rows: InputRows, directions: Parameters) -> Tensor:
        """[n, m, c, c]: the derivative of every row of ``rows`` along every direction."""
        names = list(self.network.parameters)
        primals = tuple(self.network.parameters[name] for name in names)

        def outputs(*values: Tensor) -> Tensor:
            return self.network.call(dict(zip(names, values, strict=True)), rows)

        def along(*direction: Tensor) -> Tensor:
            return jvp(outputs, primals, direction)[1]

        tangents = tuple(directions[name] for name in names)
        derivatives = _mapped(along, tangents, "derivatives along gradients")  # [m c, n, c]
        c = derivatives.shape[-1]
        return derivatives.unflatten(0, (-1, c)).permute(2, 0, 3, 1)


def jacobian(network: Network, parameters: Parameters, rows: InputRows) -> Parameters:
    """[n, c, *shape] for each of ``parameters``; the others are left as they are."""

    def of_row(*arguments: Tensor) -> Parameters:
        return jacrev(network.of_row)(parameters, arguments)

    with torch.no_grad():
        return _mapped(of_row, rows.arguments, "gradients of rows")


def _mapped(function: Callable, arguments: tuple[Tensor, ...], what: str):  # type: ignore[no-untyped-def]
    try:
        return vmap(function)(*arguments)
    except VMAP_REFUSALS as error:
        refusal = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    # If this fails too, its error is the more useful one.
    parts = [function(*(a[i] for a in arguments)) for i in range(len(arguments[0]))]
    warnings.warn(
        f"{what} were computed one by one, because torch.vmap refused them ({refusal[:160]})",
        SlowPathWarning,
        stacklevel=2,
    )
    if isinstance(parts[0], Tensor):
        return torch.stack(parts)
    return {name: torch.stack([part[name] for part in parts]) for name in parts[0]}


def sum_of_products(left: Parameters, right: Parameters) -> Tensor:
    """Inner products of two Jacobians, [n, m, c, c]."""
    total: Tensor | None = None
    for name, value in left.items():
        (n, c), other = value.shape[:2], right[name]
        m = len(other)
        part = (value.reshape(n * c, -1) @ other.reshape(m * c, -1).T).view(n, c, m, c)
        total = part if total is None else total + part
    if total is None:
        raise ValueError("no parameters")
    return total.transpose(1, 2)


def groups(parameters: Parameters, largest: int) -> list[Parameters]:
    """Parameters in groups of at most ``largest`` numbers; a larger tensor is a group of its own.

    Each group costs a pass through the network, so groups are as large as memory allows.
    """
    grouped: list[Parameters] = []
    room = 0
    for name, value in parameters.items():
        if value.numel() > room:
            grouped.append({})
            room = largest
        grouped[-1][name] = value
        room -= value.numel()
    return grouped

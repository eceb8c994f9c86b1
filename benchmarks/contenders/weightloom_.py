"""weightloom as its README uses it: one HyperNetwork, called with x and condition.

Except for the start: the default normalises features, which the functions of the others do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from workloads import Start, Workload, fill

import weightloom as wl
from contenders.base import Contender

__all__ = ["contenders"]


def contenders(key: str) -> list[Contender]:
    return Contender("HyperNetwork", "weightloom", _build).also_compiled()


def _build(workload: Workload, start: Start) -> nn.Module:
    encoder = wl.mlp(list(workload.encoder), last_activation=True)
    hyper = wl.HyperNetwork(
        workload.make_primary(), encoder=encoder, head="full", init="hyperfan_in"
    )
    linears = [layer for layer in encoder.modules() if isinstance(layer, nn.Linear)]
    for layer, (weight, bias) in zip(linears, start.encoder, strict=True):
        fill(layer, weight, bias)
    copy_head(hyper, start)
    return hyper


def copy_head(hyper: wl.HyperNetwork, start: Start) -> None:
    """Copy the start into the head, whatever its layout, through the public `weights` alone.

    Every parameter of the head is filled with its own serial number and the weights are read back
    for features 0, e_1, ..., e_k: the numbers that come out say which parameter writes what. So
    weightloom may change how it stores a head without this benchmark knowing.
    """
    parameters = list(hyper.head.parameters())
    total = sum(parameter.numel() for parameter in parameters)
    values = torch.full((total,), float("nan"))
    with torch.no_grad(), _bare(hyper):
        _number(parameters)
        probes = torch.eye(start.features + 1, start.features, dtype=torch.double).roll(1, 0)
        probes[0] = 0.0
        written = hyper.weights(probes)
        for name, (weight, bias) in start.blocks().items():
            offset = written[name][0].flatten()
            table = written[name][1:].flatten(1) - offset  # [k, size]
            values[offset.round().long()] = bias
            values[table.round().long()] = weight.t()
        if values.isnan().any():
            raise ValueError("some parameters of weightloom's head write no weight; cannot copy")
        _write(parameters, values)


def _number(parameters: list[Tensor]) -> None:
    first = 0
    for parameter in parameters:
        count = parameter.numel()
        serial = torch.arange(first, first + count, dtype=torch.double)
        parameter.copy_(serial.view_as(parameter))
        first += count


def _write(parameters: list[Tensor], values: Tensor) -> None:
    pieces = values.split([parameter.numel() for parameter in parameters])
    for parameter, piece in zip(parameters, pieces, strict=True):
        parameter.copy_(piece.view_as(parameter))


@contextmanager
def _bare(hyper: wl.HyperNetwork) -> Iterator[None]:
    """In double, so that serial numbers are exact, and with features in place of conditions."""
    encoder, hyper.encoder = hyper.encoder, nn.Identity()
    hyper.double()
    try:
        yield
    finally:
        hyper.float()
        hyper.encoder = encoder

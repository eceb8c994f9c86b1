"""Read a network as a `Program` of affine steps and bends."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from weightloom.construct.layers import SparseLinear
from weightloom.construct.pieces.layers import add_layer, has_own_code, is_layer, refuse_training
from weightloom.construct.pieces.maxima import Builder
from weightloom.construct.pieces.operations import add_operations
from weightloom.construct.pieces.program import UNIT, Program
from weightloom.errors import UnsupportedModuleError
from weightloom.networks.activations import lookup
from weightloom.networks.exporting import operations_of
from weightloom.networks.layers import kind_of
from weightloom.networks.straight import chain

__all__ = ["read"]

# Random inputs on which a program is compared with the network that it was read from.
_ROWS = 5


@torch.no_grad()
def read(network: nn.Module, shape: torch.Size) -> Program:
    """The program of ``network`` for inputs of ``shape`` (without a batch dimension).

    Plain containers of known layers are read layer by layer. Every other network is read from the
    operations that it computes on an example; `SparseLinear`, layers with an attribute ``kinks``
    and registered activations can only stand in a chain. Then the program is run beside the
    network: hooks and code that were not seen would show there.
    """
    program = _from_layers(network, shape) if _is_chain(network) else _from_graph(network, shape)
    _require_same(program, network)
    return program


def _is_chain(network: nn.Module) -> bool:
    """Whether the layers are all there is, or have to be read one by one."""
    return _is_plain(network) or any(_is_one_by_one(module) for module in network.modules())


def _is_one_by_one(module: nn.Module) -> bool:
    """A layer that is known as a whole, whatever operations it is made of."""
    if isinstance(module, SparseLinear) or hasattr(module, "kinks"):
        return True
    known = None if _is_torch(module) else lookup(module)
    return known is not None and known.pieces is not None


def _is_plain(module: nn.Module) -> bool:
    """A container, or a layer that is known or torch's, without code of its own."""
    if has_own_code(module):
        return False
    if kind_of(module, (nn.Sequential,)) is not None:
        return all(_is_plain(child) for child in module._modules.values() if child is not None)
    known = is_layer(module) or _is_torch(module) or _is_one_by_one(module)
    return known and next(module.children(), None) is None


def _is_torch(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.")


def _from_layers(network: nn.Module, shape: torch.Size) -> Program:
    builder, value = Builder(shape), 0
    for name, layer in chain(network, is_layer):
        value = add_layer(builder, name, layer, value)
    return builder.program(value)


def _from_graph(network: nn.Module, shape: torch.Size) -> Program:
    for name, part in network.named_modules():
        refuse_training(f"layer {name} ({type(part).__name__})" if name else "the network", part)
    like = next((p for p in network.parameters() if p.is_floating_point()), torch.zeros(()))
    example = torch.zeros(1, *shape, dtype=like.dtype, device=like.device)
    graph = operations_of(network, example)
    builder = Builder(shape)
    value = add_operations(builder, graph, builder.affine("input", (0,), lambda x: x[:, None]))
    if builder.shapes[value][:1] == (1,):
        value = builder.affine("output", (value,), lambda y: y[:, 0])
    return builder.program(value)


def _require_same(program: Program, network: nn.Module) -> None:
    """An error if the network computes something else than its program."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(_ROWS, *program.shape, generator=generator, dtype=torch.float64)
    values = program.values(x)
    result, size = values[program.output], _magnitude(program, values)

    def agrees(training: bool) -> bool:
        for outputs, tolerance in _runs(network, x, training):
            if not isinstance(outputs, Tensor) or outputs.shape != result.shape:
                return False
            if bool(((result - outputs.double().cpu()).abs() <= tolerance * size).all()):
                return True
        return False

    if agrees(training=True):
        return
    name = type(network).__name__
    if agrees(training=False):
        raise UnsupportedModuleError(
            f"{name} is in training mode, where it computes something else than in eval mode "
            f"(dropout, statistics of a batch); call network.eval()"
        )
    raise UnsupportedModuleError(
        f"{name} computes something else on a batch of {_ROWS} random inputs than its operations "
        f"do on one: rows of a batch depend on each other, or code outside of what can be read "
        f"(hooks, a replaced forward) changes the outputs"
    )


def _magnitude(program: Program, values: dict[int, Tensor]) -> float:
    """The largest sum of absolute values of products that any entry is made of."""
    scales = {value: tensor.abs().flatten(1).amax(1) for value, tensor in values.items()}
    sizes = [program.rounding(value, scales, terms=-1) for value in values]
    return 1 + max(float(size.max()) for size in sizes if size.numel()) / UNIT


def _runs(network: nn.Module, x: Tensor, training: bool) -> Iterator[tuple[Any, float]]:
    """Outputs in double precision, then in the network's own; and the rounding to expect.

    Only casts in the code make a second run necessary: they stay when a copy is turned into double
    precision. ``training``: in the modes that its modules have, else all in eval mode.
    """
    own = next((p.dtype for p in network.parameters() if p.is_floating_point()), torch.float32)
    single = torch.finfo(torch.float32).eps
    runs = [
        (torch.float64, 2**10 * torch.finfo(torch.float64).eps),
        (own, 2**5 * max(single, torch.finfo(own).eps)),
    ]
    for number, (dtype, tolerance) in enumerate(runs):
        copied = copy.deepcopy(network).to(device="cpu", dtype=dtype)
        try:
            yield (copied if training else copied.eval())(x.to(dtype)), tolerance
        except RuntimeError:  # tensors of another dtype in its code
            if number:
                raise

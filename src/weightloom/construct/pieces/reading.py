"""Read a network as a `Program` of affine steps and bends."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

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

__all__ = ["read", "require_same"]

# Random inputs, small and large, on which a program is run beside the network that it is read from.
_ROWS = 12


@torch.no_grad()
def read(network: nn.Module, shape: torch.Size) -> Program:
    """The program of ``network`` for inputs of ``shape`` (without a batch dimension).

    Plain containers of known layers are read layer by layer. Every other network is read from the
    operations that it computes on an example; `SparseLinear`, layers with an attribute ``kinks``
    and registered activations can only stand in a chain. Then the program is run beside the
    network: hooks and code that were not seen would show there.
    """
    network = getattr(network, "_orig_mod", network)  # of torch.compile
    program = _from_layers(network, shape) if _is_chain(network) else _from_graph(network, shape)
    require_same(program, network)
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
    known = is_layer(module) or lookup(module) is not None or _is_one_by_one(module)
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


def require_same(program: Program, network: nn.Module) -> None:
    """An error if the network computes something else than its program."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(_ROWS, *program.shape, generator=generator, dtype=torch.float64)
    scales = torch.logspace(-1, 1, _ROWS, dtype=torch.float64)
    x *= scales.reshape(-1, *[1] * len(program.shape))
    values = program.values(x)
    result, size = values[program.output], _magnitude(program, values)

    def agrees(training: bool) -> bool:
        return any(
            all(_is_close(outputs, result, tolerance * size) for outputs in both)
            for both, tolerance in _runs(network, x, training)
        )

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
        f"do on one: rows of a batch depend on each other, calls change its state, or code outside "
        f"of what can be read (hooks, a replaced forward) changes the outputs"
    )


def _copied(network: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(network)
    except RuntimeError as error:  # tensors that are computed from parameters
        raise UnsupportedModuleError(
            f"{type(network).__name__} cannot be copied ({error}); torch's older weight_norm is "
            f"such a case: remove it, or use torch.nn.utils.parametrizations"
        ) from error


def _magnitude(program: Program, values: dict[int, Tensor]) -> float:
    """The largest sum of absolute values of products that any entry is made of."""
    scales = {value: tensor.abs().flatten(1).amax(1) for value, tensor in values.items()}
    sizes = [program.rounding(value, scales, terms=-1) for value in values]
    return 1 + max(float(size.max()) for size in sizes if size.numel()) / UNIT


def _is_close(outputs: Any, wanted: Tensor, tolerance: float) -> bool:
    tensors = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]
    if len(tensors) != 1 or tensors[0].shape != wanted.shape:
        return False
    return bool(((wanted - tensors[0].double().cpu()).abs() <= tolerance).all())


def _runs(network: nn.Module, x: Tensor, training: bool) -> Iterator[tuple[tuple[Any, Any], float]]:
    """Outputs of two calls, to see hidden state, and the rounding to expect.

    In double precision, then in the network's own.

    The second run is for casts in the code, which stay when a copy is turned into double precision,
    and for deep networks in which rounding grows. ``training``: in the modes that its modules have,
    else all in eval mode.
    """
    own = next((p.dtype for p in network.parameters() if p.is_floating_point()), torch.float32)
    single = torch.finfo(torch.float32).eps
    runs = [
        (torch.float64, 2**10 * torch.finfo(torch.float64).eps),
        (own, 2**5 * max(single, torch.finfo(own).eps)),
    ]
    for number, (dtype, tolerance) in enumerate(runs):
        copied = _copied(network).to(device="cpu", dtype=dtype)
        copied = copied if training else copied.eval()
        try:
            yield (copied(x.to(dtype)), copied(x.to(dtype))), tolerance
        except RuntimeError:  # tensors of another dtype in its code
            if number:
                raise

"""Reads the symmetries of a network from its graph.

Modules that torch.fx can follow and that are made of known layers (nn.Sequential, Linear,
convolutions, norms, Embedding, self-attention, pooling, sums, products, activations) are read layer
by layer, without an example input. Every other network is read from the operations that it computes
on an example input (`weightloom.networks.operations_of`,
`weightloom.symmetry.reading.labels.result`). What neither knows raises `UnsupportedModuleError`,
which names the layer or the operation. Inputs have a batch dimension first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from weightloom.errors import UnsupportedModuleError
from weightloom.networks import operations_of
from weightloom.networks.activations import is_elementwise
from weightloom.networks.graph import Graph, Node, NodeKind, substitute
from weightloom.networks.graph import trace as graph_of
from weightloom.networks.layers import BATCH_NORMS, kind_of
from weightloom.symmetry.reading.labels.result import read_operations
from weightloom.symmetry.reading.layers import LAYERS, affine
from weightloom.symmetry.reading.operations import PLAIN, call, plain_module
from weightloom.symmetry.reading.state import Reader, Value, unsupported
from weightloom.symmetry.spec import Spec

__all__ = ["read", "read_graph", "trace"]


def read(module: nn.Module, inputs: Any = None) -> Spec:
    """The symmetries of a network: spaces of units, the axes they index, the layers in order.

    ``inputs`` are arguments of one call (a tensor, a tuple, or a mapping of keywords). They are
    needed only where they cannot be guessed from the layers or from the network's configuration.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> spec = read(net)
    >>> spec.spaces
    {'0': Space(name='0', size=3, kind=<Kind.SCALE: 'scale'>, constant=0.0)}
    >>> [(axis.tensor, axis.dim, axis.side) for axis in spec.axes]
    [('0.weight', 0, 'out'), ('0.bias', 0, 'out'), ('2.weight', 1, 'in')]
    """
    return _traced(module, inputs)[1]


def read_graph(graph: Graph) -> Spec:
    """`read` for a traced network."""
    if graph.exported:
        return read_operations(graph)
    reader = Reader(graph.module)
    values: dict[Node, Any] = {}
    for node in graph.nodes:
        values[node] = _node(reader, graph, node, values)
    return reader.finish()


def trace(module: nn.Module, inputs: Any = None) -> Graph:
    """The graph that `read` reads: calls of layers, or operations where layers are not enough."""
    return _traced(module, inputs)[0]


def _traced(module: nn.Module, inputs: Any) -> tuple[Graph, Spec]:
    _require_statistics(module)
    try:
        graph = graph_of(module, _is_layer)
        return graph, read_graph(graph)
    except UnsupportedModuleError as error:
        by_layers = error
    try:
        graph = operations_of(module, inputs)
    except UnsupportedModuleError as error:
        raise UnsupportedModuleError(f"{by_layers}; by its operations: {error}") from error
    return graph, read_graph(graph)


def _require_statistics(module: nn.Module) -> None:
    """Refuses BatchNorm in training mode, which is another function of each batch."""
    for name, layer in module.named_modules():
        if isinstance(layer, BATCH_NORMS) and (layer.training or layer.running_mean is None):
            raise unsupported(
                name, layer, "its statistics come from the batch; call .eval() on the network "
                "first (and keep track_running_stats=True)"
            )  # fmt: skip


def _is_layer(module: nn.Module) -> bool:
    """Whether a module is one call in the graph; the forward of other modules is traced."""
    if _handler(module) is not None or kind_of(module, PLAIN) is not None:
        return True
    bare = next(module.parameters(), None) is None and next(module.buffers(), None) is None
    # Its forward, not the module: while a network is traced, calling a module would recurse.
    return bare and next(module.children(), None) is None and is_elementwise(module.forward)


def _handler(module: nn.Module) -> Any:
    kind = kind_of(module, tuple(LAYERS))
    return None if kind is None else LAYERS[kind]


def _node(reader: Reader, graph: Graph, node: Node, values: dict[Node, Any]) -> Any:
    args, kwargs = substitute((node.args, node.kwargs), values.__getitem__)
    if node.kind is NodeKind.INPUT:
        return Value(reader.classes.new("input", None, fixed=True), "any")
    if node.kind is NodeKind.ATTRIBUTE:
        return graph.attribute(node)
    if node.kind is NodeKind.OUTPUT:
        return _fix(reader, args)
    if node.kind is NodeKind.MODULE:
        return _module(reader, node.target, graph.layer(node), args, kwargs)
    return _function(reader, node, args, kwargs)


def _fix(reader: Reader, output: Any) -> None:
    """Fixes the order of the network's output, which may be nested."""
    if isinstance(output, Value):
        reader.classes.fix(output.units)
    elif isinstance(output, dict):
        _fix(reader, tuple(output.values()))
    elif isinstance(output, tuple | list):
        for part in output:
            _fix(reader, part)


def _module(reader: Reader, name: str, module: nn.Module, args: Any, kwargs: Any) -> Any:
    if any(isinstance(tensor, UninitializedParameter) for tensor in module.parameters()):
        raise unsupported(name, module, "it has no weights yet; run the network once first")
    if module._forward_hooks or module._forward_pre_hooks:
        raise unsupported(name, module, "it has forward hooks, which may change what it computes")
    values = [value for value in (*args, *kwargs.values()) if isinstance(value, Value)]
    if any(isinstance(value, torch.Tensor) for value in (*args, *kwargs.values())):
        raise unsupported(name, module, "it takes a tensor of the network, such as a mask")
    if isinstance(module, nn.MultiheadAttention):
        same = len(values) == 3 and all(value == values[0] for value in values)
        if name and not same:
            raise unsupported(name, module, "only self-attention without a mask is supported")
        values = values[:1]
    if len(values) != 1:
        raise unsupported(name, module, f"it takes {len(values)} values; one is supported")
    handler = _handler(module)
    if handler is None:
        return plain_module(reader, name, module, values[0])
    out = handler(reader, name, module, values[0])
    return (out, None) if isinstance(module, nn.MultiheadAttention) else out


def _function(reader: Reader, node: Node, args: Any, kwargs: Any) -> Any:
    target, title = node.target, node.title
    if target in (getattr, torch.Tensor.size, "size", "dim"):
        return None
    if title == "getitem":
        if isinstance(args[0], tuple):  # the pair that attention returns
            return args[0][args[1]]
        if args[0] is None:  # an entry of a shape
            return None
        raise unsupported(node.name, title, "indexing a value is not supported")
    if title == "linear":
        return _linear(reader, node, args, kwargs)
    return call(reader, node.name, target, args, kwargs)


def _linear(reader: Reader, node: Node, args: Any, kwargs: Any) -> Value:
    """F.linear with tensors of the module."""
    parts = dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs
    value, weight, bias = parts.get("input"), parts.get("weight"), parts.get("bias")
    if not (isinstance(value, Value) and isinstance(weight, torch.Tensor)):
        raise unsupported(node.name, "linear", "its weight must be a tensor of the module")
    name = str(reader.tensor_name(node.name, "linear", weight)).removesuffix(".weight")
    return affine(reader, name, "linear", value, (weight, bias))

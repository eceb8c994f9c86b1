"""Reads the symmetries of a network from the module itself, with torch.fx.

Known: nn.Sequential (nested) and any module that torch.fx can trace, made of Linear, Conv1d-3d
(without groups, or depthwise), BatchNorm in eval mode, LayerNorm over the units, GroupNorm with one
group or one per channel, Embedding, self-attention, transformer encoder layers, pooling,
flattening, dropout, sums, products and elementwise activations, as modules, functions or methods.
Everything else raises `UnsupportedModuleError`, which names the layer. Inputs have a batch
dimension first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn
from torch.nn.parameter import UninitializedParameter

from weightloom.errors import UnsupportedModuleError
from weightloom.symmetry.activations import is_elementwise
from weightloom.symmetry.read_layers import LAYERS, affine
from weightloom.symmetry.read_ops import PLAIN, call, plain_module
from weightloom.symmetry.read_state import Reader, Value, unsupported
from weightloom.symmetry.spec import Spec

__all__ = ["read", "trace"]


def read(module: nn.Module) -> Spec:
    """The symmetries of a network: spaces of units, the axes they index, the layers in order.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> spec = read(net)
    >>> spec.spaces
    {'0': Space(name='0', size=3, kind=<Kind.SCALE: 'scale'>, constant=0.0)}
    >>> [(axis.tensor, axis.dim, axis.side) for axis in spec.axes]
    [('0.weight', 0, 'out'), ('0.bias', 0, 'out'), ('2.weight', 1, 'in')]
    """
    reader = Reader(module)
    values: dict[fx.Node, Any] = {}
    if _handler(module) is not None:  # torch.fx would look inside; the layer itself is known
        given = Value(reader.classes.new("input", None, fixed=True), "any")
        out = _module(reader, "", module, (given,), {})
        _fix(reader, out)
        return reader.finish()
    for node in trace(module).nodes:
        values[node] = _node(reader, node, values)
    return reader.finish()


class _Tracer(fx.Tracer):
    """Known layers and elementwise modules are leaves; own modules are looked into."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if _handler(m) is not None or isinstance(m, PLAIN):
            return True
        if super().is_leaf_module(m, module_qualified_name):
            return True
        bare = next(m.parameters(), None) is None and next(m.buffers(), None) is None
        # Its forward, not the module: while torch.fx traces, calling a module asks this again.
        return bare and next(m.children(), None) is None and is_elementwise(m.forward)


def trace(module: nn.Module) -> fx.Graph:
    """The graph that torch.fx finds, with known layers as leaves."""
    try:
        return _Tracer().trace(module)
    except Exception as error:  # torch.fx raises whatever the module's own code raises
        raise UnsupportedModuleError(
            f"layer '' ({type(module).__name__}) cannot be read: torch.fx could not trace its "
            f"forward ({type(error).__name__}: {error}); write it without branches on tensors, or "
            "as an nn.Sequential"
        ) from error


def _handler(module: nn.Module) -> Any:
    for kind, handler in LAYERS.items():
        if isinstance(module, kind) and type(module).forward is kind.forward:
            return handler
    return None


def _node(reader: Reader, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    args = fx.map_arg(node.args, lambda one: values[one])
    kwargs = fx.map_arg(node.kwargs, lambda one: values[one])
    target = node.target
    if node.op == "placeholder":
        return Value(reader.classes.new("input", None, fixed=True), "any")
    if node.op == "get_attr":
        return _attribute(reader.module, str(target))
    if node.op == "output":
        return _fix(reader, args)
    if node.op == "call_module":
        return _module(reader, str(target), reader.module.get_submodule(str(target)), args, kwargs)
    return _function(reader, node, args, kwargs)


def _attribute(module: nn.Module, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _fix(reader: Reader, given: Any) -> None:
    """What leaves the network keeps its order."""
    if isinstance(given, Value):
        reader.classes.fix(given.units)
    elif isinstance(given, dict):
        _fix(reader, tuple(given.values()))
    elif isinstance(given, tuple | list):
        for one in given:
            _fix(reader, one)


def _module(reader: Reader, name: str, module: nn.Module, args: Any, kwargs: Any) -> Any:
    if any(isinstance(one, UninitializedParameter) for one in module.parameters()):
        raise unsupported(name, module, "it has no weights yet; run the network once first")
    if module._forward_hooks or module._forward_pre_hooks:
        raise unsupported(name, module, "it has forward hooks, which may change what it computes")
    values = [one for one in (*args, *kwargs.values()) if isinstance(one, Value)]
    if isinstance(module, nn.MultiheadAttention):
        same = len(values) == 3 and all(one == values[0] for one in values)
        if name and not same:
            raise unsupported(name, module, "only self-attention without a mask from outside")
        values = values[:1]
    if len(values) != 1:
        raise unsupported(name, module, f"it takes {len(values)} values; one is known")
    handler = _handler(module)
    if handler is None:
        return plain_module(reader, name, module, values[0])
    out = handler(reader, name, module, values[0])
    return (out, None) if isinstance(module, nn.MultiheadAttention) else out


def _function(reader: Reader, node: fx.Node, args: Any, kwargs: Any) -> Any:
    target = node.target
    if target in (getattr, torch.Tensor.size) or node.target in ("size", "dim"):
        return None
    title = str(getattr(target, "__name__", target))
    if title == "getitem":
        if isinstance(args[0], tuple):  # the pair that attention returns
            return args[0][args[1]]
        if args[0] is None:  # an entry of a shape
            return None
        raise unsupported(node.name, title, "parts of a value are not known")
    if title == "linear":
        return _linear(reader, node, args, kwargs)
    return call(reader, node.name, target, args, kwargs)


def _linear(reader: Reader, node: fx.Node, args: Any, kwargs: Any) -> Value:
    """F.linear with tensors of the module."""
    parts = dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs
    value, weight, bias = parts.get("input"), parts.get("weight"), parts.get("bias")
    if not (isinstance(value, Value) and isinstance(weight, torch.Tensor)):
        raise unsupported(node.name, "linear", "its weight must be a tensor of the module")
    name = str(reader.tensor_name(node.name, "linear", weight)).removesuffix(".weight")
    return affine(reader, name, "linear", value, (weight, bias))

"""Networks that are a chain of layers, each applied to the output of the one before."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weightloom.errors import UnsupportedModuleError
from weightloom.networks.activations import module_of
from weightloom.networks.graph import Graph, Node, NodeKind, require_no_hooks, trace
from weightloom.networks.layers import kind_of

__all__ = ["FunctionLayer", "chain", "straight_line"]

# Functions that have a module with the same options.
_MODULES: dict[Any, type[nn.Module]] = {
    F.max_pool1d: nn.MaxPool1d,
    F.max_pool2d: nn.MaxPool2d,
    F.max_pool3d: nn.MaxPool3d,
    F.avg_pool1d: nn.AvgPool1d,
    F.avg_pool2d: nn.AvgPool2d,
    F.avg_pool3d: nn.AvgPool3d,
    F.adaptive_avg_pool1d: nn.AdaptiveAvgPool1d,
    F.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
    F.adaptive_avg_pool3d: nn.AdaptiveAvgPool3d,
    torch.flatten: nn.Flatten,
}
_DROPOUTS: dict[Any, type[nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d]] = {
    F.dropout: nn.Dropout,
    F.dropout1d: nn.Dropout1d,
    F.dropout2d: nn.Dropout2d,
    F.dropout3d: nn.Dropout3d,
}


class FunctionLayer(nn.Module):
    """A function or method of one tensor, as a module."""

    def __init__(self, node: Node) -> None:
        super().__init__()
        self.target = node.target
        self.rest, self.options = node.args[1:], dict(node.kwargs)
        self.options.pop("inplace", None)

    @property
    def title(self) -> str:
        """The name of the function or method."""
        return str(getattr(self.target, "__name__", self.target))

    @property
    def plain(self) -> bool:
        """Whether it was called without further arguments."""
        return not self.rest and not self.options

    @property
    def function(self) -> Callable[[Tensor], Tensor]:
        """The function to look up or to probe; for a method, the torch function of that name."""
        known: Any = self.target
        if isinstance(self.target, str):
            known = getattr(torch, self.target, None)
        if self.plain and callable(known):
            return known

        def call(x: Tensor) -> Tensor:
            return self(x)

        call.__name__ = self.title
        return call

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.target, str):
            return getattr(x, self.target)(*self.rest, **self.options)
        return self.target(x, *self.rest, **self.options)


def chain(
    module: nn.Module, known: Callable[[nn.Module], bool], name: str = ""
) -> Iterator[tuple[str, nn.Module]]:
    """The layers of a chain, with dotted names, in the order of execution.

    `nn.Sequential` (also nested) is taken layer by layer. Modules that are ``known`` to the caller
    or have no children are layers. Other modules are traced: a function call becomes the module
    with the same options if torch has one, else a `FunctionLayer`. Branches, a second input, and
    parameters or buffers used outside layers raise `UnsupportedModuleError`, and so do hooks and
    replaced forwards, which would be left out.

    >>> [name for name, layer in chain(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), lambda m: False)]
    ['0', '1']
    """
    require_no_hooks(module, name)
    if kind_of(module, (nn.Sequential,)):
        # Not named_children(), which leaves out a layer that is used a second time.
        for key, child in module._modules.items():
            if child is not None:
                yield from chain(child, known, f"{name}.{key}" if name else key)
    elif known(module) or next(module.children(), None) is None:
        yield name, module
    else:
        for label, layer in straight_line(trace(module, known, name), name):
            yield from chain(layer, known, label)


def straight_line(graph: Graph, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The layers of a graph in which every node uses the result of the one before.

    ``name`` is the prefix of the layers' names.
    """
    previous: Node | None = None
    sizes: set[Node] = set()  # numbers taken from a shape, as in x.view(x.size(0), -1)
    for node in graph.nodes:
        if node.kind is NodeKind.INPUT and previous is None:
            previous = node
            continue
        if _is_size(node, sizes):
            sizes.add(node)
            continue
        _require_chained(graph, node, set(node.inputs) - sizes == {previous}, name)
        previous = node
        if node.kind is NodeKind.OUTPUT:
            return
        called = node.kind is NodeKind.MODULE
        label = str(node.target) if called else node.name
        layer = graph.layer(node) if called else _as_module(node, sizes)
        yield ".".join(part for part in (name, label) if part), layer


def _require_chained(graph: Graph, node: Node, chained: bool, name: str) -> None:
    if chained and node.kind not in (NodeKind.INPUT, NodeKind.ATTRIBUTE):
        return
    kind = type(graph.module).__name__
    raise UnsupportedModuleError(
        f"'{name or kind}' ({kind}) is not a chain of layers: at '{node.name}' it joins branches, "
        f"has a second input or uses a tensor of its own; wanted one layer after the other"
    )


def _is_size(node: Node, sizes: set[Node]) -> bool:
    if node.kind is NodeKind.METHOD:
        return bool(node.target == "size")
    if node.target is getattr:
        return bool(node.args[1] == "shape")
    entry = node.target is operator.getitem and isinstance(node.args[0], Node)
    return entry and node.args[0] in sizes


def _is_rows(shape: tuple[Any, ...], sizes: set[Node]) -> bool:
    """Whether a new shape is (batch, -1)."""
    return len(shape) == 2 and isinstance(shape[0], Node) and shape[0] in sizes and shape[1] == -1


def _as_module(node: Node, sizes: set[Node]) -> nn.Module:
    layer = FunctionLayer(node)
    rest, options = layer.rest, layer.options
    if node.target in ("view", "reshape") and _is_rows(rest, sizes):
        return nn.Flatten()
    if node.target in _DROPOUTS:
        return _dropout(_DROPOUTS[node.target], *rest, **options)
    known: Any = torch.flatten if node.target == "flatten" else node.target
    if known in _MODULES and not (known is torch.flatten and layer.plain):
        try:
            return _MODULES[known](*rest, **options)
        except TypeError:  # options that the module does not have
            return layer
    if layer.plain:
        return layer
    return module_of(node.target, *rest, **options) or layer


def _dropout(
    kind: type[nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d],
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> nn.Module:
    """The module, in training mode if the function was."""
    return kind(p).train(training)

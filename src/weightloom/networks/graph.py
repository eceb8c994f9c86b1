"""The reader: a module as a graph of calls, which all other code interprets.

A graph is plain data, and there are two ways to get one. `trace` runs the module's forward with
stand-ins for tensors and records calls of layers and functions; it needs no input.
`weightloom.networks.exporting.operations_of` runs it on an example input and records the tensor
operations that are really computed, whatever the Python code around them does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Any

import torch
from torch import fx, nn

from weightloom.errors import UnsupportedModuleError

__all__ = ["Graph", "Node", "NodeKind", "require_no_hooks", "substitute", "trace"]


class NodeKind(Enum):
    """The operation of a node, which determines its ``target``."""

    INPUT = "input"  # target: name of the argument of forward
    ATTRIBUTE = "attribute"  # a tensor of the module; target: its dotted name
    CONSTANT = "constant"  # a tensor that depends on no input and no weight, in target
    MODULE = "module"  # calls a submodule; target: its dotted name ("" is the module itself)
    FUNCTION = "function"  # target: the function
    METHOD = "method"  # target: name of a method of the first argument
    OUTPUT = "output"  # what forward returns, in args[0]


_KINDS = {
    "placeholder": NodeKind.INPUT,
    "get_attr": NodeKind.ATTRIBUTE,
    "call_module": NodeKind.MODULE,
    "call_function": NodeKind.FUNCTION,
    "call_method": NodeKind.METHOD,
    "output": NodeKind.OUTPUT,
}


@dataclass(frozen=True, eq=False)
class Node:
    """One call. Nodes in ``args`` and ``kwargs`` stand for the values that they return."""

    name: str
    """unique in its graph"""
    kind: NodeKind
    target: Any
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    shape: tuple[int, ...] | None = None
    """of the value on the example input; None if the graph was made without one"""
    dtype: torch.dtype | None = None
    where: str = ""
    """dotted name of the module whose forward makes the call"""

    @cached_property
    def inputs(self) -> tuple[Node, ...]:
        """The nodes whose results it uses, each once, in order."""
        nodes: dict[Node, None] = {}
        substitute((self.args, self.kwargs), lambda node: nodes.setdefault(node))
        return tuple(nodes)

    @property
    def title(self) -> str:
        """The name of the function, method, submodule or attribute."""
        return str(getattr(self.target, "__name__", self.target))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape of a value in a graph that was made with an example input."""
        if self.shape is None:
            raise UnsupportedModuleError(f"{self.name!r} ({self.title}) is not one tensor")
        return self.shape

    @property
    def operation(self) -> str:
        """The name of a tensor operation without its overload: "conv2d"; "" for other nodes."""
        if self.kind is not NodeKind.FUNCTION:
            return ""
        packet = getattr(self.target, "overloadpacket", self.target)
        return str(packet.__name__)


@dataclass(frozen=True, eq=False)
class Graph:
    """The calls of a module in the order of execution. Names are those of ``module``."""

    module: nn.Module
    nodes: tuple[Node, ...]
    exported: bool = False
    """whether the nodes are tensor operations (`operations_of`), not calls of layers (`trace`)"""

    def layer(self, node: Node) -> nn.Module:
        """The submodule that a node of kind MODULE calls."""
        return self.module.get_submodule(node.target)

    def attribute(self, node: Node) -> Any:
        """The tensor of a node of kind ATTRIBUTE."""
        value: Any = self.module
        for part in node.target.split("."):
            value = getattr(value, part)
        return value

    def calls(self) -> Iterator[Node]:
        """The nodes that call a submodule."""
        return (node for node in self.nodes if node.kind is NodeKind.MODULE)

    def users(self, node: Node) -> tuple[Node, ...]:
        """The nodes that use the result of a node."""
        return self._users.get(node, ())

    def of_copy(self, module: nn.Module) -> Graph:
        """The same graph for a copy of the module, with the same names and structure."""
        return replace(self, module=module)

    @cached_property
    def _users(self) -> dict[Node, tuple[Node, ...]]:
        users: dict[Node, tuple[Node, ...]] = {}
        for node in self.nodes:
            for source in node.inputs:
                users[source] = (*users.get(source, ()), node)
        return users


def trace(
    module: nn.Module, leaf: Callable[[nn.Module], bool] | None = None, name: str = ""
) -> Graph:
    """The graph of a module.

    ``leaf`` says which modules become a single node; it is asked about ``module`` itself first.
    Layers of torch.nn (all but `nn.Sequential`) always do; other modules are traced into. ``name``
    is the name of the module in errors.

    >>> graph = trace(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
    >>> [(node.kind.value, node.target) for node in graph.nodes]
    [('input', 'input'), ('module', '0'), ('module', '1'), ('output', 'output')]
    """
    if leaf is not None and leaf(module):
        return _single(module)
    require_no_hooks(module, name)
    try:
        # As in a plain call: a forward that asks `mask is None` must not see a stand-in.
        defaults = _defaults(module)
        traced = _Tracer(leaf).trace(module, concrete_args=defaults)
        _without_defaults(traced, defaults)
    except Exception as error:  # the module's own code may raise anything
        where = f"layer {name!r}" if name else "the network"
        raise UnsupportedModuleError(
            f"{where} ({type(module).__name__}) cannot be read: torch.fx could not trace its "
            f"forward ({type(error).__name__}: {error}); write it without branches on tensors, or "
            "as an nn.Sequential"
        ) from error
    return Graph(module, tuple(_converted(traced)))


def require_no_hooks(module: nn.Module, name: str = "") -> None:
    """Raises `UnsupportedModuleError` for a module whose forward is not all that a call computes.

    torch.fx runs the hooks of submodules, but those of the network itself only in a real call.
    """
    if module._forward_hooks or module._forward_pre_hooks:
        where = f"layer {name!r}" if name else "the network"
        raise UnsupportedModuleError(
            f"{where} ({type(module).__name__}) cannot be read: it has forward hooks, which may "
            "change what it computes; remove them first"
        )


def substitute(value: Any, replacement: Callable[[Any], Any]) -> Any:
    """Arguments with every node replaced, also inside tuples, lists, dicts and slices."""
    if isinstance(value, Node | fx.Node):
        return replacement(value)
    if isinstance(value, tuple):
        parts = [substitute(part, replacement) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, list):
        return [substitute(part, replacement) for part in value]
    if isinstance(value, dict):
        return {key: substitute(part, replacement) for key, part in value.items()}
    if isinstance(value, slice):
        ends = (value.start, value.stop, value.step)
        return slice(*(substitute(end, replacement) for end in ends))
    return value


def _single(module: nn.Module) -> Graph:
    """The graph of a module that is one layer."""
    given = Node("input", NodeKind.INPUT, "input")
    call = Node("layer", NodeKind.MODULE, "", (given,))
    return Graph(module, (given, call, Node("output", NodeKind.OUTPUT, "output", (call,))))


class _Tracer(fx.Tracer):
    def __init__(self, leaf: Callable[[nn.Module], bool] | None) -> None:
        super().__init__()
        self._leaf = leaf

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if super().is_leaf_module(m, module_qualified_name):
            return True
        return self._leaf is not None and self._leaf(m)


def _defaults(module: nn.Module) -> dict[str, Any]:
    """Arguments of forward that have a default that is no tensor."""
    known = inspect.signature(module.forward).parameters.values()
    plain = (type(None), bool, int, float, str)
    return {
        parameter.name: parameter.default
        for parameter in known
        if parameter.default is not parameter.empty and isinstance(parameter.default, plain)
    }


def _without_defaults(traced: fx.Graph, names: Iterable[str]) -> None:
    """Removes the inputs that stand for defaults, and torch.fx's checks of their values."""
    for node in reversed(traced.nodes):
        check = node.op == "call_function" and getattr(node.target, "__name__", "") in (
            "_assert_is_none",
            "_assert",
        )
        if check:
            inner = [x for x in node.all_input_nodes if x.op == "call_function"]
            traced.erase_node(node)
            for source in inner:
                if not source.users:
                    traced.erase_node(source)
    for node in list(traced.nodes):
        named = node.op == "placeholder" and str(node.target).rsplit("_", 1)[0] in names
        if named and not node.users:
            traced.erase_node(node)


def _converted(traced: fx.Graph) -> Iterator[Node]:
    known: dict[fx.Node, Node] = {}
    for node in traced.nodes:
        args, kwargs = substitute((node.args, node.kwargs), known.__getitem__)
        known[node] = Node(node.name, _KINDS[node.op], node.target, args, kwargs)
        yield known[node]

"""Whether two graphs of operations are the same, and if not, the first difference in words.

Every node gets a hash of what it computes: its operation, its constants and the hashes of its
inputs, down to inputs (by position), parameters (by name and shape) and constants (by value). The
order of execution and names of nodes do not matter, nor the order of two terms or factors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from weightloom.networks.exporting import operations_of
from weightloom.networks.graph import Graph, Node, NodeKind, substitute

__all__ = ["difference", "structure"]

_COMMUTE = {"add", "mul", "maximum", "minimum", "logical_and", "logical_or", "__and__", "__or__"}
Naming = Callable[[str], str]


def difference(a: Graph, b: Graph) -> str | None:
    """The first difference between two graphs that is not the value of a weight; None if equal.

    Compared are operations with their constants, masks and other constant tensors, names and
    shapes of weights, and how all of them are connected. Constants are compared exactly; if the
    networks have different dtypes, to the precision of the coarser one.

    >>> from torch import nn
    >>> from weightloom.networks import trace
    >>> make = lambda slope: trace(nn.Sequential(nn.Linear(2, 3), nn.LeakyReLU(slope)))
    >>> difference(make(0.01), make(0.01))
    >>> difference(make(0.01), make(0.012))
    "at '1': leaky_relu(linear, 0.01) in one network, leaky_relu(linear, 0.012) in the other"
    """
    a, b = (graph if graph.exported else operations_of(graph.module) for graph in (a, b))
    digits = _digits(a, b)
    ours, theirs = _hashes(a, digits), _hashes(b, digits)
    if ours[a.nodes[-1]] == theirs[b.nodes[-1]]:
        return None
    known, others = set(ours.values()), set(theirs.values())
    first = next(node for node in a.nodes if ours[node] not in others)
    second = next((node for node in b.nodes if theirs[node] not in known), None)
    where = f"at {first.where!r}: " if first.where else ""
    here, there = _words(first), "nothing like it" if second is None else _words(second)
    if here == there:
        here, there = f"{here} [{_details(first)}]", f"{there} [{_details(second)}]"
    return f"{where}{here} in one network, {there} in the other"


def structure(graph: Graph, name: Naming = str) -> bytes:
    """A hash of what `difference` compares; ``name`` gives the name under which a tensor counts."""
    return _hashes(graph, None, name)[graph.nodes[-1]]


def _digits(a: Graph, b: Graph) -> int | None:
    """Significant digits of constants that two networks of different dtypes share; None: all."""
    dtypes = {
        parameter.dtype
        for graph in (a, b)
        for parameter in graph.module.parameters()
        if parameter.is_floating_point()
    }
    if len(dtypes) < 2:
        return None
    return {torch.bfloat16: 2, torch.float16: 3}.get(
        max(dtypes, key=lambda dtype: torch.finfo(dtype).eps), 6
    )


def _hashes(graph: Graph, digits: int | None, name: Naming = str) -> dict[Node, bytes]:
    hashes: dict[Node, bytes] = {}
    inputs = 0
    for node in graph.nodes:
        if node.kind is NodeKind.INPUT:
            text: Any = ("input", inputs, node.shape, _dtype(node.dtype, digits))
            inputs += 1
        elif node.kind is NodeKind.ATTRIBUTE:
            text = ("tensor", name(node.target), node.shape)
        elif node.kind is NodeKind.CONSTANT:
            text = ("constant", node.shape, _value(node.target, digits))
        elif digits is not None and node.operation == "to" and _is_float_cast(node):
            hashes[node] = hashes[node.args[0]]
            continue
        else:
            text = _call(node, hashes, digits)
        hashes[node] = hashlib.sha256(repr(text).encode()).digest()
    return hashes


def _is_float_cast(node: Node) -> bool:
    dtypes = (node.dtype, node.args[0].dtype)
    return all(dtype is not None and dtype.is_floating_point for dtype in dtypes)


def _call(node: Node, hashes: dict[Node, bytes], digits: int | None) -> Any:
    args, kwargs = substitute((node.args, node.kwargs), hashes.__getitem__)
    if node.operation in _COMMUTE and kwargs.get("alpha", 1) == 1:
        kwargs = {key: value for key, value in kwargs.items() if key != "alpha"}
        args = tuple(sorted(args[:2], key=repr)) + args[2:]
    kwargs = {key: value for key, value in kwargs.items() if key not in ("device", "layout")}
    return node.operation, _plain(args, digits), sorted(_plain(kwargs, digits).items())


def _plain(value: Any, digits: int | None) -> Any:
    """Arguments as data that has the same text in every process."""
    if isinstance(value, torch.dtype):
        return _dtype(value, digits)
    if isinstance(value, dict):
        return {key: _plain(part, digits) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part, digits) for part in value]
    return value


def _dtype(dtype: torch.dtype | None, digits: int | None) -> str:
    floating = dtype is not None and dtype.is_floating_point
    return "float" if floating and digits is not None else str(dtype)


def _value(tensor: Tensor, digits: int | None) -> str:
    tensor = tensor.detach().cpu()
    if tensor.is_floating_point():
        if digits is not None:
            return hashlib.sha256(_rounded(tensor.double(), digits)).hexdigest()
        tensor = tensor.double()
    elif tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj()).double()
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()


def _rounded(tensor: Tensor, digits: int) -> bytes:
    return repr([f"{number:.{digits - 1}e}" for number in tensor.flatten().tolist()]).encode()


# -- in words ------------------------------------------------------------------------------------
def _words(node: Node) -> str:
    if node.kind is NodeKind.INPUT:
        return f"input {node.target} of shape {list(node.shape or ())}"
    if node.kind is NodeKind.ATTRIBUTE:
        return f"{node.target} of shape {list(node.shape or ())}"
    if node.kind is NodeKind.CONSTANT:
        return f"a constant of shape {list(node.shape or ())}"
    if node.kind is NodeKind.OUTPUT:
        return "other outputs"
    names = substitute((node.args, node.kwargs), _Name)
    parts = [_text(part) for part in names[0]]
    parts += [f"{key}={_text(part)}" for key, part in names[1].items()]
    return f"{node.operation}({', '.join(parts)})"


class _Name:
    """A node in the words of an operation that uses it."""

    def __init__(self, node: Node) -> None:
        self.text = node.operation or (
            "a constant" if node.kind is NodeKind.CONSTANT else str(node.target)
        )

    def __repr__(self) -> str:
        return self.text


def _text(value: Any) -> str:
    return str(value)


def _details(node: Node | None) -> str:
    """What tells two constants, or two operations with the same words, apart."""
    if node is None:
        return ""
    if node.kind is NodeKind.CONSTANT:
        values = node.target.flatten()[:6].tolist()
        return ", ".join(f"{value:g}" for value in map(float, values)) + (
            ", ..." if node.target.numel() > 6 else ""
        )
    return "inputs " + ", ".join(
        f"{source.name} {list(source.shape or ())}" for source in node.inputs
    )

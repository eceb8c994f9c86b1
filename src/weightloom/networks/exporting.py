"""A module as a graph of the tensor operations that it computes on an example input.

`torch.export` runs the module's own forward, hooks included, and records every operation with its
constants. What is recorded here is that program in a normal form (`weightloom.networks.simplify`).
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import transformer

from weightloom.errors import UnsupportedModuleError
from weightloom.networks.examples import (
    ExampleCall,
    evaluating,
    example_call,
    has_auxiliary,
    is_auxiliary,
)
from weightloom.networks.graph import Graph, Node, NodeKind, substitute
from weightloom.networks.simplify import simplified

__all__ = ["evaluate", "operations_of"]


def operations_of(module: nn.Module, inputs: Any = None) -> Graph:
    """The graph of the operations of a module in eval mode.

    ``inputs`` are arguments of one call: a tensor, a tuple, or a mapping of keywords; if they are
    left out, they are made from the module's configuration or layers (`example_call`). By-products
    of a model (caches, hidden states) are not among its outputs (`is_auxiliary`). Parts that
    depend on no input and no weight are computed and become constants; shapes are those of the
    example.

    >>> graph = operations_of(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
    >>> [node.operation or node.target for node in graph.nodes]
    ['0.weight', '0.bias', 'input', 'linear', 'relu', 'output']
    """
    _require_weights(module)
    copied = _shell(module)
    call = example_call(copied) if inputs is None else ExampleCall.of(inputs)
    nodes = _ProgramReader(module, _exported(copied, call)).nodes()
    return Graph(module, simplified(tuple(nodes), module), exported=True, call=call)


def evaluate(graph: Graph, *inputs: Tensor, tensors: dict[str, Tensor] | None = None) -> Any:
    """What a graph of operations returns, computed node by node: flat, in order of the outputs.

    ``tensors`` replace parameters and buffers by name.
    """
    given, place = tensors or {}, iter(inputs)
    values: dict[Node, Any] = {}
    for node in graph.nodes:
        args, kwargs = substitute((node.args, node.kwargs), values.__getitem__)
        if node.kind is NodeKind.INPUT:
            values[node] = next(place)
        elif node.kind is NodeKind.ATTRIBUTE:
            values[node] = given.get(node.target, graph.attribute(node))
        elif node.kind is NodeKind.CONSTANT:
            values[node] = node.target
        elif node.kind is NodeKind.FUNCTION:
            values[node] = node.target(*args, **kwargs)
        else:
            return args[0]
    raise ValueError("the graph has no output")


def _require_weights(module: nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise UnsupportedModuleError(
                f"parameter {name!r} has no values yet; run the network once first"
            )


def _shell(module: nn.Module) -> nn.Module:
    """A copy around the same tensors: whatever forward does to its module stays there."""
    tensors = [*module.parameters(), *module.buffers()]
    try:
        return copy.deepcopy(module, {id(tensor): tensor for tensor in tensors})
    except Exception:  # what cannot be copied (open files, generators) is used as it is
        return module


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Without the fused layers of torch's transformer, which would be one unknown operation.

    Its layers also compare masks with the causal one, which depends on data, to choose between two
    ways of computing the same; here the mask itself is used.
    """
    before = torch.backends.mha.get_fastpath_enabled()
    detect = getattr(transformer, "_detect_is_causal_mask", None)
    torch.backends.mha.set_fastpath_enabled(False)
    if detect is not None:
        transformer._detect_is_causal_mask = lambda mask, is_causal=None, size=None: bool(is_causal)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
        if detect is not None:
            transformer._detect_is_causal_mask = detect


@contextmanager
def _quiet() -> Iterator[None]:
    """Without warnings about the copy of the module, and reports that an error sums up."""
    logger = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _exported(module: nn.Module, call: ExampleCall) -> Any:
    import torch.export  # here: it takes a quarter of a second, which others need not wait for

    try:
        with evaluating(module), _plain_attention(), torch.no_grad(), _quiet():
            program = torch.export.export(module, call.args, dict(call.kwargs), strict=False)
            if any(_writes(node) for node in program.graph.nodes):
                program = program.run_decompositions({})
            return program
    except Exception as error:  # the module's own code may raise anything
        raise UnsupportedModuleError(
            f"the network ({type(module).__name__}) cannot be read: torch.export could not follow "
            f"its forward ({type(error).__name__}: {_first_line(error)})"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _writes(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and bool(schema.is_mutable)


class _ProgramReader:
    """Turns an exported program into nodes."""

    def __init__(self, module: nn.Module, program: Any) -> None:
        self.module, self.program = module, program
        first = {id(tensor): name for name, tensor in reversed(_named(module))}
        self._names = {name: first[id(tensor)] for name, tensor in _named(module)}
        self._specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}

    def nodes(self) -> Iterator[Node]:
        known: dict[torch.fx.Node, Node] = {}
        for node in self.program.graph.nodes:
            args, kwargs = substitute((node.args, node.kwargs), known.__getitem__)
            kwargs = {key: value for key, value in kwargs.items() if key != "pin_memory"}
            known[node] = self._node(node, args, kwargs)
            yield known[node]

    def _node(self, node: torch.fx.Node, args: Any, kwargs: Any) -> Node:
        kind, target = self._kind(node)
        value = node.meta.get("val")
        value = value if isinstance(value, Tensor) else None
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        where = str(stack[-1][0]) if stack else ""
        if node.op == "output":
            args = (self._outputs(args[0]),)
        shape = None if value is None else tuple(int(size) for size in value.shape)
        return Node(
            node.name, kind, target, args, kwargs, shape, getattr(value, "dtype", None), where
        )

    def _outputs(self, outputs: Any) -> tuple[Any, ...]:
        """What the forward returns; the program also returns buffers that it has changed."""
        specs = self.program.graph_signature.output_specs
        for spec in specs:
            if spec.kind.name != "USER_OUTPUT":
                raise UnsupportedModuleError(
                    f"the network writes into {spec.target!r} while it runs, which is not supported"
                )
        layout = self.program.call_spec.out_spec
        names = getattr(layout, "context", None)
        if not isinstance(names, list) or len(names) != len(outputs):
            return tuple(outputs)
        if not (isinstance(layout.type, type) and has_auxiliary(layout.type)):
            return tuple(outputs)
        if all(is_auxiliary(str(name)) for name in names):
            return tuple(outputs)
        pairs = zip(names, outputs, strict=True)
        return tuple(output for name, output in pairs if not is_auxiliary(str(name)))

    def _kind(self, node: torch.fx.Node) -> tuple[NodeKind, Any]:
        if node.op == "output":
            return NodeKind.OUTPUT, "output"
        if node.op == "call_function":
            return NodeKind.FUNCTION, node.target
        if node.op == "get_attr":
            return NodeKind.CONSTANT, getattr(self.program.graph_module, str(node.target))
        spec = self._specs[node.name]
        if spec.kind.name in ("PARAMETER", "BUFFER"):
            return NodeKind.ATTRIBUTE, self._names.get(spec.target, spec.target)
        if spec.kind.name == "CONSTANT_TENSOR":
            return NodeKind.CONSTANT, self.program.constants[spec.target]
        return NodeKind.INPUT, str(node.target)


def _named(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]

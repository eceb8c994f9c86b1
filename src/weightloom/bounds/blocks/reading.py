"""Read a network with blocks: stages in series, with branches inside sums and products.

Known by class: everything in a chain, LayerNorm, RMSNorm, self-attention, and torch's transformer
encoder. Other modules are traced; where branches join they must be added, subtracted or multiplied.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from weightloom.bounds.blocks.kinds import (
    Branch,
    GainStage,
    NormStage,
    Product,
    SelfAttention,
    Shift,
    Sum,
)
from weightloom.bounds.recognition import KNOWN, stage_of
from weightloom.bounds.stages import Dense, Elementwise, Stage
from weightloom.errors import UnsupportedModuleError
from weightloom.networks.activations import measure
from weightloom.networks.graph import Graph, Node, NodeKind, trace
from weightloom.networks.layers import DROPOUTS, kind_of
from weightloom.networks.straight import as_module, is_size

__all__ = ["read_stages", "rms_epsilon"]

_BLOCKS = (
    nn.LayerNorm,
    nn.RMSNorm,
    nn.MultiheadAttention,
    nn.TransformerEncoderLayer,
    nn.TransformerEncoder,
)
_MASKED = (nn.TransformerEncoderLayer, nn.TransformerEncoder)
_SUMS = {operator.add, operator.iadd, torch.add, "add", "add_",
         operator.sub, operator.isub, torch.sub, "sub", "sub_"}  # fmt: skip
_PRODUCTS = {operator.mul, operator.imul, torch.mul, "mul", "mul_"}


_VIEWS = (nn.Identity, nn.Flatten, nn.Unflatten, *DROPOUTS)
_VIEW_FUNCTIONS = {"flatten", "view", "reshape", "contiguous", "dropout", "unflatten", "getitem"}


def read_stages(net: nn.Module, name: str = "") -> Iterator[Stage]:
    """The stages of a network in order; ``name`` is the prefix of their names."""
    if isinstance(net, nn.Sequential) and kind_of(net, (nn.Sequential,)) is not None:
        for key, child in net._modules.items():
            if child is not None:
                yield from read_stages(child, _joined(name, key))
    elif kind_of(net, _BLOCKS) is not None:
        yield from _block(net, name or type(net).__name__)
    elif _is_leaf(net) or _is_activation(net):
        yield stage_of(net, name or type(net).__name__)
    else:
        yield from _GraphReader(trace(net, _is_leaf, name), name).stages()


def _is_activation(net: nn.Module) -> bool:
    """Whether a module without children is to be taken for an activation, as in a chain.

    One of the user's own that is not elementwise, or has no constant on the line, is traced.
    """
    if next(net.children(), None) is not None:
        return False
    if type(net).__module__.startswith("torch.") or isinstance(net, KNOWN):
        return True  # or the error that says why not
    try:
        stage_of(net, "")
    except UnsupportedModuleError:
        return False
    return True


def _is_leaf(module: nn.Module) -> bool:
    return kind_of(module, (*KNOWN, *_BLOCKS)) is not None


def _joined(*parts: str) -> str:
    return ".".join(part for part in parts if part)


# -- blocks of torch.nn -------------------------------------------------------------------------


def _block(block: nn.Module, name: str) -> Iterator[Stage]:
    if isinstance(block, nn.LayerNorm | nn.RMSNorm):
        yield _norm(block, name)
    elif isinstance(block, nn.TransformerEncoderLayer):
        yield from _encoder_layer(block, name)
    elif isinstance(block, nn.TransformerEncoder):
        for index, layer in enumerate(block.layers):
            yield from read_stages(layer, f"{name}.layers.{index}")
        if block.norm is not None:
            yield from read_stages(block.norm, f"{name}.norm")
    else:
        raise UnsupportedModuleError(
            f"layer '{name}' ({type(block).__name__}) returns a pair; call it as x, _ = attn(x, x, "
            f"x) inside a module"
        )


def _norm(norm: nn.LayerNorm | nn.RMSNorm, name: str) -> NormStage:
    kind = type(norm).__name__
    gain, bias = norm.weight, getattr(norm, "bias", None)
    eps = rms_epsilon(norm) if isinstance(norm, nn.RMSNorm) else norm.eps
    if len(norm.normalized_shape) != 1 or eps <= 0:
        raise UnsupportedModuleError(
            f"layer '{name}' ({kind}) normalises over {tuple(norm.normalized_shape)} with "
            f"eps={eps}; bounds are known over the last axis, with a positive eps (without one it "
            f"has no Lipschitz constant)"
        )
    return NormStage(name, norm, gain, bias, float(eps), norm.normalized_shape[0])


def rms_epsilon(norm: nn.RMSNorm) -> float:
    """What it adds to the mean square: by default the epsilon of its dtype."""
    dtype = torch.get_default_dtype() if norm.weight is None else norm.weight.dtype
    return torch.finfo(dtype).eps if norm.eps is None else norm.eps


def _attention(layer: nn.MultiheadAttention, name: str) -> SelfAttention:
    plain = layer.in_proj_weight is not None and layer.bias_k is None and not layer.add_zero_attn
    if not plain or not layer.batch_first:
        raise UnsupportedModuleError(
            f"layer '{name}' (MultiheadAttention) has batch_first={layer.batch_first}, kdim, vdim, "
            f"add_bias_kv or add_zero_attn; bounds are known for batch_first=True and the others "
            f"at their defaults"
        )
    return SelfAttention(name, layer)


def _encoder_layer(layer: nn.TransformerEncoderLayer, name: str) -> Iterator[Stage]:
    activation: Any = layer.activation
    attention: Branch = (_attention(layer.self_attn, f"{name}.self_attn"),)
    feedforward: Branch = (
        Dense(f"{name}.linear1", layer.linear1),
        Elementwise(f"{name}.activation", layer, measure(f"{name}.activation", activation)),
        Dense(f"{name}.linear2", layer.linear2),
    )
    for branch, norm, key in (
        (attention, layer.norm1, "norm1"),
        (feedforward, layer.norm2, "norm2"),
    ):
        (scaling,) = read_stages(norm, f"{name}.{key}")
        if layer.norm_first:
            yield Sum(f"{name}, sum after {key}", layer, ((), (scaling, *branch)))
        else:
            yield Sum(f"{name}, sum before {key}", layer, ((), branch))
            yield scaling


# -- traced modules -----------------------------------------------------------------------------


def _writes(node: Node, layer: nn.Module | None) -> bool:
    """Whether a call overwrites its input."""
    if layer is not None:
        return bool(getattr(layer, "inplace", False))
    if node.kind not in (NodeKind.FUNCTION, NodeKind.METHOD):
        return False
    title = node.title
    own = title.endswith("_") and not title.endswith("__")
    return own or bool(node.kwargs.get("inplace", False))


class _GraphReader:
    """A graph in which every value comes from the one input, as stages in series."""

    def __init__(self, graph: Graph, name: str) -> None:
        self.graph, self.name = graph, name
        self.order = {node: index for index, node in enumerate(graph.nodes)}
        self.sizes: set[Node] = set()
        self.dominator: dict[Node, Node] = {}
        for node in graph.nodes:
            if is_size(node, self.sizes):
                self.sizes.add(node)
            elif data := self._data(node):
                self.dominator[node] = reduce(self._meet, data)
        self._require_values_kept()

    def stages(self) -> Iterator[Stage]:
        inputs = [node for node in self.graph.nodes if node.kind is NodeKind.INPUT]
        used = [node for node in inputs if self.graph.users(node)]
        (output,) = (node for node in self.graph.nodes if node.kind is NodeKind.OUTPUT)
        if len(used) != 1 or not isinstance(output.args[0], Node):
            raise self._refused(output, "it has several inputs or outputs")
        yield from self._series(output.args[0], used[0])

    def _require_values_kept(self) -> None:
        """A value that is overwritten must not be read again: the graph does not show that."""
        source: dict[Node, Node] = {}  # the node that made the memory of a value
        for node in self.graph.nodes:
            data = self._data(node)
            layer = self.graph.layer(node) if node.kind is NodeKind.MODULE else None
            writes = _writes(node, layer)
            shares = writes or isinstance(layer, _VIEWS) or node.title in _VIEW_FUNCTIONS
            source[node] = source[data[0]] if shares and data else node
            if not writes or not data:
                continue
            memory = source[data[0]]
            before = [n for n in source if source[n] is memory and n is not node]
            later = (user for n in before for user in self.graph.users(n))
            if any(self.order[user] > self.order[node] for user in later):
                raise self._refused(
                    node, "a value is overwritten (inplace) and read again; use inplace=False"
                )

    def _data(self, node: Node) -> list[Node]:
        """The inputs of a node that are values, not sizes or tensors of the module."""
        attribute = NodeKind.ATTRIBUTE
        return [n for n in node.inputs if n not in self.sizes and n.kind is not attribute]

    def _meet(self, a: Node, b: Node) -> Node:
        """The last value that both come from, on every way."""
        while a is not b:
            later, other = (a, b) if self.order[a] > self.order[b] else (b, a)
            if later not in self.dominator:
                raise self._refused(later, "it has a second input")
            a, b = self.dominator[later], other
        return a

    def _series(self, end: Node, start: Node) -> list[Stage]:
        """The stages between two values, the second of which comes from the first."""
        stages: list[Stage] = []
        node = end
        while node is not start:
            before, own = self._step(node)
            stages[:0] = own
            node = before
        return stages

    def _step(self, node: Node) -> tuple[Node, list[Stage]]:
        """The value that a node (or the branches that meet there) starts from, and its stages."""
        attention = self._attention_of(node)
        if attention is not None:
            return attention
        data = self._data(node)
        if node.kind is NodeKind.MODULE and len(data) == 1:
            layer = self.graph.layer(node)
            # A mask that the network owns does not change the bound of attention.
            if len(node.inputs) == 1 or kind_of(layer, _MASKED) is not None:
                return data[0], list(read_stages(layer, _joined(self.name, str(node.target))))
        if node.kind not in (NodeKind.FUNCTION, NodeKind.METHOD) or not data:
            raise self._refused(node, "it has a second input")
        joins = node.target in _SUMS or node.target in _PRODUCTS
        if joins and len(node.args) == 2 and not node.kwargs:
            a, b = node.args
            if isinstance(a, Node) and isinstance(b, Node) and not {a, b} & self.sizes:
                return self._joined_branches(node, a, b)
        if len(data) != 1 or any(n.kind is NodeKind.ATTRIBUTE for n in node.inputs):
            raise self._refused(node, "it joins branches in a way whose bound is not known")
        return data[0], [stage_of(as_module(node, self.sizes), _joined(self.name, node.name))]

    def _joined_branches(self, node: Node, a: Node, b: Node) -> tuple[Node, list[Stage]]:
        name = _joined(self.name, node.name)
        own = [n for n in (a, b) if n.kind is NodeKind.ATTRIBUTE]
        if own:
            (value,) = (n for n in (a, b) if n.kind is not NodeKind.ATTRIBUTE)
            return value, self._with_own_tensor(node, own[0], name)
        fork = self._meet(a, b)
        first, second = tuple(self._series(a, fork)), tuple(self._series(b, fork))
        if node.target in _SUMS:
            return fork, [Sum(name, self.graph.module, (first, second))]
        return fork, [Product(name, self.graph.module, (first, second))]

    def _with_own_tensor(self, node: Node, own: Node, name: str) -> list[Stage]:
        """A sum with a tensor of the module moves outputs by a constant; a product scales them."""
        tensor = self.graph.attribute(own)
        if not isinstance(tensor, Tensor) or not bool(tensor.detach().isfinite().all()):
            raise self._refused(node, f"'{own.target}' is not a tensor of finite numbers")
        kind = Shift if node.target in _SUMS else GainStage
        return [kind(name, self.graph.module, tensor.detach())]

    def _attention_of(self, node: Node) -> tuple[Node, list[Stage]] | None:
        """x, _ = attention(x, x, x): the node takes the first of the pair."""
        if node.target is not operator.getitem or not isinstance(node.args[0], Node):
            return None
        call = node.args[0]
        if call.kind is not NodeKind.MODULE:
            return None
        layer = self.graph.layer(call)
        if kind_of(layer, (nn.MultiheadAttention,)) is None or not isinstance(
            layer, nn.MultiheadAttention
        ):
            return None
        data = self._data(call)
        given = (*call.args[:3], *(call.kwargs.get(k) for k in ("query", "key", "value")))
        same = [value for value in given if value is not None]
        if node.args[1] != 0 or len(data) != 1 or same != [data[0]] * 3:
            raise self._refused(call, "attention of one value with another is not known")
        return data[0], [_attention(layer, _joined(self.name, str(call.target)))]

    def _refused(self, node: Node, why: str) -> UnsupportedModuleError:
        kind = type(self.graph.module).__name__
        return UnsupportedModuleError(
            f"'{self.name or kind}' ({kind}) cannot be bounded: at '{node.name}', {why}; wanted "
            f"one input, and branches that are added, subtracted or multiplied"
        )

"""How a chain of layers is computed: chosen once, repeated as long as nothing changed.

Which rule and which order a layer takes depends on shapes and on what is being learned, not on
values. Choosing takes as much Python as calling all the products: a few percent of a call that
takes milliseconds. So `Rules` turns layers into *steps*, and a `Route` keeps the steps of a whole
chain beside everything the choice depended on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from weightloom.hyper.rows.fused import WrittenLayer, chain, chain_of_rows, transformed
from weightloom.hyper.rows.generated import Generated
from weightloom.hyper.rows.known import is_plain, nothing_global

__all__ = [
    "ElementwiseStep",
    "LinearLayer",
    "Route",
    "Step",
    "UnwrittenStep",
    "WrittenStep",
    "route_key",
    "sequence",
]


class LinearLayer(NamedTuple):
    """One linear layer of a chain: where weight and bias come from, whether ReLU follows."""

    weight: str
    bias: str | nn.Module
    """the name of a generated bias, or the module, which may have one of its own"""
    relu: bool

    def vector(self, generated: Mapping[str, Generated]) -> Tensor | None:
        """The bias: [b, out] if generated, [out] if learned directly, or None."""
        if isinstance(self.bias, str):
            return generated[self.bias].dense()
        return self.bias.bias  # type: ignore[return-value]


class ElementwiseStep(NamedTuple):
    """A module that acts on every number by itself."""

    module: nn.Module

    def apply(self, generated: Mapping[str, Generated], x: Tensor) -> Tensor:
        return self.module(x)


class UnwrittenStep(NamedTuple):
    """One linear layer in an order that never writes its weights; x [b, in] or [b, n, in]."""

    layer: LinearLayer
    order: str

    def apply(self, generated: Mapping[str, Generated], x: Tensor) -> Tensor:
        layer = self.layer
        weight = generated[layer.weight]
        multiply = weight.row if x.dim() == 2 else weight.linear
        y = multiply(x, layer.vector(generated), self.order)
        # Not in place: y may be a view, and then autograd would copy.
        return y.relu() if layer.relu else y


class WrittenStep(NamedTuple):
    """Linear layers whose weights are written, with nothing but ReLU in between."""

    layers: tuple[LinearLayer, ...]

    def apply(self, generated: Mapping[str, Generated], x: Tensor) -> Tensor:
        written = []
        for layer in self.layers:
            bias = layer.vector(generated)
            if bias is not None and bias.dim() == 1:
                bias = bias.expand(x.shape[0], -1)
            written.append(WrittenLayer(generated[layer.weight].dense(), bias, layer.relu))
        return chain(x, written) if x.dim() == 3 else chain_of_rows(x, written)


Step = ElementwiseStep | UnwrittenStep | WrittenStep


class Route:
    """The steps of a chain, and the modules as they were when the steps were chosen."""

    def __init__(
        self, module: nn.Module, steps: list[Step], generated: Mapping[str, Generated]
    ) -> None:
        self.module = module
        self.steps = tuple(steps)
        containers, leaves = _family(module)
        self.parts = tuple((part, type(part)) for part in (*containers, *leaves))
        self.forwards = tuple((kind, kind.forward) for kind in {kind for _, kind in self.parts})
        self.children = tuple((part, tuple(part._modules.items())) for part in containers)
        # Layers that need not be written: which order is cheapest depends on what is learned.
        self.learned = tuple(
            (name, type(value), value.requires_grad)
            for name, value in generated.items()
            if value.could_skip_writing()
        )

    def holds(self, module: nn.Module, generated: Mapping[str, Generated]) -> bool:
        """Whether the choice would be the same now: same modules and code, same gradients.

        Settings of the modules (slopes, the probability of dropout, the mode) and their biases are
        read when a step is applied. Takes 2 microseconds for five layers.
        """
        if module is not self.module or not nothing_global():
            return False
        for part, kind in self.parts:
            if type(part) is not kind:
                return False
            state = part.__dict__
            if (
                state["_forward_hooks"]
                or state["_forward_pre_hooks"]
                or state["_backward_hooks"]
                or state["_backward_pre_hooks"]
                or "forward" in state
            ):
                return False
        for kind, forward in self.forwards:
            if kind.forward is not forward:
                return False
        for container, children in self.children:
            if tuple(container._modules.items()) != children:
                return False
        for name, form, learned in self.learned:
            value = generated[name]
            if type(value) is not form or value.requires_grad != learned:
                return False
        return True

    def follow(self, generated: Mapping[str, Generated], x: Tensor) -> Tensor:
        for step in self.steps:
            x = step.apply(generated, x)
        return x


def route_key(x: Tensor, order: str) -> object:
    """What a route depends on besides the modules and `Route.holds`; not for use in a compiler."""
    grad = torch.is_grad_enabled()
    return x.shape, grad, grad and x.requires_grad, order, transformed()


def sequence(module: nn.Module, prefix: str) -> list[tuple[str, nn.Module]]:
    """The layers of nested sequential containers, in order, each with its parameters' prefix."""
    if not _opens(module):
        return [(prefix, module)]
    parts: list[tuple[str, nn.Module]] = []
    for name, child in module._modules.items():
        if child is not None:
            parts += sequence(child, f"{prefix}{name}.")
    return parts


def _opens(module: nn.Module) -> bool:
    return type(module) is nn.Sequential and is_plain(module)


def _family(module: nn.Module) -> tuple[list[nn.Module], list[nn.Module]]:
    """The containers that `sequence` looks into, and the layers that it returns."""
    if not _opens(module):
        return [], [module]
    containers, leaves = [module], []
    for child in module._modules.values():
        if child is not None:
            inner, layers = _family(child)
            containers += inner
            leaves += layers
    return containers, leaves

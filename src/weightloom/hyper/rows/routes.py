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

__all__ = [
    "ElementwiseStep",
    "LinearLayer",
    "Route",
    "Step",
    "UnwrittenStep",
    "WrittenStep",
    "has_hooks",
    "route_key",
    "sequence",
]


class LinearLayer(NamedTuple):
    """One linear layer of a chain: where weight and bias come from, whether ReLU follows."""

    weight: str
    bias: str | nn.Module | None
    """the name of a generated bias, the module that owns an ordinary one, or None"""
    relu: bool

    def vector(self, generated: Mapping[str, Generated]) -> Tensor | None:
        """The bias: [b, out] if generated, [out] if learned directly, or None."""
        if isinstance(self.bias, str):
            return generated[self.bias].dense()
        return None if self.bias is None else self.bias.bias  # type: ignore[return-value]


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
        self.steps = tuple(steps)
        containers, leaves = _family(module)
        # The dictionaries themselves: modules keep them for life.
        self.hooks = tuple(hooks for part in (*containers, *leaves) for hooks in _hooks(part))
        self.children = tuple((part, tuple(part._modules.values())) for part in containers)
        # Layers that need not be written: which order is cheapest depends on what is learned.
        self.learned = tuple(
            (name, value.requires_grad)
            for name, value in generated.items()
            if value.could_skip_writing()
        )

    def holds(self, generated: Mapping[str, Generated]) -> bool:
        """Whether the choice would be the same now: same modules, no hooks, same gradients."""
        for container, children in self.children:
            if tuple(container._modules.values()) != children:
                return False
        for name, learned in self.learned:
            if generated[name].requires_grad != learned:
                return False
        return not any(self.hooks)

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


def has_hooks(module: nn.Module) -> bool:
    return any(_hooks(module))


def _hooks(module: nn.Module) -> tuple[Mapping[int, object], ...]:
    return (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )


def _opens(module: nn.Module) -> bool:
    return type(module) is nn.Sequential and not has_hooks(module)


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

"""The way through a chain of layers: worked out once, walked again as long as nothing changed.

Which rule and which order a layer takes depends on shapes and on what is being learned, not on
values, and working it out costs as much Python as all the products' calls together: a few percent
of a call that takes milliseconds. So `Rules` turns layers into *legs*, and a `Route` keeps the legs
of a whole chain beside everything the choice rested on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from weightloom.weights.fused import Layer, chain, chain_of_rows, transformed
from weightloom.weights.generated import Generated

__all__ = ["Alone", "Each", "Leg", "Linear", "Route", "Routes", "Run", "has_hooks", "sequence"]

# Calls of one network differ in few ways (training and inference, the last batch of an epoch).
_MOST = 16


class Linear(NamedTuple):
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


class Each(NamedTuple):
    """A module that treats every number alike."""

    module: nn.Module

    def go(self, generated: Mapping[str, Generated], x: Tensor) -> Tensor:
        return self.module(x)


class Alone(NamedTuple):
    """One linear layer in an order that never writes its weights; x [b, in] or [b, n, in]."""

    layer: Linear
    order: str

    def go(self, generated: Mapping[str, Generated], x: Tensor) -> Tensor:
        layer = self.layer
        weight = generated[layer.weight]
        apply = weight.row if x.dim() == 2 else weight.linear
        y = apply(x, layer.vector(generated), self.order)
        # Not in place: y may be a view, and then autograd would copy.
        return y.relu() if layer.relu else y


class Run(NamedTuple):
    """Linear layers with written weights and nothing but ReLU in between."""

    layers: tuple[Linear, ...]

    def go(self, generated: Mapping[str, Generated], x: Tensor) -> Tensor:
        run = []
        for layer in self.layers:
            bias = layer.vector(generated)
            if bias is not None and bias.dim() == 1:
                bias = bias.expand(x.shape[0], -1)
            run.append(Layer(generated[layer.weight].dense(), bias, layer.relu))
        return chain(x, run) if x.dim() == 3 else chain_of_rows(x, run)


Leg = Each | Alone | Run


class Route:
    """Legs, and the modules as they were when the legs were chosen."""

    def __init__(
        self, module: nn.Module, legs: list[Leg], generated: Mapping[str, Generated]
    ) -> None:
        self.legs = tuple(legs)
        containers, leaves = _family(module)
        # The dictionaries themselves: modules keep them for life.
        self.hooks = tuple(hooks for one in (*containers, *leaves) for hooks in _hooks(one))
        self.children = tuple((one, tuple(one._modules.values())) for one in containers)
        # Layers that need not be written: which order is cheapest depends on what is learned.
        self.learned = tuple(
            (name, value.requires_grad)
            for name, value in generated.items()
            if value.could_skip_writing()
        )

    def holds(self, generated: Mapping[str, Generated]) -> bool:
        """Whether the choice would be the same today: same modules, no hooks, same gradients."""
        for container, children in self.children:
            if tuple(container._modules.values()) != children:
                return False
        for name, learned in self.learned:
            if generated[name].requires_grad != learned:
                return False
        return not any(self.hooks)

    def walk(self, generated: Mapping[str, Generated], x: Tensor) -> Tensor:
        for leg in self.legs:
            x = leg.go(generated, x)
        return x


class Routes:
    """The routes through one module that are known, by what they depend on besides the module."""

    def __init__(self) -> None:
        self._known: dict[object, Route] = {}

    def find(self, x: Tensor, order: str, generated: Mapping[str, Generated]) -> Route | None:
        if torch.compiler.is_compiling():
            return None
        route = self._known.get(_key(x, order))
        return route if route is not None and route.holds(generated) else None

    def keep(self, x: Tensor, order: str, route: Route) -> None:
        """Remember how x was taken through; not while compiling, when nothing is looked up."""
        if torch.compiler.is_compiling():
            return
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[_key(x, order)] = route

    def __reduce__(self) -> tuple[type[Routes], tuple[()]]:
        """Copies and pickles begin with none: routes belong to the modules of one network."""
        return Routes, ()


def _key(x: Tensor, order: str) -> object:
    grad = torch.is_grad_enabled()
    return x.shape, grad, grad and x.requires_grad, order, transformed()


def sequence(module: nn.Module, prefix: str) -> list[tuple[str, nn.Module]]:
    """The layers that run one after the other, sequential containers taken apart."""
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
    """The containers that `sequence` takes apart, and the layers that it finds."""
    if not _opens(module):
        return [], [module]
    containers, leaves = [module], []
    for child in module._modules.values():
        if child is not None:
            inner, found = _family(child)
            containers += inner
            leaves += found
    return containers, leaves

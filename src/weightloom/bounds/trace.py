"""Taking a module apart with torch.fx into a chain of modules."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from weightloom.errors import UnsupportedModuleError

__all__ = ["Called", "trace"]

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
    F.leaky_relu: nn.LeakyReLU,
    F.elu: nn.ELU,
    F.gelu: nn.GELU,
    torch.flatten: nn.Flatten,
}


class Called(nn.Module):
    """A function or method of one tensor, as a module."""

    def __init__(self, node: fx.Node) -> None:
        super().__init__()
        self.op, self.target = node.op, node.target
        self.rest, self.options = node.args[1:], dict(node.kwargs)
        self.options.pop("inplace", None)

    @property
    def plain(self) -> bool:
        """Whether it was called with the tensor alone."""
        return not self.rest and not self.options

    @property
    def function(self) -> Callable[[Tensor], Tensor]:
        """What to look up or to probe; methods by the function of the same name."""
        known: Any = self.target
        if isinstance(self.target, str):
            known = getattr(torch, self.target, None)
        if self.plain and callable(known):
            return known

        def call(x: Tensor) -> Tensor:
            return self(x)

        call.__name__ = getattr(self.target, "__name__", str(self.target))
        return call

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.target, str):
            return getattr(x, self.target)(*self.rest, **self.options)
        return self.target(x, *self.rest, **self.options)


def trace(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """The modules and functions that ``module`` calls one after the other, with dotted names.

    Raises `UnsupportedModuleError` where a step takes anything but the result of the step before.
    """
    previous: fx.Node | None = None
    sizes: set[fx.Node] = set()  # numbers read off a shape, as in x.view(x.size(0), -1)
    for node in _graph(module, name).nodes:
        if node.op == "placeholder" and previous is None:
            previous = node
            continue
        if _is_size(node, sizes):
            sizes.add(node)
            continue
        if node.op in ("placeholder", "get_attr") or set(node.all_input_nodes) - sizes != {
            previous
        }:
            raise UnsupportedModuleError(
                f"'{name or type(module).__name__}' ({type(module).__name__}) is not a chain of "
                f"layers: at '{node.name}' it joins branches, has a second input or uses a tensor "
                f"of its own; bounds are known for chains only"
            )
        previous = node
        if node.op == "output":
            return
        label = str(node.target) if node.op == "call_module" else node.name
        part = module.get_submodule(label) if node.op == "call_module" else _part(node, sizes)
        yield (f"{name}.{label}" if name else label), part


def _graph(module: nn.Module, name: str) -> fx.Graph:
    try:
        return fx.Tracer().trace(module)
    except Exception as error:
        raise UnsupportedModuleError(
            f"'{name or type(module).__name__}' ({type(module).__name__}) cannot be read as a "
            f"chain of layers: torch.fx stops with: {error}"
        ) from None


def _is_size(node: fx.Node, sizes: set[fx.Node]) -> bool:
    if node.op == "call_method":
        return node.target == "size"
    if node.target is getattr:
        return node.args[1] == "shape"
    return node.target is operator.getitem and node.args[0] in sizes


def _part(node: fx.Node, sizes: set[fx.Node]) -> nn.Module:
    called = Called(node)
    rest, options = called.rest, called.options
    if node.target in ("view", "reshape") and len(rest) == 2 and rest[0] in sizes and rest[1] == -1:
        return nn.Flatten()
    if node.target in (F.dropout, F.dropout2d, F.dropout3d):
        return nn.Identity()
    known: Any = torch.flatten if node.target == "flatten" else node.target
    if known in _MODULES and not (known is torch.flatten and called.plain):
        try:
            return _MODULES[known](*rest, **options)
        except TypeError:  # options that the module does not have
            return called
    return called

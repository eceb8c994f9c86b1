"""What a module returns for each row, put together into one value for all rows.

Every tensor gets a dimension of rows in front, also inside containers that PyTorch knows and inside
dataclasses. Values that are not tensors must be the same for all rows. Other objects that hold
tensors cannot be put together: they are refused, so that no tensor of a single row (or of the
inside of `torch.vmap`) gets out unnoticed.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import (
    TreeSpec,
    register_pytree_node,
    tree_flatten,
    tree_map,
    tree_unflatten,
)

from weightloom.errors import UnsupportedModuleError
from weightloom.hyper.rows.arguments import is_value, tensors_inside

__all__ = ["LostObject", "Structure", "flattened", "rebuilt", "same_values", "stacked"]

_TENSOR = object()
"""takes the place of a tensor among the leaves of an output"""


class LostObject:
    """Stands for a cache that was returned for each condition; every use of it raises."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise UnsupportedModuleError(
            f"the primary returned an object of type {self._kind} for each condition, and they "
            f"cannot be put together. hyper.bind(condition) calls the primary once for all rows: "
            f"caches work there. Without a cache, pass use_cache=False"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._refuse()

    __getitem__ = __iter__ = __len__ = __call__ = _refuse

    def __repr__(self) -> str:
        return f"<a {self.__dict__.get('_kind')} for each condition; use hyper.bind(condition)>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LostObject) and other.__dict__ == self.__dict__

    def __hash__(self) -> int:
        return hash(self.__dict__["_kind"])


# -- dataclasses --------------------------------------------------------------------------------


class OpenFields:
    """A dataclass whose fields PyTorch can walk: an object, and the values of its fields."""

    def __init__(self, template: Any, values: dict[str, Any]) -> None:
        self.template = template
        self.values = values


register_pytree_node(
    OpenFields,
    lambda node: (list(node.values.values()), (node.template, tuple(node.values))),
    lambda values, context: OpenFields(context[0], dict(zip(context[1], values, strict=True))),
)


def _opened(value: Any) -> Any:
    """``value`` with `OpenFields` in place of the dataclasses that PyTorch does not know."""
    return tree_map(_open, value)


def _open(leaf: Any) -> Any:
    if not dataclasses.is_dataclass(leaf) or isinstance(leaf, type) or is_value(leaf):
        return leaf
    names = [field.name for field in dataclasses.fields(leaf)]
    return OpenFields(leaf, {name: _opened(getattr(leaf, name)) for name in names})


def _closed(value: Any) -> Any:
    return tree_map(_close, value, is_leaf=lambda node: isinstance(node, OpenFields))


def _close(leaf: Any) -> Any:
    if not isinstance(leaf, OpenFields):
        return leaf
    result = copy.copy(leaf.template)
    for name, value in leaf.values.items():
        object.__setattr__(result, name, _closed(value))
    return result


# -- taking apart, and putting together ------------------------------------------------------------

Structure = tuple[TreeSpec, list[Any]]
"""the containers of an output, and its leaves with a mark in place of tensors"""


def flattened(output: Any) -> tuple[list[Tensor], Structure]:
    """The tensors of one row's output, and the rest of it."""
    leaves, tree = tree_flatten(output)
    if torch.compiler.is_compiling():
        rest = [_TENSOR if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        return [leaf for leaf in leaves if isinstance(leaf, Tensor)], (tree, rest)
    if not all(isinstance(leaf, Tensor) or is_value(leaf) for leaf in leaves):
        leaves, tree = tree_flatten(_opened(output))
    rest = [_TENSOR if isinstance(leaf, Tensor) else _allowed(leaf) for leaf in leaves]
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)], (tree, rest)


def rebuilt(tensors: list[Tensor], structure: Structure) -> Any:
    """The output for all rows, from tensors with rows."""
    tree, rest = structure
    values = iter(tensors)
    output = tree_unflatten([next(values) if v is _TENSOR else v for v in rest], tree)
    return output if torch.compiler.is_compiling() else _closed(output)


def _allowed(leaf: Any) -> Any:
    if is_value(leaf) or isinstance(leaf, LostObject):
        return leaf
    if any(base.__module__ == "transformers.cache_utils" for base in type(leaf).__mro__):
        # Language models return a cache with every output, wanted or not.
        return LostObject(type(leaf).__name__)
    if tensors_inside(leaf):
        raise UnsupportedModuleError(
            f"the primary returned an object of type {type(leaf).__name__} with tensors inside; "
            f"with one set of weights for each row there is one such object for each condition, "
            f"and they cannot be put together. Return tensors, containers of them or a dataclass, "
            f"or use hyper.bind(condition), which calls the primary once for all rows"
        )
    return leaf


def stacked(outputs: list[Any]) -> Any:
    """One structure with every tensor stacked over ``outputs``, which are those of the rows."""
    flat = [flattened(output) for output in outputs]
    structure = same_values([structure for _, structure in flat])
    columns = zip(*(tensors for tensors, _ in flat), strict=True)
    return rebuilt([torch.stack(column) for column in columns], structure)


def same_values(structures: list[Structure]) -> Structure:
    """The structure that all rows have; an error if values that are not tensors differ."""
    tree, rest = structures[0]
    for _, other in structures[1:]:
        if len(other) != len(rest):
            raise UnsupportedModuleError(
                f"the primary returned {len(rest)} values for one condition and {len(other)} for "
                f"another; with one set of weights for each row all need the same structure"
            )
        for first, second in zip(rest, other, strict=True):
            if first is not second and not _equal(first, second):
                raise UnsupportedModuleError(
                    f"the primary returned {first!r} for one condition and {second!r} for another; "
                    f"values that differ between conditions must be tensors"
                )
    return tree, rest


def _equal(first: Any, second: Any) -> bool:
    if first is _TENSOR or second is _TENSOR or type(first) is not type(second):
        return False
    try:
        # NaN is equal to NaN here.
        return bool(first == second) or bool(first != first and second != second)
    except Exception:  # whatever the comparison of unknown objects raises
        return False

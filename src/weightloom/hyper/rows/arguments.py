"""What a call with one set of weights for each row is given: rows, shared values, and no others.

Tensors are split into rows, also inside lists, dictionaries and other containers that PyTorch knows
(`torch.utils._pytree`). Plain values go to every row. An object that the primary could write into,
such as a cache, belongs to one call of the primary. There is one call for each condition here, so
such an object is refused instead of being shared in silence.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import numbers
import pathlib
import types
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_flatten_with_path, tree_unflatten

from weightloom.errors import ShapeError, UnsupportedModuleError
from weightloom.hyper.rows.functional import Shared

__all__ = ["RowArguments", "is_value", "tensors_inside"]

_VALUES = (
    type(None), str, bytes, numbers.Number, enum.Enum, type, slice, range, pathlib.PurePath,
    torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size,
    torch.SymInt, torch.SymFloat, torch.SymBool, torch.Generator,
    types.FunctionType, types.BuiltinFunctionType, types.MethodType, partial,
)  # fmt: skip


def is_value(leaf: Any) -> bool:
    """Whether all rows can be given this: nobody can write into it."""
    if isinstance(leaf, _VALUES):
        return True
    if isinstance(leaf, tuple | frozenset):
        return all(map(is_value, leaf))
    if dataclasses.is_dataclass(leaf):
        frozen = type(leaf).__dataclass_params__.frozen  # type: ignore[union-attr]
        return frozen and all(is_value(getattr(leaf, f.name)) for f in dataclasses.fields(leaf))
    return False


class RowArguments:
    """The arguments of a module, of which every row gets its own part."""

    def __init__(
        self, module: nn.Module, rows: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self.module = module
        self.rows = rows
        self.given = (args, dict(kwargs))
        self.leaves, self.tree = tree_flatten(self.given)
        self.split = [i for i, leaf in enumerate(self.leaves) if isinstance(leaf, Tensor)]
        self.objects: list[Any] = []
        """what all rows share although it could be changed"""
        self._check()
        self.nested = any(map(_is_container, (*args, *kwargs.values())))

    def _check(self) -> None:
        for i, leaf in enumerate(self.leaves):
            if isinstance(leaf, Tensor):
                if leaf.dim() == 0 or leaf.shape[0] != self.rows:
                    raise ShapeError(
                        f"an argument of shape {tuple(leaf.shape)} was given with {self.rows} "
                        f"conditions; every tensor needs one row for each condition (wrap it in "
                        f"weightloom.shared(...) if all conditions share it)"
                    )
            elif isinstance(leaf, Shared):
                if not isinstance(leaf.value, Tensor) and not is_value(leaf.value):
                    self.objects.append(leaf.value)
            elif not is_value(leaf):
                raise UnsupportedModuleError(
                    f"{self._name(i)} is an object of type {type(leaf).__name__}, and "
                    f"{self.rows} conditions would share it: what the primary writes into it for "
                    f"one condition, the next would find. hyper.bind(condition) calls the primary "
                    f"once for all rows and takes such objects, caches too; wrap it in "
                    f"weightloom.shared(...) if the primary only reads it"
                )

    def _name(self, leaf: int) -> str:
        """The argument that a leaf belongs to, as the primary calls it."""
        paths = tree_flatten_with_path(self.given)[0]
        _, key, *inner = paths[leaf][0]
        name = getattr(key, "key", None)
        if name is None:
            names = list(inspect.signature(self.module.forward).parameters)
            position = key.idx  # type: ignore[attr-defined]
            name = names[position] if position < len(names) else position
        where = "".join(map(str, inner))
        return f"argument {str(name) + where!r}"

    def of_rows(self, rows: list[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments and keywords with ``rows`` in place of the tensors that are split."""
        leaves = [leaf.value if isinstance(leaf, Shared) else leaf for leaf in self.leaves]
        for i, row in zip(self.split, rows, strict=True):
            leaves[i] = row
        args, kwargs = tree_unflatten(leaves, self.tree)
        return args, kwargs

    def tensors(self) -> list[Tensor]:
        return [self.leaves[i] for i in self.split]

    def leaves_of(self, args: Any, kwargs: Any) -> list[Any]:
        """What `check_unchanged` compares with; nothing if no argument is a container."""
        return tree_flatten((args, kwargs))[0] if self.nested else []

    def check_unchanged(self, before: list[Any], args: Any, kwargs: Any) -> None:
        """Refuse a module that put something into a list or dictionary that it was given.

        Every row gets containers of its own, so what was put there would be lost.
        """
        if not self.nested:
            return
        after = tree_flatten((args, kwargs))[0]
        known = {id(leaf) for leaf in before}
        if len(after) <= len(before) and all(id(leaf) in known for leaf in after):
            return
        raise UnsupportedModuleError(
            f"the primary ({type(self.module).__name__}) put something into a list, dictionary or "
            f"other container among its arguments; with one set of weights for each row every row "
            f"has a container of its own, and it would be lost. Return it, or use "
            f"hyper.bind(condition), which calls the primary once for all rows"
        )

    def snapshot(self) -> list[list[Any]]:
        """What the objects that all rows share hold now."""
        return [list(_contents(value)) for value in self.objects]

    def check_objects(self, before: list[list[Any]]) -> None:
        """Refuse a module that wrote into an object that was marked as shared."""
        for value, old in zip(self.objects, before, strict=True):
            new = list(_contents(value))
            if len(new) != len(old) or any(not _same(a, b) for a, b in zip(new, old, strict=True)):
                raise UnsupportedModuleError(
                    f"the primary ({type(self.module).__name__}) wrote into an object of type "
                    f"{type(value).__name__} that was given as weightloom.shared(...): with one "
                    f"set of weights for each row it has one value for each condition. Use "
                    f"hyper.bind(condition), which calls the primary once for all rows"
                )


def _is_container(value: Any) -> bool:
    return not isinstance(value, Tensor | Shared) and not is_value(value)


def _same(a: tuple[Any, int], b: tuple[Any, int]) -> bool:
    return a[0] is b[0] and a[1] == b[1]


def _contents(value: Any) -> Iterator[tuple[Any, int]]:
    """All that is reached from an object, with the version of tensors, which change in place."""
    for leaf in _reached(value, set()):
        yield leaf, leaf._version if isinstance(leaf, Tensor) and not leaf.is_inference() else 0


def tensors_inside(value: Any) -> bool:
    """Whether a tensor is reached from an object, through attributes and containers."""
    return any(isinstance(leaf, Tensor) for leaf in _reached(value, set()))


def _reached(value: Any, seen: set[int], depth: int = 0) -> Iterator[Any]:
    if isinstance(value, Tensor) or is_value(value) or depth > 8:
        yield value
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    yield value
    inner: list[Any] = []
    if isinstance(value, Mapping):
        inner += value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        inner += value
    inner += getattr(value, "__dict__", {}).values()
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                inner.append(getattr(value, name))
    for item in inner:
        yield from _reached(item, seen, depth + 1)

"""A generated parameter as code meets it: a tensor that differs from row to row.

`RowParameter` stands where the primary's parameter stood. To Python it has the shape, type and
device of one condition's tensor. An operation on it is done for each group of rows: by a rule where
there is one (`rules`), by `torch.vmap` of that single operation otherwise, and in a loop over the
groups, with a warning, where vmap cannot do it either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from weightloom.errors import UnsupportedModuleError
from weightloom.hyper.bound.operations import OPERATIONS, warn_loop
from weightloom.hyper.bound.owners import Owners
from weightloom.hyper.bound.rules import RowTensor
from weightloom.hyper.rows.any_module import VMAP_REFUSALS, stacked
from weightloom.hyper.rows.generated import Written

__all__ = ["RowParameter", "any_operation"]

# Functions to which the placeholder has the right answer. Attributes are answered by it, too, but
# for those that are tensors.
_METADATA = {
    Tensor.size,
    Tensor.dim,
    Tensor.numel,
    Tensor.nelement,
    Tensor.stride,
    Tensor.is_contiguous,
    Tensor.is_floating_point,
    Tensor.is_complex,
    Tensor.is_inference,
    Tensor.get_device,
    Tensor.element_size,
    Tensor.__len__,
    Tensor.__hash__,
    Tensor._is_view,
    torch.is_floating_point,
    torch.is_complex,
    torch.is_inference,
    torch.numel,
}
_TENSOR_ATTRIBUTES = {
    getattr(Tensor, name).__get__ for name in ("T", "mT", "H", "mH", "data", "real", "imag")
}

# Reading values: one Python number cannot be right for all rows.
_VALUES = {
    Tensor.item, Tensor.tolist, Tensor.__bool__, Tensor.__float__, Tensor.__int__, Tensor.numpy,
    Tensor.__index__, Tensor.data_ptr, Tensor.untyped_storage, Tensor.__array__,
}  # fmt: skip


class RowParameter(Tensor):
    """Has the shape and type of one condition's tensor, and another value in each row."""

    row: RowTensor

    @classmethod
    def make(cls, row: RowTensor) -> RowParameter:
        first = row.value.batched()[0] if row.base is None else row.base
        # A tensor without storage: what does not go through `__torch_function__` cannot read it.
        parameter: RowParameter = Tensor._make_wrapper_subclass(
            cls, row.value.shape, dtype=first.dtype, device=first.device
        )
        parameter.row = row
        return parameter

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        groups = self.row.owners.groups
        return (
            f"RowParameter({self.row.name!r}, {tuple(self.shape)} for each of {groups} conditions)"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> RowParameter:
        return self  # its values are results, not parameters: a copy would have no other use

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if func in _METADATA or _is_attribute(func):
                return func(*args, **kwargs)
            rule = OPERATIONS.get(func)
            if rule is not None:
                result = rule(*_rows_of(args), **_rows_of(kwargs))
                if result is not NotImplemented:
                    return result
            return any_operation(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        row = next(leaf.row for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, cls))
        raise UnsupportedModuleError(
            f"{func} got the generated parameter {row.name!r}, which has another value in each row "
            f"of the batch, from code that PyTorch does not let it see. Leave it out of generate=, "
            f"or use hyper(x, condition)"
        )


def _is_attribute(func: Any) -> bool:
    return getattr(func, "__name__", "") == "__get__" and func not in _TENSOR_ATTRIBUTES


def _rows_of(given: Any) -> Any:
    """Arguments of a rule: every RowParameter as its RowTensor."""
    if isinstance(given, dict):
        return {name: _row(value) for name, value in given.items()}
    return [_row(value) for value in given]


def _row(value: Any) -> Any:
    return value.row if isinstance(value, RowParameter) else value


# -- any other operation ------------------------------------------------------------------------


def any_operation(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``func`` for each group: by vmap, or in a loop."""
    leaves, tree = tree_flatten((args, kwargs))
    row = next(leaf.row for leaf in leaves if isinstance(leaf, RowParameter))
    name = getattr(func, "__name__", str(func))
    if func in _VALUES or (name.endswith("_") and not name.endswith("__")):
        what = "changes it in place" if func not in _VALUES else "reads its values"
        raise UnsupportedModuleError(
            f"the primary {what} ({name}): the generated parameter {row.name!r} has another value "
            f"in each row of the batch. Leave it out of generate=, or call each condition's "
            f"network by itself (hyper.materialize)"
        )
    mapped: list[Tensor] = []
    places: dict[int, int | None] = {}
    """position among the leaves -> dimension of its rows; None for a generated parameter"""
    batch: RowBatch | None = None
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, RowParameter):
            mapped.append(leaf.row.dense())
            places[i] = None
        elif isinstance(leaf, Tensor):
            dim = row.row_dim(leaf, name, i)
            if dim is not None:
                batch = batch or RowBatch(row.owners.along(dim), leaf.shape[dim], leaf.dim())
                row.owners.check(leaf.shape[dim], f"{name} of {row.name!r}")
                mapped.append(row.owners.along(dim).split(leaf))
                places[i] = dim

    def one_group(*tensors: Tensor) -> Any:
        own = list(leaves)
        for (place, dim), tensor in zip(places.items(), tensors, strict=True):
            own[place] = tensor.movedim(0, dim) if dim else tensor
        arguments, named = tree_unflatten(own, tree)
        return func(*arguments, **named)

    try:
        result = vmap(one_group, randomness="different")(*mapped)
    except VMAP_REFUSALS as error:
        result = _in_a_loop(one_group, mapped, row, name, error)
    leaves, tree = tree_flatten(result)
    return tree_unflatten([_joined(leaf, batch, row, name) for leaf in leaves], tree)


class RowBatch(NamedTuple):
    """The rows that take part in an operation."""

    owners: Owners
    rows: int
    ndim: int


def _in_a_loop(
    one_group: Callable[..., Any],
    mapped: list[Tensor],
    row: RowTensor,
    name: str,
    error: BaseException,
) -> Any:
    columns = [tensor.unbind(0) for tensor in mapped]
    results = [one_group(*parts) for parts in zip(*columns, strict=True)]
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
    warn_loop(row, name, f"torch.vmap refused it ({reason})")
    return stacked(results)


def _joined(value: Any, batch: RowBatch | None, row: RowTensor, name: str) -> Any:
    """A result for each group as rows of a batch; a RowParameter if no batch took part."""
    if not isinstance(value, Tensor):
        return value
    if batch is None:
        derived = replace(row, value=Written(value), base=None, owners=row.owners)
        return RowParameter.make(derived)
    owners, rows, ndim = batch
    each = (
        owners.size * (rows // owners.rows) if owners.slots is not None else rows // owners.groups
    )
    dim = owners.dim
    if value.dim() - 1 > ndim and value.shape[1 + dim] != each:
        dim += value.dim() - 1 - ndim  # broadcasting adds dimensions in front
    if value.dim() <= 1 + dim or value.shape[1 + dim] != each:
        raise UnsupportedModuleError(
            f"{name} of the generated parameter {row.name!r} and a batch of {rows} rows gives a "
            f"result of shape {tuple(value.shape[1:])} for {each} of them: it mixes rows, which "
            f"have different weights here. Leave the parameter out of generate=, or use "
            f"hyper(x, condition)"
        )
    return owners.along(dim).join(value.movedim(1 + dim, 1), rows)

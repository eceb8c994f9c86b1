"""Layers of a bound network: what they are in the primary, with weights that differ between rows.

A bound layer keeps the class of its original as a parent, with its attributes and hooks. Only
`forward` is another. Layers that are not listed here keep their own `forward`; what they do with a
generated parameter is done row by row by `RowParameter`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from weightloom.errors import UnsupportedModuleError
from weightloom.hyper.bound import rules
from weightloom.hyper.bound.calls import Layout, by_size, passes_rows
from weightloom.hyper.bound.operations import OPERATIONS
from weightloom.hyper.bound.owners import Owners
from weightloom.hyper.bound.parameters import RowParameter, any_operation
from weightloom.hyper.bound.rules import RowTensor
from weightloom.networks.layers import is_conv1d

__all__ = ["RowAdapted", "RowLayer", "RowPart", "joined_class", "row_class"]


class RowLayer(nn.Module):
    """A layer whose generated parameters are `RowTensor`, by the names of the parameters."""

    generated_rows: dict[str, RowTensor]

    def own(self, name: str) -> Any:
        """A parameter as the rules take it: a RowTensor if it is generated, else the tensor."""
        row = self.generated_rows.get(name)
        # Not `_parameters`: with a parametrisation it is made of parameters that have other names.
        return getattr(self, name) if row is None else row

    def operate(self, operation: Any, *args: Any) -> Any:
        """The operation with rows; for all groups at once where all rows share its input."""
        if not any(isinstance(value, RowParameter) for value in args):
            result = OPERATIONS[operation](*args)
            if result is not NotImplemented:
                return result
        if torch.compiler.is_compiling():
            return self._for_compiler(operation, args)
        return self._for_groups(operation, *args)

    def linear(self, x: Tensor, transposed: bool = False) -> Any:
        """x W^T + bias; the short way for a given matrix with a low-rank change."""
        weight = self.generated_rows.get("weight")
        low_rank = None
        plain = not isinstance(x, RowParameter) and not torch.compiler.is_compiling()
        if weight is not None and plain and "bias" not in self.generated_rows:
            low_rank = weight.low_rank(transposed)
        if weight is None or low_rank is None:
            return self.operate(*self._linear(x, transposed))
        operation = "addmm" if transposed else "linear"
        dim: int | None = 0
        if torch.is_grad_enabled() or not passes_rows((weight.name, operation, 0)):
            dim = weight.row_dim(x, operation)
        if dim is None:
            return self._for_groups(*self._linear(x, transposed))
        own = self._parameters  # without `bias` if it is parametrised
        bias: Any = own["bias"] if "bias" in own else self.bias  # noqa: SIM401 (looks it up)
        if dim == 0 and not x.shape[0] % low_rank.groups:
            y = low_rank.apply(x, bias)
            if y is not None:
                return y
        return rules.linear(x, weight.along(dim), bias, transposed)

    def _linear(self, x: Tensor, transposed: bool) -> tuple[Any, ...]:
        """The operation and what it takes."""
        weight, bias = self.own("weight"), self.own("bias")
        return (torch.addmm, bias, x, weight) if transposed else (F.linear, x, weight, bias)

    def _for_groups(self, operation: Any, *args: Any) -> Any:
        """The operation for every group, on an input that all rows share."""
        given = tuple(self._parameter(value) for value in args)
        with torch._C.DisableTorchFunctionSubclass():
            return any_operation(_EVERYWHERE.get(operation, operation), given, {})

    def _for_compiler(self, operation: Any, args: tuple[Any, ...]) -> Any:
        """The operation for an input [1, ...] that all rows share, once for each row."""
        row = next(value for value in args if isinstance(value, RowTensor))
        shared = [value for value in args if isinstance(value, Tensor) and value.dim() > 1]
        if len(shared) != 1 or shared[0].shape[0] != 1:
            raise UnsupportedModuleError(
                f"layer {row.layer!r} got a tensor that all rows of the batch share, without a "
                f"dimension of size 1 for them; the compiler cannot follow that. Call the bound "
                f"network without torch.compile, or leave {row.name!r} out of generate="
            )
        rows = row.owners.rows
        own = []
        for value in args:
            if value is shared[0]:
                value = value.expand(rows, *value.shape[1:])
            elif isinstance(value, RowTensor):
                value = replace(value, layout=_NOTHING_KNOWN)
            own.append(value)
        return OPERATIONS[operation](*own)

    def _parameter(self, value: Any) -> Any:
        if not isinstance(value, RowTensor):
            return value
        return next(
            self.__dict__[name] for name, row in self.generated_rows.items() if row is value
        )


def _addmm(bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """torch.addmm for any number of dimensions."""
    return F.linear(x, weight.t(), bias)


_EVERYWHERE = {torch.addmm: _addmm}
_NOTHING_KNOWN = Layout()


class RowLinear(RowLayer):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class RowConv1D(RowLayer):
    """The linear layer of GPT-2, whose weight is stored as [in, out]."""

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x, transposed=True)


class RowEmbedding(RowLayer):
    padding_idx: int | None
    max_norm: float | None
    norm_type: float
    scale_grad_by_freq: bool
    sparse: bool

    def forward(self, ids: Tensor) -> Tensor:
        return self.operate(
            F.embedding,
            ids,
            self.own("weight"),
            self.padding_idx,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.sparse,
        )


class RowLayerNorm(RowLayer):
    normalized_shape: tuple[int, ...]
    eps: float

    def forward(self, x: Tensor) -> Tensor:
        shape = self.normalized_shape
        return self.operate(F.layer_norm, x, shape, self.own("weight"), self.own("bias"), self.eps)


class RowRMSNorm(RowLayer):
    normalized_shape: tuple[int, ...]
    eps: float | None

    def forward(self, x: Tensor) -> Tensor:
        return self.operate(F.rms_norm, x, self.normalized_shape, self.own("weight"), self.eps)


class RowGroupNorm(RowLayer):
    num_groups: int
    eps: float

    def forward(self, x: Tensor) -> Tensor:
        return self.operate(
            F.group_norm, x, self.num_groups, self.own("weight"), self.own("bias"), self.eps
        )


_FORWARD: dict[type[nn.Module], type[RowLayer]] = {
    nn.Linear: RowLinear,
    nn.Embedding: RowEmbedding,
    nn.LayerNorm: RowLayerNorm,
    nn.RMSNorm: RowRMSNorm,
    nn.GroupNorm: RowGroupNorm,
}


def row_class(module: nn.Module) -> type[RowLayer]:
    """How a bound network computes such a module, if its parameters are generated."""
    if "forward" not in module.__dict__:
        if is_conv1d(module):
            return RowConv1D
        for original, kind in _FORWARD.items():
            if isinstance(module, original) and type(module).forward is original.forward:
                return kind
    return RowPart


class RowAdapted(RowLayer):
    """A layer that computes in its own way (a quantised one), and a low-rank change beside it."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        row = self.generated_rows["weight"]
        y = super().forward(x, *args, **kwargs)
        dim = row.row_dim(x, "adapted")
        if dim is None:
            raise UnsupportedModuleError(
                f"layer {row.layer!r} got an input of shape {tuple(x.shape)} that all rows of the "
                f"batch share; leave it out of generate="
            )
        row.owners.check(x.shape[dim], f"layer {row.layer!r}")
        return rules.added_change(x, y, row.value, row.owners.along(dim))


class RowPart(RowLayer):
    """A module that uses generated parameters in its own way.

    Elsewhere `RowParameter` follows whatever it does with them. The compiler cannot trace that, so
    for it the whole module is mapped over the groups of rows.
    """

    original_part: tuple[nn.Module]
    """the primary's own module, hidden from `children()`"""
    rows_below: dict[str, RowTensor]
    """the generated parameters of this module and of all inside it"""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            return super().forward(*args, **kwargs)
        rows = self.rows_below
        owners = next(iter(rows.values())).owners
        weights = {name: row.dense() for name, row in rows.items()}
        return map_part(self.original_part[0], weights, owners, args, kwargs)


def map_part(
    part: nn.Module,
    weights: dict[str, Tensor],
    owners: Owners,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """``part`` with the weights [groups, ...] of each group, mapped over the groups of rows."""
    leaves, tree = tree_flatten((args, kwargs))
    places = [i for i, leaf in enumerate(leaves) if by_size_of(leaf, owners)]
    if not places:
        raise UnsupportedModuleError(
            f"{type(part).__name__} has generated parameters and got no tensor with a row for each "
            f"row of the batch; the compiler cannot follow that. Call the bound network without "
            f"torch.compile, or leave these parameters out of generate="
        )
    rows = leaves[places[0]].shape[owners.dim]

    def one_group(own: dict[str, Tensor], parts: list[Tensor]) -> Any:
        given = list(leaves)
        for place, part_of in zip(places, parts, strict=True):
            given[place] = part_of.movedim(0, owners.dim) if owners.dim else part_of
        arguments, named = tree_unflatten(given, tree)
        return functional_call(part, own, arguments, named)

    split = [owners.split(leaves[place]) for place in places]
    output = vmap(one_group, randomness="different")(weights, split)
    results, shape = tree_flatten(output)
    joined = [owners.join(value.movedim(1 + owners.dim, 1), rows) for value in results]
    return tree_unflatten(joined, shape)


def by_size_of(leaf: Any, owners: Owners) -> bool:
    return isinstance(leaf, Tensor) and by_size(leaf, owners, None) is not None


_CLASSES: dict[tuple[type[RowLayer], type[nn.Module]], type[nn.Module]] = {}


def joined_class(kind: type[RowLayer], original: type[nn.Module]) -> type[nn.Module]:
    """A class that has the forward of ``kind`` and is otherwise the original."""
    # Not functools.cache: the compiler would look behind it and make the class again.
    known = _CLASSES.get((kind, original))
    if known is None:
        known = type(original.__name__, (kind, original), {"__module__": original.__module__})
        _CLASSES[kind, original] = known
    return known

"""What the operations of a network read and write while it runs, found by the weights they use.

The symmetries of a network name axes of tensors. So an operation is recognised by the tensor that
it is given as its weight, whatever module calls it: `nn.Linear`, `F.linear` with a parameter, or
`torch.addmm` in a layer that stores its weight transposed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

__all__ = ["Norm", "Observer", "Use"]


@dataclass(frozen=True)
class Norm:
    """The other arguments of a batch normalisation."""

    mean: Tensor | None
    var: Tensor | None
    weight: Tensor | None
    bias: Tensor | None
    eps: float


@dataclass(frozen=True)
class Use:
    """One operation with a weight of the network.

    ``places`` says for dimensions of the weight where their entries are: in "given" (what the
    operation reads) or in "written", and along which dimension. ``call`` counts operations with
    the same weight in one run of the network. ``affine``: a linear layer or convolution whose
    ``bias`` is None or a tensor of the network, so that a scale and a shift of what it writes
    could be written into its weights.
    """

    weight: str
    given: Tensor
    written: Tensor
    places: dict[int, tuple[str, int]]
    call: int = 0
    bias: str | None = None
    affine: bool = False
    norm: Norm | None = None

    def values(self, dim: int, repeat: int = 1) -> Tensor | None:
        """The values of the units along a dimension of the weight [samples, units], or None.

        With ``repeat``, each unit has so many consecutive positions: they count as samples.
        """
        if dim not in self.places:
            return None
        which, place = self.places[dim]
        return units_last(self.given if which == "given" else self.written, place, repeat)


def units_last(tensor: Tensor, dim: int, repeat: int = 1) -> Tensor:
    """[..., units, ...] -> [samples, units], a copy in at least single precision."""
    tensor = tensor.detach().movedim(dim, -1)
    if repeat > 1:
        tensor = tensor.unflatten(-1, (-1, repeat)).transpose(-1, -2)
    wide = tensor.to(torch.promote_types(tensor.dtype, torch.float32))
    # A copy, because an activation that works in place comes next.
    return wide.reshape(-1, wide.shape[-1]).clone()


# -- operations ----------------------------------------------------------------------------------
Arguments = Mapping[str, Any]
_LAST = {0: ("written", -1), 1: ("given", -1)}
_TRANSPOSED = {0: ("given", -1), 1: ("written", -1)}


@dataclass(frozen=True)
class _Operation:
    """Which argument is the weight, which one is read, and where the units are."""

    names: tuple[str, ...]
    places: Callable[[Arguments], dict[int, tuple[str, int]]]
    weight: str = "weight"
    given: str = "input"
    affine: bool = False


def _convolution(arguments: Arguments) -> dict[int, tuple[str, int]]:
    channel = 1 - arguments["weight"].dim()  # from the end, so that a batch is optional
    places = {0: ("written", channel)}
    if arguments.get("groups", 1) == 1:
        places[1] = ("given", channel)
    return places


def _transposed_convolution(arguments: Arguments) -> dict[int, tuple[str, int]]:
    channel = 1 - arguments["weight"].dim()
    places = {0: ("given", channel)}
    if arguments.get("groups", 1) == 1:
        places[1] = ("written", channel)
    return places


_CONV = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED_CONV = (
    "input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation",
)  # fmt: skip
_STATISTICS = ("running_mean", "running_var", "weight", "bias")
_BATCH_NORM = ("input", *_STATISTICS, "training", "momentum", "eps")
_MATMUL = ("input", "weight")

_OPERATIONS: dict[Any, _Operation] = {
    F.linear: _Operation(("input", "weight", "bias"), lambda _: _LAST, affine=True),
    **{
        operation: _Operation(_CONV, _convolution, affine=True)
        for operation in (F.conv1d, F.conv2d, F.conv3d)
    },
    **{
        operation: _Operation(_TRANSPOSED_CONV, _transposed_convolution)
        for operation in (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
    },
    **{
        operation: _Operation(_MATMUL, lambda _: _TRANSPOSED)
        for operation in (torch.matmul, torch.mm, torch.Tensor.matmul, torch.Tensor.mm,
                          torch.Tensor.__matmul__)
    },
    torch.addmm: _Operation(("bias", "input", "weight"), lambda _: _TRANSPOSED, affine=True),
    F.embedding: _Operation(("input", "weight"), lambda _: {1: ("written", -1)}),
    F.layer_norm: _Operation(
        ("input", "normalized_shape", "weight", "bias"), lambda _: {0: ("written", -1)}
    ),
    F.group_norm: _Operation(
        ("input", "num_groups", "weight", "bias"), lambda _: {0: ("written", 1)}
    ),
    F.batch_norm: _Operation(_BATCH_NORM, lambda _: {0: ("written", 1)}),
    F.rms_norm: _Operation(
        ("input", "normalized_shape", "weight"), lambda _: {0: ("written", -1)}
    ),
}  # fmt: skip

# nn.MultiheadAttention is one operation here: its arguments by position.
_ATTENTION = (
    "query", "key", "value", "embed_dim_to_check", "num_heads", "in_proj_weight", "in_proj_bias",
    "bias_k", "bias_v", "add_zero_attn", "dropout_p", "out_proj_weight", "out_proj_bias",
)  # fmt: skip


class Observer(TorchFunctionMode):
    """Calls ``visit`` for each operation on a weight of the network; may replace its result.

    ``visit`` gets a `Use` and returns what the operation returns instead, or None. Use it as a
    context around one run of the network.
    """

    def __init__(self, module: nn.Module, visit: Callable[[Use], Tensor | None]) -> None:
        super().__init__()
        self._visit = visit
        self._calls: dict[str, int] = {}
        self._names: dict[int, str] = {}
        for name, tensor in (
            *module.named_parameters(remove_duplicate=False),
            *module.named_buffers(remove_duplicate=False),
        ):
            self._names.setdefault(id(tensor), name)

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        if function is F.multi_head_attention_forward:
            self._attention(dict(zip(_ATTENTION, args, strict=False)) | kwargs, result)
            return result
        operation = _OPERATIONS.get(function)
        if operation is None:
            return result
        arguments = dict(zip(operation.names, args, strict=False)) | kwargs
        replacement = self._operation(operation, arguments, result)
        return result if replacement is None else replacement

    def _operation(
        self, operation: _Operation, arguments: Arguments, result: Tensor
    ) -> Tensor | None:
        norm, name = None, self._names.get(id(arguments.get(operation.weight)))
        if "running_mean" in operation.names:
            mean, var, weight, bias = (arguments.get(key) for key in _STATISTICS)
            norm = Norm(mean, var, weight, bias, arguments.get("eps", 1e-5))
            name = self._names.get(id(norm.mean), name)
        if name is None:
            return None
        shift = arguments.get("bias")
        shift_name = self._names.get(id(shift))
        return self._report(
            Use(
                *(name, arguments[operation.given], result, operation.places(arguments)),
                bias=shift_name,
                affine=operation.affine and (shift is None or shift_name is not None),
                norm=norm,
            )
        )

    def _attention(self, arguments: Arguments, result: Any) -> None:
        given, written = arguments["query"], result[0]
        for key, places in (
            ("in_proj_weight", {1: ("given", -1)}),
            ("out_proj_weight", {0: ("written", -1)}),
        ):
            name = self._names.get(id(arguments.get(key)))
            if name is not None:
                self._report(Use(name, given, written, places))

    def _report(self, use: Use) -> Tensor | None:
        call = self._calls.get(use.weight, 0)
        self._calls[use.weight] = call + 1
        return self._visit(replace(use, call=call))

"""Parameters of which each process holds a part only, as `torch.distributed.fsdp.fully_shard` does.

FSDP gathers a layer's parameters right before the layer is called and lets go of them after it. It
writes the gathered tensors into the module itself, the original. So whatever a bound network needs
of such a module is looked up there when it is used, not when the network is bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from weightloom.errors import UnsupportedModuleError
from weightloom.hyper.rows.shells import is_managed, place

__all__ = ["gathered_later", "present", "refuse_parts", "stand_in_for_parts"]


def gathered_later(module: nn.Module) -> Mapping[str, Any] | None:
    """Where a module's parameters are when it is called; None if they stay what they are."""
    return module._parameters if is_managed(module) else None


def present(primary: nn.Module, bases: Mapping[str, Tensor | None]) -> dict[str, Tensor | None]:
    """Tensors of the primary as they are now; stand-ins where this process holds only a part."""
    dtype = _common_type(primary)
    tensors = {}
    for name, base in bases.items():
        owner, _, leaf = name.rpartition(".")
        holder = gathered_later(primary.get_submodule(owner))
        now = base if base is None or holder is None else holder[leaf]
        tensors[name] = _stand_in(now, dtype) if _is_part(now) else now
    return tensors


def refuse_parts(bases: Mapping[str, Tensor | None]) -> None:
    """Raise if this process holds only a part of a tensor that is needed as a whole."""
    for name, base in bases.items():
        if _is_part(base):
            raise UnsupportedModuleError(
                f"the primary's parameter {name!r} is sharded (fully_shard): this process holds "
                f"only a part, and weights are changes added to the whole of it. Use "
                f"hyper.bind(condition)(x), which meets each layer when it is gathered, "
                f"or hyper.adapter(condition), which needs no base"
            )


def stand_in_for_parts(net: nn.Module, primary: nn.Module) -> None:
    """Put stand-ins in a shell of the primary where this process holds only a part."""
    if not any(map(_is_part, primary.parameters())):
        return
    dtype = _common_type(primary)
    for module in net.modules():
        for leaf, parameter in list(module._parameters.items()):
            if _is_part(parameter):
                place(module, leaf, _stand_in(parameter, dtype))


def _common_type(primary: nn.Module) -> torch.dtype | None:
    """The type of all parameters that are here: FSDP may gather in another type than it keeps."""
    here = [tensor for tensor in primary.parameters() if not _is_part(tensor)]
    types = {tensor.dtype for tensor in here if tensor.is_floating_point()}
    return types.pop() if len(types) == 1 else None


def _is_part(tensor: Any) -> bool:
    """Whether this process holds only a part of the tensor (a DTensor)."""
    return hasattr(tensor, "full_tensor")


def _stand_in(tensor: Any, dtype: torch.dtype | None) -> Tensor:
    """Random numbers in place of a tensor that is not here; whole, and in little memory.

    A check must not gather: other processes, with other rows, may have nothing to check, and all
    would wait for each other. Neighbouring rows of a matrix share all but seven of their numbers.
    """
    shape = tuple(tensor.shape)
    strides = [7 ** (len(shape) - 1 - axis) for axis in range(len(shape))]
    reach = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    noise = torch.randn(max(reach, 0) + 1, generator=torch.Generator().manual_seed(len(shape)))
    # Vectors are mostly the factors of norms, so they are near one.
    noise = 1 + 0.1 * noise if len(shape) < 2 else noise / math.sqrt(max(math.prod(shape[1:]), 1))
    return noise.to(tensor.device, dtype or tensor.dtype).as_strided(shape, strides)

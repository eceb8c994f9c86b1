"""Tensors that stand for a weight inside `torch.vmap`, and decide what happens to it there.

`LazyWeight` contracts the input with the head's table where a layer calls
``F.linear(x, self.weight, self.bias)``. `HeldWeight` is an ordinary weight whose class keeps
PyTorch's attention layers from a fused path without derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from weightloom.hyper.rows.fused import under_autocast
from weightloom.hyper.rows.generated import Generated

__all__ = [
    "HeldWeight",
    "LazyWeight",
    "StandIn",
    "attention_weights",
    "held",
    "without_nested_tensors",
]

Linear = Callable[[Generated, Tensor, Tensor | None], Tensor]

_CONVOLUTIONS = {F.conv1d: 1, F.conv2d: 2, F.conv3d: 3}

# These must not write the weights: the placeholder already has the right answer.
_METADATA = {
    Tensor.shape.__get__,  # type: ignore[attr-defined]
    Tensor.dtype.__get__,  # type: ignore[attr-defined]
    Tensor.device.__get__,
    Tensor.ndim.__get__,  # type: ignore[attr-defined]
    Tensor.size,
    Tensor.dim,
    Tensor.is_floating_point,
}


class StandIn(Tensor):
    """Has the shape and type of one condition's weight; operations get what `written` returns."""

    @classmethod
    def placeholder(cls, shape: tuple[int, ...], like: Tensor) -> Any:
        return torch.empty((), dtype=like.dtype, device=like.device).expand(shape).as_subclass(cls)

    def written(self) -> Tensor:
        raise NotImplementedError

    def apply_to(self, x: Tensor, bias: Tensor | None, spatial: int) -> Tensor | None:
        """F.linear (``spatial`` = 0) or a convolution with this weight; None: with `written`."""
        return None

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if func in _METADATA:
                return func(*args, **kwargs)
            if (func is F.linear or func in _CONVOLUTIONS) and isinstance(args[1], StandIn):
                bias = args[2] if len(args) > 2 else kwargs.get("bias")
                y = args[1].apply_to(args[0], _write(bias), _CONVOLUTIONS.get(func, 0))
                if y is not None:
                    return y
            written = tree_map(_write, (args, kwargs))
            return func(*written[0], **written[1])


def _write(leaf: Any) -> Any:
    return leaf.written() if isinstance(leaf, StandIn) else leaf


class LazyWeight(StandIn):
    """Knows how to generate the values of one condition's weight."""

    value: Generated
    linear: Linear

    @classmethod
    def make(cls, value: Generated, linear: Linear) -> Tensor:
        """``value`` holds one condition; ``linear(value, x [1, n, in], bias)`` applies it."""
        lazy: LazyWeight = cls.placeholder(value.shape, value.batched()[0])
        lazy.value = value
        lazy.linear = linear
        return lazy

    def written(self) -> Tensor:
        return self.value.dense()[0]

    def apply_to(self, x: Tensor, bias: Tensor | None, spatial: int) -> Tensor:
        """A convolution over ``spatial`` dimensions has a kernel of 1x1: see `Rules.lazy`."""
        if under_autocast(x):
            x = x.to(self.value.batched()[0].dtype)
        if spatial:
            channels = x.dim() - 1 - spatial
            x = x.movedim(channels, -1)
        flat = x.reshape(1, -1, x.shape[-1])
        y = self.linear(self.value, flat, bias).reshape(*x.shape[:-1], -1)
        return y.movedim(-1, channels) if spatial else y


class HeldWeight(StandIn):
    """An ordinary tensor in another class."""

    tensor: Tensor

    @classmethod
    def make(cls, tensor: Tensor) -> Tensor:
        held: HeldWeight = cls.placeholder(tuple(tensor.shape), tensor)
        held.tensor = tensor
        return held

    def written(self) -> Tensor:
        return self.tensor


def attention_weights(module: nn.Module, generated: Iterable[str]) -> dict[str, Tensor | None]:
    """For each attention layer the name of one parameter, and the layer's own value of it.

    In evaluation mode attention layers (and transformers around them) use a fused path without
    derivatives unless a weight requires a gradient, and inside vmap no tensor says that it does.
    They do not take that path either if a weight has a class of its own. A switch of PyTorch
    (`torch.backends.mha`) turns it off, too, but for all threads.
    """
    weights: dict[str, Tensor | None] = {}
    parts = [
        (prefix, part)
        for prefix, part in module.named_modules()
        if isinstance(part, nn.MultiheadAttention) and not part.training
    ]
    if not parts:
        return weights
    names = {_place(module, name): name for name in generated}  # a module may have several names
    for prefix, part in parts:
        for leaf in ("out_proj.weight", "in_proj_weight", "in_proj_bias"):
            owner = part.out_proj if leaf.startswith("out_proj") else part
            name = leaf.rpartition(".")[2]
            if name in owner._parameters:  # not if it is parametrized
                full = names.get((id(owner), name), f"{prefix}.{leaf}" if prefix else leaf)
                weights[full] = owner._parameters[name]
                break
    return weights


def _place(module: nn.Module, name: str) -> tuple[int, str]:
    owner, _, leaf = name.rpartition(".")
    return id(module.get_submodule(owner)), leaf


def without_nested_tensors(shell: nn.Module) -> None:
    """Transformers pack padded sequences only where no gradient is needed; vmap cannot do it."""
    for part in shell.modules():
        if isinstance(part, nn.TransformerEncoder):
            part.__dict__["use_nested_tensor"] = False


def held(
    weights: Mapping[str, Tensor], attention: Mapping[str, Tensor | None]
) -> dict[str, Tensor]:
    """``weights`` with `HeldWeight` in the attention layers."""
    result = dict(weights)
    for name, own in attention.items():
        value = weights.get(name, own)
        if value is not None and not isinstance(value, StandIn):
            result[name] = HeldWeight.make(value)
    return result

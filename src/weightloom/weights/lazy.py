"""A weight that is not written until somebody looks at it.

Inside `torch.vmap` a module's own `forward` calls `F.linear(x, self.weight, self.bias)`. Passing a
`LazyWeight` as `self.weight` lets that call be answered by contracting x with the head's table;
every other operation sees the written tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from weightloom.weights.generated import Generated

__all__ = ["LazyWeight"]

Linear = Callable[[Generated, Tensor, Tensor | None], Tensor]

_CONVOLUTIONS = {F.conv1d: 1, F.conv2d: 2, F.conv3d: 3}
# Reading these must not write the weights: the placeholder already has the right answer.
_METADATA = {
    Tensor.shape.__get__,  # type: ignore[attr-defined]
    Tensor.dtype.__get__,  # type: ignore[attr-defined]
    Tensor.device.__get__,
    Tensor.ndim.__get__,  # type: ignore[attr-defined]
    Tensor.size,
    Tensor.dim,
    Tensor.is_floating_point,
}


class LazyWeight(Tensor):
    """Looks like one weight tensor of one condition; holds how to generate it."""

    value: Generated
    linear: Linear

    @classmethod
    def make(cls, value: Generated, linear: Linear) -> Tensor:
        """``value`` holds one condition; ``linear(value, x [1, n, in], bias)`` applies it."""
        like = value.batched()[0]
        placeholder = torch.empty((), dtype=like.dtype, device=like.device).expand(value.shape)
        lazy = placeholder.as_subclass(cls)
        lazy.value = value
        lazy.linear = linear
        return lazy

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if func in _METADATA:
                return func(*args, **kwargs)
            if (func is F.linear or func in _CONVOLUTIONS) and isinstance(args[1], LazyWeight):
                bias = args[2] if len(args) > 2 else kwargs.get("bias")
                return args[1]._apply_to(args[0], bias, _CONVOLUTIONS.get(func, 0))
            written = torch.utils._pytree.tree_map(_write, (args, kwargs))
            return func(*written[0], **written[1])

    def _apply_to(self, x: Tensor, bias: Tensor | None, spatial: int) -> Tensor:
        """F.linear (``spatial`` = 0) or a 1x1 convolution over ``spatial`` dimensions."""
        if spatial:
            channels = x.dim() - 1 - spatial
            x = x.movedim(channels, -1)
        flat = x.reshape(1, -1, x.shape[-1])
        y = self.linear(self.value, flat, bias).reshape(*x.shape[:-1], -1)
        return y.movedim(-1, channels) if spatial else y


def _write(leaf: Any) -> Any:
    return leaf.value.dense()[0] if isinstance(leaf, LazyWeight) else leaf

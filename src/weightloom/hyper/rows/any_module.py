"""Any module with one set of weights for each row: by `torch.vmap`, or by a loop over conditions.

Inside vmap a module's own `forward` calls `F.linear(x, self.weight, self.bias)`. With a
`LazyWeight` as `self.weight` that call contracts x with the head's table. Every other operation
gets the written tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._pytree import tree_flatten, tree_unflatten

from weightloom.errors import ShapeError
from weightloom.hyper.rows.functional import call_with_state, distinct, unshare
from weightloom.hyper.rows.fused import under_autocast
from weightloom.hyper.rows.generated import Generated
from weightloom.hyper.rows.rules import Rules

__all__ = ["VMAP_REFUSALS", "LazyWeight", "RowwiseTask", "known_slow", "stacked"]

# What torch.vmap raises when it cannot do something.
VMAP_REFUSALS = (RuntimeError, NotImplementedError, ValueError, TypeError, AttributeError)

_TENSOR = object()
"""takes the place of a tensor in the structure of a module's output"""

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


class RowwiseTask:
    """One call of any module with one set of weights for each row, by vmap or by a loop."""

    def __init__(
        self,
        module: nn.Module,
        prefix: str,
        rules: Rules,
        rows: int,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        self.module = module
        self.prefix = prefix
        self.rules = rules
        self.rows = rows
        own = {n[len(prefix) :]: w for n, w in rules.generated.items() if n.startswith(prefix)}
        self.weights = distinct(module, own)
        self.leaves, self.tree = tree_flatten((args, dict(kwargs)))
        self.split = [i for i, leaf in enumerate(self.leaves) if isinstance(leaf, Tensor)]
        self._check_rows()

    def _check_rows(self) -> None:
        for i in self.split:
            leaf = self.leaves[i]
            if leaf.dim() == 0 or leaf.shape[0] != self.rows:
                raise ShapeError(
                    f"an argument of shape {tuple(leaf.shape)} was given with {self.rows} "
                    f"conditions; every tensor needs one row for each condition (wrap it in "
                    f"weightloom.shared(...) if all conditions share it)"
                )

    def _arguments(self, rows: list[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        leaves = [unshare(leaf) for leaf in self.leaves]
        for i, row in zip(self.split, rows, strict=True):
            leaves[i] = row
        args, kwargs = tree_unflatten(leaves, self.tree)
        return args, kwargs

    def _call(
        self, weights: dict[str, Tensor], buffers: dict[str, Tensor], rows: list[Tensor]
    ) -> Any:
        """Call the module for one condition; ``buffers`` gets the values that the module left."""
        state = {**weights, **buffers}
        args, kwargs = self._arguments(rows)
        output = call_with_state(self.module, state, args, kwargs)
        buffers.update({name: state[name] for name in buffers})
        return output

    # -- by vmap --------------------------------------------------------------------------------

    def vmapped(self, lazy: bool) -> Any:
        """The output of ``torch.vmap`` over conditions; ``lazy``: weights may stay unwritten."""
        lazily = set()
        if lazy:
            may_skip = self.rules.lazy
            lazily = {n for n in self.weights if may_skip(self.prefix + n, n, self.module)}
        eager = {n: _autocast_safe(w.dense()) for n, w in self.weights.items() if n not in lazily}
        pieces = {name: self.weights[name].batched() for name in lazily}
        buffers = _copies(_statistics(self.module), self.rows)
        tensors = [_autocast_safe(self.leaves[i]) for i in self.split]
        structure: list[Any] = []

        def one_condition(
            eager: dict[str, Tensor],
            pieces: dict[str, tuple[Tensor, ...]],
            buffers: dict[str, Tensor],
            rows: list[Tensor],
        ) -> tuple[list[Tensor], dict[str, Tensor]]:
            weights = dict(eager)
            for name, parts in pieces.items():
                value = self.weights[name].rebuild(tuple(part.unsqueeze(0) for part in parts))
                weights[name] = LazyWeight.make(value, self._lazy_linear(name))
            buffers = dict(buffers)
            leaves, tree = tree_flatten(self._call(weights, buffers, rows))
            structure[:] = [tree, [_TENSOR if isinstance(v, Tensor) else v for v in leaves]]
            return [leaf for leaf in leaves if isinstance(leaf, Tensor)], buffers

        mapped = vmap(one_condition, randomness="different")
        if torch.compiler.is_compiling():  # no switch to set, and PyTorch 2.6 could not trace it
            values, updated = mapped(eager, pieces, buffers, tensors)
        else:
            with _differentiable_attention():
                values, updated = mapped(eager, pieces, buffers, tensors)
        _keep_average(self.module, updated)
        tree, leaves = structure
        tensors_out = iter(values)
        return tree_unflatten([next(tensors_out) if v is _TENSOR else v for v in leaves], tree)

    def _lazy_linear(self, name: str) -> Callable[[Generated, Tensor, Tensor | None], Tensor]:
        full = self.prefix + name

        def linear(value: Generated, x: Tensor, bias: Tensor | None) -> Tensor:
            # Inside vmap requires_grad is False for all tensors; most inputs of layers need one.
            return self.rules.linear(full, value, x, bias, conditions=self.rows, input_grad=True)

        return linear

    # -- by a loop ------------------------------------------------------------------------------

    def looped(self) -> Any:
        """The outputs of a loop over conditions, stacked."""
        # unbind and not indexing, whose backward pass writes the whole tensor each time.
        weights = {name: value.dense().unbind(0) for name, value in self.weights.items()}
        split = [self.leaves[i].unbind(0) for i in self.split]
        state = dict(self.module.named_buffers()) if self.module.training else {}
        outputs, buffers = [], []
        for i in range(self.rows):
            own = {name: value.clone() for name, value in state.items()}
            outputs.append(
                self._call({n: w[i] for n, w in weights.items()}, own, [t[i] for t in split])
            )
            buffers.append(own)
        averaged = {name: torch.stack([row[name] for row in buffers]) for name in state}
        _keep_average(self.module, averaged)
        return stacked(outputs)


def stacked(outputs: list[Any]) -> Any:
    """One structure with every tensor stacked over ``outputs``; the rest is that of the first."""
    flat = [tree_flatten(output) for output in outputs]
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    leaves = [
        torch.stack(list(column)) if isinstance(column[0], Tensor) else column[0]
        for column in columns
    ]
    return tree_unflatten(leaves, flat[0][1])


def known_slow(module: nn.Module) -> str | None:
    """Why vmap cannot run this module, if that is known beforehand; else None."""
    for name, part in module.named_modules():
        if isinstance(part, nn.RNNBase):
            return f"{type(part).__name__} {name!r} has no batched form in PyTorch"
    return None


class LazyWeight(Tensor):
    """Has the shape and type of one condition's weight; knows how to generate the values."""

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


@contextmanager
def _differentiable_attention() -> Iterator[None]:
    """No fused attention while gradients are needed.

    In evaluation mode attention layers use a fused path without derivatives unless a weight
    requires a gradient, and inside vmap no tensor says that it does.
    """
    before = torch.backends.mha.get_fastpath_enabled()
    if torch.is_grad_enabled() and before:
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
    else:
        yield


def _autocast_safe(tensor: Tensor) -> Tensor:
    """Under autocast vmap does not cast, so its inputs must have one type: float32."""
    half = tensor.dtype in (torch.bfloat16, torch.float16)
    return tensor.float() if half and under_autocast(tensor) else tensor


# -- running statistics -------------------------------------------------------------------------
#
# All conditions share one set of running statistics. During training every condition normalises by
# its own batch statistics, exactly as the primary would alone; the running statistics then move to
# the average over conditions. Conditions are not a fixed list, so each cannot have its own.
def _statistics(module: nn.Module) -> dict[str, Tensor]:
    """The buffers that normalisation layers inside ``module`` write to."""
    statistics = {}
    for prefix, part in module.named_modules():
        if isinstance(part, _NormBase) and part.training and part.track_running_stats:
            for name, buffer in part._buffers.items():
                if buffer is not None:
                    statistics[f"{prefix}.{name}" if prefix else name] = buffer
    return statistics


def _copies(buffers: dict[str, Tensor], rows: int) -> dict[str, Tensor]:
    return {name: buffer.expand(rows, *buffer.shape).clone() for name, buffer in buffers.items()}


@torch.no_grad()
def _keep_average(module: nn.Module, updated: Mapping[str, Tensor]) -> None:
    if not updated:
        return
    own = dict(module.named_buffers())
    for name, rows in updated.items():
        value = rows.detach()
        own[name].copy_(value.mean(0) if value.is_floating_point() else value[0])

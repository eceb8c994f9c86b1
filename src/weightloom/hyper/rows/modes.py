"""What is around a module's code while it runs inside `torch.vmap`.

- `Precision` casts as autocast does, for operations that vmap keeps from it.
- `AgreedValues` answers questions about values (``if mask.all():``) where all rows agree.
- `surroundings` and `refuse_reentrant` keep activation checkpointing from running where it would
  compute again without the weights, or without vmap.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _functorch as functorch
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import CheckpointFunction

from weightloom.errors import UnsupportedModuleError
from weightloom.hyper.rows.fused import transformed, under_autocast
from weightloom.hyper.rows.stand_ins import StandIn

__all__ = ["AgreedValues", "Precision", "RowsDisagree", "refuse_reentrant", "surroundings"]


@contextmanager
def surroundings(like: Tensor | None, agreed: bool) -> Iterator[None]:
    """All that vmap needs around a module whose input is ``like``."""
    casting = like is not None and under_autocast(like)
    with (
        Precision(like.device.type) if casting and like is not None else nullcontext(),
        AgreedValues() if agreed else nullcontext(),
        _checkpointing_refused(),
    ):
        yield


# -- autocast -----------------------------------------------------------------------------------


class Precision(TorchFunctionMode):
    """Casts to autocast's type what vmap would leave in float32, or in two types at once."""

    # Seen in PyTorch 2.13: under vmap autocast casts products, but not these.
    OPERATIONS = (
        F.linear, F.scaled_dot_product_attention, F.conv1d, F.conv2d, F.conv3d,
        F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d,
    )  # fmt: skip

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device
        self.dtype = torch.get_autocast_dtype(device)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        # Autocast may have been switched off inside the module.
        if func in self.OPERATIONS and torch.is_autocast_enabled(self.device):
            args, kwargs = tree_map(self._cast, (args, kwargs))
        return func(*args, **kwargs)

    def _cast(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or isinstance(leaf, StandIn):
            return leaf
        narrow = leaf.dtype in (torch.float32, torch.bfloat16, torch.float16)
        return leaf.to(self.dtype) if narrow else leaf


# -- questions about values ---------------------------------------------------------------------


class RowsDisagree(RuntimeError):  # noqa: N818 (a question, not an error)
    """Rows have different answers to a question that the module's code asks."""

    def __init__(self, answers: list[Any]) -> None:
        super().__init__("the rows of a batch take different ways through the module")
        self.answers = answers
        """one for each row"""

    def groups(self, rows: list[int]) -> list[list[int]]:
        """``rows`` by their answers."""
        by_answer: dict[Any, list[int]] = {}
        for row, answer in zip(rows, self.answers, strict=True):
            by_answer.setdefault(answer, []).append(row)
        return list(by_answer.values())


class AgreedValues(TorchFunctionMode):
    """Inside vmap: the value of a tensor with one number in each row, if all rows have the same."""

    READS = (Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__, Tensor.item)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in self.READS and type(args[0]) is Tensor:
            rows = _values_of_rows(args[0])
            if rows is not None:
                answers = [func(row) for row in rows]
                if any(answer != answers[0] for answer in answers):
                    raise RowsDisagree(answers)
                return answers[0]
        return func(*args, **(kwargs or {}))


def _values_of_rows(tensor: Tensor) -> tuple[Tensor, ...] | None:
    """The rows of a tensor that vmap has batched; None if another transform is around it."""
    if not functorch.is_batchedtensor(tensor) or tensor.numel() != 1:
        return None
    inner = functorch.get_unwrapped(tensor)
    if functorch.is_functorch_wrapped_tensor(inner):
        return None
    return inner.detach().movedim(functorch.maybe_get_bdim(tensor), 0).unbind(0)


# -- activation checkpointing -------------------------------------------------------------------


def _checkpointing_refused() -> Any:
    """No saved-tensor hooks: what they recompute later would run outside of vmap."""
    if not torch.is_grad_enabled():
        return nullcontext()
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        return nullcontext()  # the whole call is inside such hooks, which are none of ours
    return disable_saved_tensors_hooks(
        "activation checkpointing inside the primary would run again outside of vmap"
    )


def refuse_reentrant(weights: Iterable[Tensor]) -> None:
    """Raise a clear error where ``checkpoint(..., use_reentrant=True)`` would fail with an odd one.

    Its backward pass goes through the graph that made the weights, and frees it, once for each
    part that is checkpointed. The weights are results here: all come from one graph.
    """
    if not torch.is_grad_enabled() or transformed():
        return
    for weight in weights:
        if weight.requires_grad and weight.grad_fn is not None:
            weight.register_hook(_check_caller)


def _check_caller(grad: Tensor) -> None:
    frame = sys._getframe(1) if hasattr(sys, "_getframe") else None
    while frame is not None:
        if frame.f_code is _REENTRANT:
            raise UnsupportedModuleError(
                "the primary uses torch.utils.checkpoint with use_reentrant=True, which cannot go "
                "back through generated weights: all of them come from one graph. Pass "
                "use_reentrant=False (for Hugging Face models gradient_checkpointing_enable("
                "gradient_checkpointing_kwargs={'use_reentrant': False})); with many conditions "
                "hyper.bind(condition) is the fast way to use it"
            )
        frame = frame.f_back


_REENTRANT = CheckpointFunction.backward.__code__

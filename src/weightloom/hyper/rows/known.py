"""Modules whose computation is known: their class's own `forward`, and nothing around it.

A batched rule computes what a layer would compute without calling it. That is right only if the
call would run the code that the rule was written for. Hooks, a `forward` of the instance's own, a
subclass or a patched class must get the call itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.modules import module as torch_module

from weightloom.networks.activations import ELEMENTWISE

__all__ = ["ELEMENTWISE_MODULES", "backward_hooks", "is_plain", "nothing_global"]

# Modules that act on every number by itself: one call does all rows. Dropout is one of them: every
# element has its own noise, so conditions and samples never share a mask.
# A tuple: the compiler of PyTorch 2.6 cannot look into a frozenset.
ELEMENTWISE_MODULES = (*ELEMENTWISE, nn.Dropout)

_RULED = (nn.Sequential, nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Flatten)


def _own_forward(kind: type[nn.Module]) -> Any:
    """The `forward` that a class came with; None if somebody patched it before this import."""
    forward = kind.forward
    return forward if forward.__module__ == kind.__module__ else None


_FORWARD = {kind: _own_forward(kind) for kind in (*_RULED, *ELEMENTWISE_MODULES)}
_CALL = nn.Module.__call__

# Hooks of all modules. PyTorch keeps these dictionaries for the life of the process.
_GLOBAL_FORWARD = (
    torch_module._global_forward_hooks,
    torch_module._global_forward_pre_hooks,
)
_GLOBAL_BACKWARD = (
    torch_module._global_backward_hooks,
    torch_module._global_backward_pre_hooks,
)


def is_plain(module: nn.Module) -> bool:
    """Whether a call of the module is known to run the `forward` that its class came with."""
    if (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    ):
        return False
    if "forward" in module.__dict__ or not nothing_global():
        return False
    known = _FORWARD.get(type(module))
    return known is not None and type(module).forward is known


def nothing_global() -> bool:
    """Whether no code runs around the calls of all modules."""
    first, second = _GLOBAL_FORWARD
    third, fourth = _GLOBAL_BACKWARD
    return not (first or second or third or fourth) and nn.Module.__call__ is _CALL


def backward_hooks(module: nn.Module) -> str | None:
    """A module inside this one with a hook for gradients, by name; None if there is none."""
    if any(_GLOBAL_BACKWARD):
        return "all modules"
    return next(_hooked(module), None)


def _hooked(module: nn.Module) -> Iterator[str]:
    for name, part in module.named_modules():
        state = part.__dict__  # scripted modules have no hooks there
        if state.get("_backward_hooks") or state.get("_backward_pre_hooks"):
            yield f"{type(part).__name__} {name!r}" if name else type(part).__name__

"""Shallow copies of a module tree: new modules around the same tensors.

A call with generated weights never writes into the primary. It gets a *shell* of it: every module
is copied, every tensor is shared, and the generated tensors stand in the copies. So several threads
can call one hypernetwork, recomputation (activation checkpointing) finds the same weights again,
and a call that fails leaves nothing behind.
"""

from __future__ import annotations

import functools
import types
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

__all__ = [
    "call_shell",
    "has_backward_hooks",
    "keep_alive",
    "is_managed",
    "place",
    "shell",
    "structure_of",
    "submodule",
]

# Dictionaries and sets that every module owns; a copy must not share them.
_OWN = (
    "_parameters",
    "_buffers",
    "_modules",
    "_non_persistent_buffers_set",
    "_backward_pre_hooks",
    "_backward_hooks",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
_ALL_OWN = frozenset(_OWN)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

# Values that cannot refer to a module: most attributes, so this test saves most of the time.
_PLAIN = frozenset(
    {int, float, bool, str, type(None), bytes, torch.dtype, torch.device, torch.Size, Tensor}
)

_SETTINGS = frozenset({int, float, bool, str, type(None)})

Shells = dict[int, nn.Module]
"""id of a module -> its shell"""


def shell(
    root: nn.Module,
    classes: Mapping[int, type[nn.Module]] | None = None,
    wrapped: Mapping[int, Callable[[nn.Module], nn.Module]] | None = None,
) -> tuple[nn.Module, Shells]:
    """A copy of ``root`` whose modules are new and whose tensors are shared; and all its shells.

    ``classes`` gives other classes to the copies of some modules, by the modules' id. ``wrapped``
    says what stands around the copies of some modules, for all who refer to them.

    Attributes that lead back into the tree (lists of modules, an instance's own ``forward``, bound
    methods, partials, closures) lead into the copy. Scripted modules are not copied.
    """
    shells: Shells = {}
    # The compiler cannot follow all that a shell may hold, so it gets as few of them as possible.
    few = torch.compiler.is_dynamo_compiling() and classes is not None
    for module in root.modules():
        if few and not any(id(part) in classes for part in module.modules()):  # type: ignore[operator]
            continue
        kind = classes.get(id(module)) if classes else None
        shells[id(module)] = _copied(module, kind or type(module))
    copies = list(shells.values())
    for key, wrap in (wrapped or {}).items():
        shells[key] = wrap(shells[key])
    for module in copies:
        _redirect(module, shells)
    return shells[id(root)], shells


def submodule(root: nn.Module, name: str) -> nn.Module:
    """`get_submodule` without its checks, ten times as fast; the name is known to exist."""
    for part in name.split(".") if name else ():
        root = root._modules[part]  # type: ignore[assignment]
    return root


def place(module: nn.Module, leaf: str, value: Any) -> None:
    """Put ``value`` where the parameter ``leaf`` of a shell was."""
    # Where functional_call puts tensors, too: `parameters()` inside forward finds them.
    module._parameters[leaf] = value
    if isinstance(module, nn.RNNBase) and leaf in module._flat_weights_names:
        # A recurrent layer keeps a second list of its parameters.
        flat = [module._parameters.get(key) for key in module._flat_weights_names]
        module.__dict__["_flat_weights"] = flat
        module.__dict__["_flat_weight_refs"] = [None] * len(flat)


def call_shell(
    root: nn.Module,
    tensors: Mapping[str, Tensor],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    buffers: dict[str, Tensor] | None = None,
    prepare: Callable[[nn.Module], None] | None = None,
) -> Any:
    """``root(*args, **kwargs)`` with other tensors in place of its own; root is not touched.

    ``buffers`` replaces buffers for this call, and afterwards holds what the call left there.
    ``prepare`` may change the shell before it is called.
    """
    if not tensors and not buffers:
        return root(*args, **kwargs)
    copy, _ = shell(root)
    if prepare is not None:
        prepare(copy)
    for name, value in tensors.items():
        owner, _, leaf = name.rpartition(".")
        place(copy.get_submodule(owner), leaf, value)
    for name, value in (buffers or {}).items():
        owner, _, leaf = name.rpartition(".")
        copy.get_submodule(owner)._buffers[leaf] = value
    output = copy(*args, **kwargs)
    if has_backward_hooks(copy):
        keep_alive(copy, output)
    for name in buffers or {}:
        owner, _, leaf = name.rpartition(".")
        buffers[name] = copy.get_submodule(owner)._buffers[leaf]  # type: ignore[index, assignment]
    return output


def has_backward_hooks(root: nn.Module) -> bool:
    return any(module.__dict__.get("_backward_hooks") for module in root.modules())


def keep_alive(copy: nn.Module, output: Any) -> None:
    """Let a shell live as long as the graph of its output: backward hooks refer to it weakly."""
    for leaf in tree_leaves(output):
        if isinstance(leaf, Tensor) and leaf.grad_fn is not None:
            leaf.grad_fn.metadata["weightloom_shell"] = copy  # type: ignore[index]


def structure_of(root: nn.Module) -> object:
    """What decides how a module computes, besides its tensors: modules, code and settings."""
    return tuple(
        (id(module), type(module), type(module).forward, *_settings(module))
        for module in root.modules()
    )


def _settings(module: nn.Module) -> Iterator[object]:
    for name, value in module.__dict__.items():
        if type(value) in _SETTINGS:
            yield name, value
        elif name == "forward":
            yield name, id(value)


def _copied(module: nn.Module, kind: type[nn.Module]) -> nn.Module:
    if isinstance(module, torch.jit.ScriptModule):
        return module
    copy: nn.Module = object.__new__(kind)
    state = dict(module.__dict__)
    for name in _OWN:
        if name in state:
            own = state[name]
            state[name] = own.copy() if own else type(own)()  # mostly empty: a sixth of the time
    if is_managed(module) and not torch.compiler.is_dynamo_compiling():
        # FSDP writes gathered parameters into the module, not into this copy: look there.
        state["_parameters"] = ChainMap({}, module._parameters)
    object.__setattr__(copy, "__dict__", state)
    return copy


def is_managed(module: nn.Module) -> bool:
    """Whether `fully_shard` gathers the module's parameters when it is called."""
    return "_is_fsdp_managed_module" in module.__dict__


def _redirect(copy: nn.Module, shells: Shells) -> None:
    """Let every reference of ``copy`` to a module of the tree lead to that module's shell."""
    if isinstance(copy, torch.jit.ScriptModule):
        return
    modules = copy._modules
    for name, child in modules.items():
        if child is not None:
            modules[name] = shells.get(id(child), child)
    state = copy.__dict__
    for name, value in state.items():
        if type(value) not in _PLAIN and name not in _ALL_OWN:
            state[name] = _followed(value, shells)
    for name in _HOOKS:
        hooks = state[name]
        for handle, hook in hooks.items():
            hooks[handle] = _followed(hook, shells)


def _followed(value: Any, shells: Shells, depth: int = 0) -> Any:
    """``value`` with the shells in place of the modules it refers to; itself if there are none."""
    # By type, not isinstance: that also asks for `__class__`, which is slow where attributes are
    # looked up in an own way, as in the configurations of transformers.
    kind = type(value)
    if kind in _PLAIN or depth > 4:
        return value
    if issubclass(kind, nn.Module):
        return shells.get(id(value), value)
    follow = _FOLLOWERS.get(kind)
    return value if follow is None else follow(value, shells, depth + 1)


def _sequence(value: Any, shells: Shells, depth: int) -> Any:
    items = [_followed(item, shells, depth) for item in value]
    if all(a is b for a, b in zip(items, value, strict=True)):
        return value
    return type(value)(items)


def _mapping(value: Any, shells: Shells, depth: int) -> Any:
    items = {key: _followed(item, shells, depth) for key, item in value.items()}
    if all(items[key] is value[key] for key in value):
        return value
    return type(value)(items)


def _method(value: types.MethodType, shells: Shells, depth: int) -> Any:
    owner = _followed(value.__self__, shells, depth)
    return value if owner is value.__self__ else types.MethodType(value.__func__, owner)


def _partial(value: functools.partial, shells: Shells, depth: int) -> Any:
    parts = (value.func, *value.args, *value.keywords.values())
    others = [_followed(part, shells, depth) for part in parts]
    if all(a is b for a, b in zip(others, parts, strict=True)):
        return value
    cut = 1 + len(value.args)
    keywords = dict(zip(value.keywords, others[cut:], strict=True))
    return functools.partial(others[0], *others[1:cut], **keywords)


def _function(value: types.FunctionType, shells: Shells, depth: int) -> Any:
    """A function that closes over modules: a copy that closes over their shells."""
    cells = value.__closure__
    if not cells:
        return value
    others = [_cell(cell, shells, depth) for cell in cells]
    if all(a is b for a, b in zip(others, cells, strict=True)):
        return value
    copy = types.FunctionType(
        value.__code__, value.__globals__, value.__name__, value.__defaults__, tuple(others)
    )
    copy.__kwdefaults__ = value.__kwdefaults__
    copy.__dict__.update(value.__dict__)
    return copy


def _cell(cell: types.CellType, shells: Shells, depth: int) -> types.CellType:
    try:
        value = cell.cell_contents
    except ValueError:  # empty
        return cell
    other = _followed(value, shells, depth)
    return cell if other is value else types.CellType(other)


_FOLLOWERS: dict[type, Callable[[Any, Shells, int], Any]] = {
    list: _sequence,
    tuple: _sequence,
    dict: _mapping,
    types.MethodType: _method,
    functools.partial: _partial,
    types.FunctionType: _function,
}

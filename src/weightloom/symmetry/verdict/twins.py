"""Do two modules run the same code with the same settings? Then only their tensors can differ.

This needs no reading of the network: the classes are the same objects, and everything that is not a
tensor of the state dict is equal. Where two settings cannot be compared, they count as different.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Mapping
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

__all__ = ["code_difference", "same_bits"]

#: What every module has and is compared elsewhere, or does not matter in eval mode.
_OWN = {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "training",
        "_backward_hooks", "_backward_pre_hooks", "_is_full_backward_hook", "_state_dict_hooks",
        "_state_dict_pre_hooks", "_load_state_dict_pre_hooks",
        "_load_state_dict_post_hooks"}  # fmt: skip
#: Settings of configurations that say where a network is from, not what it does.
_ORIGIN = {"_name_or_path", "_commit_hash", "transformers_version", "dtype", "torch_dtype",
           "architectures", "name_or_path"}  # fmt: skip
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, Enum, type,
          torch.layout, torch.memory_format, slice, range,
          types.BuiltinFunctionType, types.ModuleType)  # fmt: skip
_DEEPEST = 40


def code_difference(a: nn.Module, b: nn.Module) -> str | None:
    """The first difference of class, structure or settings, in words; None: there is none.

    >>> code_difference(nn.LeakyReLU(0.1), nn.LeakyReLU(0.2))
    'negative_slope is 0.1 in one network and 0.2 in the other'
    """
    parts_a = dict(a.named_modules(remove_duplicate=False))
    parts_b = dict(b.named_modules(remove_duplicate=False))
    for name in [*parts_a, *parts_b]:
        if name not in parts_a or name not in parts_b:
            return f"layer {name!r} is in one network only"
    partner: dict[int, int] = {}
    for name, part in parts_a.items():
        twin = parts_b[name]
        # A layer that is used twice in one network is used twice in the other.
        if partner.setdefault(id(part), id(twin)) != id(twin):
            return f"layer {name!r} is shared in one network only"
        if not _same_class(part, twin):
            return (
                f"layer {name!r} is a {type(part).__name__} in one network and a "
                f"{type(twin).__name__} in the other"
            )
    if len(set(partner.values())) != len(partner):
        return "layers are shared in one network only"
    tensors_b = _tensors(b)
    for name, tensor in _tensors(a).items():
        twin_tensor = tensors_b.get(name)
        if twin_tensor is not None:  # code that keeps a weight elsewhere keeps the partner, too
            partner.setdefault(id(tensor), id(twin_tensor))
    compare = _Comparison(partner)
    for name, part in parts_a.items():
        text = compare.modules(part, parts_b[name])
        if text is not None:
            return f"{name}.{text}" if name else text
    return None


def same_bits(a: nn.Module, b: nn.Module) -> bool:
    """Whether all parameters and buffers are equal, bit for bit, and tied in the same way."""
    tensors_a, tensors_b = _tensors(a), _tensors(b)
    return tensors_a.keys() == tensors_b.keys() and all(
        _same_tensor(tensor, tensors_b[name]) for name, tensor in tensors_a.items()
    )


def _same_class(a: nn.Module, b: nn.Module) -> bool:
    """Also where torch gave each network a class of its own, for its parametrizations."""
    if type(a) is type(b):
        return True
    both = is_parametrized(a) and is_parametrized(b)
    return both and type(a).__bases__ == type(b).__bases__


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers under all their names."""
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def _same_tensor(a: Tensor, b: Tensor) -> bool:
    if a is b:
        return True
    if a.shape != b.shape or a.dtype != b.dtype or a.layout != b.layout or a.is_meta or b.is_meta:
        return False
    a, b = a.detach(), b.detach().to(a.device)
    if a.layout != torch.strided or a.is_quantized:
        return False
    if a.is_complex():
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    equal = a == b
    if a.is_floating_point():  # NaN is itself; zeros have a sign, which 1 / x shows
        equal = (equal & (a.signbit() == b.signbit())) | (a.isnan() & b.isnan())
    return bool(equal.all())


class _Comparison:
    """Compares values; remembers the modules that belong together, and pairs that it is inside."""

    def __init__(self, partner: Mapping[int, int]) -> None:
        self.partner = partner
        self.inside: set[tuple[int, int]] = set()

    def modules(self, a: nn.Module, b: nn.Module) -> str | None:
        for name in (*a._parameters, *b._parameters, *a._buffers, *b._buffers):
            first = a._parameters.get(name, a._buffers.get(name))
            second = b._parameters.get(name, b._buffers.get(name))
            if (first is None) != (second is None):
                return f"{name} is in one network only"
            if first is not None and second is not None and first.shape != second.shape:
                return f"{name} has shapes {tuple(first.shape)} and {tuple(second.shape)}"
        # The tensors of the state dict are weights, and others are constants of the code.
        for name in a._non_persistent_buffers_set | b._non_persistent_buffers_set:
            constants = a._buffers.get(name), b._buffers.get(name)
            if not self.equal(*constants):
                return f"the constant {name} differs"
        return self.settings(vars(a), vars(b))

    def settings(self, a: Mapping[str, Any], b: Mapping[str, Any]) -> str | None:
        for name in dict.fromkeys((*a, *b)):
            if name in _OWN:
                continue
            if name not in a or name not in b:
                return f"{name} is set in one network only"
            if not self.equal(a[name], b[name]):
                if isinstance(a[name], _PLAIN) and isinstance(b[name], _PLAIN):
                    return f"{name} is {a[name]!r} in one network and {b[name]!r} in the other"
                return f"{name} differs, or cannot be compared ({type(a[name]).__name__})"
        return None

    def equal(self, a: Any, b: Any) -> bool:
        """Whether two settings are certainly equal."""
        if a is b:
            return not isinstance(a, torch.Generator)
        if type(a) is not type(b):
            return False
        if isinstance(a, _PLAIN):
            return bool(a == b or (a != a and b != b))
        if isinstance(a, Tensor):
            return self.partner.get(id(a)) == id(b) or _same_tensor(a, b)
        if isinstance(a, weakref.ref):
            return self.equal(a(), b())
        if isinstance(a, nn.Module):
            return self.partner.get(id(a)) == id(b)
        key = (id(a), id(b))
        if key in self.inside:
            return True  # a cycle: decided where it began
        if len(self.inside) > _DEEPEST:
            return False
        self.inside.add(key)
        try:
            return self._contents(a, b)
        finally:
            self.inside.discard(key)

    def _contents(self, a: Any, b: Any) -> bool:
        if isinstance(a, Mapping):
            return (
                list(a) == list(b)
                and all(self.equal(a[key], b[key]) for key in a)
                and (type(a).__module__ in ("builtins", "collections") or self._attributes(a, b))
            )
        if isinstance(a, tuple | list):
            return len(a) == len(b) and all(map(self.equal, a, b))
        if isinstance(a, set | frozenset):
            return all(isinstance(item, _PLAIN) for item in a | b) and a == b
        if isinstance(a, types.FunctionType):
            return self._functions(a, b)
        if isinstance(a, types.MethodType):
            return self.equal(a.__func__, b.__func__) and self.equal(a.__self__, b.__self__)
        if isinstance(a, functools.partial):
            return all(
                self.equal(getattr(a, part), getattr(b, part))
                for part in ("func", "args", "keywords")
            )
        return self._attributes(a, b)

    def _functions(self, a: types.FunctionType, b: types.FunctionType) -> bool:
        """Two functions with the same code, also if each was made by its own call of a factory."""
        if a.__code__ != b.__code__ or a.__globals__ is not b.__globals__:
            return False
        cells = [[cell.cell_contents for cell in function.__closure__ or ()] for function in (a, b)]
        rest = ((f.__defaults__, f.__kwdefaults__, vars(f)) for f in (a, b))
        return self.equal(*cells) and self.equal(*rest)

    def _attributes(self, a: Any, b: Any) -> bool:
        """An object whose state is all in its ``__dict__``: a configuration, a dataclass."""
        if not hasattr(a, "__dict__") or hasattr(type(a), "__slots__") or callable(a):
            return False
        base = type(a).__mro__[-2] if len(type(a).__mro__) > 1 else object
        if base.__module__ == "builtins" and base is not object:
            return False  # a subclass of int, str, ...: its value is not in __dict__
        first, second = ({k: v for k, v in vars(o).items() if k not in _ORIGIN} for o in (a, b))
        return first.keys() == second.keys() and all(
            self.equal(value, second[name]) for name, value in first.items()
        )

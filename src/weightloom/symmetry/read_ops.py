"""How `read` understands what has no weights: pooling, flattening, sums, products, activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weightloom.symmetry.activations import classify, is_elementwise
from weightloom.symmetry.read_layers import add
from weightloom.symmetry.read_state import Reader, Value, unsupported
from weightloom.symmetry.spec import Kind

__all__ = ["call", "plain_module"]

_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.Identity)
_MAX = (
    nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d,
    nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d,
)  # fmt: skip
_AVERAGE = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
_ADAPTIVE = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
_SOFTMAX = (nn.Softmax, nn.LogSoftmax)
PLAIN = (*_DROPOUT, *_MAX, *_AVERAGE, *_ADAPTIVE, *_SOFTMAX, nn.Flatten)

_SAME = {"dropout", "dropout1d", "dropout2d", "dropout3d", "contiguous", "clone", "detach"}
_ADD = {"add", "iadd", "add_", "sub", "isub", "sub_"}
_PRODUCT = {"mul", "imul", "mul_"}
_SIZE = {"size", "shape", "getattr", "dim", "numel"}


def plain_module(reader: Reader, name: str, module: nn.Module, value: Value) -> Value:
    """A module without weights, whatever its type."""
    if isinstance(module, _DROPOUT):
        return value
    if isinstance(module, _MAX):
        return _pool(reader, name, module, value, "max", False)
    if isinstance(module, _AVERAGE):
        padding = module.padding
        padded = bool(padding if isinstance(padding, int) else max(padding))
        divisor = getattr(module, "divisor_override", None) is not None
        return _pool(reader, name, module, value, "mean", padded or divisor)
    if isinstance(module, _ADAPTIVE):
        return _pool(reader, name, module, value, "mean", False)
    if isinstance(module, nn.Flatten):
        return _flatten(name, module, value, module.start_dim, module.end_dim)
    if isinstance(module, _SOFTMAX):
        return _softmax(reader, name, module, value, module.dim)
    if not is_elementwise(module):
        raise unsupported(name, module, "it is neither a known layer nor an elementwise function")
    return reader.activate(value, classify(module))


def _pool(reader: Reader, name: str, what: object, value: Value, rule: str, spoiled: bool) -> Value:
    if value.layout not in ("channel", "any"):
        raise unsupported(name, what, "it pools over positions, and its input has none after units")
    if rule == "max":
        reader.classes.drop(value.units, Kind.SIGN, Kind.FLIP)
        if value.phase == "pre":
            reader.classes.drop(value.units, Kind.EVEN)
    elif spoiled:  # zeros at the border, or another divisor: a constant does not stay one
        reader.classes.drop(value.units, Kind.FLIP)
    return value


def _flatten(name: str, what: object, value: Value, start: int, end: int) -> Value:
    if end != -1 or start not in (0, 1, 2):
        raise unsupported(name, what, "only flatten(1) and flatten(2) to the last dimension")
    if value.layout == "any" or (value.layout == "channel" and start == 2):
        return value
    if start != 1:
        raise unsupported(name, what, f"flatten({start}) mixes units with examples")
    # A value whose units come last stays so if it has two dimensions; if it has more, the layer
    # that reads it finds more numbers than units, and says so.
    layout = "last" if value.layout == "last" else "flat"
    return Value(value.units, layout, value.phase, value.layers)


def _softmax(reader: Reader, name: str, what: object, value: Value, dim: int | None) -> Value:
    units = {"last": (-1, 1), "channel": (1,), "any": (dim,)}.get(value.layout, ())
    if dim not in units:
        raise unsupported(name, what, f"dim={dim} is not the dimension of the units")
    reader.classes.drop(value.units, Kind.SCALE, Kind.SIGN, Kind.FLIP)
    if value.phase == "pre":
        reader.classes.drop(value.units, Kind.EVEN)
    return value


def call(reader: Reader, name: str, target: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    """A function or method (``target`` is its name) called on values and constants."""
    title = target if isinstance(target, str) else str(getattr(target, "__name__", target))
    kwargs = {key: one for key, one in kwargs.items() if key != "inplace"}
    values = [one for one in args if isinstance(one, Value)]
    if any(isinstance(one, Value) for one in kwargs.values()) or not values:
        raise unsupported(name, title, "its inputs are not known; give tensors by position")
    value = values[0]
    if title in _SIZE:
        return None
    if len(values) > 1:
        return _combine(reader, name, title, args, kwargs)
    if title in _SAME:
        return value
    tensors = [one for one in args if isinstance(one, Tensor) and one.numel() > 1]
    if tensors:
        return _shift(reader, name, title, value, tensors[0])
    special = _special(reader, name, title, args, kwargs)
    if special is not None:
        return special
    function = _as_function(target, args, kwargs)
    if not is_elementwise(function):
        raise unsupported(name, title, "it is neither a known operation nor elementwise")
    known = len(args) == 1 and not kwargs
    settings = ", ".join(str(one) for one in (*args[1:], *kwargs.values()))
    found = classify(_torch_function(title) or function if known else function, title)
    if not known and settings:
        found = classify(function, f"{title}({settings})")
    return reader.activate(value, found)


def _torch_function(title: str) -> Callable[[Tensor], Tensor] | None:
    """torch's own function of a method's name, so that the table is asked."""
    return getattr(torch, title.rstrip("_"), None) or getattr(F, title.rstrip("_"), None)


def _as_function(target: Any, args: tuple[Any, ...], kwargs: Any) -> Callable[[Tensor], Tensor]:
    def function(points: Tensor) -> Tensor:
        given = [points if isinstance(one, Value) else one for one in args]
        if isinstance(target, str):
            return getattr(given[0], target)(*given[1:], **kwargs)
        return target(*given, **kwargs)

    return function


def _combine(reader: Reader, name: str, title: str, args: tuple[Any, ...], kwargs: Any) -> Value:
    values = [one for one in args if isinstance(one, Value)]
    simple = len(args) == 2 and not kwargs
    if title in _ADD and simple:
        return add(reader, name, title, values[0], values[1])
    if title in _PRODUCT and simple:
        # The factors of both multiply; only exchanges are kept.
        result = add(reader, name, title, values[0], values[1])
        kinds = (Kind.SCALE, Kind.SIGN, Kind.FLIP, Kind.EVEN)
        reader.classes.drop(result.units, *kinds)
        return result
    raise unsupported(name, title, "of operations on two values, only sum, difference and product")


def _shift(reader: Reader, name: str, title: str, value: Value, tensor: Tensor) -> Value:
    """A tensor of the module added to a value, as positions are to a transformer's input."""
    size = reader.classes.size(value.units)
    if title not in _ADD or value.layout not in ("last", "any") or size not in (
        None, tensor.shape[-1],
    ):  # fmt: skip
        raise unsupported(
            name, title, f"a tensor of shape {list(tensor.shape)} and a value with {size} units; "
            "only sums with one entry for each unit in the last dimension are known"
        )  # fmt: skip
    if value.phase == "post":
        reader.classes.drop(value.units, Kind.EVEN, Kind.FLIP)
    reader.axis(reader.tensor_name(name, title, tensor), tensor.ndim - 1, value.units, "out")
    return value


def _special(
    reader: Reader, name: str, title: str, args: tuple[Any, ...], kwargs: Any
) -> Value | None:
    """Operations of torch that are not elementwise, as functions or methods."""
    value, rest = args[0], args[1:]
    if not isinstance(value, Value):
        return None
    if title == "flatten":
        start = rest[0] if rest else kwargs.get("start_dim", 0)
        end = rest[1] if len(rest) > 1 else kwargs.get("end_dim", -1)
        return _flatten(name, title, value, start, end)
    if title in ("view", "reshape"):
        shape = rest[0] if len(rest) == 1 and isinstance(rest[0], tuple | list) else rest
        if len(shape) == 2 and shape[1] == -1:
            return _flatten(name, title, value, 1, -1)
        raise unsupported(name, title, "only view(n, -1), which flattens each example")
    if title in ("softmax", "log_softmax"):
        dim = rest[0] if rest else kwargs.get("dim")
        return _softmax(reader, name, title, value, dim)
    if "max_pool" in title:
        return _pool(reader, name, title, value, "max", False)
    if "avg_pool" in title:
        return _pool(reader, name, title, value, "mean", not title.startswith("adaptive"))
    if title == "mean" and value.layout == "channel":
        dims = rest[0] if rest else kwargs.get("dim")
        if {*(dims if isinstance(dims, tuple | list) else (dims,))} in ({2, 3}, {-1, -2}):
            layout = "channel" if kwargs.get("keepdim") else "last"
            return Value(value.units, layout, value.phase, value.layers)
    return None

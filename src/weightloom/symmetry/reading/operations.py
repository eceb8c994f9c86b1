"""What `read` does without weights: pooling, flattening, sums, products, activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weightloom.networks.activations import classify, is_elementwise
from weightloom.networks.layers import (
    ADAPTIVE_AVERAGE_POOLS,
    ADAPTIVE_MAX_POOLS,
    AVERAGE_POOLS,
    DROPOUTS,
    MAX_POOLS,
    SOFTMAXES,
)
from weightloom.symmetry.reading.layers import add
from weightloom.symmetry.reading.state import Reader, Value, unsupported
from weightloom.symmetry.spec import Kind

__all__ = ["call", "plain_module"]

_UNCHANGED = (nn.Identity, *DROPOUTS)
_MAXIMA = (*MAX_POOLS, *ADAPTIVE_MAX_POOLS)
PLAIN = (
    *_UNCHANGED, *_MAXIMA, *AVERAGE_POOLS, *ADAPTIVE_AVERAGE_POOLS, *SOFTMAXES, nn.Flatten,
)  # fmt: skip

_SAME = {"dropout", "dropout1d", "dropout2d", "dropout3d", "contiguous", "clone", "detach"}
_ADD = {"add", "iadd", "add_", "sub", "isub", "sub_"}
_PRODUCT = {"mul", "imul", "mul_"}
_SIZE = {"size", "shape", "getattr", "dim", "numel"}


def plain_module(reader: Reader, name: str, module: nn.Module, value: Value) -> Value:
    """A module without weights, whatever its type."""
    if isinstance(module, _UNCHANGED):
        return value
    if isinstance(module, _MAXIMA):
        return _pool(reader, name, module, value, "max", False)
    if isinstance(module, AVERAGE_POOLS):
        padding = module.padding
        padded = bool(padding if isinstance(padding, int) else max(padding))
        divisor = getattr(module, "divisor_override", None) is not None
        return _pool(reader, name, module, value, "mean", padded or divisor)
    if isinstance(module, ADAPTIVE_AVERAGE_POOLS):
        return _pool(reader, name, module, value, "mean", False)
    if isinstance(module, nn.Flatten):
        return _flatten(name, module, value, module.start_dim, module.end_dim)
    if isinstance(module, SOFTMAXES):
        return _softmax(reader, name, module, value, module.dim)
    if not is_elementwise(module):
        raise unsupported(name, module, "it is neither a known layer nor an elementwise function")
    return reader.activate(value, classify(module))


def _pool(reader: Reader, name: str, what: object, value: Value, rule: str, uneven: bool) -> Value:
    """Pooling over positions; ``rule`` is "max" or "mean", ``uneven``: not a plain mean."""
    if value.layout not in ("channel", "any"):
        raise unsupported(
            name, what, "it pools over positions, and its input has none after its units"
        )
    if rule == "max":
        reader.classes.drop(value.units, Kind.SIGN, Kind.FLIP)
        if value.phase == "pre":
            reader.classes.drop(value.units, Kind.EVEN)
    elif uneven:  # zeros at the border, or another divisor: a constant does not stay constant
        reader.classes.drop(value.units, Kind.FLIP)
    return value


def _flatten(name: str, what: object, value: Value, start: int, end: int) -> Value:
    if end != -1 or start not in (0, 1, 2):
        raise unsupported(name, what, "only flatten(1) and flatten(2) to the last dimension")
    if value.layout == "any" or (value.layout == "channel" and start == 2):
        return value
    if start != 1:
        raise unsupported(name, what, f"flatten({start}) mixes units with examples")
    # With two dimensions, units that come last still do. With more, the next layer reads more
    # numbers than there are units and raises.
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
    kwargs = {key: value for key, value in kwargs.items() if key != "inplace"}
    values = [value for value in args if isinstance(value, Value)]
    if any(isinstance(value, Value) for value in kwargs.values()) or not values:
        raise unsupported(name, title, "its inputs are not found; pass tensors by position")
    value = values[0]
    if title in _SIZE:
        return None
    if len(values) > 1:
        return _combine(reader, name, title, args, kwargs)
    if title in _SAME:
        return value
    tensors = [tensor for tensor in args if isinstance(tensor, Tensor) and tensor.numel() > 1]
    if tensors:
        return _shift(reader, name, title, value, tensors[0])
    special = _special(reader, name, title, args, kwargs)
    if special is not None:
        return special
    function = _as_function(target, args, kwargs)
    if not is_elementwise(function):
        raise unsupported(name, title, "it is neither a known operation nor elementwise")
    plain = len(args) == 1 and not kwargs
    settings = ", ".join(str(value) for value in (*args[1:], *kwargs.values()))
    activation = classify(_torch_function(title) or function if plain else function, title)
    if not plain and settings:
        activation = classify(function, f"{title}({settings})")
    return reader.activate(value, activation)


def _torch_function(title: str) -> Callable[[Tensor], Tensor] | None:
    """torch's own function of this name, which the table of activations knows; None if none."""
    return getattr(torch, title.rstrip("_"), None) or getattr(F, title.rstrip("_"), None)


def _as_function(target: Any, args: tuple[Any, ...], kwargs: Any) -> Callable[[Tensor], Tensor]:
    """The call as a function of its one value; all other arguments stay."""

    def function(points: Tensor) -> Tensor:
        inputs = [points if isinstance(value, Value) else value for value in args]
        if isinstance(target, str):
            return getattr(inputs[0], target)(*inputs[1:], **kwargs)
        return target(*inputs, **kwargs)

    return function


def _combine(reader: Reader, name: str, title: str, args: tuple[Any, ...], kwargs: Any) -> Value:
    values = [value for value in args if isinstance(value, Value)]
    simple = len(args) == 2 and not kwargs
    if title in _ADD and simple:
        return add(reader, name, title, values[0], values[1])
    if title in _PRODUCT and simple:
        # The factors of both would multiply, so only permutations remain.
        result = add(reader, name, title, values[0], values[1])
        kinds = (Kind.SCALE, Kind.SIGN, Kind.FLIP, Kind.EVEN)
        reader.classes.drop(result.units, *kinds)
        return result
    raise unsupported(
        name, title, "of operations on two values, only sum, difference and product are supported"
    )


def _shift(reader: Reader, name: str, title: str, value: Value, tensor: Tensor) -> Value:
    """A tensor of the module added to a value, such as a transformer's position embedding."""
    size = reader.classes.size(value.units)
    if title not in _ADD or value.layout not in ("last", "any") or size not in (
        None, tensor.shape[-1],
    ):  # fmt: skip
        raise unsupported(
            name, title, f"a tensor of shape {list(tensor.shape)} and a value with {size} units; "
            "only sums with one entry for each unit in the last dimension are supported"
        )  # fmt: skip
    if value.phase == "post":
        reader.classes.drop(value.units, Kind.EVEN, Kind.FLIP)
    reader.axis(reader.tensor_name(name, title, tensor), tensor.ndim - 1, value.units, "out")
    return value


def _special(
    reader: Reader, name: str, title: str, args: tuple[Any, ...], kwargs: Any
) -> Value | None:
    """Operations that are not elementwise, as functions or methods; None for all others."""
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

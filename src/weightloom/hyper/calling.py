"""What stands around a call of a hypernetwork: its condition, its weights, what went wrong."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weightloom.errors import ShapeError
from weightloom.hyper.bound import Binding
from weightloom.hyper.encoders import Condition
from weightloom.hyper.heads import Head
from weightloom.hyper.rows import Generated, Written

__all__ = ["added", "condition_of", "in_type_of", "meant_bind", "require_rows"]


def condition_of(
    args: tuple[Any, ...], kwargs: dict[str, Any], condition: Condition | None
) -> tuple[tuple[Any, ...], Condition]:
    """The primary's arguments and the condition: the second one, or the one named so."""
    if condition is not None:
        return args, condition
    if len(args) < 2:
        first = "x" in kwargs and len(args) == 1
        if first:
            raise ShapeError("x was given by name and the condition by position; name both")
        raise ShapeError(
            f"no condition was given ({len(args)} arguments, keywords {sorted(kwargs)}); call "
            f"hyper(x, condition), or hyper(..., condition=condition) with the primary's keywords"
        )
    return (args[0], *args[2:]), args[1]


def require_rows(x: Any, rows: int) -> None:
    """Raise if the first input does not have one row for each condition."""
    if isinstance(x, Tensor) and (x.dim() == 0 or x.shape[0] != rows):
        seen = "no rows" if x.dim() == 0 else f"{x.shape[0]}"
        raise ShapeError(
            f"condition has {rows} rows but x has {seen}; each row of x needs one condition "
            f"(or pass a single condition without a leading dimension). Where x is one batch "
            f"for the primary, and its rows belong to the conditions: hyper.bind(condition)(x)"
        )


def added(value: Generated, base: Tensor | None) -> Generated:
    """A change added to the primary's own tensor; the tensor itself where there is none."""
    if base is None:
        return value
    if value.batched()[0].dtype == base.dtype:
        return value.shifted(base)
    return Written((value.dense() + base).to(base.dtype))


def in_type_of(features: Tensor, head: Head) -> Tensor:
    """Features in the type of a head that learns in another precision than the encoder."""
    own = next(head.parameters(), features).dtype
    if features.dtype == own or torch.promote_types(features.dtype, own) != own:
        return features
    return features.to(own)


def meant_bind(error: Exception, binding: Binding, args: Any, kwargs: Any) -> ShapeError | None:
    """The error to raise if ``hyper.bind(condition)(x)`` works where ``hyper(x, condition)`` fails.

    The two differ in what the primary gets: x[i], or x as one batch. Only the second fits if x has
    one sample for each condition and the primary wants a batch of them.
    """
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            binding.quiet_network()(*args, **kwargs)
    except Exception:  # neither works: the first error is the one to show
        return None
    shapes = [tuple(leaf.shape) for leaf in (*args, *kwargs.values()) if isinstance(leaf, Tensor)]
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return ShapeError(
        f"the primary cannot take {shapes[0][1:] if shapes else 'these arguments'}, one row of "
        f"{shapes[0] if shapes else 'them'} ({lines[0][:160]}). hyper(x, condition) gives it x[i] "
        f"for condition i. If x is one batch with a row for each condition, call "
        f"hyper.bind(condition)(x)"
    )

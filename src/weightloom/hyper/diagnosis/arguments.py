"""What `diagnose` is given: which argument is what, and whether it fits."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from weightloom.errors import ShapeError
from weightloom.hyper.diagnosis.hooks import Inputs, Loss, is_float
from weightloom.hyper.diagnosis.optimisers import OptimiserChoice

__all__ = [
    "check_numbers",
    "check_rows",
    "detached",
    "first_rows",
    "objective",
    "one_optimiser",
    "split_target",
]


def split_target(
    primary: nn.Module, x: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], Any]:
    """Further arguments of the primary, and the target that may stand behind them.

    The last argument is the target if the primary cannot take it, and the primary's if that cannot
    do without it. If both would do, nobody but the user knows.
    """
    if not args:
        return args, None
    signature = inspect.signature(primary.forward)
    takes = _fits(signature, (x, *args), kwargs)
    can_do_without = _fits(signature, (x, *args[:-1]), kwargs)
    if takes and not can_do_without:
        return args, None
    if can_do_without and not takes:
        return args[:-1], args[-1]
    name = type(primary).__name__
    if takes:
        raise ShapeError(
            f"argument {len(args) + 3} of diagnose may be the target or an input of {name}, whose "
            f"forward is {signature}; pass target=, or name the input as forward does"
        )
    raise ShapeError(
        f"{len(args)} arguments follow the condition, but neither all of them nor all but a target "
        f"at the end fit {name}, whose forward is {signature}; pass what hyper(x, condition, ...) "
        f"takes, and target="
    )


def _fits(signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def check_numbers(limit: int, steps: int) -> None:
    if limit < 1:
        raise ShapeError(f"limit={limit} was given; at least 1 condition is needed")
    if steps < 1:
        raise ShapeError(f"steps={steps} was given; at least 1 step is needed")


def one_optimiser(
    first: OptimiserChoice | None, second: OptimiserChoice | None
) -> OptimiserChoice | None:
    if first is not None and second is not None:
        raise ShapeError("optimiser= and optimizer= were both given; they mean the same, pass one")
    return second if first is None else first


def objective(loss: Callable[..., Tensor] | None, target: Any) -> Loss:
    """A function of the output alone."""
    if target is None:
        return loss or _half_mean_square
    if loss is not None:
        return lambda output: loss(output, target)
    return lambda output: _mean_square_error(output, target)


def _mean_square_error(output: Any, target: Any) -> Tensor:
    same = isinstance(output, Tensor) and isinstance(target, Tensor)
    if not same or output.shape != target.shape or not target.is_floating_point():
        raise ShapeError(
            f"the output is {_kind(output)} but target is {_kind(target)}; the mean square error "
            f"needs two alike. Pass loss=, a function of output and target"
        )
    return (output - target).square().mean()


def _kind(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"


def _half_mean_square(output: Any) -> Tensor:
    tensor = next((leaf for leaf in tree_flatten(output)[0] if is_float(leaf)), None)
    if tensor is None:
        raise ShapeError(
            f"the primary returned {type(output).__name__} without a floating-point tensor; pass "
            f"loss=, a function of the output that returns one number"
        )
    return 0.5 * tensor.square().mean()


def check_rows(inputs: Inputs, rows: int) -> None:
    for leaf in tree_flatten(inputs)[0]:
        if isinstance(leaf, Tensor) and (leaf.dim() == 0 or leaf.shape[0] != rows):
            raise ShapeError(
                f"condition has {rows} rows but an input has shape {tuple(leaf.shape)}; each row "
                f"of x needs one condition (or pass a single condition without a leading "
                f"dimension, or wrap what all share in weightloom.shared)"
            )


def first_rows(tree: Any, count: int) -> Any:
    return tree_map(lambda leaf: leaf[:count] if isinstance(leaf, Tensor) else leaf, tree)


def detached(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.clone() if leaf.is_inference() else leaf.detach()

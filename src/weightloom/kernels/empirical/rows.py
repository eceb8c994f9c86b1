"""Shared by all empirical kernels: rows of inputs, the call of the network, checks of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from weightloom.errors import KernelError, ShapeError
from weightloom.hyper.rows.any_module import VMAP_REFUSALS
from weightloom.linalg import memory as room

__all__ = [
    "Inputs",
    "Network",
    "InputRows",
    "as_rows",
    "blocks",
    "budget",
    "flat",
    "squeeze",
]

Inputs = Tensor | Sequence[Tensor]
"""One tensor for networks called as h(x), several for h(x, z); their first dimension is rows."""

Parameters = dict[str, Tensor]


@dataclass(frozen=True)
class InputRows:
    """The arguments of the network, paired row by row."""

    arguments: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.arguments[0])

    def __getitem__(self, index: slice) -> InputRows:
        return InputRows(tuple(argument[index] for argument in self.arguments))


def as_rows(u: Inputs, name: str = "u") -> InputRows:
    """``u`` as rows, or an error that says what is wrong with it."""
    arguments = (u,) if isinstance(u, Tensor) else tuple(u)
    if not arguments or not all(isinstance(a, Tensor) for a in arguments):
        raise ShapeError(f"{name} must be a tensor or a tuple of tensors such as (x, z)")
    if any(a.dim() == 0 for a in arguments):
        raise ShapeError(f"{name} holds a tensor without dimensions; the first one counts rows")
    counts = [len(a) for a in arguments]
    if len(set(counts)) > 1:
        raise ShapeError(
            f"the tensors of {name} have {counts} rows; they are paired row by row, so repeat the "
            f"condition for each of its points"
        )
    if counts[0] == 0:
        raise ShapeError(f"{name} has no rows")
    for position, argument in enumerate(arguments):
        if not torch.isfinite(argument).all():
            raise KernelError(f"tensor {position} of {name} holds NaN or infinity")
    return InputRows(arguments)


class Network:
    """A module as a function of its trainable parameters and of rows, outputs flattened to [n, c].

    The module itself is never changed: parameters are replaced in the call only.
    """

    def __init__(self, module: nn.Module) -> None:
        _check_layers(module)
        self.module = module
        # Tied parameters appear once, as they do in an optimiser.
        self.parameters: Parameters = {
            name: p.detach() for name, p in module.named_parameters() if p.requires_grad
        }
        if not self.parameters:
            raise KernelError(
                "no parameter of the network requires a gradient, so it has no tangent kernel; "
                "call requires_grad_(True) on what is trained"
            )

    @property
    def size(self) -> int:
        """Number of trainable parameters."""
        return sum(p.numel() for p in self.parameters.values())

    @property
    def itemsize(self) -> int:
        return max(p.element_size() for p in self.parameters.values())

    def __call__(self, rows: InputRows) -> Tensor:
        return flat(self.module(*rows.arguments), len(rows))

    def call(self, parameters: Parameters, rows: InputRows) -> Tensor:
        """[n, c] with some parameters replaced."""
        return flat(functional_call(self.module, parameters, rows.arguments), len(rows))

    def of_row(self, parameters: Parameters, arguments: tuple[Tensor, ...]) -> Tensor:
        """[c] for one row, given without its first dimension; this is what vmap maps."""
        return self.call(parameters, InputRows(tuple(a.unsqueeze(0) for a in arguments)))[0]

    def check_rows(self, rows: InputRows) -> tuple[int, torch.dtype]:
        """Number and type of a row's outputs, after a check that rows are independent."""
        first, last = rows[:1], rows[-1:]
        both = InputRows(
            tuple(torch.cat(p) for p in zip(first.arguments, last.arguments, strict=True))
        )
        with torch.no_grad():
            try:
                alone, together = self(first), self(both)
            except (KernelError, ShapeError):
                raise
            except VMAP_REFUSALS as error:
                raise KernelError(
                    f"the network cannot be called with {_shapes(both)}: {error}"
                ) from error
        scale = together.abs().amax()
        if not torch.isfinite(scale):
            raise KernelError("the network's output holds NaN or infinity")
        if (alone - together[:1]).abs().amax() > 1e-3 * scale:
            raise KernelError(
                "the output of a row changes when another row is in the batch (by "
                f"{float((alone - together[:1]).abs().amax()):.2g} of {float(scale):.2g}); a "
                "tangent kernel needs rows that are independent: no statistics over the batch, "
                "no noise"
            )
        return together.shape[1], together.dtype


def flat(output: Tensor, rows: int) -> Tensor:
    """[n, c], with trailing dimensions flattened."""
    if not isinstance(output, Tensor):
        raise KernelError(
            f"the network returned {type(output).__name__}; wrap it in a module that returns one "
            f"tensor with a row for each row of its inputs"
        )
    if output.dim() == 0 or len(output) != rows:
        raise ShapeError(
            f"the network returned shape {list(output.shape)} for {rows} rows; the first "
            f"dimension of its output must count rows"
        )
    return output.reshape(rows, -1)


def budget(memory: int | str | None) -> int:
    """Bytes that may be used besides the result; by default a quarter of what is free."""
    given = room.parse(memory)
    return room.available() // 4 if given is None else given


def blocks(count: int, size: int) -> list[slice]:
    """``range(count)`` in slices of at most ``size``."""
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def squeeze(kernel: Tensor) -> Tensor:
    """[n, m] for one output, [n, m, c, c] for several."""
    return kernel[:, :, 0, 0] if kernel.shape[-1] == 1 else kernel


def _check_layers(module: nn.Module) -> None:
    for name, layer in module.named_modules():
        where = f"{type(layer).__name__} ({name or 'the network itself'})"
        if isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None):
            raise KernelError(
                f"{where} takes its statistics from the batch, so rows are not independent; call "
                f".eval() on the network first, or use LayerNorm or GroupNorm"
            )
        if isinstance(layer, _DropoutNd) and layer.training and layer.p > 0:
            raise KernelError(
                f"{where} in training mode makes the output random; call .eval() on the network"
            )


def _shapes(rows: InputRows) -> str:
    return "tensors of shapes " + ", ".join(str(list(a.shape)) for a in rows.arguments)

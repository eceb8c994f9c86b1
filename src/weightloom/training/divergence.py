"""Where a run diverged: the first layer with an output that is not finite, or the parameter."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from weightloom.errors import NonFiniteWeightsError
from weightloom.hyper import HyperNetwork
from weightloom.hyper.rows.functional import modes_restored
from weightloom.training.update import rows_of

__all__ = ["finite_rows", "locate", "unguarded"]


def finite_rows(tensors: Sequence[Tensor]) -> Tensor:
    """For each member whether all its numbers are finite: tensors [s, ...] -> [s]."""
    largest = [
        torch.linalg.vector_norm(rows_of(t.detach()), float("inf"), dim=1)
        for t in tensors
        if t.numel() and t.is_floating_point()
    ]
    return torch.isfinite(torch.stack(largest)).all(0)


def locate(model: nn.Module, inputs: tuple[Tensor, ...], target: Tensor) -> str:
    """Run one member's batch alone and report where the first non-finite number appears."""
    try:
        return _locate(model, inputs, target)
    except Exception as error:  # an error here must not stop the other members
        return f"the loss is not finite ({type(error).__name__} while looking for the layer)"


def _locate(model: nn.Module, inputs: tuple[Tensor, ...], target: Tensor) -> str:
    inputs = tuple(_like(model, tensor) for tensor in inputs)
    for number, tensor in enumerate(inputs):
        if _bad(tensor):
            return f"input {number} of the model is not finite"
    if _bad(target):
        return "the target is not finite"
    with torch.no_grad(), _state_restored(model):
        places: list[str] = []
        output = _call_with_hooks(model, inputs, places)
        if not places and isinstance(model, HyperNetwork):
            places += _inside_primary(model, inputs, output)
        if places:
            return f"the output of {places[0]} is not finite"
        if _bad(output):
            return f"the output of the model ({type(model).__name__}) is not finite"
        largest = output.abs().max().item()
        return f"the loss overflows: the model's output reaches {largest:.3g}"


def _call_with_hooks(model: nn.Module, inputs: tuple[Tensor, ...], places: list[str]) -> Any:
    """Call the model; append modules with a bad output to ``places``.

    Children finish before their parents, so the first one is the innermost. The primary of a
    HyperNetwork is skipped: its layers see all conditions at once; see `_inside_primary`.
    """
    primaries = [m.primary for m in model.modules() if isinstance(m, HyperNetwork)]
    skipped = {id(part) for primary in primaries for part in primary.modules()}
    handles = []
    for name, module in model.named_modules():
        if name and id(module) not in skipped:
            handles.append(module.register_forward_hook(_hook(name, places)))
    try:
        return model(*inputs)
    except NonFiniteWeightsError:  # a HyperNetwork with check_finite=True
        return torch.full((1,), float("nan"))
    finally:
        for handle in handles:
            handle.remove()


def _hook(name: str, places: list[str]) -> Any:
    def hook(module: nn.Module, args: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) and output else output
        with contextlib.suppress(RuntimeError):  # inside vmap there is no value to look at
            if not places and isinstance(first, Tensor) and _bad(first):
                places.append(f"layer {name!r} ({type(module).__name__})")

    return hook


def _inside_primary(model: HyperNetwork, inputs: tuple[Tensor, ...], output: Any) -> list[str]:
    """The generated weight, or the layer of the primary, that is first not finite."""
    x, condition = inputs[0], inputs[1]
    try:
        model.weights(condition)
    except NonFiniteWeightsError as error:
        name = str(error).split("'")[1]
        return [f"the head ({type(model.head).__name__}), the generated weight {name!r},"]
    if not isinstance(output, Tensor) or not _bad(output) or len(output) != len(condition):
        return []
    row = int((~torch.isfinite(output)).flatten(1).any(1).nonzero()[0])
    network = model.materialize(condition[row])
    places: list[str] = []
    _call_with_hooks(network, (x[row], *(t[row] for t in inputs[2:])), places)
    return [text.replace("layer '", "layer 'primary.") for text in places]


def _bad(tensor: Any) -> bool:
    """Whether it is a tensor with a NaN or an infinity."""
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        return False
    return not bool(torch.isfinite(tensor).all())


def _like(model: nn.Module, tensor: Tensor) -> Tensor:
    own = next(model.parameters())
    dtype = own.dtype if tensor.is_floating_point() else tensor.dtype
    return tensor.to(device=own.device, dtype=dtype)


@contextlib.contextmanager
def _state_restored(model: nn.Module) -> Iterator[None]:
    """Training mode inside; modes and buffers are restored afterwards."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with modes_restored(model):
        model.train()
        try:
            yield
        finally:
            for name, buffer in model.named_buffers():
                buffer.copy_(before[name])


@contextlib.contextmanager
def unguarded(models: Sequence[nn.Module]) -> Iterator[None]:
    """HyperNetworks do not look for non-finite weights themselves: the loop does, and goes on."""
    hypers = [m for model in models for m in model.modules() if isinstance(m, HyperNetwork)]
    before = [hyper.check_finite for hyper in hypers]
    for hyper in hypers:
        hyper.check_finite = False
    try:
        yield
    finally:
        for hyper, value in zip(hypers, before, strict=True):
            hyper.check_finite = value

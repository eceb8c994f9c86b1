"""Random inputs for a network whose input shape has to be guessed, and what it does with them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from weightloom.symmetry.spec import Spec

__all__ = ["output_deviation", "probe_inputs", "run"]

_SMALL = 1 << 20  # parameters up to which float64 copies and 64 probes cost next to nothing
_SIDES = (8, 16, 28, 32, 12, 4, 24, 20, 64, 48, 96, 128, 224, 2, 1, *range(3, 41))


def output_deviation(
    a: nn.Module, b: nn.Module, spec: Spec, probes: int | None, inputs: Tensor | None
) -> tuple[float | None, int]:
    """Largest |a(x) - b(x)| / largest |a(x)| over probe inputs, and their number.

    Networks of up to a million parameters are run in float64 (on copies), on 64 probes; larger ones
    in their own dtype, on 4, one after the other. None if no input could be found that fits.
    """
    size = sum(parameter.numel() for parameter in a.parameters())
    count = (64 if size <= _SMALL else 4) if probes is None else probes
    if count <= 0 and inputs is None:
        return None, 0
    if size <= _SMALL:
        a, b = copy.deepcopy(a).double(), copy.deepcopy(b).double()
    with _quiet(a), _quiet(b), torch.no_grad():
        x = probe_inputs(a, spec, count) if inputs is None else inputs
        if x is None:
            return None, 0
        like = next((p for p in a.parameters() if p.is_floating_point()), None)
        x = x.to(like.dtype) if like is not None and x.is_floating_point() else x
        batches = [x] if size <= _SMALL else list(x.split(1))
        gap = top = 0.0
        for batch in batches:
            first, second = run(a, batch).double(), run(b, batch).double()
            if first.shape != second.shape:
                return float("inf"), len(x)
            gap = max(gap, float((first - second).abs().max()))
            top = max(top, float(first.abs().max()), float(second.abs().max()))
    if gap != gap or top != top:
        return float("inf"), len(x)
    return (gap / top if top > 0 else 0.0), len(x)


def run(module: nn.Module, x: Tensor) -> Tensor:
    """The output of a network as one tensor."""
    result = module(x, x, x) if isinstance(module, nn.MultiheadAttention) else module(x)
    return result[0] if isinstance(result, tuple) else result


def probe_inputs(module: nn.Module, spec: Spec, count: int) -> Tensor | None:
    """Standard normal inputs (or indices) of a shape that the network accepts; None if none is."""
    generator = torch.Generator().manual_seed(0)
    tensors = dict(module.named_parameters())
    dtype = next((p.dtype for p in tensors.values() if p.is_floating_point()), torch.float32)
    for shape, entries in _shapes(spec, tensors):
        if entries:
            x = torch.randint(0, entries, (count, *shape), generator=generator)
        else:
            x = torch.randn(count, *shape, generator=generator).to(dtype)
        try:
            run(module, x[:1])
        except (RuntimeError, IndexError, ValueError, AssertionError, TypeError):
            continue  # torch says in many ways that a shape does not fit
        return x
    return None


def _shapes(spec: Spec, tensors: Mapping[str, Tensor]) -> Iterator[tuple[tuple[int, ...], int]]:
    """Shapes without the batch to try, and the number of indices (0: numbers)."""
    for layer in spec.layers:
        if layer.input is not None or layer.weight is None:
            continue
        shape = tensors[layer.weight].shape
        if layer.kind == "embedding":
            yield (5,), shape[0]
        elif layer.kind in ("conv", "depthwise"):
            channels = shape[0] if layer.kind == "depthwise" else shape[1]
            for side in _SIDES:
                yield (channels, *(side,) * (len(shape) - 2)), 0
        elif layer.kind == "linear":
            yield (shape[1],), 0
            yield (5, shape[1]), 0
        else:
            yield (shape[0],), 0
            yield (5, shape[0]), 0
            for side in _SIDES:
                yield (shape[0], side, side), 0


@contextmanager
def _quiet(module: nn.Module) -> Iterator[None]:
    """Eval mode, and afterwards the mode that every part had before."""
    before = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in before:
            part.training = training

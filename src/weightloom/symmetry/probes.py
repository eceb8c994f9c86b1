"""Outputs of two networks compared on random inputs, whose shape is guessed from the layers."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from weightloom.symmetry.reduction.intervals import Box
from weightloom.symmetry.spec import Spec

__all__ = ["deviation_of", "output_deviation", "probe_inputs", "run"]

PROBES = 64

_SMALL = 1 << 20  # parameters up to which float64 copies and 64 probes are cheap
_SIDES = (8, 16, 28, 32, 12, 4, 24, 20, 64, 48, 96, 128, 224, 2, 1, *range(3, 41))


def output_deviation(
    a: nn.Module, b: nn.Module, spec: Spec, probes: int | None, inputs: Tensor | None
) -> tuple[float | None, int]:
    """Largest |a(x) - b(x)| / largest |a(x)| over probe inputs, and their number.

    Networks of up to a million parameters are run in float64 (on copies), on 64 probes; larger ones
    in their own dtype, on 4, one after the other. None if no input shape that fits was found.
    """
    size = sum(parameter.numel() for parameter in a.parameters())
    count = (PROBES if size <= _SMALL else 4) if probes is None else probes
    if count <= 0 and inputs is None:
        return None, 0
    if size <= _SMALL:
        a, b = copy.deepcopy(a).double(), copy.deepcopy(b).double()
    with _evaluating(a), _evaluating(b), torch.no_grad():
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


def deviation_of(
    before: nn.Module, spec: Spec, after: nn.Module, box: Box | None, example: Tensor | None
) -> float | None:
    """Largest difference of the outputs of a network and its reduced form, relative to the largest.

    ``spec`` is that of ``before``. Inputs are ``example``, or uniform in the box, or standard
    normal. Networks of up to a million parameters are compared in float64. None if no input fits.
    """
    if example is None and box is not None:
        like = probe_inputs(before, spec, PROBES)
        example = None if like is None else _uniform_in(box, like)
        if example is None:
            return None
    return output_deviation(before, after, spec, None, example)[0]


def run(module: nn.Module, x: Tensor) -> Tensor:
    """The output of a network as one tensor."""
    result = module(x, x, x) if isinstance(module, nn.MultiheadAttention) else module(x)
    return result[0] if isinstance(result, tuple) else result


def probe_inputs(module: nn.Module, spec: Spec, count: int) -> Tensor | None:
    """Standard normal inputs (or random indices) of a shape that the network accepts, or None."""
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
            continue  # torch raises many kinds of errors for a shape that does not fit
        return x
    return None


def _shapes(spec: Spec, tensors: Mapping[str, Tensor]) -> Iterator[tuple[tuple[int, ...], int]]:
    """Shapes to try, without the batch, and the number of indices (0: inputs are numbers)."""
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
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Eval mode, and afterwards the mode that every submodule had before."""
    before = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in before:
            part.training = training


def _uniform_in(box: Box, like: Tensor) -> Tensor:
    """Uniform points of the box, in the shape of these inputs [n, features, ...]."""
    generator = torch.Generator().manual_seed(0)
    share = torch.rand(like.shape, generator=generator, dtype=torch.float64)
    ends = []
    for end in box:
        values = torch.as_tensor(end, dtype=torch.float64).reshape(-1)
        # One number for each feature: channels come second in images, last elsewhere.
        ends.append(values.reshape(-1, *(1,) * (like.dim() - 2)) if like.dim() > 2 else values)
    return ends[0] + (ends[1] - ends[0]) * share

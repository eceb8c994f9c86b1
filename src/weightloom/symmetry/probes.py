"""Outputs of a network and of its reduced form, compared on inputs that fit."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weightloom.errors import UnsupportedModuleError
from weightloom.symmetry.reduction.intervals import Box
from weightloom.symmetry.verdict.inputs import make_probes
from weightloom.symmetry.verdict.outputs import compare_outputs, measure
from weightloom.symmetry.verdict.running import Arguments, RunError, Runner

__all__ = ["deviation_of", "run"]

_PROBES = 64


def deviation_of(
    before: nn.Module, after: nn.Module, box: Box | None, example: Tensor | None
) -> float | None:
    """Largest difference of the outputs of a network and its reduced form, relative to the largest.

    Inputs are ``example``, or uniform in the box, or made to fit the layers. Both networks run in
    float64. None if no input fits.
    """
    try:
        runner = Runner(before)
        probes = (
            make_probes(before, _PROBES, runner) if example is None else [Arguments.of(example)]
        )
        if example is None and box is not None:
            probes = [Arguments.of(_uniform_in(box, probes[0].args[0]))]
        first = measure(runner, probes, 0.0, samples=0)
        second = measure(Runner(after), probes, 0.0, samples=0)
    except (UnsupportedModuleError, RunError):
        return None
    return compare_outputs(first, second, probes).relative


def run(module: nn.Module, x: Tensor) -> Tensor:
    """The output of a network as one tensor."""
    result = module(x, x, x) if isinstance(module, nn.MultiheadAttention) else module(x)
    return result[0] if isinstance(result, tuple) else result


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

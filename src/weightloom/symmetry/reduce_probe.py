"""How far a reduced network is from the one it came from, on random inputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weightloom.symmetry.match_probes import output_deviation, probe_inputs
from weightloom.symmetry.read import read
from weightloom.symmetry.reduce_walk import Box

__all__ = ["deviation_of", "folded"]

PROBES = 64
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def folded(module: nn.Module) -> nn.Module:
    """The module with every BatchNorm folded into the layer before it."""
    if not any(isinstance(one, _NORMS) for one in module.modules()):
        return module
    from weightloom.symmetry.fold import fold

    return fold(module)


def deviation_of(
    before: nn.Module, after: nn.Module, box: Box | None, example: Tensor | None
) -> float | None:
    """Largest difference of the outputs, relative to the largest output.

    The inputs are those of ``example``, or drawn uniformly from the box, or standard normal.
    Networks of up to a million parameters are compared in float64. None if no input fits.
    """
    spec = read(before)
    if example is None and box is not None:
        shape = probe_inputs(before, spec, PROBES)
        example = None if shape is None else _inside(box, shape)
        if example is None:
            return None
    return output_deviation(before, after, spec, None, example)[0]


def _inside(box: Box, like: Tensor) -> Tensor:
    """Points of the box, uniformly drawn, in the shape of these inputs [n, features, ...]."""
    generator = torch.Generator().manual_seed(0)
    share = torch.rand(like.shape, generator=generator, dtype=torch.float64)
    ends = []
    for end in box:
        given = torch.as_tensor(end, dtype=torch.float64).reshape(-1)
        # One number for each feature: channels come second in images, last elsewhere.
        ends.append(given.reshape(-1, *(1,) * (like.dim() - 2)) if like.dim() > 2 else given)
    return ends[0] + (ends[1] - ends[0]) * share

"""Weights that are not finite are named, where they come from the hypernetwork."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from weightloom.errors import NonFiniteWeightsError
from weightloom.hyper.rows import Generated

__all__ = ["check_bound", "check_output", "require_finite"]


def check_output(output: Any, generated: Mapping[str, Generated]) -> None:
    """If the output is not finite, check the weights and name the tensor that is not.

    Costs one pass over the output. On an accelerator it would also wait for the device, so
    there only `weights()` and `materialize()` check.
    """
    if torch.compiler.is_compiling():
        return
    tensor = output[0] if isinstance(output, tuple) and output else output
    if not isinstance(tensor, Tensor) or not tensor.is_cpu or not tensor.is_floating_point():
        return
    try:
        if math.isfinite(tensor.sum().item()):
            return
    except RuntimeError:  # inside vmap or another transform: there is no value to look at
        return
    require_finite({name: value.dense() for name, value in generated.items()})


def check_bound(generated: Mapping[str, Generated]) -> None:
    """Refuse to bind weights that are not finite: later calls do not look."""
    if torch.compiler.is_compiling():
        return
    for name, value in generated.items():
        for tensor in value.batched():
            try:
                bad = tensor.is_cpu and not math.isfinite(tensor.sum().item())
            except RuntimeError:  # inside a transform: there is no value to look at
                return
            if bad:
                require_finite({name: tensor})


def require_finite(weights: Mapping[str, Tensor]) -> None:
    for name, value in weights.items():
        bad = int((~torch.isfinite(value)).sum())
        if bad:
            raise NonFiniteWeightsError(
                f"the generated weight {name!r} holds {bad} values that are NaN or infinite (of "
                f"{value.numel()}); training has diverged or the condition is not finite. Lower "
                f"the learning rate, clip gradients, or leave init out (the default start); "
                f"weightloom.diagnose(hyper, x, condition) shows where it begins"
            )

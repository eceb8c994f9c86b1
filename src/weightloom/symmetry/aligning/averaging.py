"""Averages of networks, weight by weight, and points on the line between two."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from weightloom.errors import ConfigError, ShapeError
from weightloom.networks.finiteness import require_finite
from weightloom.symmetry.group import tensors_of

__all__ = ["average", "distance", "interpolate", "require_values", "working_tensors"]

Tensors = Mapping[str, Tensor]


def interpolate(a: nn.Module, b: nn.Module, t: float) -> nn.Module:
    """The network with weights (1 - t) a + t b, in the dtypes and on the devices of a.

    Integers cannot be averaged: counters (single integers, such as BatchNorm's) are those of a, and
    other integer tensors must be equal.

    >>> half = interpolate(nn.Linear(1, 1), nn.Linear(1, 1), 0.5)
    """
    t = float(t)
    if not math.isfinite(t):
        raise ConfigError(f"t is {t}; a finite number is wanted (0 is a, 1 is b)")
    return average([a, b], (1 - t, t))


def average(networks: Sequence[nn.Module], shares: Sequence[float]) -> nn.Module:
    """The network with the weighted average of all weights; ``shares`` have the sum 1.

    Computed in double precision as a running average, so equal weights stay exactly as they are.
    """
    _check_values(networks)
    _check_same_tensors(networks)
    result = copy.deepcopy(networks[0])
    others = [tensors_of(network) for network in networks[1:]]
    with torch.no_grad():
        for name, tensor in tensors_of(result).items():
            parts = [tensor, *(tensors[name] for tensors in others)]
            if _is_number(tensor):
                tensor.copy_(_running_average(parts, shares))
            elif tensor.numel() > 1:
                _check_equal(name, parts)
    return result


def _running_average(parts: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    mean, total = _wide(parts[0]), shares[0]
    for part, share in zip(parts[1:], shares[1:], strict=True):
        total += share
        other = _wide(part)
        if share:
            step = torch.lerp(mean, other, share / total) if total else mean + share * other
            # Where both are -inf (a mask), the difference is NaN.
            mean = torch.where(mean == other, mean, step)
    return mean


def _wide(tensor: Tensor) -> Tensor:
    """In double precision, on the CPU, which every dtype and device can be turned into."""
    return tensor.detach().cpu().to(torch.complex128 if tensor.is_complex() else torch.float64)


def _is_number(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def require_values(*networks: nn.Module) -> None:
    """Refuses networks whose weights are NaN, infinite, or not there (on the meta device)."""
    _check_values(networks)
    require_finite(*networks)


def _check_values(networks: Sequence[nn.Module]) -> None:
    for network in networks:
        for name, tensor in tensors_of(network).items():
            if tensor.is_meta:
                raise ConfigError(
                    f"tensor {name!r} is on the meta device and has no values; load the weights "
                    "first"
                )


def _check_same_tensors(networks: Sequence[nn.Module]) -> None:
    first = tensors_of(networks[0])
    for network in networks:
        tensors = tensors_of(network)
        for name in [*first, *tensors]:
            if name not in first or name not in tensors:
                raise ShapeError(
                    f"tensor {name!r} is not in both networks with the same shape: one of them "
                    "has none of this name (tied weights count once); only networks of one "
                    "architecture can be averaged"
                )
            if first[name].shape != tensors[name].shape:
                raise ShapeError(
                    f"tensor {name!r} is not in both networks with the same shape: "
                    f"{list(first[name].shape)} and {list(tensors[name].shape)}; only networks of "
                    "one architecture can be averaged"
                )
            if _is_number(first[name]) != _is_number(tensors[name]):
                raise ShapeError(
                    f"tensor {name!r} holds {first[name].dtype} in one network and "
                    f"{tensors[name].dtype} in another; give all of them the same kind of numbers"
                )


def _check_equal(name: str, parts: Sequence[Tensor]) -> None:
    if any(not torch.equal(parts[0].cpu(), part.cpu()) for part in parts[1:]):
        raise ShapeError(
            f"integer tensor {name!r} ({parts[0].dtype}) is not the same in all networks and "
            "cannot be averaged; convert quantised weights to floating point first"
        )


def distance(a: Tensors, b: Tensors) -> float:
    """The 2-norm of the difference of all weights; infinite for other names or shapes."""
    if {n: t.shape for n, t in a.items()} != {n: t.shape for n, t in b.items()}:
        return math.inf
    squares = (
        float((_wide(a[name]) - _wide(b[name])).abs().square().sum())
        for name in a
        if a[name].is_floating_point() or a[name].is_complex()
    )
    return math.sqrt(sum(squares))


def working_tensors(*networks: nn.Module) -> list[dict[str, Tensor]]:
    """The tensors of each network in one dtype that products can be computed in, on the CPU.

    Single precision, or double precision if any weight has it. Integers stay as they are.
    """
    named = [tensors_of(network) for network in networks]
    double = any(tensor.dtype == torch.float64 for tensors in named for tensor in tensors.values())
    wide = torch.float64 if double else torch.float32

    def converted(tensor: Tensor) -> Tensor:
        tensor = tensor.cpu()
        return tensor.to(wide) if tensor.is_floating_point() else tensor

    return [{name: converted(tensor) for name, tensor in tensors.items()} for tensors in named]

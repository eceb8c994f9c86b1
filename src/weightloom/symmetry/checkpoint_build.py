"""A chain of saved layers as an nn.Sequential that keeps their names."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

__all__ = ["NamedLayer", "build"]

_CONV = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}
_POOL = {3: nn.AdaptiveAvgPool1d, 4: nn.AdaptiveAvgPool2d, 5: nn.AdaptiveAvgPool3d}
_DEEP = 16  # dots in a name


@dataclass(frozen=True)
class NamedLayer:
    """The weight [out, in, kernel...] and bias [out] of one Linear or Conv layer."""

    name: str
    weight: Tensor
    bias: Tensor | None


def build(
    layers: list[NamedLayer], activation: type[nn.Module], dtype: torch.dtype
) -> nn.Sequential:
    parts: list[tuple[list[str], nn.Module]] = []
    for i, layer in enumerate(layers):
        *parents, leaf = layer.name.split(".")
        if i and layer.weight.ndim == 2 and layers[i - 1].weight.ndim > 2:
            before = layers[i - 1].weight
            pool = _POOL[before.ndim](_grid(layer.weight.shape[1] // before.shape[0], before.ndim))
            parts.append(([*parents, f"{leaf}_pool"], pool))
            parts.append(([*parents, f"{leaf}_flatten"], nn.Flatten()))
        parts.append(([*parents, leaf], _filled(layer, dtype)))
        if i < len(layers) - 1:
            parts.append(([*parents, f"{leaf}_activation"], activation()))
    try:
        return _nested(parts)
    except KeyError:  # names that nn.Sequential cannot hold: numbers instead
        flat = [([str(i)], module) for i, (_, module) in enumerate(parts)]
        return _nested(flat)


def _nested(parts: list[tuple[list[str], nn.Module]]) -> nn.Sequential:
    """Sequentials inside each other, so that every tensor keeps its name in the file."""
    children: OrderedDict[str, nn.Module] = OrderedDict()
    for key, group in itertools.groupby(parts, key=lambda part: part[0][0]):
        members = list(group)
        paths = [path for path, _ in members]
        if key in children or len(paths[0]) > _DEEP:
            raise KeyError(key)
        if len(members) == 1 and len(paths[0]) == 1:
            children[key] = members[0][1]
        elif any(len(path) == 1 for path in paths):
            raise KeyError(key)
        else:
            children[key] = _nested([(path[1:], module) for path, module in members])
    return nn.Sequential(children)


def _filled(layer: NamedLayer, dtype: torch.dtype) -> nn.Module:
    out, given, *kernel = layer.weight.shape
    biased = layer.bias is not None
    module: nn.Module
    with torch.device("meta"):  # nothing is drawn, so the caller's random numbers stay as they are
        if not kernel:
            module = nn.Linear(given, out, bias=biased)
        else:
            # Padded: the group of a padded network is in that of one without, never larger.
            around = tuple(size // 2 for size in kernel)
            conv = _CONV[layer.weight.ndim]
            module = conv(given, out, tuple(kernel), padding=around, bias=biased)  # type: ignore[arg-type]
    tensors = {"weight": layer.weight.to(dtype)}
    if layer.bias is not None:
        tensors["bias"] = layer.bias.to(dtype)
    module.load_state_dict(tensors, assign=True)
    return module


def _grid(cells: int, ndim: int) -> tuple[int, ...]:
    """``cells`` pixels as a grid that is as square as can be, for ndim - 2 directions."""
    if ndim == 3:
        return (cells,)
    side = next(s for s in range(int(cells**0.5), 0, -1) if cells % s == 0)
    return (*(1,) * (ndim - 4), side, cells // side)

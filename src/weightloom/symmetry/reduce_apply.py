"""Taking units out of the layers that write and read them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weightloom.symmetry.reduce_clones import rounding
from weightloom.symmetry.reduce_find import Action, Work
from weightloom.symmetry.reduce_walk import Affine

__all__ = ["take_out"]


def take_out(work: Work, space: str, actions: list[Action]) -> list[int]:
    """Remove the units of these actions from a space, in place; returns the units that are left.

    If none would be left, the first one stays without any weights: a layer of one unit that says
    nothing. Its bias stays too, so that its activation sees a number it has seen before.
    """
    size = work.size(space)
    gone = {action.unit for action in actions}
    left = [unit for unit in range(size) if unit not in gone]
    placeholder = not left
    keep = torch.tensor(left or [0])
    for name, layer in work.consumers(space).items():
        repeat = work.repeat(space, name)
        blocks = layer.weight.detach().reshape(layer.weight.shape[0], size, -1).clone()
        _fold(layer, blocks, actions, name)
        _merge(blocks, actions)
        blocks = blocks[:, keep] * (0.0 if placeholder else 1.0)
        shape = (len(blocks), len(keep) * repeat, *layer.weight.shape[2:])
        set_weight(layer, blocks.reshape(shape))
    for layer in work.producers(space):
        rows = layer.weight.detach()[keep]
        set_weight(layer, torch.zeros_like(rows) if placeholder else rows)
        if layer.bias is not None:
            set_bias(layer, layer.bias.detach()[keep])
    work.changed()
    return keep.tolist()


def _fold(layer: Affine, blocks: Tensor, actions: list[Action], name: str) -> None:
    """Add shift * (sum of a unit's outgoing weights) to the bias; makes one if there is none."""
    shifted = [one for one in actions if one.shifts.get(name)]
    if not shifted:
        return
    sums = blocks[:, [one.unit for one in shifted]].double().sum(2)
    values = torch.tensor([one.shifts[name] for one in shifted], dtype=torch.float64)
    bias = layer.bias.detach().double() if layer.bias is not None else 0.0
    set_bias(layer, bias + sums @ values)


def _merge(blocks: Tensor, actions: list[Action]) -> None:
    """Add factor * (outgoing weights of a unit) to those of the unit that it copies, in place.

    What cancels to rounding becomes zero: copies whose outgoing weights are opposite leave nothing.
    """
    by_target: dict[int, list[Action]] = {}
    for action in actions:
        if action.into is not None:
            by_target.setdefault(action.into, []).append(action)
    for target, group in by_target.items():
        total = blocks[:, target].double()
        size = total.abs()
        for action in group:
            part = action.factor * blocks[:, action.unit].double()
            total, size = total + part, size + part.abs()
        total[total.abs() <= rounding(blocks.dtype) * size] = 0.0
        blocks[:, target] = total.to(blocks.dtype)


def set_weight(layer: Affine, weight: Tensor) -> None:
    """Replace a weight and the sizes that the layer remembers."""
    layer.weight = _parameter(weight, layer.weight)
    if isinstance(layer, nn.Linear):
        layer.out_features, layer.in_features = weight.shape
    else:
        layer.out_channels, layer.in_channels = weight.shape[:2]


def set_bias(layer: Affine, bias: Tensor) -> None:
    layer.bias = _parameter(bias.to(layer.weight.dtype), layer.weight)


def _parameter(values: Tensor, like: Tensor) -> nn.Parameter:
    return nn.Parameter(values.contiguous(), requires_grad=like.requires_grad)

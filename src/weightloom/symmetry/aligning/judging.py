"""How good an average of networks is: by a loss, by its outputs on data, or by its weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from weightloom.errors import ConfigError
from weightloom.symmetry.aligning.averaging import average, distance
from weightloom.symmetry.aligning.batches import DataBatches, evaluating, run_on
from weightloom.symmetry.aligning.repairing import repaired
from weightloom.symmetry.group import tensors_of

__all__ = ["Judge", "Loss"]

Loss = Callable[[nn.Module], float]
Networks = Sequence[nn.Module]
Shares = Sequence[float]


@dataclass
class Judge:
    """Averages networks as the user will, and says how good the average is (less is better).

    With a loss: its height above the average of the networks' own losses. Else with data: the mean
    square of the difference between the output and the average of the networks' outputs, relative
    to the spread of these outputs. Else the mean squared distance of the weights from the average.
    """

    loss: Loss | None = None
    batches: DataBatches | None = None
    repair: bool = True

    def join(self, networks: Networks, shares: Shares) -> tuple[nn.Module, bool]:
        """The average, and whether it is a repaired one: that is kept only if it is better."""
        merged = average(networks, shares)
        if self.batches is None or not self.repair:
            return merged, False
        other = repaired(merged, networks, self.batches, shares)
        if self._measure(other, networks, shares) > self._measure(merged, networks, shares):
            return merged, False
        return other, True

    def score(self, networks: Networks, shares: Shares, losses: Sequence[float]) -> float:
        """How good the average is; ``losses`` are those of the networks, if there is a loss."""
        merged = self.join(networks, shares)[0]
        line = sum(share * loss for share, loss in zip(shares, losses, strict=False))
        return self._measure(merged, networks, shares) - line

    def loss_of(self, network: nn.Module) -> float:
        """The loss of a network in eval mode, without gradients."""
        if self.loss is None:
            raise ConfigError("there is no loss")
        with evaluating(network):
            return float(self.loss(network))

    def _measure(self, merged: nn.Module, networks: Networks, shares: Shares) -> float:
        if self.loss is not None:
            loss = self.loss_of(merged)
            return math.inf if math.isnan(loss) else loss  # NaN would compare with nothing
        if self.batches is not None:
            return _deviation(merged, networks, shares, self.batches)
        own, pairs = tensors_of(merged), zip(shares, networks, strict=True)
        return sum(share * distance(own, tensors_of(network)) ** 2 for share, network in pairs)


def _deviation(
    merged: nn.Module, networks: Networks, shares: Shares, batches: DataBatches
) -> float:
    """Mean square of merged - goal relative to the variance of goal, the average of outputs."""
    gap, rows = 0.0, 0
    total: Any = 0.0
    squares: Any = 0.0
    with evaluating(merged, *networks):
        for batch in batches.read("comparing"):
            parts = zip(shares, networks, strict=True)
            goal = torch.stack([s * _numbers(run_on(net, batch)) for s, net in parts]).sum(0)
            gap += float((_numbers(run_on(merged, batch)) - goal).square().sum())
            total, squares = total + goal.sum(0), squares + goal.square().sum(0)
            rows += len(goal)
    variance = float((squares - total.square() / rows).sum())
    result = gap / variance if variance > 0 else gap
    return math.inf if math.isnan(result) else result


def _numbers(output: object) -> Tensor:
    """The floating-point tensors of an output [rows, numbers].

    Of a tuple or a dict, the tensors it holds itself: caches and hidden states lie deeper. Single
    numbers (a loss) are left out, and tensors with another number of rows.
    """
    parts: list[object] = [output]
    if isinstance(output, Mapping):
        parts = list(output.values())
    elif isinstance(output, tuple | list):
        parts = list(output)
    tensors = _floating(parts) or _floating(tree_leaves(output))
    if not tensors:
        raise ConfigError(
            f"the network returns a {type(output).__name__} without floating-point tensors, so "
            "outputs cannot be compared; give a loss"
        )
    return torch.cat([part for part in tensors if len(part) == len(tensors[0])], 1)


def _floating(parts: list[object]) -> list[Tensor]:
    return [
        part.detach().cpu().double().reshape(len(part), -1)
        for part in parts
        if isinstance(part, Tensor) and part.is_floating_point() and part.dim()
    ]

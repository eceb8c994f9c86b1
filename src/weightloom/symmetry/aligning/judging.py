"""How good an average of networks is: by a loss, by its outputs on data, or by its weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from weightloom.errors import ConfigError
from weightloom.symmetry.aligning.averaging import average, distance
from weightloom.symmetry.aligning.batches import Batches, evaluating, run_on
from weightloom.symmetry.aligning.repairing import repaired
from weightloom.symmetry.group import tensors_of

__all__ = ["Judge", "Loss"]

Loss = Callable[[nn.Module], float]


@dataclass
class Judge:
    """Averages networks as the user will, and says how good the average is (less is better).

    With a loss: its height above the average of the networks' own losses. Else with data: the mean
    square of the difference between the output and the average of the networks' outputs, relative
    to the spread of these outputs. Else the mean squared distance of the weights from the average.
    """

    loss: Loss | None = None
    batches: Batches | None = None
    repair: bool = True
    _losses: dict[int, float] = field(default_factory=dict)

    def join(
        self, networks: Sequence[nn.Module], shares: Sequence[float]
    ) -> tuple[nn.Module, bool]:
        """The average and whether it was repaired; with a loss, what has the lower one."""
        merged = average(networks, shares)
        if self.batches is None or not self.repair:
            return merged, False
        other = repaired(merged, networks, self.batches, shares)
        if self.loss is None or not self.loss_of(other) >= self.loss_of(merged):
            return other, True
        return merged, False

    def loss_of(self, network: nn.Module) -> float:
        """The loss in eval mode; infinite where it is NaN."""
        if self.loss is None:
            raise ConfigError("there is no loss")
        with evaluating(network):
            value = float(self.loss(network))
        return math.inf if math.isnan(value) else value

    def score(
        self, networks: Sequence[nn.Module], shares: Sequence[float], losses: Sequence[float]
    ) -> float:
        """How good the average is; ``losses`` are those of the networks, if there is a loss."""
        if self.loss is not None:
            line = sum(share * loss for share, loss in zip(shares, losses, strict=True))
            return self.loss_of(self.join(networks, shares)[0]) - line
        if self.batches is not None:
            return self._deviation(self.join(networks, shares)[0], networks, shares)
        merged = tensors_of(average(networks, shares))
        return sum(
            share * distance(merged, tensors_of(network)) ** 2
            for network, share in zip(networks, shares, strict=True)
        )

    def _deviation(
        self, merged: nn.Module, networks: Sequence[nn.Module], shares: Sequence[float]
    ) -> float:
        if self.batches is None:
            raise ConfigError("there are no data")
        gap = size = 0.0
        with evaluating(merged, *networks):
            for batch in self.batches.read("comparing"):
                outputs = [_numbers(run_on(network, batch)) for network in networks]
                goal = sum(s * output for s, output in zip(shares, outputs, strict=True))
                goal = torch.as_tensor(goal)
                gap += float((_numbers(run_on(merged, batch)) - goal).square().sum())
                size += float((goal - goal.mean(0)).square().sum())
        result = gap / size if size else gap
        return math.inf if math.isnan(result) else result


def _numbers(output: object) -> Tensor:
    """All floating-point tensors of an output, joined [rows, ...]."""
    leaves = [
        leaf.detach().cpu().double()
        for leaf in tree_leaves(output)
        if isinstance(leaf, Tensor) and leaf.is_floating_point()
    ]
    if not leaves:
        raise ConfigError(
            f"the network returns a {type(output).__name__} without floating-point tensors, so "
            "outputs cannot be compared; give a loss"
        )
    rows = [leaf.reshape(len(leaf), -1) if leaf.dim() else leaf.reshape(1, 1) for leaf in leaves]
    if len({len(part) for part in rows}) > 1:
        return torch.cat([part.reshape(1, -1) for part in rows], 1)
    return torch.cat(rows, 1)

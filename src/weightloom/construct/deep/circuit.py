"""A feed-forward ReLU network that grows unit by unit, in whatever order its parts are thought of.

Level 0 is the input; the units of level t see those of level t - 1 alone, as in `nn.Sequential`.
A part of the network takes `Wires` and returns `Wires`. Parts side by side may differ in depth:
`relay` carries the numbers of the shallow one on, with one unit per number and level, signed or
not, because the range of every number is known: relu(a - low) + low = a.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from weightloom.construct.box import Box
from weightloom.construct.deep.wires import Wires, cat
from weightloom.construct.layers import Entries, SparseLinear
from weightloom.errors import UnsupportedModuleError

__all__ = ["Circuit"]


class Circuit:
    """The units so far; `network` turns them into an `nn.Sequential`."""

    def __init__(self, domain: Box, dtype: torch.dtype = torch.float64) -> None:
        self.domain, self.dtype = domain, dtype
        self.levels: list[list[Wires]] = [[]]  # what the units of each level are the ReLU of
        self.widths = [domain.dims]

    @property
    def nodes(self) -> int:
        return sum(self.widths[1:])

    def inputs(self) -> Wires:
        """The coordinates of the input.

        In float64 they are what the caller says; a smaller type rounds them, and the certificate
        compares with the target at the place before rounding.
        """
        low, high = (
            torch.tensor(s, dtype=torch.float64) for s in (self.domain.low, self.domain.high)
        )
        largest = torch.maximum(low.abs(), high.abs())
        exact = self.dtype == torch.float64
        slack = largest * (0.0 if exact else torch.finfo(self.dtype).eps / 2)
        return self._units(0, 0, low, high, slack)

    def relu(self, wires: Wires) -> Wires:
        """One new unit for each lane, on the next level."""
        level = wires.level + 1
        if level == len(self.levels):
            self.levels.append([])
            self.widths.append(0)
        first = self.widths[level]
        self.levels[level].append(wires)
        self.widths[level] += len(wires)
        slack = wires.slack + wires.rounding(self.dtype)
        return self._units(level, first, wires.low.clamp(min=0), wires.high.clamp(min=0), slack)

    def relay(self, wires: Wires, level: int) -> Wires:
        """The same numbers at a later level; numbers that are constant need no unit."""
        while wires.level < level:
            if not len(wires.rows):
                return replace(wires, level=level)
            # A lane that keeps its sign needs no shift, and so no weight for it.
            shift = torch.where(wires.low < 0, wires.low, torch.zeros_like(wires.low))
            wires = self.relu(wires - shift) + shift
        return wires

    def align(self, *parts: Wires) -> list[Wires]:
        """All parts at the level of the deepest."""
        level = max(one.level for one in parts)
        return [self.relay(one, level) for one in parts]

    def join(self, *parts: Wires) -> Wires:
        """All lanes of all parts at one level."""
        return cat(self.align(*parts))

    def embed(self, layers: Iterable[nn.Module], wires: Wires) -> Wires:
        """What an existing network of affine layers and ReLUs makes of these numbers."""
        for layer in layers:
            if isinstance(layer, nn.ReLU):
                wires = self.relu(wires)
            elif isinstance(layer, nn.Linear | SparseLinear):
                matrix = layer.matrix() if isinstance(layer, SparseLinear) else layer.weight
                wires = wires.mix(_sparse(matrix.detach()))
                if layer.bias is not None:
                    wires = wires + layer.bias.detach().to(torch.float64)
            elif isinstance(layer, nn.Sequential):
                wires = self.embed(layer, wires)
            else:
                raise UnsupportedModuleError(
                    f"{type(layer).__name__} cannot be taken into a ReLU network; wanted an "
                    f"nn.Sequential of nn.Linear (or SparseLinear) and nn.ReLU"
                )
        return wires

    def network(self, outputs: Wires, sparse: bool | None = None) -> tuple[nn.Sequential, Tensor]:
        """The network that returns ``outputs``, and a bound on the rounding of each output.

        Units that were asked for and do not matter for the output are kept: constructions ask for
        what they need.
        """
        layers: list[nn.Module] = []
        # A constant may have waited beyond the last unit.
        last = outputs.level if len(outputs.rows) else min(outputs.level, len(self.levels) - 1)
        for level in range(1, last + 1):
            layers += [self._layer(cat(self.levels[level]), level - 1, sparse), nn.ReLU()]
        layers.append(self._layer(outputs, last, sparse))
        return nn.Sequential(*layers), outputs.slack + outputs.rounding(self.dtype)

    def _layer(self, forms: Wires, below: int, sparse: bool | None) -> nn.Module:
        entries = Entries(len(forms), self.widths[below])
        entries.add(forms.rows, forms.columns, forms.values)
        entries.bias += forms.constant
        return entries.layer(self.dtype, sparse)

    def _units(self, level: int, first: int, low: Tensor, high: Tensor, slack: Tensor) -> Wires:
        n = len(low)
        lanes, ones = torch.arange(n), torch.ones(n, dtype=torch.float64)
        mass = torch.maximum(low.abs(), high.abs()) + slack
        zeros = torch.zeros(n, dtype=torch.float64)
        return Wires(level, lanes, lanes + first, ones, zeros, low, high, slack, mass, ones)


def _sparse(weight: Tensor) -> Tensor:
    return (weight if weight.is_sparse else weight.to_sparse()).to(torch.float64)

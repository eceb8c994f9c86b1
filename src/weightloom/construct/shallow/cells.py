"""Integrals over a box, and exact samples from a density in it, in up to three dimensions.

The box is cut into cells. Integrals are Gauss-Legendre sums in each cell. Samples come from
rejection: choose a cell in proportion to a ceiling of the density there and a uniform point in it,
and keep the point with probability density / ceiling. The ceiling is 1.25 times the largest value
evaluated in the cell. A point above its ceiling raises an error instead of biasing the samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from weightloom.construct.certified import Function
from weightloom.construct.grid import Box
from weightloom.errors import ConfigError

__all__ = ["Cells", "Density"]

# By dimension: cells per axis, and quadrature nodes per axis and cell.
COUNTS = {1: 2048, 2: 96, 3: 24}
NODES = {1: 5, 2: 3, 3: 3}
# Ceiling of a density in a cell, relative to its largest value there.
HEADROOM = 1.25


class Cells:
    """A regular partition of ``box`` with quadrature nodes: places [n, d], weights [n]."""

    def __init__(self, box: Box, count: int | None = None) -> None:
        if box.dims not in COUNTS:
            raise ConfigError(
                f"quadrature in {box.dims} dimensions is out of reach; at most 3 are wanted "
                f"(sampling works in any number)"
            )
        self.box, d = box, box.dims
        n = COUNTS[d] if count is None else count
        if n < 1:
            raise ConfigError(f"cells={n} was given; at least 1 per axis is wanted")
        low, high = (torch.tensor(side, dtype=torch.float64) for side in (box.low, box.high))
        self.side = (high - low) / n
        corner = torch.cartesian_prod(*[torch.arange(n, dtype=torch.float64)] * d).reshape(-1, d)
        self.low = low + corner * self.side  # [cells, d]
        at, weight = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(NODES[d]))
        inner = torch.cartesian_prod(*[(at + 1) / 2] * d).reshape(-1, d)
        shares = torch.cartesian_prod(*[weight / 2] * d).reshape(-1, d).prod(-1)
        self._inner, self._shares = inner, shares
        self.places = (self.low[:, None] + inner * self.side).flatten(0, 1)
        self.weights = (shares * self.side.prod()).repeat(len(self.low))

    def integral(self, function: Function) -> float:
        """Of a function of points [n, d] -> [n] over the box."""
        return float(self.weights @ _values(function, self.places))

    def per_cell(self, function: Function) -> Tensor:
        """The integral over each cell: [cells]."""
        values = self.weights * _values(function, self.places)
        return values.reshape(len(self.low), -1).sum(-1)

    def density(self, function: Function) -> Density:
        """The function (>= 0) as a density to sample from; it need not integrate to one."""
        d = self.box.dims
        corners = torch.cartesian_prod(*[torch.tensor([0.0, 1.0]).double()] * d).reshape(-1, d)
        places = torch.cat([self._inner, corners])
        values = _values(function, (self.low[:, None] + places * self.side).flatten(0, 1))
        if bool((values < 0).any()):
            raise ConfigError(f"a density is {float(values.min()):g} somewhere; it must be >= 0")
        largest = values.reshape(len(self.low), -1).amax(-1)
        return Density(self, function, HEADROOM * largest)


@dataclass(frozen=True, eq=False)
class Density:
    """A density on cells, with a ceiling for each cell."""

    cells: Cells
    function: Function
    ceilings: Tensor

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """``count`` independent points [count, d]."""
        if float(self.ceilings.sum()) == 0:
            raise ConfigError("the density is zero everywhere; there is nothing to sample")
        cells, dims = self.cells, self.cells.box.dims
        kept: list[Tensor] = []
        wanted = count
        while wanted > 0:
            tries = 2 * wanted + 16
            cell = torch.multinomial(self.ceilings, tries, replacement=True, generator=generator)
            inside = torch.rand(tries, dims, dtype=torch.float64, generator=generator)
            points = cells.low[cell] + inside * cells.side
            ratio = _values(self.function, points) / self.ceilings[cell]
            if float(ratio.max()) > 1:
                at = points[int(ratio.argmax())].tolist()
                raise ConfigError(
                    f"the density at {at} is {float(ratio.max()) * HEADROOM:.3g} times what was "
                    f"seen in its cell; give more cells"
                )
            uniform = torch.rand(tries, dtype=torch.float64, generator=generator)
            kept.append(points[uniform < ratio][:wanted])
            wanted -= len(kept[-1])
        return torch.cat(kept)


def _values(function: Function, places: Tensor) -> Tensor:
    with torch.no_grad():
        values = function(places).to(torch.float64)
    if values.shape != places.shape[:1]:
        raise ConfigError(
            f"the function returned shape {list(values.shape)} for {len(places)} points; wanted "
            f"[{len(places)}]"
        )
    if not bool(torch.isfinite(values).all()):
        row = int((~torch.isfinite(values)).nonzero()[0])
        raise ConfigError(
            f"the function is {float(values[row])} at {places[row].tolist()}; a finite value is "
            f"wanted everywhere"
        )
    return values

"""The data to fit, and where to predict, as tensors of fixed shapes.

Two layouts. *Points*: every row has a condition and a point of its own. *Grid*: every condition
(image) is seen at the same coordinates, with or without gaps. `reading` makes these from the user's
arrays; all other code relies on the shapes given here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

__all__ = ["GridProblem", "GridQuery", "PointProblem", "PointQuery", "Problem", "Query"]


@dataclass(frozen=True, eq=False)
class PointQuery:
    """Pairs of a condition and a point."""

    x: Tensor  # [N, dx]
    z: Tensor  # [N, dz]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an answer, without channels: (N,)."""
        return (len(self.x),)


@dataclass(frozen=True, eq=False)
class GridQuery:
    """Every image at every coordinate."""

    images: Tensor  # [n, dx]
    coordinates: Tensor  # [P, dz]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an answer, without channels: (n, P)."""
        return (len(self.images), len(self.coordinates))

    def points(self, start: int = 0, stop: int | None = None) -> PointQuery:
        """Entries ``start`` to ``stop`` of the grid, image by image, as pairs."""
        n, P = self.shape
        index = torch.arange(start, n * P if stop is None else stop, device=self.images.device)
        return PointQuery(self.images[index // P], self.coordinates[index % P])


@dataclass(frozen=True, eq=False)
class PointProblem:
    """Values y at pairs (x, z).

    >>> import torch
    >>> PointProblem(torch.ones(3, 2), torch.ones(3, 1), torch.ones(3, 1)).size
    3
    """

    x: Tensor  # [N, dx]
    z: Tensor  # [N, dz]
    y: Tensor  # [N, c]
    squeeze: bool = False  # the user's y had no channel dimension: answers have none either

    @property
    def size(self) -> int:
        """Number of equations, N."""
        return len(self.x)

    @property
    def channels(self) -> int:
        return self.y.shape[-1]

    @property
    def dtype(self) -> torch.dtype:
        return self.x.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the targets without channels: (N,)."""
        return (len(self.x),)

    @property
    def query(self) -> PointQuery:
        """The training points."""
        return PointQuery(self.x, self.z)


@dataclass(frozen=True, eq=False)
class GridProblem:
    """Values of n images at P common coordinates; with a mask, only some of them.

    Entries of ``values`` that the mask leaves out are 0 here.

    >>> import torch
    >>> mask = torch.tensor([[True, False, True], [True, True, False]])
    >>> grid = GridProblem(torch.ones(2, 5), torch.eye(3), torch.ones(2, 3, 1), mask)
    >>> grid.size, grid.observed.tolist()
    (4, [0, 2, 3, 4])
    """

    images: Tensor  # [n, dx]
    coordinates: Tensor  # [P, dz]
    values: Tensor  # [n, P, c]
    mask: Tensor | None = None  # [n, P] bool, True where observed; None: everywhere
    squeeze: bool = False

    @property
    def size(self) -> int:
        """Number of equations: n P, or the observed ones."""
        return len(self.observed) if self.mask is not None else self.shape[0] * self.shape[1]

    @property
    def channels(self) -> int:
        return self.values.shape[-1]

    @property
    def dtype(self) -> torch.dtype:
        return self.images.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the targets without channels: (n, P)."""
        return (len(self.images), len(self.coordinates))

    @property
    def query(self) -> GridQuery:
        """The whole grid, observed or not."""
        return GridQuery(self.images, self.coordinates)

    @cached_property
    def observed(self) -> Tensor:
        """Where the equations are in the grid: [size] positions in image-by-image order."""
        if self.mask is None:
            return torch.arange(self.shape[0] * self.shape[1], device=self.images.device)
        return self.mask.reshape(-1).nonzero()[:, 0]

    def points(self) -> PointProblem:
        """The observed entries as pairs, image by image: the same equations, no structure."""
        P = len(self.coordinates)
        image, place = self.observed // P, self.observed % P
        return PointProblem(
            self.images[image],
            self.coordinates[place],
            self.values[image, place],
            self.squeeze,
        )

    def spread(self, entries: Tensor, fill: float = float("nan")) -> Tensor:
        """Numbers per equation [size, ...] put where they belong in the grid: [n, P, ...]."""
        n, P = self.shape
        grid = entries.new_full((n * P, *entries.shape[1:]), fill)
        grid[self.observed] = entries
        return grid.reshape(n, P, *entries.shape[1:])


Problem = PointProblem | GridProblem
Query = PointQuery | GridQuery

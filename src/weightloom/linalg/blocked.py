"""A matrix that is never stored whole: computed tile by tile, or kept in a file on disk."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from weightloom.errors import ConfigError, KernelError, MemoryLimitError
from weightloom.linalg.memory import parse, readable
from weightloom.linalg.operator import Operator

__all__ = ["Block", "Blocked"]

Block = Callable[[slice, slice], Tensor]

# Entries of the diagonal that are read from one small tile.
DIAGONAL = 64


class Blocked(Operator):
    """A symmetric matrix given by ``block(rows, columns)``, which computes the entries of a tile.

    A product computes each tile of the upper half once and uses it twice. Tiles are square, at most
    ``memory`` / 2 bytes each, without the block function's own temporaries. With ``folder``, tiles
    are written to a file there when they are first computed, and read from it afterwards. The file
    takes N^2 / 2 numbers of disk space. It has no name, so it disappears with the operator, or when
    the process ends in any way.

    >>> points = torch.linspace(0, 1, 5, dtype=torch.float64)
    >>> A = Blocked(5, lambda i, j: torch.exp(-(points[i, None] - points[None, j]).abs()))
    >>> A.diagonal()
    tensor([1., 1., 1., 1., 1.], dtype=torch.float64)
    """

    def __init__(
        self,
        size: int,
        block: Block,
        *,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
        memory: int | str = 2**28,
        folder: str | Path | None = None,
        flops_per_entry: float = 100.0,
    ) -> None:
        super().__init__(size, dtype, device)
        self._block = block
        self._item = torch.finfo(dtype).bits // 8
        room = parse(memory) or 0
        self.side = min(size, max(1, math.isqrt(room // (2 * self._item))))
        self._flops_per_entry = flops_per_entry
        self._file = None if folder is None else _TileFile(self, Path(folder))

    def tile(self, rows: slice, columns: slice) -> Tensor:
        """The entries of these rows and columns, checked."""
        tile = self._block(rows, columns).detach()
        wanted = (rows.stop - rows.start, columns.stop - columns.start)
        if tuple(tile.shape) != wanted or tile.dtype != self.dtype:
            raise KernelError(
                f"block({rows.start}:{rows.stop}, {columns.start}:{columns.stop}) returned "
                f"{tile.dtype} {list(tile.shape)}; it must return {self.dtype} {list(wanted)}"
            )
        return tile

    def tiles(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """The upper half, tile by tile: (rows, columns, entries)."""
        number = 0
        for rows in self._slices(0):
            for columns in self._slices(rows.start):
                if self._file is None:
                    yield rows, columns, self.tile(rows, columns)
                else:
                    yield rows, columns, self._file.get(number, rows, columns, self.tile)
                number += 1

    def _slices(self, begin: int) -> Iterator[slice]:
        for start in range(begin, self.size, self.side):
            yield slice(start, min(start + self.side, self.size))

    @torch.no_grad()
    def matmul(self, vectors: Tensor) -> Tensor:
        result = torch.zeros_like(vectors)
        for rows, columns, tile in self.tiles():
            result[rows].addmm_(tile, vectors[columns])
            if rows != columns:
                # Not tile.mT @ vectors: for a few vectors BLAS is four times slower at that.
                result[columns] += (vectors[rows].mT @ tile).mT
        return result

    @torch.no_grad()
    def diagonal(self) -> Tensor:
        small = min(DIAGONAL, self.side)
        pieces = [slice(b, min(b + small, self.size)) for b in range(0, self.size, small)]
        return torch.cat([self.tile(piece, piece).diagonal() for piece in pieces])

    @torch.no_grad()
    def rows(self, index: Tensor) -> Tensor:
        result = torch.empty(len(index), self.size, dtype=self.dtype, device=self.device)
        # As many columns at once as a tile has entries.
        width = max(1, self.side**2)
        for place, row in enumerate(index.tolist()):
            for begin in range(0, self.size, width):
                columns = slice(begin, min(begin + width, self.size))
                result[place, columns] = self.tile(slice(row, row + 1), columns)[0]
        return result

    @torch.no_grad()
    def dense(self) -> Tensor:
        result = torch.empty(self.size, self.size, dtype=self.dtype, device=self.device)
        for rows, columns, tile in self.tiles():
            result[rows, columns] = tile
            if rows != columns:
                result[columns, rows] = tile.mT
        return result

    @property
    def bytes(self) -> int:
        return self.side**2 * self._item

    @property
    def flops(self) -> float:
        compute = 0.0 if self._file is not None else self._flops_per_entry / 2
        return (2.0 + compute) * self.size**2


class _TileFile:
    """Tiles of the upper half, one after the other, in a file without a name."""

    def __init__(self, operator: Blocked, folder: Path) -> None:
        self._device = operator.device
        self._places: list[int] = []
        count = 0
        for rows in operator._slices(0):
            for columns in operator._slices(rows.start):
                self._places.append(count)
                count += (rows.stop - rows.start) * (columns.stop - columns.start)
        kind = np.dtype(str(operator.dtype).removeprefix("torch."))
        self._numbers = _open(folder, count, kind)
        self._known = [False] * len(self._places)

    def get(self, number: int, rows: slice, columns: slice, compute: Block) -> Tensor:
        # The operator's method is an argument, not a field: a reference cycle would keep the file.
        shape = (rows.stop - rows.start, columns.stop - columns.start)
        begin = self._places[number]
        kept = torch.from_numpy(self._numbers[begin : begin + shape[0] * shape[1]]).reshape(shape)
        if not self._known[number]:
            kept.copy_(compute(rows, columns))
            self._known[number] = True
        return kept.to(self._device)


def _open(folder: Path, count: int, kind: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """A memory map of ``count`` numbers, with its space on disk reserved."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder; make it first, or give another")
    needed = count * kind.itemsize
    file: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (the map keeps it)
    try:
        # Without the reservation a full disk would end the process in the middle of a product.
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, needed)
        else:
            file.truncate(needed)
        return np.memmap(file, dtype=kind, mode="r+", shape=(count,))
    except OSError as error:
        raise MemoryLimitError(
            f"the tiles need {readable(needed)} in {folder}, which has no room for them "
            f"({error.strerror}); give another folder, or none to compute them every time"
        ) from error
    finally:
        file.close()

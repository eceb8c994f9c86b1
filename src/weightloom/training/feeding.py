"""Data for `fit`: tensors, a Dataset or a loader, as batches of (inputs, target)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten_with_path, tree_leaves, tree_map
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, random_split

from weightloom.errors import ShapeError, TrainingError
from weightloom.training.batches import mixed, seeded
from weightloom.training.members import Split

__all__ = ["Feed", "Pair", "feed", "held_back"]

Pair: TypeAlias = tuple[tuple[Any, ...], Tensor]
"""(what the model is called with, target)"""

BATCH = 32

_FORMS = (
    "pass tensors (x, condition, target), or ((...), target) with all inputs of the model in a "
    "tuple, or a Dataset or DataLoader of these"
)


@dataclass
class Feed:
    """Batches, epoch after epoch."""

    source: Any
    """(inputs, target) in memory, or what yields batches"""
    batch_size: int | None
    seed: int
    in_memory: bool

    def batches(self, epoch: int) -> Iterator[Pair]:
        """The batches of one epoch. In memory their order is that of `train` with this seed."""
        if not self.in_memory:
            torch.manual_seed(mixed("order", self.seed, epoch))  # what a loader shuffles with
            for batch in self.source:
                yield pair_of(batch, "a batch")
            return
        order = torch.randperm(_rows(self.source), generator=seeded("order", self.seed, epoch))
        yield from self._pieces(order)

    def in_order(self) -> Iterator[Pair]:
        """All batches once, for an evaluation."""
        if self.in_memory:
            yield from self._pieces(torch.arange(_rows(self.source)))
        else:
            yield from self.batches(0)

    def _pieces(self, order: Tensor) -> Iterator[Pair]:
        for rows in order.split(self.batch_size or BATCH):
            yield tree_map(lambda column, rows=rows: column[rows.to(column.device)], self.source)

    def __len__(self) -> int:
        """Batches in an epoch; 0 if that is not known."""
        if self.in_memory:
            return -(-_rows(self.source) // (self.batch_size or BATCH))
        try:
            return len(self.source)
        except TypeError:
            return 0


def feed(data: Any, batch_size: int | None, seed: int, name: str = "data") -> Feed:
    """What ``data`` is, or an error that says what it should be."""
    if isinstance(data, Split):
        data = (data.inputs, data.target)
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, tuple | list):
        pair = pair_of(data, name)
        _check_columns(pair, name)
        return Feed(pair, batch_size, seed, in_memory=True)
    if isinstance(data, Dataset):
        mixes = not isinstance(data, IterableDataset)
        if mixes and isinstance(data, Sized) and len(data) == 0:
            raise TrainingError(f"{name} is a Dataset without samples; there is nothing to fit")
        size = batch_size or BATCH
        loader: DataLoader[Any] = DataLoader(data, size, shuffle=mixes and name == "data")
        return Feed(loader, None, seed, in_memory=False)
    if _is_loader(data):
        if batch_size is not None and name == "data":
            raise TrainingError(
                f"batch_size={batch_size} was given with a {type(data).__name__}, which has made "
                f"its batches already; set it there, or pass its dataset instead"
            )
        return Feed(data, None, seed, in_memory=False)
    raise TrainingError(f"{name} is {_described(data)}; {_FORMS}")


def held_back(data: Any, fraction: float, seed: int) -> tuple[Any, Any]:
    """``data`` without a random fraction of its samples, and that fraction."""
    if not 0.0 < fraction < 1.0:
        raise TrainingError(
            f"validation={fraction!r} was given; a fraction is between 0 and 1 (0.1 holds back a "
            f"tenth of the samples), otherwise pass data"
        )
    generator = seeded("validation", seed)
    whole = isinstance(data, TensorDataset)  # is split as tensors are
    if isinstance(data, Dataset) and isinstance(data, Sized) and not whole:
        rest, held = random_split(data, _parts(len(data), fraction), generator=generator)
        return rest, held
    source = feed(data, None, seed)
    if not source.in_memory:
        raise TrainingError(
            f"validation={fraction} was given with a {type(data).__name__}, which cannot be "
            f"split; pass tensors or a Dataset, or validation= data of its own"
        )
    rows = _rows(source.source)
    parts = torch.randperm(rows, generator=generator).split(_parts(rows, fraction))
    rest, held = (tree_map(lambda c, p=p: c[p.to(c.device)], source.source) for p in parts)
    return rest, held


def _parts(count: int, fraction: float) -> list[int]:
    held = round(fraction * count)
    if not 0 < held < count:
        raise TrainingError(
            f"validation={fraction} of {count} samples leaves {held} to validate on and "
            f"{count - held} to train on; both need at least one"
        )
    return [count - held, held]


# -- what was given ------------------------------------------------------------------------------


def pair_of(data: Any, name: str) -> Pair:
    """(x, condition, target) or (inputs, target) as (inputs, target), with arrays as tensors."""
    if not isinstance(data, tuple | list):
        raise TrainingError(f"{name} is {_described(data)}; {_FORMS}")
    parts = [tree_map(_tensor, part) for part in data]
    if len(parts) == 2:
        inputs = tuple(parts[0]) if isinstance(data[0], tuple | list) else (parts[0],)
    elif len(parts) == 3 and not isinstance(data[0], tuple | list):
        inputs = tuple(parts[:2])
    else:
        raise TrainingError(f"{name} is {_described(data)}; {_FORMS}")
    target = parts[-1]
    if not isinstance(target, Tensor):
        raise TrainingError(
            f"the target, last in {name}, is {_described(data[-1])}, not a tensor; {_FORMS}"
        )
    for number, leaf in enumerate(tree_leaves(inputs)):
        if not isinstance(leaf, Tensor):
            raise TrainingError(
                f"input {number} in {name} is {_described(leaf)}, not a tensor; {_FORMS}"
            )
    return inputs, target


def _tensor(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return torch.as_tensor(value)
    return value


def _check_columns(pair: Pair, name: str) -> None:
    """Every column has one row for each sample, and only finite numbers."""
    inputs, target = pair
    columns = [(_label(path, inputs), c) for path, c in tree_flatten_with_path(inputs)[0]]
    columns.append(("the target", target))
    if any(column.dim() == 0 for _, column in columns):
        raise ShapeError(f"{name} has a tensor without rows; each is [n, ...], one row per sample")
    rows = {len(column) for _, column in columns}
    if len(rows) > 1:
        seen = ", ".join(f"{label} has {len(column)} rows" for label, column in columns)
        raise ShapeError(
            f"{name} does not fit together: {seen}; each needs one row for each sample (one "
            f"condition for all of x: condition.expand(len(x), -1))"
        )
    if rows == {0}:
        raise TrainingError(f"{name} has no samples; there is nothing to fit")
    for label, column in columns:
        _check_finite(column, f"{label} in {name}")


def _check_finite(column: Tensor, label: str) -> None:
    if not column.is_floating_point():
        return
    good = torch.isfinite(column).flatten(1).all(1) if column.dim() > 1 else torch.isfinite(column)
    bad = (~good).nonzero().flatten()
    if len(bad):
        raise TrainingError(
            f"{label} is not finite in {len(bad)} of {len(good)} rows (the first is row "
            f"{int(bad[0])}); leave these rows out, or fill what is missing"
        )


def _label(path: tuple[Any, ...], inputs: tuple[Any, ...]) -> str:
    names = ("x", "condition") if len(inputs) == 2 else tuple(f"input {i}" for i in range(99))
    first, *rest = path
    return names[first.idx] + "".join(map(str, rest))


def _rows(pair: Pair) -> int:
    return len(pair[1])


def _is_loader(data: Any) -> bool:
    """Whether it can be gone through again and again; a generator ends after one epoch."""
    if isinstance(data, str | bytes | Mapping | Tensor | np.ndarray) or not isinstance(
        data, Iterable
    ):
        return False
    return not isinstance(data, Iterator)


def _described(value: Any) -> str:
    if isinstance(value, Iterator):
        return f"a {type(value).__name__}, which is used up after one epoch"
    if isinstance(value, str):
        return f"the string {value!r:.40}"
    if isinstance(value, tuple | list):
        kinds = [type(part).__name__ for part in value[:4]] + ["..."] * (len(value) > 4)
        return f"a {type(value).__name__} of {len(value)} ({', '.join(kinds)})"
    if isinstance(value, Tensor | np.ndarray):
        return f"one {type(value).__name__} of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"

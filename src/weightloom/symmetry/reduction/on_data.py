"""Units that have one value on all of some data: removable there, and not in general."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from weightloom.errors import ConfigError
from weightloom.symmetry.probes import run
from weightloom.symmetry.reduction.removable import (
    ReducibleNetwork,
    RemovableUnit,
    can_shift,
    is_placeholder,
)

__all__ = ["InputBatches", "Data", "find_dead", "largest_change"]

Data = Tensor | Iterable[Any]
"""a tensor of inputs, or batches: tensors, or tuples that start with one (as a DataLoader gives)"""


class InputBatches:
    """Data as batches of inputs in a network's dtype, which can be read several times."""

    def __init__(self, data: Data, network: nn.Module) -> None:
        floating = (p for p in network.parameters() if p.is_floating_point())
        self._like = next(floating, torch.zeros(0))
        if isinstance(data, Tensor):
            self._source: Iterable[Any] = (data,)
        else:
            # An iterator can be read once only, and two passes are needed.
            self._source = list(data) if iter(data) is data else data
        self.samples = sum(len(batch) for batch in self)
        if not self.samples:
            raise ConfigError("data holds no samples; give a tensor of inputs, or batches of them")

    def __iter__(self) -> Any:
        return (self._input(batch) for batch in self._source)

    def _input(self, batch: Any) -> Tensor:
        x = batch[0] if isinstance(batch, tuple | list) and batch else batch
        if not isinstance(x, Tensor) or not x.dim():
            raise ConfigError(
                f"a batch of data is {type(batch).__name__}; wanted tensors of inputs [n, ...], or "
                f"tuples that start with one, as a DataLoader gives them"
            )
        if not x.is_floating_point():
            return x
        if not bool(x.isfinite().all()):
            raise ConfigError("data holds NaN or infinity; leave out such samples")
        return x.to(self._like)


@dataclass
class _Range:
    """Smallest and largest input of a layer so far, for each unit."""

    low: Tensor | None = None
    high: Tensor | None = None

    def add(self, values: Tensor) -> None:
        low, high = values.amin(1), values.amax(1)
        self.low = low if self.low is None else torch.minimum(self.low, low)
        self.high = high if self.high is None else torch.maximum(self.high, high)


def find_dead(work: ReducibleNetwork, batches: InputBatches) -> dict[str, list[RemovableUnit]]:
    """For each space the units whose readers see one value, at all positions of all samples."""
    spaces = [name for name in work.spec.spaces if name not in work.blocked]
    ranges = _observed(work, spaces, batches)
    return {space: _dead_in(work, space, ranges) for space in spaces}


def _observed(
    work: ReducibleNetwork, spaces: list[str], batches: InputBatches
) -> dict[tuple[str, str], _Range]:
    """What every layer reads from every space, over all of the data."""
    twin = copy.deepcopy(work.graph.module).eval()
    ranges: dict[tuple[str, str], _Range] = {}
    handles = []
    for space in spaces:
        for name, layer in work.consumers(space).items():
            ranges[space, name] = _Range()
            axis = -1 if isinstance(layer, nn.Linear) else 1
            watch = _watcher(ranges[space, name], work.size(space), axis)
            handles.append(twin.get_submodule(name).register_forward_pre_hook(watch))
    try:
        with torch.no_grad():
            for x in batches:
                run(twin, x)
    finally:
        for handle in handles:
            handle.remove()
    return ranges


def _watcher(seen: _Range, units: int, axis: int) -> Callable[[nn.Module, Any], None]:
    def watch(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        # A flattened unit has several columns in a row.
        seen.add(inputs[0].detach().movedim(axis, 0).reshape(units, -1))

    return watch


def _dead_in(
    work: ReducibleNetwork, space: str, ranges: dict[tuple[str, str], _Range]
) -> list[RemovableUnit]:
    if is_placeholder(work, space):
        return []
    constant = torch.ones(work.size(space), dtype=torch.bool)
    values: dict[str, list[float]] = {}
    for name in work.consumers(space):
        seen = ranges[space, name]
        if seen.low is None or seen.high is None:  # its forward was never called
            return []
        constant &= seen.low == seen.high
        values[name] = seen.low.tolist()
    dead = []
    for unit in torch.nonzero(constant).flatten().tolist():
        shifts = {name: own[unit] for name, own in values.items()}
        if can_shift(work, shifts):
            dead.append(RemovableUnit(unit, "dead on data", shifts=shifts))
    return dead


@torch.no_grad()
def largest_change(before: nn.Module, after: nn.Module, batches: InputBatches) -> float:
    """Largest |before(x) - after(x)| over all outputs of all samples."""
    first, second = copy.deepcopy(before).eval(), copy.deepcopy(after).eval()
    gap = 0.0
    for x in batches:
        difference = run(first, x).double() - run(second, x).double()
        gap = max(gap, float(difference.abs().max()))
        if gap != gap:
            break
    return gap

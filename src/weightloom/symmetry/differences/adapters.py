"""An adapter as a checkpoint: the base, with the changed layers merged when they are read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from weightloom.errors import CheckpointError, ShapeError
from weightloom.symmetry.differences.sources import Checkpoint, LazyTensor

if TYPE_CHECKING:
    from weightloom.hyper.adapters.factors import AdapterLayer

__all__ = ["merged"]


def merged(base: Checkpoint, folder: Path) -> Checkpoint:
    """``base`` with the adapter of ``folder``; each changed weight is computed when it is read."""
    from weightloom.hyper.adapters.peft_format import read_folder

    layers = read_folder(folder)
    tensors = dict(base.tensors)
    unknown, changed = [], set()
    for layer, change in layers.items():
        name = _weight(base, layer)
        if name is None or name in changed:  # two layers cannot be one tensor
            unknown.append(layer)
        else:
            tensors[name] = _changed(base.tensors[name], change)
            changed.add(name)
    if unknown:
        shown = ", ".join(map(repr, unknown[:4])) + (", ..." if len(unknown) > 4 else "")
        raise CheckpointError(
            f"the adapter {str(folder)!r} changes layers that {base.label} does not have: {shown}. "
            f"Pass the base for which it was written"
        )
    note = f"{folder.name}: an adapter of {len(layers)} layers, shown merged into {base.label}"
    return replace(
        base, label=str(folder), tensors=tensors, notes=(*base.notes, note), adapter=None
    )


def _weight(base: Checkpoint, layer: str) -> str | None:
    """The name of the layer's weight. A model with a head has one more prefix than its body."""
    name = f"{layer}.weight"
    if name in base.tensors:
        return name
    ends = [own for own in base.tensors if own.endswith(f".{name}")]
    if not ends:
        ends = [own for own in base.tensors if "." in own and name.endswith(f".{own}")]
    return ends[0] if len(ends) == 1 else None


def _changed(weight: LazyTensor, change: AdapterLayer) -> LazyTensor:
    oriented = _oriented(weight, change)

    def compute() -> Tensor:
        from weightloom.hyper.adapters.factors import widest

        value = weight.tensor()
        dtype = widest(value, oriented.A, oriented.B)
        return (value.to(dtype) + oriented.to(dtype=dtype).change()).to(value.dtype)

    return replace(weight, path=None, offset=0, compute=compute, storage=None)


def _oriented(weight: LazyTensor, change: AdapterLayer) -> AdapterLayer:
    """The change in the layout of the weight: PEFT's flag may not hold for every layer."""
    if change.shape == weight.shape:
        return change
    other = {"linear": "transposed", "transposed": "linear"}.get(change.kind)
    if other is not None and replace(change, kind=other).shape == weight.shape:
        return replace(change, kind=other)
    raise ShapeError(
        f"the adapter's change of {weight.name!r} has shape {change.shape}, but the tensor has "
        f"shape {weight.shape}; pass the base for which the adapter was written"
    )

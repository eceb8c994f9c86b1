"""`diff`: pair the tensors of two checkpoints, then compare pair by pair."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor

from weightloom.errors import ConfigError
from weightloom.symmetry.differences.adapters import merged
from weightloom.symmetry.differences.contents import equal_bytes, pair_by_content, tied_to
from weightloom.symmetry.differences.conventions import pair_by_convention, split_fused
from weightloom.symmetry.differences.folders import open_checkpoint
from weightloom.symmetry.differences.kinds import Change, classify
from weightloom.symmetry.differences.names import Pairing, is_buffer, pair_by_name
from weightloom.symmetry.differences.reordering import same_bits
from weightloom.symmetry.differences.result import CheckpointDiff, TensorDiff
from weightloom.symmetry.differences.sources import Checkpoint, LazyTensor, NoNumbersError

__all__ = ["diff"]

#: Entries of config.json that say nothing about the network.
_INCIDENTAL = ("_name_or_path", "name_or_path", "transformers_version", "torch_dtype", "dtype",
               "_attn_implementation_autoset", "_commit_hash", "inference_mode")  # fmt: skip
_STRAIGHT = 0.9  # relative distance above which a square matrix is also tried transposed


def diff(a: Any, b: Any, *, base: Any = None, progress: bool | None = None) -> CheckpointDiff:
    """What differs between two checkpoints, tensor by tensor; the architecture does not matter.

    ``a`` and ``b`` are modules, state dicts, files (safetensors; torch.save, read without running
    code), ``index.json`` of shards, folders (Hugging Face, PEFT adapters). An adapter is merged
    into ``base``, by default the other side; two adapters without a base are compared factor by
    factor. Tensors are read one pair at a time. ``progress``: a bar on stderr; by default if that
    is a terminal.

    Each kind of change (`CRITERIA`) is claimed only after it was checked on every entry.

    >>> import torch
    >>> a = {"weight": torch.eye(4), "bias": torch.zeros(4)}
    >>> b = {"module.weight": torch.eye(4), "module.bias": torch.ones(4)}
    >>> print(diff(a, b).headline)
    1 of 2 tensors identical, 1 other
    """
    first, second = open_checkpoint(a, "a"), open_checkpoint(b, "b")
    first, second = _with_base(first, second, base)
    pairing = _paired(first, second)
    rows: list[TensorDiff] = []
    bar = _Progress(sum(x.nbytes + y.nbytes for x, y, _ in pairing.pairs), progress)
    with bar:
        for x, y, how in pairing.pairs:
            rows.append(_compared(x, y, how))
            bar.advance(x.nbytes + y.nbytes)
    rows += _unpaired(pairing, first, second)
    return CheckpointDiff(
        (first.label, second.label),
        tuple(rows),
        incomplete=_incomplete(first, second),
        rules=tuple(pairing.rules),
        config=_config_differences(first.config, second.config),
        notes=(*first.notes, *second.notes),
    )


def _with_base(first: Checkpoint, second: Checkpoint, base: Any) -> tuple[Checkpoint, Checkpoint]:
    """Adapters merged into their base."""
    given = None if base is None else open_checkpoint(base, "base")
    if given is not None and given.adapter is not None:
        raise ConfigError("base is an adapter; wanted the network for which it was written")
    if given is None and first.adapter is not None and second.adapter is not None:
        return first, second
    sides = []
    for own, other in ((first, second), (second, first)):
        if own.adapter is None:
            sides.append(own)
        else:
            # The adapter's settings are not those of a network, so there is nothing to compare.
            sides.append(replace(merged(given or other, own.adapter), config=None))
    return sides[0], sides[1]


def _paired(first: Checkpoint, second: Checkpoint) -> Pairing:
    pairing = Pairing(first.tensors, second.tensors)
    pair_by_name(pairing)
    split_fused(pairing)
    pair_by_convention(pairing)
    pair_by_content(pairing)
    order = {name: i for i, name in enumerate(first.tensors)}
    # In the order of the file, which reads it from front to back.
    pairing.pairs.sort(key=lambda pair: order.get(pair[0].name, len(order)))
    return pairing


# -- one pair ------------------------------------------------------------------------------------
def _compared(x: LazyTensor, y: LazyTensor, how: str) -> TensorDiff:
    try:
        if equal_bytes(x, y):
            return TensorDiff.of(x, y, how, Change("identical", "identical"))
        return _changed(x, y, how)
    except NoNumbersError as error:
        return TensorDiff.of(x, y, how, Change("unreadable", str(error)))


def _changed(x: LazyTensor, y: LazyTensor, how: str) -> TensorDiff:
    if x.dtype is None or y.dtype is None:
        return TensorDiff.of(x, y, how, Change("other", "other: the bytes differ"))
    a, b = x.tensor(), y.tensor()
    if x.shape != y.shape:
        if a.ndim != 2 or tuple(a.shape) != tuple(b.shape[::-1]):
            return TensorDiff.of(x, y, how, _other_shape(a, b))
        return _transposed(x, y, how, a, b)
    if a.ndim == 2 and a.shape[0] == a.shape[1] and same_bits(a.T, b):
        return _transposed(x, y, how, a, b)
    change = classify(a, b)
    if change.kind == "identical":  # a quantised tensor of torch, and its numbers
        name = y.dtype_name
        change = Change("cast", f"the same numbers as {name}", {"through": name, "lost": 0})
    if _may_be_transposed(change, a):
        turned = classify(a.T.contiguous(), b)
        if turned.kind != "other":
            return TensorDiff.of(x, y, how, turned, transposed=True)
    return TensorDiff.of(x, y, how, change)


def _may_be_transposed(change: Change, a: Tensor) -> bool:
    """Square matrices of other numbers may be a transposed layout that changed as well."""
    if change.kind != "other" or change.measured is None or a.ndim != 2:
        return False
    return a.shape[0] == a.shape[1] > 1 and change.measured.relative > _STRAIGHT


def _transposed(x: LazyTensor, y: LazyTensor, how: str, a: Tensor, b: Tensor) -> TensorDiff:
    change = classify(a.T.contiguous(), b)
    if change.kind == "identical":
        change = Change("transposed", "transposed")
    return TensorDiff.of(x, y, how, change, transposed=True)


def _other_shape(a: Tensor, b: Tensor) -> Change:
    """A change of shape along one axis, with what the common part is; a grown vocabulary, say."""
    text = f"shape differs: {tuple(a.shape)} and {tuple(b.shape)}"
    axes = [i for i in range(min(a.ndim, b.ndim)) if a.shape[i] != b.shape[i]]
    if a.ndim != b.ndim or len(axes) != 1:
        return Change("shape differs", text)
    size = min(a.shape[axes[0]], b.shape[axes[0]])
    common = classify(
        a.narrow(axes[0], 0, size).contiguous(), b.narrow(axes[0], 0, size).contiguous()
    )
    details = {"axis": axes[0], "common": size, "common_kind": common.kind}
    text = f"{text}; the first {size} along axis {axes[0]}: {common.text}"
    return Change("shape differs", text, details, common.measured, common.notes)


# -- tensors without a partner -------------------------------------------------------------------
def _unpaired(pairing: Pairing, first: Checkpoint, second: Checkpoint) -> Iterator[TensorDiff]:
    sides = (
        ("a", pairing.left_a, [x for x, _, _ in pairing.pairs], second.missing),
        ("b", pairing.left_b, [y for _, y, _ in pairing.pairs], first.missing),
    )
    for side, left, matched, absent in sides:
        for tensor in left.values():
            yield _alone(side, tensor, matched, absent)
    seen = {*pairing.left_a, *pairing.left_b}
    for checkpoint in (first, second):
        for name, file in checkpoint.missing.items():
            if name not in seen:
                seen.add(name)
                yield TensorDiff.lost(name, f"not read: {file} is missing")


def _alone(
    side: str, tensor: LazyTensor, matched: list[LazyTensor], absent: dict[str, str]
) -> TensorDiff:
    first, second = (tensor, None) if side == "a" else (None, tensor)
    other = "b" if side == "a" else "a"
    if tensor.name in absent:
        text = f"not compared: {absent[tensor.name]} of {other} is missing"
        return TensorDiff.of(first, second, "name", Change("incomplete", text))
    try:
        twin = tied_to(tensor, matched)
    except NoNumbersError:
        twin = None
    if twin is not None:
        text = f"only in {side}, the same numbers as {twin} (tied)"
        return TensorDiff.of(first, second, "content", Change("tied", text, {"tied_to": twin}))
    text = f"only in {side}"
    if is_buffer(tensor):
        text += " (a buffer that the network's code computes)"
    return TensorDiff.of(
        first, second, "", Change(f"only in {side}", text), buffer=is_buffer(tensor)
    )


def _incomplete(first: Checkpoint, second: Checkpoint) -> tuple[str, ...]:
    files = {
        f"{checkpoint.label}: {file}": None
        for checkpoint in (first, second)
        for file in sorted(set(checkpoint.missing.values()))
    }
    return tuple(files)


def _config_differences(
    first: dict[str, Any] | None, second: dict[str, Any] | None
) -> dict[str, tuple[Any, Any]]:
    """Entries of both configurations that differ; nothing if one side has no configuration."""
    if first is None or second is None:
        return {}
    keys = [key for key in {**first, **second} if key not in _INCIDENTAL]
    return {k: (first.get(k), second.get(k)) for k in keys if first.get(k) != second.get(k)}


# -- progress ------------------------------------------------------------------------------------
class _Progress:
    """A bar of bytes on stderr, for terminals only."""

    def __init__(self, total: int, wanted: bool | None) -> None:
        self._total = total
        self._shown = sys.stderr.isatty() if wanted is None else wanted
        self._bar: Any = None

    def __enter__(self) -> _Progress:
        if self._shown:
            from tqdm import tqdm

            self._bar = tqdm(
                total=self._total, desc="comparing", unit="B", unit_scale=True, leave=False
            )
        return self

    def advance(self, count: int) -> None:
        if self._bar is not None:
            self._bar.update(count)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

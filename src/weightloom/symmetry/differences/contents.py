"""Tensors with different names and the same numbers: partners of other names, and tied weights."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np

from weightloom.symmetry.differences.distances import measure
from weightloom.symmetry.differences.names import Pairing, is_buffer
from weightloom.symmetry.differences.sources import LazyTensor, NoNumbersError

__all__ = ["BYTES", "equal_bytes", "pair_by_content", "tied_to"]

BYTES = 1 << 19
"""read at a time: two such blocks stay in the cache of a core while they are compared"""
_PARALLEL = 0.9
"""cosine above which two tensors, the only ones of their shape, are taken for partners"""


def equal_bytes(a: LazyTensor, b: LazyTensor) -> bool:
    """Whether two tensors have the same dtype, shape and bytes, read block by block."""
    if (a.dtype_name, a.shape, a.nbytes) != (b.dtype_name, b.shape, b.nbytes):
        return False
    if a.storage is not None and a.storage == b.storage:
        return True
    a, b = a.loaded(), b.loaded()
    first, second = (np.empty(min(BYTES, a.nbytes), dtype=np.uint8) for _ in range(2))
    with a.opened() as file, b.opened() as other:
        for start in range(0, a.nbytes, BYTES):
            size = min(BYTES, a.nbytes - start)
            x = a.read_into(start, first[:size], file)
            if not _equal(x, b.read_into(start, second[:size], other)):
                return False
    return True


def _equal(x: np.ndarray, y: np.ndarray) -> bool:
    if len(x) % 8 == 0 and x.ctypes.data % 8 == 0 and y.ctypes.data % 8 == 0:
        x, y = x.view(np.uint64), y.view(np.uint64)  # an eighth of the comparisons
    return bool(np.array_equal(x, y))


def _key(tensor: LazyTensor) -> tuple[str, tuple[int, ...], bytes]:
    digest = hashlib.blake2b(digest_size=16)
    tensor = tensor.loaded()
    buffer = np.empty(min(BYTES, tensor.nbytes), dtype=np.uint8)
    with tensor.opened() as file:
        for start in range(0, tensor.nbytes, BYTES):
            size = min(BYTES, tensor.nbytes - start)
            digest.update(tensor.read_into(start, buffer[:size], file).data)
    return tensor.dtype_name, tensor.shape, digest.digest()


def pair_by_content(pairing: Pairing) -> None:
    """Pair tensors that are left: the same bits, once on each side; then their neighbours."""
    shapes = {_shape(t) for t in pairing.left_a.values()}
    shapes &= {_shape(t) for t in pairing.left_b.values()}
    keys = [_by_key(left, shapes) for left in (pairing.left_a, pairing.left_b)]
    stems: dict[str, set[str]] = defaultdict(set)
    count = 0
    for key, first in keys[0].items():
        second = keys[1].get(key, [])
        if len(first) == len(second) == 1:
            pairing.join(first[0], second[0], "content")
            stems[_stem(first[0])].add(_stem(second[0]))
            count += 1
    if count:
        pairing.rules.append(f"{count} tensors were matched by content: their names differ")
    _pair_neighbours(pairing, {a: b.pop() for a, b in stems.items() if len(b) == 1})
    _pair_lonely(pairing)


def _shape(tensor: LazyTensor) -> tuple[str, tuple[int, ...]]:
    return tensor.dtype_name, tensor.shape


def _stem(name: str) -> str:
    return name.rpartition(".")[0]


def _by_key(left: Mapping[str, LazyTensor], shapes: set) -> dict[object, list[str]]:
    keys: dict[object, list[str]] = defaultdict(list)
    for name, tensor in left.items():
        if _shape(tensor) in shapes and tensor.nbytes:
            try:
                keys[_key(tensor)].append(name)
            except NoNumbersError:  # no numbers; the row of this tensor will say so
                continue
    return keys


def _pair_neighbours(pairing: Pairing, stems: Mapping[str, str]) -> None:
    """If "0.weight" is "fc1.weight" by content, "0.bias" is "fc1.bias", also if it changed."""
    count = 0
    for stem, other in stems.items():
        for name in [n for n in pairing.left_a if _stem(n) == stem]:
            partner = f"{other}.{name.rpartition('.')[2]}".lstrip(".")
            if partner in pairing.left_b:
                pairing.join(name, partner, "neighbour")
                count += 1
    if count:
        pairing.rules.append(f"{count} tensors belong to layers that were matched by content")


def _pair_lonely(pairing: Pairing) -> None:
    """The only tensors of a shape on both sides, if they are nearly parallel."""
    shapes: tuple[dict, dict] = (defaultdict(list), defaultdict(list))
    for table, left in zip(shapes, (pairing.left_a, pairing.left_b), strict=True):
        for name, tensor in left.items():
            # Vectors of a network are often nearly constant, so all of them are parallel.
            if tensor.dtype is not None and len(tensor.shape) > 1 and not is_buffer(tensor):
                table[tensor.shape].append(name)
    count = 0
    for shape, first in shapes[0].items():
        second = shapes[1].get(shape, [])
        if len(first) != 1 or len(second) != 1:
            continue
        try:
            x, y = pairing.left_a[first[0]].tensor(), pairing.left_b[second[0]].tensor()
        except NoNumbersError:
            continue
        if measure(x, y).cosine >= _PARALLEL:
            pairing.join(first[0], second[0], "content")
            count += 1
    if count:
        pairing.rules.append(
            f"{count} tensors were matched by content: the only ones of their shape, and nearly "
            f"parallel (cosine at least {_PARALLEL})"
        )


def tied_to(tensor: LazyTensor, others: Iterable[LazyTensor]) -> str | None:
    """The first other tensor of the same side that is the same one; None: there is none.

    The same place in memory, or the same bits of a matrix that is not constant: biases of zeros
    are all equal, and tied to nothing.
    """
    for other in others:
        if other.name == tensor.name:
            continue
        if tensor.storage is not None and tensor.storage == other.storage:
            return other.name
        if len(tensor.shape) > 1 and equal_bytes(tensor, other) and not _constant(tensor):
            return other.name
    return None


def _constant(tensor: LazyTensor) -> bool:
    values = tensor.tensor().reshape(-1)
    return bool((values == values[0]).all())

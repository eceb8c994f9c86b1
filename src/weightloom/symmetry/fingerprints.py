"""A hash of a network that permutations of units do not change: bitwise, no tolerance.

Units are coloured by hashes (colour refinement, Weisfeiler and Leman). The hash of a unit covers
the bytes of every tensor slice that belongs to it, with the other units of the slice in the order
of their colours; units that share a colour enter as a sorted list of values. In a network without
clones the first pass decides the order of all units. Ties that remain are searched: each unit of a
class is singled out in turn, and the smallest result is taken.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from weightloom.networks import operations_of, structure
from weightloom.symmetry.group import tensors_of
from weightloom.symmetry.reading.reader import read
from weightloom.symmetry.spec import Attention, Axis, Spec

__all__ = ["fingerprint", "ranks_of"]

_BUDGET = 256  # individualisations before the search stops and the colours alone are hashed

Ranks = dict[str, np.ndarray]
"""For each space the rank of each unit's colour; equal ranks are ties."""


def fingerprint(module: nn.Module) -> str:
    """A hash (64 hexadecimal digits) of the network up to permutations of units and of heads.

    Equal for two networks whose operations and constants are the same and whose weights are bitwise
    the same up to permutations; different otherwise (except for collisions of SHA-256). Scales,
    signs and the maps inside heads are NOT removed: they change bits, and rounding would still
    separate some equivalent networks. Use `equivalent` for those. The dtype matters, the names of
    layers and the way in which the same operations are written do not.

    If more than 256 units have to be singled out to order ties (many units that are alike but not
    interchangeable), the hash of the stable colours is returned. It is still equal for permuted
    networks, but also for networks that colour refinement cannot tell apart.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1))
    >>> twin = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1))
    >>> with torch.no_grad():
    ...     _ = twin[0].weight.copy_(net[0].weight.flip(0))
    ...     _ = twin[0].bias.copy_(net[0].bias.flip(0))
    ...     _ = twin[2].weight.copy_(net[2].weight.flip(1))
    ...     _ = twin[2].bias.copy_(net[2].bias)
    >>> fingerprint(net) == fingerprint(twin)
    True
    """
    colouring = _Colouring(module, read(module))
    ranks = colouring.refine(colouring.start(), set())
    try:
        return colouring.search(ranks, [_BUDGET]).hex()
    except _OutOfBudgetError:
        # How far the search came depends on the order of units, so none of it is used.
        return colouring.digest(ranks).hex()


def ranks_of(module: nn.Module, spec: Spec) -> Ranks:
    """The stable colours of units and heads as ranks; a permutation only permutes them."""
    colouring = _Colouring(module, spec)
    return colouring.refine(colouring.start(), set())


class _OutOfBudgetError(Exception):
    """There are too many ties to search them all."""


class _Colouring:
    """The bits of one network and the axes along which they can be permuted."""

    def __init__(self, module: nn.Module, spec: Spec) -> None:
        self.axes = [*spec.axes]
        self.sizes = {name: space.size for name, space in spec.spaces.items()}
        tensors = tensors_of(module)
        for attention in spec.attentions:
            self._add_heads(attention, tensors)
        self.bits = {name: _bits(tensor) for name, tensor in tensors.items()}
        dtypes = [str(tensor.dtype) for tensor in tensors.values()]
        self.header = repr((_architecture(module, spec, self.bits), dtypes)).encode()

    def _add_heads(self, attention: Attention, tensors: dict[str, Tensor]) -> None:
        """Heads as one more space: they index rows of in_proj and columns of out_proj.

        The rows of in_proj have three groups; a view with an axis for the three makes heads a plain
        axis.
        """
        space, head_dim = attention.head_space, attention.head_dim
        self.sizes[space] = attention.heads
        for name in (attention.in_weight, attention.in_bias):
            if name is not None:
                tensor = tensors[name]
                tensors[name] = tensor.reshape(3, len(tensor) // 3, *tensor.shape[1:])
                shifted = [replace(a, dim=a.dim + 1) for a in self.axes if a.tensor == name]
                others = [a for a in self.axes if a.tensor != name]
                self.axes = [*others, *shifted, Axis(name, 1, space, "out", head_dim)]
        self.axes.append(Axis(attention.out_weight, 1, space, "in", head_dim))

    def start(self) -> Ranks:
        """One colour for all units of a space."""
        return {name: np.zeros(size, dtype=np.int64) for name, size in self.sizes.items()}

    def refine(self, ranks: Ranks, known: set[str]) -> Ranks:
        """Ranks after splitting by hashes of slices, until no class splits any more.

        The first pass takes the spaces in order and uses only tensors whose other spaces are
        ordered already, so that networks without ties need one pass. Later passes use all tensors.
        """
        ranks = dict(ranks)
        for name in self.sizes:
            if name not in known:
                ready = [a for a in self._of(name) if self._others(a) <= known]
                ranks[name] = self._split(name, ready, ranks)
                known = known | {name}
        while ties := [name for name in self.sizes if _tied(ranks[name])]:
            before = {name: int(ranks[name].max()) for name in ties}
            for name in ties:
                ranks[name] = self._split(name, self._of(name), ranks)
            if all(int(ranks[name].max()) == before[name] for name in ties):
                break
        return ranks

    def search(self, ranks: Ranks, budget: list[int]) -> bytes:
        """The smallest hash over all ways to single out tied units."""
        ties = [name for name in self.sizes if _tied(ranks[name])]
        if not ties:
            return self.digest(ranks)
        name = ties[0]
        values, counts = np.unique(ranks[name], return_counts=True)
        members = np.where(ranks[name] == values[counts > 1][0])[0]
        if self._interchangeable(name, members, ranks):
            # Any order gives the same bytes, so order all at once: there may be thousands.
            order = ranks[name] * len(ranks[name])
            order[members] += np.arange(len(members))
            return self.search({**ranks, name: _dense(order)}, budget)
        if budget[0] < len(members):
            raise _OutOfBudgetError
        budget[0] -= len(members)
        digests = []
        for unit in members:
            single = ranks[name] * 2 + 1
            single[unit] -= 1
            refined = self.refine({**ranks, name: _dense(single)}, set(self.sizes))
            digests.append(self.search(refined, budget))
        return min(digests)

    def _of(self, space: str) -> list[Axis]:
        return [axis for axis in self.axes if axis.space == space]

    def _others(self, axis: Axis) -> set[str]:
        """The spaces that index the other axes of the tensor."""
        same_tensor = (other for other in self.axes if other.tensor == axis.tensor)
        return {other.space for other in same_tensor if other.dim != axis.dim}

    def _split(self, name: str, axes: list[Axis], ranks: Ranks) -> np.ndarray:
        """The ranks of one space, split by the hashes of its slices along these axes."""
        old = ranks[name]
        hashes = [hashlib.sha256(int(rank).to_bytes(8, "big")) for rank in old]
        for axis in axes:
            for digest, row in zip(hashes, self._slices(axis, ranks), strict=True):
                digest.update(row)
        keys = [(int(rank), digest.digest()) for rank, digest in zip(old, hashes, strict=True)]
        position = {key: place for place, key in enumerate(sorted(set(keys)))}
        return np.array([position[key] for key in keys], dtype=np.int64)

    def _slices(self, axis: Axis, ranks: Ranks) -> Iterator[bytes]:
        """The bytes of each unit's slice, in an order that permutations do not change."""
        bits = np.moveaxis(self.bits[axis.tensor], axis.dim, 0)
        size = self.sizes[axis.space]
        bits = bits.reshape(size, axis.repeat, *bits.shape[1:])
        moves = []
        for other in self.axes:
            if other.tensor == axis.tensor and other.dim != axis.dim:
                dim = other.dim + (other.dim < axis.dim)
                moves.append((dim, other, np.argsort(ranks[other.space], kind="stable")))
        for unit in range(size):
            part = bits[unit]
            for dim, other, order in moves:
                part = np.take(part, _spread(order, other.repeat), axis=dim)
                part = _sort_ties(part, dim, other.repeat, ranks[other.space][order])
            yield np.ascontiguousarray(part).tobytes()

    def _interchangeable(self, name: str, members: np.ndarray, ranks: Ranks) -> bool:
        """Whether swapping any two of these units leaves every byte where it is."""
        for axis in self._of(name):
            if name in self._others(axis):
                return False
            bits = np.moveaxis(self.bits[axis.tensor], axis.dim, 0)
            bits = bits.reshape(self.sizes[name], axis.repeat, *bits.shape[1:])[members]
            if not (bits == bits[:1]).all():
                return False
        return True

    def digest(self, ranks: Ranks) -> bytes:
        """Hash of all bytes in the order of the ranks; ties (out of budget) as sorted hashes."""
        total = hashlib.sha256(self.header)
        hashed: set[str] = set()
        if any(_tied(own) for own in ranks.values()):
            hashed = {axis.tensor for axis in self.axes}
            for name in self.sizes:
                rows = zip(*(self._slices(axis, ranks) for axis in self._of(name)), strict=True)
                for digest in sorted(hashlib.sha256(b"".join(row)).digest() for row in rows):
                    total.update(digest)
        for name, bits in self.bits.items():
            if name in hashed:
                continue
            for axis in (axis for axis in self.axes if axis.tensor == name):
                order = _spread(np.argsort(ranks[axis.space], kind="stable"), axis.repeat)
                bits = np.take(bits, order, axis=axis.dim)
            total.update(np.ascontiguousarray(bits).data)
        return total.digest()


def _dense(ranks: np.ndarray) -> np.ndarray:
    """The same order as ranks 0, 1, 2, ..."""
    return np.unique(ranks, return_inverse=True)[1].reshape(-1)


def _tied(ranks: np.ndarray) -> bool:
    return len(ranks) > 0 and int(ranks.max()) + 1 < len(ranks)


def _spread(order: np.ndarray, repeat: int) -> np.ndarray:
    """Positions along an axis on which each unit has ``repeat`` consecutive places."""
    return (order[:, None] * repeat + np.arange(repeat)).reshape(-1)


def _sort_ties(part: np.ndarray, dim: int, repeat: int, ranks: np.ndarray) -> np.ndarray:
    """A slice with units of equal rank (which are neighbours) sorted by their bytes."""
    if not _tied(ranks):
        return part
    part = np.moveaxis(part, dim, 0)
    part = np.ascontiguousarray(part.reshape(len(ranks), -1))
    keys = np.array([row.tobytes() for row in part], dtype=object)
    order = np.array(sorted(range(len(ranks)), key=lambda i: (ranks[i], keys[i])))
    return part[order]


def _bits(tensor: Tensor) -> np.ndarray:
    """The bytes of a tensor as unsigned numbers of the same shape, on the CPU."""
    sizes = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    tensor = tensor.detach().cpu().contiguous()
    return tensor.view(sizes[tensor.element_size()]).numpy()


def _architecture(module: nn.Module, spec: Spec, bits: dict[str, np.ndarray]) -> object:
    """Everything but the weights: operations, constants, shapes, what moves together; no names."""
    spaces = {name: place for place, name in enumerate(spec.spaces)}
    tensors = {name: place for place, name in enumerate(bits)}
    axes = [(tensors[a.tensor], a.dim, spaces[a.space], a.side, a.repeat) for a in spec.axes]
    shapes = [tuple(own.shape) for own in bits.values()]
    operations = structure(operations_of(module), lambda name: str(tensors.get(name, name)))
    kinds = [(s.size, s.kind.value, s.constant) for s in spec.spaces.values()]
    return operations, axes, shapes, kinds

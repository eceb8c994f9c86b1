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
from weightloom.networks.finiteness import require_finite
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
    require_finite(module)
    spec = read(module)
    colouring = _Colouring(module, spec)
    colouring.header = repr(_architecture(module, spec)).encode()
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
        self.header = b""

    def _add_heads(self, attention: Attention, tensors: dict[str, Tensor]) -> None:
        """Heads as one more space: they index rows of the projections and columns of the output.

        Heads of one matrix (queries, keys and values of nn.MultiheadAttention) are in several
        places of it; with a tensor for each place, heads are a plain axis.
        """
        space, size = attention.head_space, attention.heads * attention.head_dim
        parts = (attention.query, attention.key, attention.value)
        places = {(part.weight, part.start): tensors[part.weight] for part in parts}
        rows = sum(len(part.rows(tensors[part.weight], size)) for part in parts)
        whole = {name: tensor.numel() for (name, _), tensor in places.items()}
        inner = attention.query.rows(tensors[attention.query.weight], size)[:1].numel()
        plain = attention.kv_heads == attention.heads and attention.movable
        if not plain or sum(whole.values()) != rows * inner:
            return  # heads of another layout get other hashes in other orders
        self.sizes[space] = attention.heads
        named = ("query", attention.query), ("key", attention.key), ("value", attention.value)
        for label, part in named:
            for name in (part.weight, part.bias):
                if name is not None:
                    own = f"{name} ({label} of {attention.name})"
                    tensors[own] = part.rows(tensors[name], size)
                    self.axes += self._other_axes(name, own, tensors[name].dim(), part.dim)
                    self.axes.append(Axis(own, 0, space, "out", attention.head_dim))
        for name in {n for _, part in named for n in (part.weight, part.bias)} - {None}:
            self.axes = [axis for axis in self.axes if axis.tensor != name]
            tensors.pop(str(name))
        output = attention.output
        self.axes.append(Axis(output.weight, output.dim, space, "in", attention.head_dim))

    def _other_axes(self, name: str, own: str, dims: int, moved: int) -> list[Axis]:
        """The axes of a matrix for a part of it whose dimension ``moved`` comes first."""
        places = [moved, *(dim for dim in range(dims) if dim != moved)] if dims > 1 else [0]
        return [
            replace(axis, tensor=own, dim=places.index(axis.dim))
            for axis in self.axes
            if axis.tensor == name
        ]

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


def _architecture(module: nn.Module, spec: Spec) -> object:
    """Everything but the weights: operations, constants, shapes, what moves together; no names."""
    tensors = tensors_of(module)
    spaces = {name: place for place, name in enumerate(spec.spaces)}
    places = {name: place for place, name in enumerate(tensors)}
    axes = [(places[a.tensor], a.dim, spaces[a.space], a.side, a.repeat) for a in spec.axes]
    kept = [(tuple(tensor.shape), str(tensor.dtype)) for tensor in tensors.values()]
    operations = structure(operations_of(module), lambda name: str(places.get(name, name)))
    kinds = [(s.size, s.kind.value, s.constant) for s in spec.spaces.values()]
    return operations, axes, kept, kinds

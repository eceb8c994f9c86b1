"""A name for a network that exchanges of units do not change: bitwise, no tolerance.

Units are coloured by hashes (colour refinement, Weisfeiler and Leman): the hash of a unit covers
the bytes of every tensor slice that belongs to it, with the other units of the slice in the order
of their colours; units that share a colour enter as a sorted list of values. In a network without
clones the first pass decides the order of all units. Ties that refinement leaves are searched: one
unit of the class is singled out, for each unit in turn, and the smallest result counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from weightloom.symmetry.group import tensors_of
from weightloom.symmetry.read import read
from weightloom.symmetry.spec import Axis, Spec

__all__ = ["fingerprint", "ranks_of"]

_BUDGET = 256  # individualisations before the search stops and the colours alone are hashed

Ranks = dict[str, np.ndarray]
"""For each space the rank of each unit's colour; equal ranks are ties."""


def fingerprint(module: nn.Module) -> str:
    """A hash (64 hexadecimal digits) of the network up to exchanges of units and of heads.

    Equal for two networks whose weights are bitwise the same up to exchanges; different otherwise
    (but for collisions of SHA-256). Scales, signs and the maps inside heads are NOT taken out:
    they change bits, and a rounded form would have borders where equal networks fall apart. Use
    `equivalent` for those. The dtype counts, the names of layers do not. If more than 256 units
    have to be singled out to order ties (many units that are alike but not interchangeable), the
    hash of the stable colours is returned: still equal for copies, but networks that differ only in
    a way that colour refinement cannot see would share it.

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
    work = _Work(module, read(module))
    ranks = work.refine(work.start(), set())
    try:
        return work.search(ranks, [_BUDGET]).hex()
    except _OutOfBudgetError:
        # What part of the search was done depends on the order of units: none of it may count.
        return work.digest(ranks).hex()


def ranks_of(module: nn.Module) -> Ranks:
    """The stable colours of units and heads as ranks, the same for all exchanged copies."""
    work = _Work(module, read(module))
    return work.refine(work.start(), set())


class _OutOfBudgetError(Exception):
    """Too many ties to search them all."""


class _Work:
    """The bits of one network and the axes along which they may be exchanged."""

    def __init__(self, module: nn.Module, spec: Spec) -> None:
        axes = [*spec.axes]
        self.bits: dict[str, np.ndarray] = {}
        tensors = tensors_of(module)
        self.sizes = {name: space.size for name, space in spec.spaces.items()}
        for one in spec.attentions:
            # Heads are units like others: in the rows of in_proj (three groups) and the columns
            # of out_proj. A view with an axis of its own for the three makes them plain axes.
            self.sizes[one.head_space] = one.heads
            for name in (one.in_weight, one.in_bias):
                if name is not None:
                    tensor = tensors[name]
                    tensors[name] = tensor.reshape(3, len(tensor) // 3, *tensor.shape[1:])
                    shifted = [a for a in axes if a.tensor == name]
                    axes = [a for a in axes if a.tensor != name]
                    axes += [Axis(name, a.dim + 1, a.space, a.side, a.repeat) for a in shifted]
                    axes.append(Axis(name, 1, one.head_space, "out", one.head_dim))
            axes.append(Axis(one.out_weight, 1, one.head_space, "in", one.head_dim))
        self.axes = axes
        for name, tensor in tensors.items():
            self.bits[name] = _bits(tensor)
        dtypes = [str(tensor.dtype) for tensor in tensors.values()]
        self.header = repr((_shape_of(module, spec, self.bits), dtypes)).encode()

    def start(self) -> Ranks:
        """All units of a space alike."""
        return {name: np.zeros(size, dtype=np.int64) for name, size in self.sizes.items()}

    def refine(self, ranks: Ranks, known: set[str]) -> Ranks:
        """Ranks after splitting by hashes of slices, until no class splits any more.

        The first pass goes through the spaces in order and uses only what is ordered already, so
        that networks without ties need one pass; then everything is used.
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
            # Any order gives the same bytes: all at once, there may be thousands.
            order = ranks[name] * len(ranks[name])
            order[members] += np.arange(len(members))
            return self.search({**ranks, name: _dense(order)}, budget)
        if budget[0] < len(members):
            raise _OutOfBudgetError
        budget[0] -= len(members)
        found = []
        for unit in members:
            single = ranks[name] * 2 + 1
            single[unit] -= 1
            dense = _dense(single)
            found.append(self.search(self.refine({**ranks, name: dense}, set(self.sizes)), budget))
        return min(found)

    def _of(self, space: str) -> list[Axis]:
        return [axis for axis in self.axes if axis.space == space]

    def _others(self, axis: Axis) -> set[str]:
        return {one.space for one in self.axes if one.tensor == axis.tensor and one.dim != axis.dim}

    def _split(self, name: str, axes: list[Axis], ranks: Ranks) -> np.ndarray:
        old = ranks[name]
        hashes = [hashlib.sha256(int(rank).to_bytes(8, "big")) for rank in old]
        for axis in axes:
            for digest, row in zip(hashes, self._slices(axis, ranks), strict=True):
                digest.update(row)
        keys = [(int(rank), one.digest()) for rank, one in zip(old, hashes, strict=True)]
        position = {key: place for place, key in enumerate(sorted(set(keys)))}
        return np.array([position[key] for key in keys], dtype=np.int64)

    def _slices(self, axis: Axis, ranks: Ranks) -> Iterator[bytes]:
        """The bytes of each unit's slice, in an order that exchanges do not change."""
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
        if any(_tied(one) for one in ranks.values()):
            for name in self.sizes:
                rows = zip(*(self._slices(axis, ranks) for axis in self._of(name)), strict=True)
                for one in sorted(hashlib.sha256(b"".join(row)).digest() for row in rows):
                    total.update(one)
        fixed = {axis.tensor for axis in self.axes} if any(map(_tied, ranks.values())) else set()
        for name, bits in self.bits.items():
            if name in fixed:
                continue
            for axis in (one for one in self.axes if one.tensor == name):
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
    return (order[:, None] * repeat + np.arange(repeat)).reshape(-1)


def _sort_ties(part: np.ndarray, dim: int, repeat: int, ranks: np.ndarray) -> np.ndarray:
    """Units with equal ranks (neighbours here) in the order of their bytes."""
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


def _shape_of(module: nn.Module, spec: Spec, bits: dict[str, np.ndarray]) -> object:
    """What the network is besides its weights: layers, activations, shapes and dtypes; no names."""
    spaces = {name: place for place, name in enumerate(spec.spaces)}
    tensors = {name: place for place, name in enumerate(bits)}
    layers = [
        (one.kind, one.activation, spaces.get(one.input or ""), spaces.get(one.output or ""))
        for one in spec.layers
    ]
    axes = [(tensors[a.tensor], a.dim, spaces[a.space], a.side, a.repeat) for a in spec.axes]
    shapes = [tuple(one.shape) for one in bits.values()]
    settings = [
        (type(part).__name__, part.extra_repr().replace("inplace=True", "").strip(" ,"))
        for part in module.modules()
        if next(part.children(), None) is None and not isinstance(part, (nn.Dropout, nn.Identity))
    ]
    kinds = [(s.size, s.kind.value, s.constant) for s in spec.spaces.values()]
    return layers, axes, shapes, settings, kinds

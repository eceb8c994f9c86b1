"""How many different parameter vectors the exchange of hidden units makes of one network.

Exchanging units moves theta to one of prod_l d_l! places, some of which coincide: the copies that
differ are prod_l d_l! divided by the number of exchanges that leave every weight where it is. These
are counted by colour refinement (units that no sum over their weights tells apart share a colour),
then by search inside the colours that remain.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations, product

import torch
from torch import Tensor, nn

from weightloom.errors import ConfigError
from weightloom.symmetry.read import read
from weightloom.symmetry.spec import Axis, Spec

__all__ = ["Copies", "distinct_permutations", "exchange", "orbit", "state_of"]

State = dict[str, Tensor]
Colours = dict[str, Tensor]

# Refinements that the search may do; a network with more hidden regularity than that is refused.
SEARCH_LIMIT = 20_000


@dataclass(frozen=True)
class Copies:
    """How many distinct permuted copies theta has: group order / stabiliser."""

    widths: tuple[int, ...]
    """d_1, ..., d_L: units of each space"""
    stabiliser: int
    """exchanges that leave theta where it is; 1 for a network without clones"""

    @property
    def count(self) -> int:
        """The exact number, as a Python integer of any length."""
        return math.prod(math.factorial(width) for width in self.widths) // self.stabiliser

    @property
    def log(self) -> float:
        """Natural logarithm of the number; fine at any width."""
        return sum(math.lgamma(width + 1) for width in self.widths) - math.log(self.stabiliser)


def distinct_permutations(module: nn.Module) -> Copies:
    """The number of different parameter vectors among the permuted copies of a network.

    d*_1 x ... x d*_L of 002, Theorem 5. If all clones of a unit are full ones (incoming and
    outgoing weights are equal), this is prod_l d_l! / prod(multiplicities!). In general it is the
    order of the group divided by that of the stabiliser of theta (orbit-stabiliser theorem), since
    units of two layers may have to be exchanged together to leave theta unchanged. Equal means
    bitwise equal (with -0.0 equal to 0.0). Heads of attention layers are not counted.

    >>> _ = torch.manual_seed(0)
    >>> net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    >>> distinct_permutations(net).count          # 4! 3!
    144
    """
    spec = read(module)
    state = state_of(module, spec)
    widths = tuple(space.size for space in spec.spaces.values())
    return Copies(widths, _Stabiliser(state, spec).order())


def state_of(module: nn.Module, spec: Spec) -> State:
    """The tensors that some space indexes, detached; -0.0 becomes 0.0."""
    used = {axis.tensor for axis in spec.axes}
    found = {name: tensor.detach() + 0.0 for name, tensor in module.state_dict().items()}
    return {name: tensor for name, tensor in found.items() if name in used}


def exchange(state: State, spec: Spec, chosen: dict[str, Tensor]) -> State:
    """The state with new unit i = old unit chosen[space][i]; spaces not named stay."""
    moved = dict(state)
    for axis in spec.axes:
        if axis.space in chosen and axis.tensor in moved:
            index = _positions(chosen[axis.space], axis)
            moved[axis.tensor] = moved[axis.tensor].index_select(axis.dim, index)
    return moved


def orbit(state: State, spec: Spec) -> Iterator[State]:
    """Every permuted copy, prod d_l! of them, equal ones included."""
    every = [list(permutations(range(space.size))) for space in spec.spaces.values()]
    for chosen in product(*every):
        named = zip(spec.spaces, chosen, strict=True)
        yield exchange(state, spec, {space: torch.tensor(order) for space, order in named})


def _positions(units: Tensor, axis: Axis) -> Tensor:
    """Indices along an axis of these units, in their order."""
    return (units[:, None] * axis.repeat + torch.arange(axis.repeat)).reshape(-1)


def _mix(values: Tensor) -> Tensor:
    """A 64-bit hash of each integer (splitmix64; int64 arithmetic wraps around)."""
    values = values * -7046029254386353131 + 0x1F83D9ABFB41BD6B
    values = (values ^ (values >> 30)) * -4658895280553007687
    values = (values ^ (values >> 27)) * -7723592293110705685
    return values ^ (values >> 31)


class _Stabiliser:
    """Counts the exchanges that leave a state unchanged."""

    def __init__(self, state: State, spec: Spec) -> None:
        self.spec, self.state = spec, state
        self.steps = 0
        self.tensors = {
            name: (_mix(tensor.double().view(torch.int64)), spec.axes_of_tensor(name))
            for name, tensor in state.items()
        }

    def order(self) -> int:
        start = {
            name: torch.full((space.size,), index, dtype=torch.int64)
            for index, (name, space) in enumerate(self.spec.spaces.items())
        }
        return self._order(self._refine(start), 1)

    def _order(self, colours: Colours, depth: int) -> int:
        """Exchanges that keep theta and these colours: the orbit of one unit times the rest."""
        cell = _smallest_cell(colours)
        if cell is None:
            return 1
        space, units = cell
        first, others = units[0], units[1:]
        if all(self._interchangeable(space, first, other) for other in others):
            for place, unit in enumerate(units):
                colours = _single_out(colours, space, unit, depth + place)
            found = math.factorial(len(units))
            return found * self._order(self._refine(colours), depth + len(units))
        fixed = self._refine(_single_out(colours, space, first, depth))
        images = 1
        for other in others:
            moved = self._refine(_single_out(colours, space, other, depth))
            images += self._maps(fixed, moved, depth + 1)
        return images * self._order(fixed, depth + 1)

    def _maps(self, a: Colours, b: Colours, depth: int) -> bool:
        """Whether some exchange keeps theta and takes the colours a to the colours b."""
        if any(Counter(a[name].tolist()) != Counter(b[name].tolist()) for name in a):
            return False
        cell = _smallest_cell(a)
        if cell is None:
            chosen = {name: _same_colours(a[name], b[name]) for name in a}
            moved = exchange(self.state, self.spec, chosen)
            return all(torch.equal(moved[name], kept) for name, kept in self.state.items())
        space, units = cell
        fixed = self._refine(_single_out(a, space, units[0], depth))
        wanted = int(a[space][units[0]])
        for unit in torch.nonzero(b[space] == wanted).flatten().tolist():
            if self._maps(fixed, self._refine(_single_out(b, space, unit, depth)), depth + 1):
                return True
        return False

    def _interchangeable(self, space: str, one: int, other: int) -> bool:
        """Whether swapping two units alone leaves theta unchanged."""
        chosen = torch.arange(self.spec.spaces[space].size)
        chosen[[one, other]] = chosen[[other, one]]
        moved = exchange(self.state, self.spec, {space: chosen})
        return all(torch.equal(moved[name], kept) for name, kept in self.state.items())

    def _refine(self, colours: Colours) -> Colours:
        """Split colours by the weights between them until nothing splits any more."""
        count = _classes(colours)
        while True:
            self.steps += 1
            if self.steps > SEARCH_LIMIT:
                raise ConfigError(
                    f"distinct copies: {SEARCH_LIMIT} refinements did not tell all units apart; "
                    "the network has too many equal weights; reduce it first"
                )
            finer = {name: _mix(colour) for name, colour in colours.items()}
            for hashes, axes in self.tensors.values():
                seen = hashes
                for place, axis in enumerate(axes):
                    seen = _mix(seen + _along(_mix(colours[axis.space] + place), axis, seen))
                for place, axis in enumerate(axes):
                    other = tuple(dim for dim in range(seen.dim()) if dim != axis.dim)
                    sums = _ordered_sum(seen, axes, other)
                    sums = sums.reshape(-1, axis.repeat) * _weights(axis.repeat)
                    finer[axis.space] = finer[axis.space] + _mix(sums.sum(1) + place)
            if (split := _classes(finer)) == count:
                return colours
            colours, count = finer, split


def _ordered_sum(seen: Tensor, axes: tuple[Axis, ...], dims: tuple[int, ...]) -> Tensor:
    """Sum over these dims; positions that may not be exchanged get weights of their own."""
    by_dim = {axis.dim: axis for axis in axes}
    for dim in sorted(dims, reverse=True):
        size, repeat = seen.shape[dim], by_dim[dim].repeat if dim in by_dim else seen.shape[dim]
        weights = _weights(repeat).repeat(size // max(repeat, 1))
        shape = [size if index == dim else 1 for index in range(seen.dim())]
        seen = (seen * weights.reshape(shape)).sum(dim, keepdim=True)
    return seen.flatten()


def _weights(count: int) -> Tensor:
    """Odd numbers that make a sum depend on the order."""
    return _mix(torch.arange(count)) | 1


def _along(colours: Tensor, axis: Axis, like: Tensor) -> Tensor:
    """Colours of the units spread over one axis, ready to be added to a tensor."""
    shape = [1] * like.dim()
    shape[axis.dim] = -1
    return colours.repeat_interleave(axis.repeat).reshape(shape)


def _classes(colours: Colours) -> int:
    return sum(len(colour.unique()) for colour in colours.values())


def _smallest_cell(colours: Colours) -> tuple[str, list[int]] | None:
    """Space and units of the smallest colour that several units share; None if there is none."""
    best: tuple[int, int, str] | None = None
    for name, colour in colours.items():
        values, counts = colour.unique(return_counts=True)
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            if count > 1 and (best is None or count < best[0]):
                best = (count, value, name)
    if best is None:
        return None
    _, value, name = best
    return name, torch.nonzero(colours[name] == value).flatten().tolist()


def _single_out(colours: Colours, space: str, unit: int, mark: int) -> Colours:
    """The colours with one unit given a colour of its own."""
    changed = colours[space].clone()
    changed[unit] = _mix(changed[unit] ^ (mark << 20))
    return {**colours, space: changed}


def _same_colours(a: Tensor, b: Tensor) -> Tensor:
    """The exchange that puts at each place of a the unit of b with its colour."""
    chosen = torch.empty_like(a)
    chosen[a.argsort()] = b.argsort()
    return chosen

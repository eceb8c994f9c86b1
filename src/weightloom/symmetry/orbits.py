"""How many different parameter vectors the permutations of hidden units give.

There are prod_l d_l! permutations. The number of distinct copies is prod_l d_l! divided by the
number of permutations that leave every weight unchanged (the stabiliser). The stabiliser is counted
by colour refinement (units that no sum over their weights tells apart share a colour), then by
search inside the colours that remain.
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
from weightloom.networks.finiteness import require_finite
from weightloom.symmetry.reading.reader import read
from weightloom.symmetry.spec import Axis, Spec

__all__ = ["Copies", "count_copies", "distinct_permutations", "permute", "orbit", "state_of"]

State = dict[str, Tensor]
Colours = dict[str, Tensor]

# Refinements that the search may do; a network that needs more is refused.
SEARCH_LIMIT = 20_000


@dataclass(frozen=True)
class Copies:
    """How many distinct permuted copies theta has: order of the group / order of the stabiliser."""

    widths: tuple[int, ...]
    """d_1, ..., d_L: units of each space"""
    stabiliser: int
    """permutations that leave theta unchanged; 1 for a network without clones"""

    @property
    def count(self) -> int:
        """The exact number, as a Python integer of any length."""
        return math.prod(math.factorial(width) for width in self.widths) // self.stabiliser

    @property
    def log(self) -> float:
        """Natural logarithm of the number, at any width."""
        return sum(math.lgamma(width + 1) for width in self.widths) - math.log(self.stabiliser)


def distinct_permutations(module: nn.Module) -> Copies:
    """The number of different parameter vectors among the permuted copies of a network.

    ``d*_1 x ... x d*_L`` of functional-equivalence, Theorem 5. If all clones of a unit are full
    ones (incoming and outgoing weights are equal), this is prod_l d_l! / prod(multiplicities!). In
    general it is the order of the group divided by that of the stabiliser of theta
    (orbit-stabiliser theorem), since units of two layers may have to be permuted together to leave
    theta unchanged. Equal means bitwise equal (with -0.0 equal to 0.0). Heads of attention layers
    are not counted.

    >>> _ = torch.manual_seed(0)
    >>> net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    >>> distinct_permutations(net).count          # 4! 3!
    144
    """
    require_finite(module)
    return count_copies(module, read(module))


def count_copies(module: nn.Module, spec: Spec) -> Copies:
    """`distinct_permutations` with a given spec."""
    state = state_of(module, spec)
    widths = tuple(space.size for space in spec.spaces.values())
    return Copies(widths, _Stabiliser(state, spec).order())


def state_of(module: nn.Module, spec: Spec) -> State:
    """The tensors that some space indexes, detached; -0.0 becomes 0.0."""
    used = {axis.tensor for axis in spec.axes}
    tensors = module.state_dict()
    return {name: tensor.detach() + 0.0 for name, tensor in tensors.items() if name in used}


def permute(state: State, spec: Spec, orders: dict[str, Tensor]) -> State:
    """The state with new unit i = old unit orders[space][i]; spaces not named stay."""
    moved = dict(state)
    for axis in spec.axes:
        if axis.space in orders and axis.tensor in moved:
            index = axis.positions(orders[axis.space])
            moved[axis.tensor] = moved[axis.tensor].index_select(axis.dim, index)
    return moved


def orbit(state: State, spec: Spec) -> Iterator[State]:
    """Every permuted copy, prod_l d_l! of them, equal ones included."""
    choices = [list(permutations(range(space.size))) for space in spec.spaces.values()]
    for orders in product(*choices):
        named = zip(spec.spaces, orders, strict=True)
        yield permute(state, spec, {space: torch.tensor(order) for space, order in named})


def _mix(values: Tensor) -> Tensor:
    """A 64-bit hash of each integer (splitmix64; int64 arithmetic wraps around)."""
    values = values * -7046029254386353131 + 0x1F83D9ABFB41BD6B
    values = (values ^ (values >> 30)) * -4658895280553007687
    values = (values ^ (values >> 27)) * -7723592293110705685
    return values ^ (values >> 31)


class _Stabiliser:
    """Counts the permutations that leave a state unchanged."""

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
        """Permutations that keep theta and these colours: the orbit of one unit times the rest."""
        cell = _smallest_cell(colours)
        if cell is None:
            return 1
        space, units = cell
        first, others = units[0], units[1:]
        if all(self._interchangeable(space, first, other) for other in others):
            for place, unit in enumerate(units):
                colours = _single_out(colours, space, unit, depth + place)
            orders = math.factorial(len(units))
            return orders * self._order(self._refine(colours), depth + len(units))
        fixed = self._refine(_single_out(colours, space, first, depth))
        images = 1
        for other in others:
            moved = self._refine(_single_out(colours, space, other, depth))
            images += self._maps(fixed, moved, depth + 1)
        return images * self._order(fixed, depth + 1)

    def _maps(self, a: Colours, b: Colours, depth: int) -> bool:
        """Whether some permutation keeps theta and takes the colours a to the colours b."""
        if any(Counter(a[name].tolist()) != Counter(b[name].tolist()) for name in a):
            return False
        cell = _smallest_cell(a)
        if cell is None:
            return self._keeps({name: _same_colours(a[name], b[name]) for name in a})
        space, units = cell
        fixed = self._refine(_single_out(a, space, units[0], depth))
        colour = int(a[space][units[0]])
        for unit in torch.nonzero(b[space] == colour).flatten().tolist():
            if self._maps(fixed, self._refine(_single_out(b, space, unit, depth)), depth + 1):
                return True
        return False

    def _interchangeable(self, space: str, unit: int, other: int) -> bool:
        """Whether swapping two units alone leaves theta unchanged."""
        order = torch.arange(self.spec.spaces[space].size)
        order[[unit, other]] = order[[other, unit]]
        return self._keeps({space: order})

    def _keeps(self, orders: dict[str, Tensor]) -> bool:
        """Whether a permutation leaves theta unchanged."""
        moved = permute(self.state, self.spec, orders)
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
                mixed = hashes
                for place, axis in enumerate(axes):
                    mixed = _mix(mixed + _along(_mix(colours[axis.space] + place), axis, mixed))
                for place, axis in enumerate(axes):
                    other = tuple(dim for dim in range(mixed.dim()) if dim != axis.dim)
                    sums = _ordered_sum(mixed, axes, other)
                    sums = sums.reshape(-1, axis.repeat) * _weights(axis.repeat)
                    finer[axis.space] = finer[axis.space] + _mix(sums.sum(1) + place)
            if (split := _classes(finer)) == count:
                return colours
            colours, count = finer, split


def _ordered_sum(hashes: Tensor, axes: tuple[Axis, ...], dims: tuple[int, ...]) -> Tensor:
    """Sum over these dims; positions that cannot be permuted get weights of their own."""
    repeats = {axis.dim: axis.repeat for axis in axes}
    for dim in sorted(dims, reverse=True):
        size = hashes.shape[dim]
        repeat = repeats.get(dim, size)
        weights = _weights(repeat).repeat(size // max(repeat, 1))
        shape = [size if index == dim else 1 for index in range(hashes.dim())]
        hashes = (hashes * weights.reshape(shape)).sum(dim, keepdim=True)
    return hashes.flatten()


def _weights(count: int) -> Tensor:
    """Odd numbers that make a sum depend on the order."""
    return _mix(torch.arange(count)) | 1


def _along(colours: Tensor, axis: Axis, like: Tensor) -> Tensor:
    """Colours of the units spread over one axis, to be added to a tensor."""
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
    """The permutation that puts at each place of a the unit of b with its colour."""
    order = torch.empty_like(a)
    order[a.argsort()] = b.argsort()
    return order

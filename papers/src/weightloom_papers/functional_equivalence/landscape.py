"""Theorem 5 of functional-equivalence: starting near any permuted copy of a solution is enough.

The slides do not define Delta_min and Delta_max. Here, with |.| the largest absolute entry over all
weights and biases,

    Delta_max(v)     = |v|,
    Delta_min(theta) = min |theta - P theta| over permutations P of hidden units, P theta != theta.

Then the open balls of radius Delta_min / 2 around two distinct copies are disjoint:
|P theta - Q theta| = |theta - P^-1 Q theta| >= Delta_min, since permutations do not change |.|. If
the distribution of the start is invariant under permutations of hidden units (independent entries
with one distribution per tensor are enough), every ball has the same probability, and the union has
*exactly* the number of distinct copies times that of one ball. With closed balls, as printed
("<= delta / 2"), two of them touch, and a distribution with atoms can have mass on shared points:
the printed bound can then exceed the truth. Hence the open balls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weightloom.errors import ConfigError
from weightloom.symmetry.orbits import State, count_copies, orbit, permute, state_of
from weightloom.symmetry.reading.reader import read
from weightloom.symmetry.spec import Spec

__all__ = ["Gap", "Initialisation", "Theorem5", "delta_max", "delta_min", "theorem5"]

Initialisation = Callable[[str, torch.Size, torch.Generator], Tensor]
"""(name of a tensor, shape [samples, *shape], generator) -> independent samples of that tensor"""

# Permuted copies that are written out one by one.
COPIES_LIMIT = 50_000
# Numbers in one block of distances.
BLOCK = 2**22


@dataclass(frozen=True)
class Gap:
    """Delta_min(theta), or bounds on it where the copies are too many to compare."""

    lower: float
    upper: float

    @property
    def exact(self) -> bool:
        return self.lower == self.upper


@dataclass(frozen=True)
class Theorem5:
    """Both sides of Theorem 5 for one solution and one distribution of the start, by sampling."""

    copies: int
    """d*_1 x ... x d*_L: distinct permuted copies"""
    delta: float
    """Delta_min"""
    probability_one: float
    """share of starts in the open ball of radius delta / 2 around theta itself"""
    probability_any: float
    """share of starts in such a ball around any copy: a convergent algorithm succeeds from there"""
    error_one: float
    """standard error of probability_one"""
    error_any: float
    """standard error of probability_any"""
    samples: int

    @property
    def lower_bound(self) -> float:
        """The right side of the theorem: copies x probability_one."""
        return self.copies * self.probability_one

    @property
    def error_bound(self) -> float:
        """Standard error of lower_bound."""
        return self.copies * self.error_one

    @property
    def holds(self) -> bool:
        """Whether the samples are consistent with the theorem (within 4 standard errors)."""
        error = math.hypot(self.error_bound, self.error_any)
        return self.probability_any >= self.lower_bound - 4 * error


def delta_max(difference: dict[str, Tensor]) -> float:
    """The largest absolute entry over all tensors: Delta_max of Theorem 5."""
    return max((float(t.abs().max()) for t in difference.values() if t.numel()), default=0.0)


def delta_min(module: nn.Module, limit: int = COPIES_LIMIT) -> Gap:
    """Distance to the nearest distinct permuted copy of a network, in the max norm.

    Upper bound: the best swap of two units of one layer. Lower bound: in the first layer in which
    a permutation moves a unit, inputs are not moved, so the distance is at least that of the
    incoming weights and biases of two of its units. With one hidden layer both are equal.
    Otherwise, if there are at most ``limit`` copies, all of them are compared and the answer is
    exact. Balls of radius lower / 2 are disjoint in any case.

    >>> net = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1))
    >>> with torch.no_grad():
    ...     for p, v in zip(net.parameters(), ([[1.0], [4.0]], [0.0, 1.0], [[5.0, 5.5]], [0.0])):
    ...         _ = p.copy_(torch.tensor(v))
    >>> delta_min(net)
    Gap(lower=3.0, upper=3.0)
    """
    return _delta_min(module, read(module), limit)


def _delta_min(module: nn.Module, spec: Spec, limit: int) -> Gap:
    state = {name: tensor.double() for name, tensor in state_of(module, spec).items()}
    if not any(space.size > 1 for space in spec.spaces.values()):
        return Gap(math.inf, math.inf)
    bounds = Gap(_incoming_gap(state, spec), _swap_gap(state, spec))
    order = math.prod(math.factorial(min(space.size, 20)) for space in spec.spaces.values())
    if bounds.exact or order > limit:
        return bounds
    vectors = _copies(state, spec)
    distances = (vectors - vectors[0]).abs().amax(1)
    exact = float(distances[distances > 0].min()) if bool((distances > 0).any()) else math.inf
    return Gap(exact, exact)


def theorem5(
    module: nn.Module, initialisation: Initialisation | str, samples: int, seed: int = 0
) -> Theorem5:
    """Estimate both sides of Theorem 5 for the solution that ``module`` holds.

    Left: how often a random start is near some permuted copy of theta, from where a convergent
    algorithm succeeds. Right: number of distinct copies times how often it is near theta itself.
    ``initialisation`` samples the starts: a function (see `Initialisation`) or "pytorch" for the
    default of nn.Linear and nn.Conv, U(-1/sqrt(fan_in), 1/sqrt(fan_in)). The two sides use
    independent samples. theta has all parameters, also the last bias, which is the same in all
    copies. A network with more than 50,000 copies is refused: one ball then holds far less than one
    in 50,000 starts, too few to sample.
    """
    if samples < 1:
        raise ConfigError(f"samples is {samples}; at least one start is needed")
    spec = read(module)
    _check_size(spec)
    copies, gap = count_copies(module, spec).count, _delta_min(module, spec, COPIES_LIMIT)
    if not gap.lower > 0 or math.isinf(gap.lower):
        raise ConfigError("the network has no two different permuted copies, so Delta_min is empty")
    state = {name: p.detach().double() for name, p in module.named_parameters()}
    sample = _pytorch_default(module) if initialisation == "pytorch" else initialisation
    if isinstance(sample, str):
        raise ConfigError(f"initialisation {sample!r} is not known; use 'pytorch' or a function")
    vectors = torch.unique(_copies(state, spec), dim=0)
    theta = _flat(state)[None]
    generator = torch.Generator().manual_seed(seed)
    share_one = _share(theta, state, sample, samples, gap.lower / 2, generator)
    share_any = _share(vectors, state, sample, samples, gap.lower / 2, generator)
    one_error, any_error = (math.sqrt(p * (1 - p) / samples) for p in (share_one, share_any))
    return Theorem5(copies, gap.lower, share_one, share_any, one_error, any_error, samples)


def _check_size(spec: Spec) -> None:
    widths = [space.size for space in spec.spaces.values()]
    if math.prod(math.factorial(min(width, 20)) for width in widths) > COPIES_LIMIT:
        raise ConfigError(
            f"hidden widths {widths} have more than {COPIES_LIMIT} permuted copies; too few "
            "samples would fall into one ball; use a narrower network"
        )


def _flat(state: State) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in state.values()])


def _copies(state: State, spec: Spec) -> Tensor:
    """All permuted copies as rows; the first is theta itself."""
    return torch.stack([_flat(copy) for copy in orbit(state, spec)])


def _share(
    centres: Tensor,
    state: State,
    sample: Initialisation,
    samples: int,
    radius: float,
    generator: torch.Generator,
) -> float:
    """Share of random starts that are in the open ball around one of the centres [n, S]."""
    block = max(1, BLOCK // centres.numel())
    hits = 0
    for first in range(0, samples, block):
        count = min(block, samples - first)
        starts = [
            sample(name, torch.Size([count, *tensor.shape]), generator).double().reshape(count, -1)
            for name, tensor in state.items()
        ]
        distances = torch.cdist(torch.cat(starts, 1), centres, p=math.inf)
        hits += int((distances.amin(1) < radius).sum())
    return hits / samples


def _pytorch_default(module: nn.Module) -> Initialisation:
    """U(-1/sqrt(fan_in), 1/sqrt(fan_in)) for weights and biases."""
    shapes = {name: p.shape for name, p in module.named_parameters()}

    def sample(name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
        weight = shapes.get(name.removesuffix("bias") + "weight", shapes[name])
        bound = 1 / math.sqrt(max(1, math.prod(weight[1:])))
        return (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1) * bound

    return sample


def _incoming_gap(state: State, spec: Spec) -> float:
    """Smallest distance of two units over the tensors whose other axes belong to earlier spaces.

    Pairs that agree in every tensor are left out: swapping them changes nothing.
    """
    smallest, seen = math.inf, set()
    for name in spec.spaces:
        seen.add(name)
        before, full = _pair_gaps(state, spec, name, seen), _moves(state, spec, name)
        for gaps, moved in zip(before, full, strict=True):
            if bool((moved > 0).any()):
                smallest = min(smallest, float(gaps[moved > 0].min()))
    return smallest


def _swap_gap(state: State, spec: Spec) -> float:
    """Smallest nonzero distance that the swap of two units of one space makes."""
    smallest = math.inf
    for name in spec.spaces:
        for gaps in _moves(state, spec, name):
            if bool((gaps > 0).any()):
                smallest = min(smallest, float(gaps[gaps > 0].min()))
    return smallest


def _moves(state: State, spec: Spec, space: str) -> Iterator[Tensor]:
    """How far theta moves when one unit is swapped with each of the later ones."""
    if not any(_indexes_twice(spec, axis.tensor, space) for axis in spec.axes_of(space)):
        yield from _pair_gaps(state, spec, space, set(spec.spaces))
        return
    size = spec.spaces[space].size
    for unit in range(size - 1):
        moved = []
        for other in range(unit + 1, size):
            order = torch.arange(size)
            order[[unit, other]] = order[[other, unit]]
            copy = permute(state, spec, {space: order})
            moved.append(delta_max({name: copy[name] - kept for name, kept in state.items()}))
        yield torch.tensor(moved, dtype=torch.float64)


def _pair_gaps(state: State, spec: Spec, space: str, allowed: set[str]) -> Iterator[Tensor]:
    """Max-norm distances of each unit to the later ones, over tensors whose axes are allowed."""
    size = spec.spaces[space].size
    rows = [torch.zeros(size, 1, dtype=torch.float64)]
    for axis in spec.axes_of(space):
        others = {other.space for other in spec.axes_of_tensor(axis.tensor)}
        if others <= allowed and not _indexes_twice(spec, axis.tensor, space):
            rows.append(state[axis.tensor].movedim(axis.dim, 0).reshape(size, -1))
    table = torch.cat(rows, 1)
    for unit in range(size - 1):
        yield (table[unit + 1 :] - table[unit]).abs().amax(1)


def _indexes_twice(spec: Spec, tensor: str, space: str) -> bool:
    """Whether two axes of a tensor belong to the space (a layer inside a residual stream)."""
    return sum(axis.space == space for axis in spec.axes_of_tensor(tensor)) > 1

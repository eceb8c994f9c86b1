"""`match_heads`: do the heads of two attention blocks compute the same, and which is which?

Cost: a few products of every weight with a few vectors to find partners, then for each head a few
products of [d, E] with [d, d] matrices. Nothing of size [E, E] is made for a head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from weightloom.errors import ConfigError, ShapeError
from weightloom.symmetry.matching.heads.biases import output_deviation
from weightloom.symmetry.matching.heads.deviations import Deviations
from weightloom.symmetry.matching.heads.factors import HeadFactors
from weightloom.symmetry.matching.heads.pairs import Comparison, FactorPair
from weightloom.symmetry.matching.heads.planes import Planes
from weightloom.symmetry.matching.heads.signatures import HeadCandidates, candidates

__all__ = ["HeadMatch", "match_heads"]

_CHUNK = 1 << 19  # float64 entries of one factor that are compared at a time
_BUDGET = 256  # pairs of groups that are compared when projections do not tell groups apart


@dataclass(frozen=True)
class HeadMatch:
    """The heads and maps that take block b to block a, and how far the weights then are apart.

    Head i of a is head ``heads[i]`` of b, its keys and values those of group ``groups[j]``.
    ``query_map`` [G, d, d] and ``value_map`` [G, c, c] are A and B of the groups of a: q -> A q,
    k -> A^-T k, v -> B v, W_O -> W_O B^-1.

    ``deviation``: the largest difference of two weights relative to the scale of a single weight in
    its place (see `heads.deviations`), to be compared with a few eps of the dtype; ``where`` says
    which. ``undecided``: why the blocks can be called neither the same nor different, or None.
    """

    heads: Tensor
    groups: Tensor
    query_map: Tensor
    value_map: Tensor
    deviation: float
    where: str
    tolerance: float
    undecided: str | None = None

    @property
    def same(self) -> bool:
        """Whether b moved by the maps is a within the tolerance."""
        return self.deviation <= self.tolerance


def match_heads(
    a: HeadFactors, b: HeadFactors, tolerance: float | None = None, *, movable: bool = True
) -> HeadMatch:
    """The permutation of heads and the maps that take b to a, with every weight compared.

    Rows and columns of both read and write the same units in the same order. ``tolerance`` is
    relative to the scale of a single weight: 32 eps of the coarsest dtype by default, 4 eps in half
    precision. With ``movable`` false every head stays where it is, because something else has a
    number for each of them.

    What has no effect is not compared: the key bias as far as no rotation acts on it, and
    directions of one factor that the other does not see (all keys of a head without queries). The
    bias of values may have moved into that of the output.

    >>> _ = torch.manual_seed(0)
    >>> q, k, v = (torch.randn(4, 2, 8) for _ in range(3))
    >>> a = HeadFactors(q, k, v, torch.randn(4, 8, 2))
    >>> order = torch.tensor([2, 0, 3, 1])
    >>> match = match_heads(a.map(lambda tensor: tensor[order]), a)
    >>> match.same, match.heads.tolist()
    (True, [2, 0, 3, 1])
    >>> match_heads(a, HeadFactors(1.001 * q, k, v, a.output)).same
    False
    """
    _check(a, b)
    eps = max(a.eps, b.eps)
    limit = (4 if eps > 1e-4 else 32) * eps if tolerance is None else float(tolerance)
    if not 0 <= limit < 1:
        raise ConfigError(f"tolerance is {tolerance}; a number in [0, 1) is wanted")
    return _Matcher(a, b, limit, max(eps, limit / 32)).match(movable)


def _check(a: HeadFactors, b: HeadFactors) -> None:
    """Raises `ShapeError` where the blocks cannot be compared weight by weight."""
    for name in ("query", "key", "value", "output"):
        shapes = [list(getattr(block, name).shape) for block in (a, b)]
        if shapes[0] != shapes[1]:
            raise ShapeError(
                f"{name} has shapes {shapes[0]} and {shapes[1]}; equal ones are wanted"
            )
    pairs = [None if block.rotary is None else block.rotary.tolist() for block in (a, b)]
    if pairs[0] != pairs[1] or a.key_bias_cancels != b.key_bias_cancels:
        raise ShapeError(
            f"the blocks rotate queries differently: {pairs[0]} and {pairs[1]}, key bias cancels: "
            f"{a.key_bias_cancels} and {b.key_bias_cancels}"
        )


@dataclass(frozen=True)
class _Groups:
    """Comparisons of n groups: queries with keys, values with outputs."""

    scores: Comparison
    values: Comparison

    @property
    def counted(self) -> Tensor:
        return torch.maximum(self.scores.counted, self.values.counted)


class _Matcher:
    def __init__(self, a: HeadFactors, b: HeadFactors, tolerance: float, eps: float) -> None:
        self.a, self.b, self.tolerance, self.eps = a, b, tolerance, eps
        self.planes = Planes(
            torch.empty(0, 2, dtype=torch.long) if a.rotary is None else a.rotary, a.rest()
        )

    def match(self, movable: bool) -> HeadMatch:
        if not movable:
            groups, own = torch.arange(self.a.groups), torch.arange(self.a.heads)
            heads = own.reshape(self.a.groups, self.a.shared)
            return self._result(self._compared(groups, groups, heads), groups, heads, None)
        proposed = candidates(self.a, self.b, self.tolerance)
        groups, heads = proposed.groups, proposed.heads.reshape(self.a.groups, self.a.shared)
        compared = self._compared(torch.arange(self.a.groups), groups, heads)
        missing = None
        if not bool((compared.counted <= self.tolerance).all()):
            before = groups, heads
            groups, heads, missing = self._retried(compared, proposed, groups, heads)
            if not (torch.equal(groups, before[0]) and torch.equal(heads, before[1])):
                compared = self._compared(torch.arange(self.a.groups), groups, heads)
        return self._result(compared, groups, heads, missing)

    # -- comparisons -----------------------------------------------------------------------------
    def _compared(self, a: Tensor, b: Tensor, heads: Tensor) -> _Groups:
        """Groups of a with groups of b [n], whose ``heads`` [n, H / G] are in a's order."""
        size = max(1, _CHUNK // max(1, self.a.shared * self.a.query[0].numel()))
        parts = [
            self._chunk(*chunk)
            for chunk in zip(a.split(size), b.split(size), heads.split(size), strict=True)
        ]
        return _Groups(_together([p.scores for p in parts]), _together([p.values for p in parts]))

    def _chunk(self, a: Tensor, b: Tensor, heads: Tensor) -> _Groups:
        own = a[:, None] * self.a.shared + torch.arange(self.a.shared)
        limits = (self.tolerance, self.eps)
        scores = FactorPair(
            self.a.queries_and_keys(a, own), self.b.queries_and_keys(b, heads),
            self.planes, limits, biases=(True, True),
        )  # fmt: skip
        values = FactorPair(
            self.a.values_and_outputs(a, own), self.b.values_and_outputs(b, heads),
            Planes.none(self.a.value.shape[1]), limits, biases=(True, False), alone=True,
        )  # fmt: skip
        return _Groups(scores.compared(), values.compared())

    # -- groups and heads that projections do not tell apart -------------------------------------
    def _retried(
        self, compared: _Groups, proposed: HeadCandidates, groups: Tensor, heads: Tensor
    ) -> tuple[Tensor, Tensor, str | None]:
        """Groups and heads after comparing all that are alike with those that failed."""
        failing = ~(compared.counted <= self.tolerance)
        # Groups of a whose partners may be wrong: those of groups that are like the failing ones.
        (own,) = torch.where(proposed.near[failing].any(0)[groups] | failing)
        others = groups[own]
        pairs = proposed.near[own][:, others].nonzero()
        if not len(pairs) or (self.a.shared == 1 and bool((pairs[:, 0] == pairs[:, 1]).all())):
            return groups, heads, None
        if len(pairs) > _BUDGET:
            missing = (
                f"{len(own)} groups of heads are too similar to try all pairs "
                f"({len(pairs)}, at most {_BUDGET})"
            )
            return groups, heads, missing
        orders = torch.stack([
            self._heads(int(own[i]), int(others[j]), proposed) for i, j in pairs.tolist()
        ])  # fmt: skip
        tried = self._compared(own[pairs[:, 0]], others[pairs[:, 1]], orders).counted
        cost = torch.full((len(own), len(own)), 1e9, dtype=torch.float64)
        # Anything within the tolerance is as good as anything else.
        within = tried <= self.tolerance
        cost[pairs[:, 0], pairs[:, 1]] = torch.where(within, 0.0, 1e3 + tried.clamp_max(1e6))
        columns = torch.as_tensor(linear_sum_assignment(cost.numpy())[1])
        known = {(i, j): order for (i, j), order in zip(pairs.tolist(), orders, strict=True)}
        chosen = [known.get(pair) for pair in enumerate(columns.tolist())]
        if any(order is None for order in chosen):  # some group has no partner at all
            return groups, heads, None
        groups, heads = groups.clone(), heads.clone()
        groups[own] = others[columns]
        heads[own] = torch.stack([order for order in chosen if order is not None])
        return groups, heads, None

    def _heads(self, a: int, b: int, proposed: HeadCandidates) -> Tensor:
        """Heads of group b in the order of group a: by all their entries, given the maps."""
        guess = proposed.of_group(a, b)
        shared = self.a.shared
        if shared == 1:
            return guess
        # Keys and values alone give the maps; every head of one group is then put at every place.
        columns = []
        for turn in range(shared):
            chunk = self._chunk(torch.tensor([a]), torch.tensor([b]), guess.roll(turn)[None])
            worst = torch.maximum(chunk.scores.left.counted[0], chunk.values.right.counted[0])
            columns.append(worst)
        cost = torch.zeros(shared, shared, dtype=torch.float64)
        for turn, column in enumerate(columns):
            cost[torch.arange(shared), (torch.arange(shared) - turn) % shared] = column
        cost = torch.where(cost <= self.tolerance, 0.0, 1e3 + cost.clamp_max(1e6))
        return guess[torch.as_tensor(linear_sum_assignment(cost.numpy())[1])]

    def _lost(self, compared: _Groups) -> bool:
        """Whether ill-conditioned maps may explain all deviations beyond the tolerance.

        Either entry by entry (see `Deviations`), or because a deviation is no larger than the
        rounding of the smallest direction of a map.
        """
        for part in (compared.scores, compared.values):
            (failing,) = torch.where(~(part.counted <= self.tolerance))
            maps = part.maps.full[failing]
            if not bool(torch.isfinite(maps).all()):
                return False
            limit = self.eps * torch.linalg.cond(maps)
            explained = part.explained[failing] <= self.tolerance
            if not bool((explained | (part.counted[failing] <= limit)).all()):
                return False
        return True

    # -- the result ------------------------------------------------------------------------------
    def _result(
        self, compared: _Groups, groups: Tensor, heads: Tensor, missing: str | None
    ) -> HeadMatch:
        a, b = self.a, self.b
        deviation, where = _largest(compared, heads, a)
        value_map = compared.values.maps.full
        biases = output_deviation(a, b, compared.values.bias, self.tolerance)
        if biases.deviation > deviation:
            deviation, where = biases.deviation, biases.where
        if (
            missing is None
            and deviation > self.tolerance >= biases.deviation
            and self._lost(compared)
        ):
            missing = (
                f"{where} deviates by {deviation:.3g} of its scale, which rounding explains only "
                "because the map between the heads is ill-conditioned"
            )
        return HeadMatch(
            heads.flatten(), groups, compared.scores.maps.full, value_map, deviation, where,
            self.tolerance, missing if deviation > self.tolerance else None,
        )  # fmt: skip


def _together(parts: list[Comparison]) -> Comparison:
    """The comparisons of all chunks as one."""
    first, total = parts[0], sum(len(part.bias) for part in parts)
    if len(parts) == 1:
        return first
    result = _blank(first, total)
    start = 0
    for part in parts:
        groups = torch.arange(start, start + len(part.bias))
        result, start = result.replaced(groups, part), start + len(part.bias)
    return result


def _blank(like: Comparison, total: int) -> Comparison:
    """A comparison of ``total`` groups, to be filled."""
    return like.select(torch.zeros(total, dtype=torch.long))


def _largest(compared: _Groups, heads: Tensor, a: HeadFactors) -> tuple[float, str]:
    """The largest deviation and which weight it is."""
    sides: list[tuple[str, Deviations, int]] = [
        ("query", compared.scores.left, a.query.shape[2] + 1),
        ("key", compared.scores.right, a.key.shape[2] + 1),
        ("value", compared.values.left, a.value.shape[2]),
        ("output", compared.values.right, a.output.shape[1]),
    ]
    worst, where = -1.0, ""
    for name, side, columns in sides:
        top = float(side.counted.max())
        if top > worst:
            flat = int(side.counted.argmax())
            group, block = divmod(flat, side.counted.shape[1])
            row, column = divmod(int(side.places.flatten()[flat]), columns)
            head = group * a.shared + block if side.counted.shape[1] > 1 else group
            unit = "head" if name in ("query", "output") or a.shared == 1 else "group"
            if unit == "head" and side.counted.shape[1] == 1:
                head = group * a.shared
            entry = f"[{column}, {row}]" if name == "output" else f"[{row}, {column}]"
            if name in ("query", "key") and column == columns - 1:
                name, entry = f"{name} bias", f"[{row}]"
            worst, where = top, f"the {name} of {unit} {head}, entry {entry},"
    omitted = [part.maps.omitted for part in (compared.scores, compared.values)]
    for values in omitted:
        if values is not None and float(values.max()) > worst:
            worst, where = float(values.max()), f"the rank of head {int(values.argmax())}"
    return worst, where

"""A network with a proven bound on its error, and the measurement that tries to break it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from weightloom.construct.box import Box
from weightloom.construct.layers import measure
from weightloom.construct.pieces.affine import affine_pieces
from weightloom.errors import CertificateError, ConfigError, WeightloomError

__all__ = ["Certified", "Function", "Verification"]

Function = Callable[[Tensor], Tensor]

# Numbers in the widest layer that are held at once while measuring: 32 MB in double precision.
WIDEST = 2**22

# The search for the largest error: places it climbs from, random neighbours per place and round,
# and how much closer the neighbours of the next round are.
STARTS, NEAR, CLOSER = 128, 6, 0.6

# Affine pieces of a network of one variable that are enumerated, and numbers held for it: a second.
MOST_PIECES, PIECES_TIMES_NODES = 100_000, 2**24


@dataclass(frozen=True)
class Verification:
    """What was measured: the largest error that could be found, beside the one that is allowed."""

    error: float
    """largest |network - target| seen: a lower bound on the true largest error"""
    bound: float
    worst: tuple[float, ...]
    """where it was seen"""
    rms: float
    """root of the mean squared error over the grid"""
    points: int
    """how many points were looked at"""
    pieces: int | None = None
    """affine pieces of the network, if all their ends and middles were among the points"""

    @property
    def holds(self) -> bool:
        return self.error <= self.bound  # false for NaN


@dataclass(frozen=True)
class Certified:
    """An ordinary network, what it costs, and a proven bound on its largest error on ``domain``.

    ``error_bound`` holds for the network as it runs: rounding is included by whoever built it.
    `verify` compares with ``target`` (points [n, dims] to [n] or [n, outputs]).
    """

    network: nn.Module
    error_bound: float
    nodes: int
    """hidden units"""
    layers: int
    """weight matrices"""
    nonzeros: int
    """entries of weights and biases that are not zero"""
    domain: Box
    target: Function | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls, network: nn.Module, error_bound: float, domain: Box, target: Function | None = None
    ) -> Certified:
        """With nodes, layers and nonzeros counted on the network itself."""
        size = measure(network)
        return cls(network, error_bound, size.nodes, size.layers, size.nonzeros, domain, target)

    def verify(
        self,
        target: Function | None = None,
        *,
        points: int = 20_000,
        rounds: int = 8,
        seed: int = 0,
        extra: Tensor | None = None,
    ) -> Verification:
        """Look for the largest error; raise `CertificateError` if it is above the bound.

        Looks at about ``points`` points, half on a regular grid and half at random, and at
        ``extra`` [n, dims] (places you suspect). Then climbs from 128 of the worst ones, ``rounds``
        times to the best of some neighbours that come ever closer. Not all start at the very worst:
        errors are often equal at many places (the tops of bumps) and larger somewhere else. What is
        found is a lower bound on the largest error, the tighter the more points.

        For a network of one variable whose affine pieces can be enumerated (at most 100,000), the
        ends and the middles of all of them are looked at as well, and `Verification.pieces` says
        how many there are: nothing narrow is missed on the network's side.
        """
        found = self.measure(target, points=points, rounds=rounds, seed=seed, extra=extra)
        if not found.holds:
            raise CertificateError(
                f"the error at {tuple(round(c, 6) for c in found.worst)} is {found.error:.6g}, but "
                f"at most {found.bound:.6g} was certified: the network, the target or the constant "
                f"claimed for it (Lipschitz, curvature) is not the one the bound was proven for"
            )
        return found

    def measure(
        self,
        target: Function | None = None,
        *,
        points: int = 20_000,
        rounds: int = 8,
        seed: int = 0,
        extra: Tensor | None = None,
    ) -> Verification:
        """What `verify` finds, without complaint."""
        target = self.target if target is None else target
        if target is None:
            raise ConfigError("no target to compare with; pass one: verify(target)")
        generator = torch.Generator().manual_seed(seed)
        grid = self.domain.grid(points // 2)
        places = torch.cat([grid, self.domain.sample(points // 2, generator)])
        bends, pieces = self._bends()
        places = torch.cat([places, bends])
        if extra is not None:
            places = torch.cat([places, extra.to(places.dtype)])
        errors = self._errors(target, places)
        rms = float(errors[: len(grid)].square().mean().sqrt())
        seen = len(places)
        starts = _starts(errors, generator)
        places, errors = places[starts], errors[starts]
        width = torch.tensor([b - a for a, b in self.domain.sides], dtype=torch.float64)
        # The first round reaches as far as the grid's neighbours.
        reach = width / max(1.0, len(grid) ** (1 / self.domain.dims) - 1)
        for _ in range(rounds):
            near = self.domain.clamp(self._neighbours(target, places, reach, generator))
            new = self._errors(target, near.flatten(0, 1)).reshape(near.shape[:2])
            near = torch.cat([places[:, None], near], 1)
            new = torch.cat([errors[:, None], new], 1)
            best = torch.nan_to_num(new, nan=math.inf).argmax(1)
            each = torch.arange(len(places))
            places, errors = near[each, best], new[each, best]
            reach, seen = reach * CLOSER, seen + new.numel()
        worst = int(torch.nan_to_num(errors, nan=math.inf).argmax())
        at = tuple(float(c) for c in places[worst])
        return Verification(float(errors[worst]), self.error_bound, at, rms, seen, pieces)

    def _bends(self) -> tuple[Tensor, int | None]:
        """Ends and middles of the network's affine pieces [n, 1], and how many; none if unknown."""
        none = torch.empty(0, self.domain.dims, dtype=torch.float64)
        limit = min(MOST_PIECES, PIECES_TIMES_NODES // max(1, self.nodes))
        if self.domain.dims != 1:
            return none, None
        try:
            found = affine_pieces(
                self.network, self.domain.low[0], self.domain.high[0], max_pieces=limit
            )
        except WeightloomError:  # another kind of network, NaN, or too many: the rest goes on
            return none, None
        ends = found.breakpoints
        both = torch.cat([ends, (ends[1:] + ends[:-1]) / 2])
        return both[:, None], found.count

    def _neighbours(
        self, target: Function, places: Tensor, reach: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Where to look next: random places within reach, and along the error's gradient.

        [n, k, dims]. Errors of piecewise-linear functions have ridges and corners, where a gradient
        leads nowhere: that is why there are both.
        """
        size = (len(places), NEAR, places.shape[1])
        noise = 2 * torch.rand(size, dtype=torch.float64, generator=generator) - 1
        around = places[:, None] + noise * reach
        with torch.enable_grad():
            moving = places.detach().clone().requires_grad_()
            total = self._error(target, moving).sum()
            uphill = torch.autograd.grad(total, moving, allow_unused=True)[0]
        if uphill is None or not bool(torch.isfinite(uphill).all()):
            return around
        steps = torch.stack([uphill.sign(), uphill / (uphill.abs().amax(-1, True) + 1e-300)], 1)
        return torch.cat([around, places[:, None] + steps * reach], 1)

    @torch.no_grad()
    def _errors(self, target: Function, places: Tensor) -> Tensor:
        """Largest absolute error over the outputs at each point, [n]; in pieces that fit."""
        rows = max(1, WIDEST // max(1, self.nodes))
        return torch.cat([self._error(target, piece) for piece in places.split(rows)])

    def _error(self, target: Function, places: Tensor) -> Tensor:
        dtype = next(self.network.parameters()).dtype
        given = self.network(places.to(dtype)).to(torch.float64)
        wrong = given.reshape(len(places), -1) - target(places).reshape(len(places), -1)
        return wrong.abs().amax(-1)


def _starts(errors: Tensor, generator: torch.Generator) -> Tensor:
    """Indices to climb from: the worst places, and a draw from those with above half that error."""
    ranked = torch.nan_to_num(errors, nan=math.inf)
    worst = ranked.topk(min(STARTS // 4, len(ranked))).indices
    others = (ranked > ranked.max() / 2).nonzero()[:, 0]
    drawn = others[torch.randperm(len(others), generator=generator)[: STARTS - len(worst)]]
    return torch.cat([worst, drawn])

"""Networks with a proven bound on their error, and the measurement that tries to refute it.

`Certified` bounds the largest error on a domain. `CertifiedL1` bounds the mean error: constructions
like Theorem 2.3 of "Deep learning theory" are far off near the walls of their boxes, but only on a
set of small volume.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from weightloom.construct.grid import Box
from weightloom.construct.layers import measure
from weightloom.construct.pieces.enumeration import affine_pieces
from weightloom.errors import CertificateError, ConfigError, WeightloomError

__all__ = ["Certified", "CertifiedL1", "Function", "Verification", "VerificationL1"]


Function = Callable[[Tensor], Tensor]


# Numbers in the widest layer that are held at once: 32 MB in double precision.
WIDEST = 2**22


# The search for the largest error: starting points, random neighbours per point and round, and the
# factor by which the neighbourhood shrinks per round.
STARTS, NEIGHBOURS, SHRINK = 128, 6, 0.6


# Most affine pieces of a network of one variable that are enumerated, and numbers held: a second.
MOST_PIECES, PIECES_TIMES_NODES = 100_000, 2**24


@dataclass(frozen=True)
class Verification:
    """The largest error that a search found, and the bound it is compared with."""

    error: float
    """largest |network - target| seen: a lower bound on the true largest error"""
    bound: float
    worst: tuple[float, ...]
    """the point with that error"""
    rms: float
    """root of the mean squared error over the grid"""
    points: int
    """number of points evaluated"""
    pieces: int | None = None
    """affine pieces of the network, if all their ends and middles were evaluated"""

    @property
    def holds(self) -> bool:
        return self.error <= self.bound  # false for NaN


@dataclass(frozen=True)
class Certified:
    """An ordinary network, what it costs, and a proven bound on its largest error on ``domain``.

    ``error_bound`` holds for the network as it runs, rounding included. `verify` compares it with
    ``target``, a function of points [n, dims] that returns [n] or [n, outputs].
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
        """A certificate whose nodes, layers and nonzeros are counted on the network."""
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
        """Search for the largest error; raise `CertificateError` if it is above the bound.

        Evaluates about ``points`` points, half on a regular grid and half at random, and ``extra``
        [n, dims] (points you suspect). Then climbs from 128 of the worst ones: in each of
        ``rounds`` rounds every point moves to the best of some neighbours, which come ever closer.
        Not all climbs start at the very worst points, because errors are often equal at many points
        (the tops of bumps) and larger somewhere else. The result is a lower bound on the largest
        error; more points make it tighter.

        For a network of one variable whose affine pieces can be enumerated (at most 100,000), the
        ends and the middles of all pieces are evaluated too, and `Verification.pieces` is their
        number: no narrow spike of the network is missed.
        """
        result = self.measure(target, points=points, rounds=rounds, seed=seed, extra=extra)
        if not result.holds:
            raise CertificateError(
                f"the error at {tuple(round(c, 6) for c in result.worst)} is {result.error:.6g}, "
                f"but at most {result.bound:.6g} was certified: the network, the target or the "
                f"constant claimed for it (Lipschitz, curvature) is not the one the bound was "
                f"proven for"
            )
        return result

    def measure(
        self,
        target: Function | None = None,
        *,
        points: int = 20_000,
        rounds: int = 8,
        seed: int = 0,
        extra: Tensor | None = None,
    ) -> Verification:
        """What `verify` measures, without raising an error."""
        target = self._target_or(target)
        generator = torch.Generator().manual_seed(seed)
        grid = self.domain.grid(points // 2)
        places = torch.cat([grid, self.domain.sample(points // 2, generator)])
        bends, pieces = self._bends()
        places = torch.cat([places, bends])
        if extra is not None:
            places = torch.cat([places, extra.to(places.dtype)])
        errors = self._errors(target, places)
        rms = float(errors[: len(grid)].square().mean().sqrt())
        evaluated = len(places)
        starts = _starts(errors, generator)
        places, errors = places[starts], errors[starts]
        width = torch.tensor([b - a for a, b in self.domain.sides], dtype=torch.float64)
        # The first neighbourhood has the size of a grid cell.
        reach = width / max(1.0, len(grid) ** (1 / self.domain.dims) - 1)
        for _ in range(rounds):
            near = self.domain.clamp(self._neighbours(target, places, reach, generator))
            new = self._errors(target, near.flatten(0, 1)).reshape(near.shape[:2])
            near = torch.cat([places[:, None], near], 1)
            new = torch.cat([errors[:, None], new], 1)
            best = torch.nan_to_num(new, nan=math.inf).argmax(1)
            each = torch.arange(len(places))
            places, errors = near[each, best], new[each, best]
            reach, evaluated = reach * SHRINK, evaluated + new.numel()
        worst = int(torch.nan_to_num(errors, nan=math.inf).argmax())
        at = tuple(float(c) for c in places[worst])
        return Verification(float(errors[worst]), self.error_bound, at, rms, evaluated, pieces)

    def _target_or(self, target: Function | None) -> Function:
        """``target`` if it is given, else the certificate's own."""
        target = self.target if target is None else target
        if target is None:
            raise ConfigError("no target to compare with; pass one: verify(target)")
        return target

    def _bends(self) -> tuple[Tensor, int | None]:
        """Ends and middles [n, 1] of the affine pieces, and how many there are; None if unknown."""
        nothing = torch.empty(0, self.domain.dims, dtype=torch.float64)
        limit = min(MOST_PIECES, PIECES_TIMES_NODES // max(1, self.nodes))
        if self.domain.dims != 1:
            return nothing, None
        try:
            pieces = affine_pieces(
                self.network, self.domain.low[0], self.domain.high[0], max_pieces=limit
            )
        except WeightloomError:  # another kind of network, NaN, or too many pieces
            return nothing, None
        ends = pieces.breakpoints
        both = torch.cat([ends, (ends[1:] + ends[:-1]) / 2])
        return both[:, None], pieces.count

    def _neighbours(
        self, target: Function, places: Tensor, reach: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Points to evaluate next: random ones within reach, and along the error's gradient.

        [n, k, dims]. The gradient alone fails at the ridges and corners of piecewise-linear errors.
        """
        size = (len(places), NEIGHBOURS, places.shape[1])
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
        """Largest absolute error over the outputs at each point, [n]; in batches that fit."""
        rows = max(1, WIDEST // max(1, self.nodes))
        return torch.cat([self._error(target, batch) for batch in places.split(rows)])

    def _error(self, target: Function, places: Tensor) -> Tensor:
        dtype = next(self.network.parameters()).dtype
        outputs = self.network(places.to(dtype)).to(torch.float64)
        error = outputs.reshape(len(places), -1) - target(places).reshape(len(places), -1)
        return error.abs().amax(-1)


def _starts(errors: Tensor, generator: torch.Generator) -> Tensor:
    """Indices to climb from: the worst points, and random ones with more than half that error."""
    ranked = torch.nan_to_num(errors, nan=math.inf)
    worst = ranked.topk(min(STARTS // 4, len(ranked))).indices
    others = (ranked > ranked.max() / 2).nonzero()[:, 0]
    sampled = others[torch.randperm(len(others), generator=generator)[: STARTS - len(worst)]]
    return torch.cat([worst, sampled])


# A mean refutes the bound only if it is above it by this many standard errors.
SURE = 4.0


@dataclass(frozen=True)
class VerificationL1(Verification):
    """A measured mean error: ``error`` is the mean of |network - target| over random points.

    ``worst`` and ``rms`` describe the same points; the largest error is not bounded.
    """

    standard_error: float = 0.0

    @property
    def holds(self) -> bool:
        return self.error - SURE * self.standard_error <= self.bound  # false for NaN


@dataclass(frozen=True)
class CertifiedL1(Certified):
    """A network with a proven bound on the mean of |network - target| over ``domain``.

    On the unit cube that is the L1 distance.
    """

    norm: str = "L1"

    def verify(
        self,
        target: Function | None = None,
        *,
        points: int = 20_000,
        rounds: int = 8,
        seed: int = 0,
        extra: Tensor | None = None,
    ) -> VerificationL1:
        """Estimate the mean error; raise `CertificateError` if it is significantly above the bound.

        ``points`` independent uniform points in each of ``rounds`` rounds. Significantly: by more
        than 4 standard errors.
        """
        result = self.measure(target, points=points, rounds=rounds, seed=seed, extra=extra)
        if not result.holds:
            raise CertificateError(
                f"the mean error is {result.error:.6g} +- {result.standard_error:.2g}, but at most "
                f"{result.bound:.6g} was certified: the network, the target or the constant "
                f"claimed for it (Lipschitz) is not the one the bound was proven for"
            )
        return result

    def measure(
        self,
        target: Function | None = None,
        *,
        points: int = 20_000,
        rounds: int = 8,
        seed: int = 0,
        extra: Tensor | None = None,
    ) -> VerificationL1:
        """What `verify` measures, without raising an error."""
        target = self._target_or(target)
        if extra is not None:
            raise ConfigError("extra places have no weight in a mean error; leave extra out")
        if points * rounds < 2:
            raise ConfigError(f"points={points}, rounds={rounds}: at least 2 points are wanted")
        generator = torch.Generator().manual_seed(seed)
        places = [self.domain.sample(points, generator) for _ in range(rounds)]
        errors = torch.cat([self._errors(target, batch) for batch in places])
        worst = int(torch.nan_to_num(errors, nan=math.inf).argmax())
        return VerificationL1(
            error=float(errors.mean()),
            bound=self.error_bound,
            worst=tuple(float(c) for c in torch.cat(places)[worst]),
            rms=float(errors.square().mean().sqrt()),
            points=len(errors),
            standard_error=float(errors.std()) / math.sqrt(len(errors)),
        )

"""What `affine_pieces` returns, and how neighbouring pieces that are the same line become one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from weightloom.errors import ConfigError, MissingDependencyError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["AffinePieces", "join"]

UNIT = torch.finfo(torch.float64).eps / 2


@dataclass(frozen=True)
class AffinePieces:
    """A function of one number t, affine on each of ``count`` pieces; everything in float64.

    For a network of one variable t is that variable. Along a segment t goes from 0 at ``low`` to 1
    at ``high``, and `points` are the places in the network's input space.
    """

    breakpoints: Tensor
    """[count + 1], ascending; the first and the last are the ends of the interval"""
    starts: Tensor
    """[count, outputs], values at the left ends of the pieces"""
    ends: Tensor
    """[count, outputs], values at the right ends; a jump if not the next piece's start"""
    slopes: Tensor
    """[count, outputs], change per unit of t"""
    low: Tensor | None = None
    high: Tensor | None = None
    at_zero: Tensor | None = None
    """[outputs], the value at t = 0 if one piece is the whole line, which has no finite end"""

    @property
    def count(self) -> int:
        """Number of maximal affine pieces, N_A of Definition 4.8."""
        return len(self.slopes)

    @property
    def values(self) -> Tensor:
        """[count + 1, outputs] at the breakpoints; after the jump where there is one."""
        return torch.cat([self.starts, self.ends[-1:]])

    @property
    def jumps(self) -> Tensor:
        """The breakpoints at which the function is not continuous."""
        broken = (self.ends[:-1] != self.starts[1:]).any(1)
        return self.breakpoints[1:-1][broken]

    @property
    def points(self) -> Tensor:
        """[count + 1, *shape]: the breakpoints in the network's input space."""
        if self.low is None or self.high is None:
            return self.breakpoints[:, None]
        t = self.breakpoints.reshape(-1, *[1] * self.low.dim())
        return torch.lerp(self.low, self.high, t)

    def __call__(self, t: Tensor) -> Tensor:
        """Values [..., outputs] at t [...]; NaN outside of the interval."""
        given = torch.as_tensor(t, dtype=torch.float64)
        piece = torch.searchsorted(self.breakpoints[1:-1].contiguous(), given, right=True)
        left, right = self.breakpoints[piece], self.breakpoints[piece + 1]
        # From the nearer end, and from the finite one where the other is infinite.
        from_left = (given - left <= right - given) | torch.isinf(right)
        from_left &= ~torch.isinf(left)
        base = torch.where(from_left[..., None], self.starts[piece], self.ends[piece])
        origin = torch.where(from_left, left, right)
        if self.at_zero is not None:
            base, origin = self.at_zero.expand_as(base), torch.zeros_like(given)
        values = base + self.slopes[piece] * (given - origin)[..., None]
        outside = (given < self.breakpoints[0]) | (given > self.breakpoints[-1])
        return values.masked_fill(outside[..., None], torch.nan)

    def output(self, index: int) -> AffinePieces:
        """One output alone, with neighbouring pieces of equal slope and no jump joined."""
        if not -self.slopes.shape[1] <= index < self.slopes.shape[1]:
            raise ConfigError(
                f"output {index} was asked for, but there are {self.slopes.shape[1]} outputs"
            )
        column = [index]
        t = torch.stack([self.breakpoints[:-1], self.breakpoints[1:]], 1).flatten()
        y = torch.stack([self.starts[:, column], self.ends[:, column]], 1).flatten(0, 1)
        if self.at_zero is not None:
            t = torch.cat([t[:1], t.new_zeros(1), t[1:]])
            y = torch.cat([y[:1], self.at_zero[None, column], y[1:]])
        elif bool(torch.isinf(t[0]) & torch.isinf(t[-1])) and not bool((t == 0).any()):
            # On the whole line `join` wants the value at 0; if it is no bend, it is dropped again.
            at, zero = int((t < 0).sum()), t.new_zeros(1)
            t = torch.cat([t[:at], zero, t[at:]])
            y = torch.cat([y[:at], self(zero)[:, column], y[at:]])
        if torch.isinf(t[0]):
            y[0] = -self.slopes[0, column]
        if torch.isinf(t[-1]):
            y[-1] = self.slopes[-1, column]
        return join(t, y, 4 * UNIT * y.abs(), self.low, self.high)

    def plot(self, output: int | None = None) -> Figure:
        """Every output (or one) over t, breakpoints marked; a matplotlib figure."""
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise MissingDependencyError(
                f"figures need matplotlib, which cannot be imported here ({error}); "
                "pip install 'weightloom[plot]'"
            ) from error
        inner = self.breakpoints[torch.isfinite(self.breakpoints)]
        low, high = (float(inner.min()), float(inner.max())) if len(inner) else (0.0, 0.0)
        margin = (high - low) / 4 + 1.0  # how much of a ray is shown
        ends = self.breakpoints.clamp(low - margin, high + margin)
        figure = Figure(figsize=(5.6, 4.0), layout="constrained")
        axes = figure.subplots()
        chosen = range(self.slopes.shape[1]) if output is None else [output]
        for number, index in enumerate(chosen):
            t = torch.stack([ends[:-1], ends[1:]], 1)
            inside = t + torch.tensor([1e-9, -1e-9]) * (t[:, 1:] - t[:, :1])  # sides of jumps
            y = self(inside)[..., index]
            axes.plot(t.flatten().numpy(), y.flatten().numpy(), color=f"C{number}", lw=1.2)
            if self.count <= 200:
                dots = ends[1:-1]
                axes.plot(dots.numpy(), self(dots)[:, index].numpy(), ".", color=f"C{number}")
        axes.set(xlabel="t", ylabel="output", title=f"{self.count:,} affine pieces")
        return figure


def join(
    t: Tensor, y: Tensor, rounding: Tensor, low: Tensor | None, high: Tensor | None
) -> AffinePieces:
    """The pieces between knots t [n] with values y [n, outputs], the same lines joined.

    Rows at infinity hold directions. A knot is dropped if its value is as far from the chord
    between its neighbours as rounding explains, for all outputs: rounding of y, and of t times the
    slopes. In runs of such knots every second one is dropped and the rest judged again: a slow bend
    that is invisible from knot to knot becomes visible.
    """
    whole_line = bool(torch.isinf(t[0]) & torch.isinf(t[-1]))
    zero = y[t == 0][0] if whole_line else None
    again = torch.zeros_like(t, dtype=torch.bool)  # both sides of a jump that is none
    again[1:] = (t[1:] == t[:-1]) & ((y[1:] - y[:-1]).abs() <= rounding[1:] + rounding[:-1]).all(1)
    t, y, rounding = t[~again], y[~again], rounding[~again]
    while len(t) > 2:
        straight = _straight(t, y, rounding)
        if not bool(straight.any()):
            break
        index = torch.arange(len(t))
        last = torch.where(straight, -1, index).cummax(0).values  # last knot that stays
        keep = ~(straight & ((index - last) % 2 == 1))
        t, y, rounding = t[keep], y[keep], rounding[keep]
    length = t[1:] - t[:-1]
    inside = length > 0
    starts, ends, slopes = y[:-1][inside], y[1:][inside], _slopes(t, y)[inside]
    edges = torch.cat([t[:-1][inside], t[-1:]])
    limits = _finite_ends(edges, starts, ends, slopes)
    return AffinePieces(edges, *limits, slopes, low, high, zero if len(slopes) == 1 else None)


def _slopes(t: Tensor, y: Tensor) -> Tensor:
    """[n - 1, outputs]; where an end is at infinity, its direction."""
    slopes = (y[1:] - y[:-1]) / (t[1:] - t[:-1])[:, None]
    if torch.isinf(t[0]):
        slopes[0] = 0.0 - y[0]  # never -0.0
    if torch.isinf(t[-1]):
        slopes[-1] = y[-1]
    return slopes


def _straight(t: Tensor, y: Tensor, rounding: Tensor) -> Tensor:
    """[n] which inner knots lie on the line through their neighbours, as far as one can tell."""
    length = t[1:] - t[:-1]
    slopes = _slopes(t, y)
    before, after = length[:-1], length[1:]
    lever = 1 / (1 / before + 1 / after)  # of one side alone if the other is infinite
    lever = torch.where(torch.isinf(lever), 1 + t[1:-1].abs(), lever)
    bend = (slopes[1:] - slopes[:-1]).abs() * lever[:, None]
    sides = [
        rounding[part] * torch.where(torch.isinf(t[part]), lever, 1.0)[:, None]
        for part in (slice(None, -2), slice(2, None))
    ]
    allowed = 2 * (rounding[1:-1] + torch.maximum(*sides))
    moved = 8 * UNIT * t[1:-1].abs()[:, None] * (slopes[1:].abs() + slopes[:-1].abs())
    found = torch.zeros_like(t, dtype=torch.bool)
    found[1:-1] = (bend <= allowed + moved).all(1) & (before > 0) & (after > 0)
    return found


def _finite_ends(
    edges: Tensor, starts: Tensor, ends: Tensor, slopes: Tensor
) -> tuple[Tensor, Tensor]:
    """Directions replaced by limits: infinite, or the value itself where the slope is zero."""
    starts, ends = starts.clone(), ends.clone()
    if torch.isinf(edges[0]):
        starts[0] = torch.where(slopes[0] == 0, ends[0], -torch.inf * slopes[0].sign())
    if torch.isinf(edges[-1]):
        ends[-1] = torch.where(slopes[-1] == 0, starts[-1], torch.inf * slopes[-1].sign())
    return starts, ends

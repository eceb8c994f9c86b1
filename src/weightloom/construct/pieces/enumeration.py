"""`affine_pieces`: every breakpoint of a ReLU network on an interval or along a segment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from weightloom.construct.pieces.propagate import Block, propagate
from weightloom.construct.pieces.reading import read
from weightloom.errors import ConfigError, MissingDependencyError, ShapeError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["AffinePieces", "affine_pieces", "join", "pieces_bound"]


UNIT = torch.finfo(torch.float64).eps / 2

# Numbers held at once: 128 MB in double precision, some of them a few times.
BUDGET = 2**24

MAX_PIECES = 20_000_000

Place = float | Sequence[float] | Tensor


@dataclass(frozen=True)
class AffinePieces:
    """A function of one number t, affine on each of ``count`` pieces; everything in float64.

    For a network of one variable t is that variable. Along a segment t goes from 0 at ``low`` to 1
    at ``high``, and `points` are the breakpoints in the network's input space.
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
        """[count + 1, outputs] at the breakpoints; right of the jump where there is one."""
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
        """Values [..., outputs] at t [...]; NaN outside the interval."""
        given = torch.as_tensor(t, dtype=torch.float64)
        piece = torch.searchsorted(self.breakpoints[1:-1].contiguous(), given, right=True)
        left, right = self.breakpoints[piece], self.breakpoints[piece + 1]
        # Extrapolate from the nearer end, or from the finite one if the other is infinite.
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
        """The pieces of one output: neighbours of equal slope without a jump are joined."""
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
            # On the whole line `join` needs the value at 0; it drops the knot again if straight.
            at, zero = int((t < 0).sum()), t.new_zeros(1)
            t = torch.cat([t[:at], zero, t[at:]])
            y = torch.cat([y[:at], self(zero)[:, column], y[at:]])
        if torch.isinf(t[0]):
            y[0] = -self.slopes[0, column]
        if torch.isinf(t[-1]):
            y[-1] = self.slopes[-1, column]
        return join(t, y, 4 * UNIT * y.abs(), self.low, self.high)

    def plot(self, output: int | None = None) -> Figure:
        """A matplotlib figure of all outputs (or one) over t, with the breakpoints marked."""
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise MissingDependencyError(
                f"figures need matplotlib, which cannot be imported here ({error}); "
                "pip install 'weightloom[plot]'"
            ) from error
        inner = self.breakpoints[torch.isfinite(self.breakpoints)]
        low, high = (float(inner.min()), float(inner.max())) if len(inner) else (0.0, 0.0)
        margin = (high - low) / 4 + 1.0  # the part of an infinite piece that is shown
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


@torch.no_grad()
def affine_pieces(
    net: nn.Module,
    low: Place,
    high: Place,
    *,
    budget: int = BUDGET,
    max_pieces: int = MAX_PIECES,
) -> AffinePieces:
    """The breakpoints, slopes and values of ``net`` from ``low`` to ``high``, exact up to rounding.

    For a network of one variable ``low`` and ``high`` are numbers, which may be infinite. For other
    networks they are two inputs without a batch dimension (vectors, images), and t goes from 0 to 1
    along the segment between them.

    Nothing is sampled. Breakpoints are propagated layer by layer (see
    `weightloom.construct.pieces.propagate`) in float64, whatever the network's own dtype, so these
    are the pieces of the function that the weights describe. The network must be one chain of
    layers (an `nn.Sequential`, nested or not, or a module that can be traced) of Linear,
    SparseLinear, Conv, AvgPool, BatchNorm and Dropout in eval mode, Flatten, ReLU, LeakyReLU,
    ReLU6, Hardtanh, Threshold, and any elementwise module that is affine between the numbers in its
    attribute ``kinks`` (jumps included).

    Pieces are maximal: breakpoints of units that cancel in later layers are dropped. Values count
    as equal if they differ by no more than the rounding of one layer. Memory is bounded by
    ``budget`` numbers in addition to the result, which has at most ``max_pieces`` pieces.

    >>> hat = nn.Sequential(nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> with torch.no_grad():
    ...     _ = hat[0].weight.fill_(1), hat[0].bias.copy_(torch.tensor([0, -0.5, -1]))
    ...     _ = hat[2].weight.copy_(torch.tensor([[2.0, -4, 2]])), hat[2].bias.zero_()
    >>> pieces = affine_pieces(hat, -math.inf, math.inf)
    >>> pieces.count, pieces.breakpoints.tolist(), pieces.slopes.flatten().tolist()
    (4, [-inf, 0.0, 0.5, 1.0, inf], [0.0, 2.0, -2.0, 0.0])
    """
    a, b = _place(low, "low"), _place(high, "high")
    line = a.dim() == 0
    if a.shape != b.shape:
        raise ShapeError(
            f"low has shape {list(a.shape)} and high {list(b.shape)}; two inputs of the same shape "
            f"are wanted"
        )
    if line and not a < b:
        raise ConfigError(f"low={float(a)} and high={float(b)} were given; low < high is wanted")
    if not line and bool((a == b).all()):
        raise ConfigError("low and high are the same point; a segment needs two")
    program = read(net, torch.Size([1]) if line else a.shape)
    if line:
        inner = [0.0] if a < 0 < b else []
        if math.isinf(a) != math.isinf(b) and not inner:
            inner = [float(b if math.isinf(a) else a)]
        t = torch.tensor([float(a), *inner, float(b)], dtype=torch.float64).unique()
        # At infinity, directions; see `propagate`.
        values = torch.where(torch.isinf(t), t.sign(), t)[:, None]
    else:
        t = torch.tensor([0.0, 1.0], dtype=torch.float64)
        values = torch.stack([a, b])
    first = Block(t, {0: values}, {0: values.abs().flatten(1).amax(1)})
    knots = propagate(program, first, budget, max_pieces)
    return join(*knots, *((None, None) if line else (a, b)))


def _place(given: Place, name: str) -> Tensor:
    # In float64 from the start: a plain number would pass through float32.
    place = torch.as_tensor(given, dtype=torch.float64).detach().cpu()
    if bool(torch.isnan(place).any()) or (place.dim() > 0 and bool(torch.isinf(place).any())):
        raise ConfigError(
            f"{name} holds NaN or infinity; a finite place is wanted (infinity only for networks "
            f"of one variable, as a plain number)"
        )
    return place


def pieces_bound(widths: Sequence[int]) -> int:
    """prod_l (m_l + 1): most affine pieces of a ReLU network on a line, with hidden widths m_l.

    On an interval where all inputs of a layer are affine, each of its m units bends at most once,
    so the interval is cut into at most m + 1 pieces. Attained; for one hidden layer by any distinct
    bends. Sharper than Lemma 4.9 of "Deep learning theory", (2 m / L)^L with m = m_1 + ... + m_L,
    whose proof doubles the pieces for every unit.

    >>> pieces_bound([3, 3])
    16
    """
    given = tuple(widths)
    if any(width != int(width) or width < 0 for width in given):
        raise ConfigError(f"widths={list(given)} was given; whole numbers of at least 0 are wanted")
    return math.prod(int(width) + 1 for width in given)


def join(
    t: Tensor, y: Tensor, rounding: Tensor, low: Tensor | None, high: Tensor | None
) -> AffinePieces:
    """The pieces between knots t [n] with values y [n, outputs]; pieces of one line are joined.

    Rows at infinity hold directions. A knot is dropped if, for all outputs, its value is no further
    from the chord between its neighbours than rounding explains: the rounding of y, and that of t
    times the slopes. In runs of such knots every second one is dropped and the rest is tested
    again, so that a slow bend, invisible from knot to knot, is kept.
    """
    whole_line = bool(torch.isinf(t[0]) & torch.isinf(t[-1]))
    zero = y[t == 0][0] if whole_line else None
    repeated = torch.zeros_like(t, dtype=torch.bool)  # two sides of a jump of size zero
    close = (y[1:] - y[:-1]).abs() <= rounding[1:] + rounding[:-1]
    repeated[1:] = (t[1:] == t[:-1]) & close.all(1)
    t, y, rounding = t[~repeated], y[~repeated], rounding[~repeated]
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
    """[n] whether an inner knot lies on the line through its neighbours, up to rounding."""
    length = t[1:] - t[:-1]
    slopes = _slopes(t, y)
    before, after = length[:-1], length[1:]
    lever = 1 / (1 / before + 1 / after)  # the finite length if the other is infinite
    lever = torch.where(torch.isinf(lever), 1 + t[1:-1].abs(), lever)
    bend = (slopes[1:] - slopes[:-1]).abs() * lever[:, None]
    sides = [
        rounding[part] * torch.where(torch.isinf(t[part]), lever, 1.0)[:, None]
        for part in (slice(None, -2), slice(2, None))
    ]
    allowed = 2 * (rounding[1:-1] + torch.maximum(*sides))
    moved = 8 * UNIT * t[1:-1].abs()[:, None] * (slopes[1:].abs() + slopes[:-1].abs())
    straight = torch.zeros_like(t, dtype=torch.bool)
    straight[1:-1] = (bend <= allowed + moved).all(1) & (before > 0) & (after > 0)
    return straight


def _finite_ends(
    edges: Tensor, starts: Tensor, ends: Tensor, slopes: Tensor
) -> tuple[Tensor, Tensor]:
    """Values at infinity instead of directions: infinite, or constant where the slope is zero."""
    starts, ends = starts.clone(), ends.clone()
    if torch.isinf(edges[0]):
        starts[0] = torch.where(slopes[0] == 0, ends[0], -torch.inf * slopes[0].sign())
    if torch.isinf(edges[-1]):
        ends[-1] = torch.where(slopes[-1] == 0, starts[-1], torch.inf * slopes[-1].sign())
    return starts, ends

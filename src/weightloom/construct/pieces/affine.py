"""`affine_pieces`: every breakpoint of a ReLU network on an interval or along a segment."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from weightloom.construct.pieces.propagate import Block, propagate
from weightloom.construct.pieces.read import read
from weightloom.construct.pieces.result import AffinePieces, join
from weightloom.errors import ConfigError, ShapeError

__all__ = ["affine_pieces"]

# Numbers held at once: 128 MB in double precision, some of them a few times over.
BUDGET = 2**24
MAX_PIECES = 20_000_000

Place = float | Sequence[float] | Tensor


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

    For a network of one variable ``low`` and ``high`` are numbers, infinity included (the papers
    count pieces on the whole line); for others two inputs of the network without a batch dimension
    (vectors, images), and t goes from 0 to 1 along the segment between them.

    Nothing is sampled: breakpoints are carried through layer by layer (see
    `weightloom.construct.pieces.propagate`), in float64 whatever the network's own dtype, so these
    are the pieces of the function that the weights describe. Networks: an `nn.Sequential` (nested
    or not) of Linear, SparseLinear, Conv, AvgPool, BatchNorm and Dropout in eval mode, Flatten,
    ReLU, LeakyReLU, ReLU6, Hardtanh, Threshold, and any elementwise module that is affine between
    the numbers in its attribute ``kinks`` (jumps included).

    Pieces are maximal: where a breakpoint of a unit cancels further on, it is dropped. Equal means:
    no further apart than the rounding of one layer explains. Memory is bounded by ``budget``
    numbers beside the result, which holds at most ``max_pieces``.

    >>> hat = nn.Sequential(nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> with torch.no_grad():
    ...     _ = hat[0].weight.fill_(1), hat[0].bias.copy_(torch.tensor([0, -0.5, -1]))
    ...     _ = hat[2].weight.copy_(torch.tensor([[2.0, -4, 2]])), hat[2].bias.zero_()
    >>> found = affine_pieces(hat, -math.inf, math.inf)
    >>> found.count, found.breakpoints.tolist(), found.slopes.flatten().tolist()
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
    stages = read(net, torch.Size([1]) if line else a.shape)
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
    first = Block(t, values, values.abs().flatten(1).amax(1))
    found = propagate(stages, first, budget, max_pieces)
    return join(*found, *((None, None) if line else (a, b)))


def _place(given: Place, name: str) -> Tensor:
    # In float64 from the start: a plain number would pass through float32.
    place = torch.as_tensor(given, dtype=torch.float64).detach().cpu()
    if bool(torch.isnan(place).any()) or (place.dim() > 0 and bool(torch.isinf(place).any())):
        raise ConfigError(
            f"{name} holds NaN or infinity; a finite place is wanted (infinity only for networks "
            f"of one variable, as a plain number)"
        )
    return place

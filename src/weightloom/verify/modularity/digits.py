"""Theorem 2 put to the test: all of W_{1,1} within eps by networks of order eps^(-1/2) parameters.

The line is cut into groups of K cells, K groups in all. A network is written for each y: one wide
layer looks up, for the group of x, a starting value and one number whose digits to base 4 are the
K steps (down, level, up) of y along its cells; K pairs of narrow layers then read digit after
digit and add them up. That is O(K) parameters for K^2 cells of width 1 / K^2. Where two groups meet
the look-up is not to be trusted, so there are three such networks with borders that are shifted
against each other, and their median is taken. The activation is the clipped ReLU, which the paper
names as one that its theorem is about. (The idea is Yarotsky's, 2018.)
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = ["Clipped", "MedianOfThree", "write"]

Function = Callable[[Tensor], Tensor]


class Clipped(nn.Module):
    """min(max(x, 0), top)."""

    def __init__(self, top: float) -> None:
        super().__init__()
        self.top = top

    def forward(self, x: Tensor) -> Tensor:
        return x.clamp(0.0, self.top)


class MedianOfThree(nn.Module):
    """The middle one of three networks' outputs, by 12 more neurons."""

    def __init__(self, copies: list[nn.Sequential]) -> None:
        super().__init__()
        self.copies = nn.ModuleList(copies)

    def forward(self, t: Tensor) -> Tensor:
        a, b, c = (copy(t).squeeze(-1) for copy in self.copies)
        low, high = _smaller(a, b), -_smaller(-a, -b)
        return -_smaller(-low, -_smaller(high, c))

    def parameters_in_all(self) -> int:
        """Every entry of every matrix and bias, zeros included, and 36 for the median."""
        return sum(p.numel() for p in self.copies.parameters()) + 36


def _smaller(a: Tensor, b: Tensor) -> Tensor:
    """min(a, b) = a - relu(a - b)."""
    return a - torch.relu(a - b)


def write(y: Function, groups: int, slope: float) -> MedianOfThree:
    """The network of K = ``groups`` for y on [0, 1], |y(s) - y(t)| <= slope |s - t|, |y| <= slope.

    K up to 16 or so: K digits to base 4 have to fit into a float.
    """
    return MedianOfThree([_copy(y, groups, slope, shift) for shift in (0.0, 0.25, 0.5)])


@torch.no_grad()
def _copy(y: Function, k: int, slope: float, shift: float) -> nn.Sequential:
    """One network; group i is [(i + shift - 1) / K, (i + shift) / K], i = 0 .. K + 1."""
    height, offset = slope / k**2, 2.0 * k**2  # sums may be negative, and have to pass a ReLU
    starts = (torch.arange(k + 2, dtype=torch.float64) + shift - 1) / k
    cells = starts[:, None] + torch.arange(k + 1, dtype=torch.float64) / k**2
    levels = (y(cells.clamp(0, 1)) / height + 0.5).floor()
    digits = levels.diff(dim=1) + 1  # 0, 1 or 2: down, level, up
    codes = (digits * 4.0 ** -(1 + torch.arange(k, dtype=torch.float64))).sum(1)
    parts = _look_up(starts, codes, levels[:, 0] + offset, k)
    for digit in range(k):
        parts += _read_digit(digit, k)
    layers: list[nn.Module] = []
    for part in parts:
        layers += [part, Clipped(8.0 * k**2)]
    last = height * torch.tensor([[0.0, 0.0, 1.0, 1.0, 1.0, -1.0]], dtype=torch.float64)
    return nn.Sequential(*layers, _linear(last, [-offset * height]))


def _look_up(starts: Tensor, codes: Tensor, levels: Tensor, k: int) -> list[nn.Linear]:
    """t -> (code, position, level, 0, 0, 0) of its group; borders are ramps of width 1 / (16 K)."""
    ramp, borders = 1 / (16 * k), starts[1:]
    first = _linear(
        torch.ones(1 + 2 * len(borders), 1, dtype=torch.float64),
        [0.0, *(ramp - borders).tolist(), *(-borders).tolist()],
    )
    jumps = torch.stack([codes.diff(), torch.full_like(borders, -1.0), levels.diff()]) / ramp
    through = torch.tensor([[0.0], [k], [0.0]], dtype=torch.float64)
    rows = torch.cat([through, jumps, -jumps], 1)
    rows = torch.cat([rows, torch.zeros_like(rows)])
    bias = [float(codes[0]), float(-k * starts[0]), float(levels[0]), 0.0, 0.0, 0.0]
    return [first, _linear(rows, bias)]


def _read_digit(digit: int, k: int) -> list[nn.Linear]:
    """(r, u, sum, p, q, ramp) -> the same a digit later; the next sum is sum + p + q - ramp."""
    a = torch.zeros(9, 6, dtype=torch.float64)
    a[:4, 0], a[4:6, 1] = 4.0, k  # the digit is at least 1, at least 2; how far into the cell
    a[6, 0], a[7, 1] = 1.0, 1.0
    a[8, 2:] = torch.tensor([1.0, 1.0, 1.0, -1.0])
    low = _linear(a, [-2 / 3, -1.0, -5 / 3, -2.0, -digit, -digit - 1.0, 0.0, 0.0, 0.0])
    one = torch.tensor([3.0, -3.0, 0, 0, 0, 0, 0, 0, 0], dtype=torch.float64)
    two, inside = one.roll(2), torch.tensor([0, 0, 0, 0, 1.0, -1.0, 0, 0, 0], dtype=torch.float64)
    units = torch.eye(9, dtype=torch.float64)
    rows = [4 * units[6] - one - two, units[7], units[8], inside + one, inside + two, inside]
    return [low, _linear(torch.stack(rows), [0.0, 0.0, 0.0, -1.0, -1.0, 0.0])]


def _linear(weight: Tensor, bias: list[float]) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], dtype=torch.float64)
    layer.weight.copy_(weight)
    layer.bias.copy_(torch.tensor(bias, dtype=torch.float64))
    return layer

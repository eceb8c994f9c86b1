"""Averages over random networks, with standard errors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weightloom.errors import ConfigError, ShapeError

__all__ = ["MonteCarloEstimate", "average"]


@dataclass(frozen=True)
class MonteCarloEstimate:
    """A mean over independent random networks, with its standard error."""

    mean: Tensor
    standard_error: Tensor
    """standard deviation of one draw (with draws - 1) over the root of ``draws``"""
    draws: int


def average(
    draw: Callable[[torch.Generator], nn.Module],
    statistic: Callable[[nn.Module], Tensor],
    draws: int,
    *,
    seed: int = 0,
    progress: bool = False,
) -> MonteCarloEstimate:
    """The mean of ``statistic(draw(generator))`` over ``draws`` networks, with its standard error.

    ``statistic`` may return a tensor of any shape, the same each time. The same seed gives the same
    numbers. Sums are kept in float64. Ctrl-C ends the work early and what was averaged so far is
    returned, with a warning; the result's ``draws`` says how many there were.

    >>> normal = lambda generator: torch.randn(3, generator=generator)
    >>> average(normal, lambda x: x**2, 1000).standard_error < 0.1
    tensor([True, True, True])
    """
    if draws < 2:
        raise ConfigError(f"draws is {draws}; a standard error needs at least 2")
    generator = torch.Generator().manual_seed(seed)
    sums = _Welford()
    try:
        for _ in _bar(draws, progress):
            sums.add(statistic(draw(generator)))
    except KeyboardInterrupt:
        if sums.count < 2:
            raise
        warnings.warn(
            f"stopped after {sums.count} of {draws} draws; the mean of these is returned",
            RuntimeWarning,
            stacklevel=2,
        )
    return sums.estimate()


class _Welford:
    """Mean and sum of squared deviations, one draw at a time, without keeping the draws."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = torch.zeros((), dtype=torch.float64)
        self.squares = torch.zeros((), dtype=torch.float64)

    def add(self, value: Tensor) -> None:
        value = value.detach().to(torch.float64)
        if self.count and value.shape != self.mean.shape:
            raise ShapeError(
                f"the statistic of draw {self.count + 1} has shape {list(value.shape)}, earlier "
                f"ones {list(self.mean.shape)}; it must be the same for every draw"
            )
        count = self.count + 1
        difference = value - self.mean
        mean = self.mean + difference / count
        squares = self.squares + difference * (value - mean)
        # One statement, so that Ctrl-C leaves either the old state or the new one.
        self.count, self.mean, self.squares = count, mean, squares

    def estimate(self) -> MonteCarloEstimate:
        variance = self.squares / (self.count - 1)
        return MonteCarloEstimate(self.mean, (variance / self.count).sqrt(), self.count)


def _bar(draws: int, progress: bool) -> Iterable[int]:
    if not progress:
        return range(draws)
    from tqdm import tqdm

    return tqdm(range(draws), desc="networks", unit="draw")

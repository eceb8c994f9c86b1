"""Infinite-width networks that equal a function, and finite ones sampled from them.

    ThresholdForm  g(x) = g(low) + integral of g'(b) 1[x >= b] db                 (Prop. 2.8)
    CosineForm     g(x) = integral of |g~(w)| cos(2 pi (w.x + theta(w))) dw       (2.10)
    BarronForm     g(x) = g(0) + double integral of q(w, b) 1[w.x >= b] db dw     (Thm 2.12)

with q(w, b) = -4 pi |g~(w)| sin(2 pi (b + theta(w))) for 0 <= b <= |w|, |x| <= 1. Each is
g = offset + mass * E[s V], where the neuron V is sampled in proportion to the absolute density and
s is its sign; so the mean of m samples,

    offset + (mass / m) sum_j s_j V_j(x),

is unbiased, and Maurey's lemma bounds its mean squared error by mass^2 / m (each |V| <= 1). The
sketch that opens Section 2.4 prints the sum without the 1 / m: its mean is m times g.

About (2.11). Its last line replaces b by -b and w by -w in one term. That is no identity for a
single w: for theta = 0 and w.x = -1/4 the left side is -1 and the right one 0. It holds after
integrating over w, where w and -w both occur, and theta(-w) = -theta(w) makes the bracket
-2 sin(2 pi (b + theta(w))), which gives q above. Its mass is at most twice the Barron norm: for
x exp(-pi x^2) it is 4/pi (1 + 2.3e-6), under the bound 2.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from weightloom.construct.certified import WIDEST, Function
from weightloom.construct.checks import require_neurons, require_positive
from weightloom.construct.grid import Box
from weightloom.construct.layers import shallow_network
from weightloom.construct.shallow.cells import Cells
from weightloom.construct.shallow.interval import UNIT, interval_size
from weightloom.construct.shallow.spectrum import GaussianSpectrum, Spectrum, swept
from weightloom.errors import ConfigError
from weightloom.networks.activations import Cosine, Threshold

__all__ = ["BarronForm", "CosineForm", "InfiniteNetwork", "ThresholdForm", "gaussian_form"]


class InfiniteNetwork(ABC):
    """A function written as offset + an integral over neurons of size at most 1."""

    offset: float
    mass: float
    """total absolute weight of the integral"""

    @abstractmethod
    def evaluate(self, points: Tensor) -> Tensor:
        """The integral by quadrature: [n, d] -> [n]."""

    @abstractmethod
    def sample(
        self, m: int, generator: torch.Generator, dtype: torch.dtype = torch.float64
    ) -> nn.Sequential:
        """A shallow network of m random neurons whose expectation is the function."""

    @abstractmethod
    def second_moment(self, points: Tensor) -> float:
        """E |mass V|^2 in L2 of the points (all equally likely), by quadrature; <= mass^2."""

    def bound(self, m: int, points: Tensor | None = None) -> float:
        """Maurey's bound for the mean squared error of `sample`: mass^2 / m, for any points.

        With ``points``, their own second moment instead of mass^2.
        """
        square = self.mass**2 if points is None else self.second_moment(points)
        return square / require_neurons(m)

    def expected_error(self, m: int, points: Tensor) -> float:
        """The mean squared error of `sample` over the points, exactly: (E|V|^2 - |EV|^2) / m."""
        mean = (self.evaluate(points) - self.offset).square().mean()
        return (self.second_moment(points) - float(mean)) / require_neurons(m)


class ThresholdForm(InfiniteNetwork):
    """Proposition 2.8: g(x) = offset + integral of g'(b) 1[x >= b] db on an interval.

    ``derivative`` maps points [n, 1] to [n]; ``offset`` is g at the low end (the text asks for
    g(0) = 0). The mass is the total variation: flat parts cost nothing.

    >>> turn = 2 * math.pi
    >>> form = ThresholdForm(lambda b: turn * (turn * b[:, 0]).cos())        # sin(2 pi x)
    >>> round(form.mass, 9), round(form.evaluate(torch.tensor([[0.25]])).item(), 9)
    (4.0, 1.0)
    >>> net = form.sample(100, torch.Generator().manual_seed(0))
    >>> sorted(set(net[2].weight[0].tolist()))                              # mass * sign / m
    [-0.03999..., 0.03999...]
    """

    def __init__(
        self,
        derivative: Function,
        offset: float = 0.0,
        domain: Box = UNIT,
        cells: int | None = None,
    ) -> None:
        _, _, self.low = interval_size(domain)
        self.derivative, self.offset, self.domain = derivative, float(offset), domain
        self._cells = Cells(domain, cells)
        self._density = self._cells.density(self._size)
        self.mass = self._cells.integral(self._size)

    def _size(self, b: Tensor) -> Tensor:
        return self.derivative(b).abs()

    def evaluate(self, points: Tensor) -> Tensor:
        return self.offset + self._up_to(self.derivative, points)

    def second_moment(self, points: Tensor) -> float:
        return self.mass * float(self._up_to(self._size, points).mean())

    def _up_to(self, density: Function, points: Tensor) -> Tensor:
        """Integral of the density from the low end to each point: whole cells, then a part."""
        x = _as_points(points, 1)[:, 0]
        width = float(self._cells.side)
        whole = torch.cat([torch.zeros(1).double(), self._cells.per_cell(density).cumsum(0)])
        cell = ((x - self.low) / width).floor().clamp(0, len(whole) - 2).long()
        start = self._cells.low[cell, 0]
        at, weights = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(5))
        places = start[:, None] + (x - start)[:, None] * (at + 1) / 2
        values = density(places.reshape(-1, 1)).double().reshape(places.shape)
        return whole[cell] + (x - start) * (values @ weights) / 2

    def sample(
        self, m: int, generator: torch.Generator, dtype: torch.dtype = torch.float64
    ) -> nn.Sequential:
        if self.mass == 0:
            raise ConfigError("the derivative is zero everywhere; there is nothing to sample")
        at = self._density.sample(require_neurons(m), generator)
        outer = self.mass / m * self.derivative(at).double().sign()
        ones = torch.ones(m, 1, dtype=torch.float64)
        return shallow_network(ones, -at[:, 0], outer, self.offset, Threshold(), dtype)


class CosineForm(InfiniteNetwork):
    """(2.10): g(x) = integral of |g~(w)| cos(2 pi (w.x + theta(w))) dw, with cosine neurons."""

    offset = 0.0

    def __init__(self, spectrum: Spectrum) -> None:
        self.spectrum = spectrum
        self.mass = spectrum.mass()

    def evaluate(self, points: Tensor) -> Tensor:
        def at(x: Tensor, w: Tensor) -> Tensor:
            return (2 * math.pi * (x @ w.T + self.spectrum.phase(w))).cos()

        return _over_frequencies(self.spectrum, points, at)

    def second_moment(self, points: Tensor) -> float:
        def at(x: Tensor, w: Tensor) -> Tensor:
            return (2 * math.pi * (x @ w.T + self.spectrum.phase(w))).cos().square()

        return self.mass * float(_over_frequencies(self.spectrum, points, at).mean())

    def sample(
        self, m: int, generator: torch.Generator, dtype: torch.dtype = torch.float64
    ) -> nn.Sequential:
        w = self.spectrum.sample(require_neurons(m), 0, generator)
        outer = torch.full((m,), self.mass / m, dtype=torch.float64)
        turn = 2 * math.pi
        return shallow_network(turn * w, turn * self.spectrum.phase(w), outer, 0.0, Cosine(), dtype)


class BarronForm(InfiniteNetwork):
    """Theorem 2.12: thresholds w.x >= b with density q(w, b), for |x| <= radius.

    ``offset`` is g(0), computed if not given (the text asks for g(0) = 0). mass <= 2 radius times
    the Barron norm, hence E |error|^2 <= (2 radius * Barron norm)^2 / m (Example 2.18, 2).

    >>> from weightloom.construct.shallow import NumericSpectrum
    >>> transform = lambda w: -1j * w[:, 0] * (-math.pi * w[:, 0] ** 2).exp()
    >>> form = BarronForm(NumericSpectrum(transform, 1, reach=5.0))   # x exp(-pi x^2)
    >>> round(form.mass, 6), round(4 / math.pi, 6)
    (1.273243, 1.27324)
    """

    def __init__(
        self, spectrum: Spectrum, offset: float | None = None, radius: float = 1.0
    ) -> None:
        self.spectrum, self.radius = spectrum, require_positive("radius", radius)
        if offset is None:
            offset = spectrum.at_zero()
        self.offset = float(offset)
        self.mass = spectrum.threshold_mass(radius)

    def density(self, w: Tensor, b: Tensor) -> Tensor:
        """q(w, b): w [n, d], b [n] -> [n]."""
        q = -4 * math.pi * self.spectrum.magnitude(w)
        q = q * (2 * math.pi * (b + self.spectrum.phase(w))).sin()
        return torch.where((b >= 0) & (b <= self.radius * w.norm(dim=-1)), q, torch.zeros_like(q))

    def evaluate(self, points: Tensor) -> Tensor:
        """Quadrature over w; the integral over b has a closed form."""
        turn = 2 * math.pi

        def at(x: Tensor, w: Tensor) -> Tensor:
            start = self.spectrum.phase(w)
            return 2 * ((turn * (self._reached(x, w) + start)).cos() - (turn * start).cos())

        return self.offset + _over_frequencies(self.spectrum, self._within_radius(points), at)

    def second_moment(self, points: Tensor) -> float:
        def at(x: Tensor, w: Tensor) -> Tensor:
            start = self.spectrum.phase(w)
            return 4 * math.pi * (swept(self._reached(x, w) + start) - swept(start))

        points = self._within_radius(points)
        return self.mass * float(_over_frequencies(self.spectrum, points, at).mean())

    def _reached(self, x: Tensor, w: Tensor) -> Tensor:
        """The largest b with w.x >= b in the support of q: [n, frequencies]."""
        return (x @ w.T).clamp(min=0.0).minimum(self.radius * w.norm(dim=-1))

    def _within_radius(self, points: Tensor) -> Tensor:
        points = _as_points(points, self.spectrum.dims)
        furthest = float(points.norm(dim=-1).max())
        if furthest > self.radius * (1 + 1e-9):
            raise ConfigError(
                f"a point has norm {furthest:.6g}, but the form holds for norms up to "
                f"radius={self.radius:g}; pass radius="
            )
        return points

    def sample(
        self, m: int, generator: torch.Generator, dtype: torch.dtype = torch.float64
    ) -> nn.Sequential:
        """w in proportion to |w| |g~(w)|, b uniform, kept with probability |sin|: exactly |q|."""
        kept: list[Tensor] = []
        wanted = require_neurons(m)
        while wanted > 0:
            w = self.spectrum.sample(3 * wanted + 16, 1, generator)
            position, uniform = torch.rand(2, len(w), dtype=torch.float64, generator=generator)
            b = position * self.radius * w.norm(dim=-1)
            wave = (2 * math.pi * (b + self.spectrum.phase(w))).sin()
            neurons = torch.cat([w, b[:, None], -wave.sign()[:, None]], 1)
            kept.append(neurons[uniform < wave.abs()][:wanted])
            wanted -= len(kept[-1])
        neurons = torch.cat(kept)
        outer = self.mass / m * neurons[:, -1]
        weight, bias = neurons[:, :-2], -neurons[:, -2]
        return shallow_network(weight, bias, outer, self.offset, Threshold(), dtype)


def gaussian_form(
    dims: int, sigma: float, height: float | None = 1.0, radius: float = 1.0
) -> BarronForm:
    """The threshold form of height * exp(-|x|^2 / (2 sigma^2)) for |x| <= radius, in any dimension.

    >>> form = gaussian_form(10, 1.0)
    >>> form.mass <= 2 * form.spectrum.barron_norm()
    True
    """
    return BarronForm(GaussianSpectrum(dims, sigma, height), radius=radius)


def _as_points(points: Tensor, dims: int) -> Tensor:
    if points.dim() != 2 or points.shape[1] != dims:
        raise ConfigError(f"points have shape {list(points.shape)}; wanted [n, {dims}]")
    return points.to(torch.float64)


def _over_frequencies(
    spectrum: Spectrum, points: Tensor, neuron: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Integral of |g~(w)| neuron(x, w) dw at all points, in batches that fit: [n]."""
    cells = spectrum.cells()
    points = _as_points(points, spectrum.dims)
    weights = cells.weights * spectrum.magnitude(cells.places)
    rows = max(1, WIDEST // len(weights))
    return torch.cat([neuron(x, cells.places) @ weights for x in points.split(rows)])

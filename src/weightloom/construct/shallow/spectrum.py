"""Functions known by their Fourier transform, and their Barron norm.

Conventions of Lemma 2.9: g~(w) = integral of exp(-2 pi i w.x) g(x) dx, written as
|g~(w)| exp(2 pi i theta(w)) with the phase theta in turns. The Barron norm is

    integral of |grad g|~ dw = 2 pi * integral of |w| |g~(w)| dw.

**Gaussians.** The text prints g = (2 pi s^2)^(+d/2) exp(-|x|^2 / (2 s^2)) for the transform
exp(-2 pi^2 s^2 |w|^2); the exponent is -d/2. It bounds the norm by Hoelder's inequality, by
sqrt(2 pi d) (2 pi s^2)^(-(d+1)/2). The mean of |w| is known, so the norm has a closed form:

    2 pi * height * (2 pi s)^-1 * sqrt(2) Gamma((d+1)/2) / Gamma(d/2),   height = g(0).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.construct.checks import require_positive
from weightloom.construct.grid import Box
from weightloom.construct.shallow.cells import Cells, Density
from weightloom.errors import ConfigError

__all__ = [
    "BarronEstimate",
    "GaussianSpectrum",
    "NumericSpectrum",
    "Spectrum",
    "barron_norm",
]

# Largest |w| |g~(w)| at the edge of the box of frequencies, relative to the largest inside.
EDGE = 1e-4
# Zero padding before the FFT, by dimension: how many times longer the axes become.
PADDING = {1: 16, 2: 4, 3: 2}


def swept(turns: Tensor) -> Tensor:
    """The integral of |sin(2 pi t)| from 0 to ``turns``, in closed form."""
    halves = (2 * turns).floor()
    return halves / math.pi + (1 - (2 * math.pi * (turns - halves / 2)).cos()) / (2 * math.pi)


class Spectrum(ABC):
    """The Fourier transform of a function, with the integrals and samples infinite widths need."""

    dims: int

    @abstractmethod
    def magnitude(self, w: Tensor) -> Tensor:
        """|g~(w)|: [n, d] -> [n]."""

    @abstractmethod
    def phase(self, w: Tensor) -> Tensor:
        """theta(w) in turns: [n, d] -> [n]."""

    @abstractmethod
    def cells(self) -> Cells:
        """Cells that hold all but a negligible part of the transform (at most 3 dimensions)."""

    def sample(self, count: int, power: int, generator: torch.Generator) -> Tensor:
        """Frequencies [count, d] with density in proportion to |w|^power |g~(w)|, power 0 or 1."""
        return self.density(power).sample(count, generator)

    def density(self, power: int) -> Density:
        """|w|^power |g~(w)| on the cells."""
        return self.cells().density(lambda w: w.norm(dim=-1) ** power * self.magnitude(w))

    def mass(self) -> float:
        """Integral of |g~|: the mass of the cosine form (2.10)."""
        return self.cells().integral(self.magnitude)

    def at_zero(self) -> float:
        """g(0), the integral of g~."""
        return self.cells().integral(
            lambda w: self.magnitude(w) * (2 * math.pi * self.phase(w)).cos()
        )

    def barron_norm(self) -> float:
        """2 pi * integral of |w| |g~(w)| dw."""
        return 2 * math.pi * self.cells().integral(lambda w: w.norm(dim=-1) * self.magnitude(w))

    def threshold_mass(self, radius: float) -> float:
        """Integral of |q(w, b)| over 0 <= b <= radius |w|: the mass of Theorem 2.12."""

        def inner(w: Tensor) -> Tensor:
            start = self.phase(w)
            return self.magnitude(w) * (swept(start + radius * w.norm(dim=-1)) - swept(start))

        return 4 * math.pi * self.cells().integral(inner)


class GaussianSpectrum(Spectrum):
    """g(x) = height * exp(-|x|^2 / (2 sigma^2)) on R^dims; by default a probability density.

    >>> GaussianSpectrum(1, 1.0, height=1.0).barron_norm()
    0.797884560802865...
    """

    def __init__(self, dims: int, sigma: float, height: float | None = None) -> None:
        if dims < 1:
            raise ConfigError(f"dims={dims} was given; at least 1 is wanted")
        require_positive("sigma", sigma)
        self.dims, self.sigma = dims, sigma
        self.height = (2 * math.pi * sigma**2) ** (-dims / 2) if height is None else height
        if not math.isfinite(self.height):
            raise ConfigError(f"height={height} was given; a finite number is wanted")
        self.spread = 1 / (2 * math.pi * sigma)
        """standard deviation of |g~| seen as a density"""

    def function(self, x: Tensor) -> Tensor:
        """g itself: [..., d] -> [...]."""
        return self.height * (-x.square().sum(-1) / (2 * self.sigma**2)).exp()

    def magnitude(self, w: Tensor) -> Tensor:
        scale = abs(self.height) * (2 * math.pi * self.sigma**2) ** (self.dims / 2)
        return scale * (-w.square().sum(-1) / (2 * self.spread**2)).exp()

    def phase(self, w: Tensor) -> Tensor:
        return torch.full(w.shape[:-1], 0.0 if self.height >= 0 else 0.5, dtype=w.dtype)

    def cells(self) -> Cells:
        reach = 9 * self.spread
        return Cells(Box((-reach,) * self.dims, (reach,) * self.dims))

    def sample(self, count: int, power: int, generator: torch.Generator) -> Tensor:
        """Uniform directions; |w| / spread is a chi variable with dims + power degrees."""

        def normal(columns: int) -> Tensor:
            return torch.randn(count, columns, dtype=torch.float64, generator=generator)

        direction = normal(self.dims)
        radius = normal(self.dims + power).norm(dim=-1, keepdim=True)
        return self.spread * radius * direction / direction.norm(dim=-1, keepdim=True)

    def mass(self) -> float:
        return abs(self.height)

    def at_zero(self) -> float:
        return self.height

    def barron_norm(self) -> float:
        ratio = math.exp(math.lgamma((self.dims + 1) / 2) - math.lgamma(self.dims / 2))
        return 2 * math.pi * abs(self.height) * self.spread * math.sqrt(2) * ratio

    def threshold_mass(self, radius: float) -> float:
        """By quadrature over |w| alone, in any dimension."""
        centre = math.sqrt(self.dims)
        radii = Box((max(0.0, centre - 9),), (centre + 9,))  # a chi variable is within 9 of sqrt(d)
        constant = (self.dims / 2 - 1) * math.log(2) + math.lgamma(self.dims / 2)

        def inner(r: Tensor) -> Tensor:
            r = r[:, 0]
            density = ((self.dims - 1) * r.log() - r.square() / 2 - constant).exp()
            return density * swept(radius * self.spread * r)

        return 4 * math.pi * abs(self.height) * Cells(radii).integral(inner)


class NumericSpectrum(Spectrum):
    """A function given by its transform, complex, on frequencies |w_i| <= reach; d <= 3.

    ``transform`` maps w [n, d] to complex [n]. It must belong to a real function,
    g~(-w) = conj(g~(w)), and be negligible at the edge.

    >>> x_gauss = lambda w: -1j * w[:, 0] * (-math.pi * w[:, 0] ** 2).exp()  # x exp(-pi x^2)
    >>> NumericSpectrum(x_gauss, 1, reach=5.0).barron_norm()
    0.99999999999...
    """

    def __init__(
        self,
        transform: Callable[[Tensor], Tensor],
        dims: int,
        reach: float,
        cells: int | None = None,
    ) -> None:
        require_positive("reach", reach)
        self.dims, self.transform = dims, transform
        self._densities: dict[int, Density] = {}
        self._cells = Cells(Box((-reach,) * dims, (reach,) * dims), cells)
        places = self._cells.places
        values, mirrored = transform(places), transform(-places)
        if values.shape != places.shape[:1]:
            raise ConfigError(
                f"the transform returned shape {list(values.shape)} for {len(places)} frequencies; "
                f"wanted [{len(places)}]"
            )
        size = values.abs()
        top = float(size.max())
        if not math.isfinite(top):
            raise ConfigError("the transform has infinite or NaN values; finite ones are wanted")
        gap = (mirrored - values.conj()).abs()
        if float(gap.max()) > 1e-9 * top:
            at = places[int(gap.argmax())].tolist()
            raise ConfigError(
                f"g~(-w) is not the conjugate of g~(w) at w={at}: this is not the transform of a "
                f"real function"
            )
        weight = size * places.norm(dim=-1)
        edge = (places.abs() > reach * (1 - 1 / 16)).any(-1)
        left = float(weight[edge].max())
        if left > EDGE * float(weight.max()):
            raise ConfigError(
                f"|w| |g~(w)| is still {left / float(weight.max()):.2g} of its largest value near "
                f"the edge, reach={reach:g}; raise reach"
            )

    def magnitude(self, w: Tensor) -> Tensor:
        return self.transform(w).abs()

    def phase(self, w: Tensor) -> Tensor:
        return self.transform(w).angle() / (2 * math.pi)

    def density(self, power: int) -> Density:
        if power not in self._densities:
            self._densities[power] = super().density(power)
        return self._densities[power]

    def cells(self) -> Cells:
        return self._cells


@dataclass(frozen=True)
class BarronEstimate:
    """A Barron norm from samples, and the fraction of it in the upper half of the frequencies.

    If ``tail`` is not small, the sum has not converged (the norm may be infinite).
    """

    value: float
    tail: float


def barron_norm(values: Tensor, spacing: float) -> BarronEstimate:
    """The Barron norm of a function from its values on a regular grid, by FFT.

    ``values`` [n, ..., n] holds the function on a box outside of which it vanishes.

    >>> x = torch.arange(-8, 8, 0.05, dtype=torch.float64)
    >>> norm = barron_norm((-x.square() / 2).exp(), 0.05)
    >>> round(norm.value, 4), norm.tail < 1e-9
    (0.7978, True)
    """
    require_positive("spacing", spacing)
    if values.dim() < 1 or not bool(torch.isfinite(values).all()):
        raise ConfigError("values must be a grid of finite numbers, one axis for each dimension")
    # Zero padding refines the frequencies: |w| has a corner at zero.
    sizes = [n * PADDING.get(values.dim(), 1) for n in values.shape]
    transform = torch.fft.fftn(values.to(torch.float64), s=sizes).abs() * spacing ** values.dim()
    axes = [torch.fft.fftfreq(n, spacing, dtype=torch.float64) for n in sizes]
    mesh = torch.stack(torch.meshgrid(*axes, indexing="ij"))
    step = math.prod(1 / (n * spacing) for n in sizes)
    terms = 2 * math.pi * step * mesh.square().sum(0).sqrt() * transform
    upper = (mesh.abs().amax(0) > 0.25 / spacing).to(torch.float64)
    value = float(terms.sum())
    return BarronEstimate(value, float((terms * upper).sum()) / value if value else 0.0)

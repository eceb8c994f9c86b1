"""The record of one activation: every fact that some part of the library needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Activation", "Kind", "Pieces", "Scalar"]


class Kind(Enum):
    """The factors f by which a unit may be multiplied without changing the function.

    They come on top of permutations of units: the incoming weights and the bias of a unit are
    multiplied by f, and its outgoing weights change as the table says.

    ======== ================== ======================== =====================================
    kind     f                  outgoing weights         examples
    ======== ================== ======================== =====================================
    PERMUTE  1                  as they are              GELU, softplus; around a LayerNorm
    SCALE    positive           divided by f             ReLU, leaky ReLU; max pooling keeps it
    SIGN     +1, -1             divided by f             tanh, sin, erf: s(-t) = -s(t)
    FLIP     +1, -1             divided by f, and the    sigmoid: s(-t) = c - s(t)
                                next bias gets c times
                                the old column if f = -1
    EVEN     +1, -1             as they are              cos, x^2: s(-t) = s(t)
    ABSOLUTE not 0              divided by |f|           abs: s(f t) = |f| s(t)
    FREE     not 0              divided by f             nothing between two linear layers
    ======== ================== ======================== =====================================

    FREE is not the whole group: between two linear layers any invertible matrix can be inserted,
    followed by its inverse. Permutations and factors are the part of that group that does not mix
    units.
    """

    PERMUTE = "permute"
    SCALE = "scale"
    SIGN = "sign"
    FLIP = "flip"
    EVEN = "even"
    ABSOLUTE = "absolute"
    FREE = "free"

    @property
    def scales(self) -> bool:
        """Whether |f| may differ from 1."""
        return self in (Kind.SCALE, Kind.ABSOLUTE, Kind.FREE)

    @property
    def signs(self) -> bool:
        """Whether f may be negative."""
        return self in (Kind.SIGN, Kind.FLIP, Kind.EVEN, Kind.ABSOLUTE, Kind.FREE)

    def outgoing(self, factor: Tensor) -> Tensor:
        """The numbers by which the weights that leave the units are divided."""
        return factor.abs() if self in (Kind.EVEN, Kind.ABSOLUTE) else factor


Scalar = Callable[[Tensor], Tensor]


"""a function of one number, applied to each entry of a tensor"""


@dataclass(frozen=True)
class Pieces:
    """slopes[b] * t + offsets[b] on the b-th interval between ``kinks`` (ascending)."""

    kinks: tuple[float, ...]  # k numbers
    slopes: tuple[float, ...]  # k + 1
    offsets: tuple[float, ...]  # k + 1


@dataclass(frozen=True)
class Activation:
    """A function s of one number and its properties, with torch's default settings.

    Only ``name`` and ``function`` are required. A missing ``lipschitz`` is measured where it is
    needed; a missing ``kind`` means that only permutations are assumed.
    """

    name: str
    """the name of the torch function, if there is one"""
    function: Scalar
    """s(t), elementwise"""

    # How it is recognised
    modules: tuple[type[nn.Module], ...] = ()
    aliases: tuple[str, ...] = ()
    """other names of torch's functions and methods, such as "relu_" """
    settings: Callable[[Any], Mapping[str, Any]] | None = None
    """maps a module to the fields of its record that depend on its settings

    Without "name" among them, the settings become part of the name, because two slopes are two
    activations. Without "kind", the kind is measured by `probe_kind`.
    """

    # Symmetry
    kind: Kind = Kind.PERMUTE
    constant: float = 0.0
    """c of s(-t) = c - s(t) for the kind FLIP"""

    # Bounds
    lipschitz: float = math.nan
    """sup |s(t) - s(u)| / |t - u|; infinite if there is none, NaN if not known"""
    least_slope: float = math.nan
    """inf (s(t) - s(u)) / (t - u); NaN: `slopes` derives it from the other facts"""
    at_zero: float = 0.0
    """s(0)"""
    monotone: bool = False
    """whether s is nondecreasing, at default settings"""
    bound: float = math.inf
    """|s(t)| <= bound"""
    rectifier: bool = False
    """s(t) = t for all t >= 0"""
    probed: bool = False
    """True if not in the table: ``lipschitz`` was measured on a grid, not proven"""

    # Constructions
    pieces: Pieces | None = None
    """the affine pieces, if s is affine between kinks"""
    derivative: Scalar | None = None
    """s' in closed form (at a kink the smaller one-sided value); None: `slope` uses autograd"""
    smoothness: float = math.nan
    """sup |s''|, infinite with a kink, NaN if not known"""

    # Kernels
    gaussian: Mapping[str, Any] | None = None
    """name and options of the closed form in `weightloom.kernels`; None: quadrature"""

    @property
    def signs(self) -> bool:
        """Whether flipping a unit's sign can be undone (s odd, even, or odd up to a constant)."""
        return self.kind.signs

    @property
    def homogeneous(self) -> bool:
        """Whether s(k t) = k s(t) for all k > 0."""
        return self.kind.scales

    @property
    def slopes(self) -> tuple[float, float]:
        """Numbers with low <= (s(t) - s(u)) / (t - u) <= high for all t and u.

        As tight as the facts allow: from the affine pieces, `least_slope`, or monotony.
        """
        if self.pieces is not None:
            return float(min(self.pieces.slopes)), float(max(self.pieces.slopes))
        if not math.isnan(self.least_slope):
            return self.least_slope, self.lipschitz
        return (0.0 if self.monotone else -self.lipschitz), self.lipschitz

    def slope(self, t: Tensor) -> Tensor:
        """s'(t); differentiable itself if ``t`` requires gradients."""
        if self.derivative is not None:
            return self.derivative(t)
        with torch.enable_grad():
            points = t if t.requires_grad else t.detach().requires_grad_()
            (slopes,) = torch.autograd.grad(self.function(points).sum(), points, create_graph=True)
        return slopes if t.requires_grad else slopes.detach()

    def module(self) -> nn.Module | None:
        """A new module with default settings, or None if there is none."""
        return self.modules[0]() if self.modules else None

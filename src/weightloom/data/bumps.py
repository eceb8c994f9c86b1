"""Functions y(x, I) on a cube with a known Lipschitz constant: hard, smooth and factored ones.

All of them map x [..., m1] in [-1, 1]^m1 and I [..., m2] in [-1, 1]^m2 to [...]. Their attribute
`lipschitz` bounds how much they change: |y(a) - y(b)| <= lipschitz * max_i |a_i - b_i|, where a and
b are pairs (x, I). Then the same bound holds in the 2-norm and the 1-norm.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from weightloom.errors import ConfigError, ShapeError

__all__ = ["SHAPES", "BumpTarget", "CubeTarget", "FactoredTarget", "FourierTarget"]

SHAPES = ("tent", "smooth")


class CubeTarget(ABC):
    """A function of (x, I) on [-1, 1]^m1 x [-1, 1]^m2 with a known Lipschitz constant."""

    m1: int
    m2: int
    lipschitz: float
    """per unit of the largest coordinate difference"""
    height: float
    """bound on |y|"""

    def __call__(self, x: Tensor, condition: Tensor) -> Tensor:
        """y(x, I): x [..., m1], I [..., m2] -> [...]; leading dimensions broadcast."""
        for name, value, size in (("x", x, self.m1), ("condition", condition, self.m2)):
            if value.dim() == 0 or value.shape[-1] != size:
                raise ShapeError(
                    f"{name} has shape {list(value.shape)}; this target wants [..., {size}]"
                )
        lead = torch.broadcast_shapes(x.shape[:-1], condition.shape[:-1])
        parts = (x.expand(*lead, self.m1), condition.expand(*lead, self.m2))
        return self.at(torch.cat(parts, dim=-1))

    @abstractmethod
    def at(self, points: Tensor) -> Tensor:
        """The same function of joint points [..., m1 + m2] -> [...]."""

    @abstractmethod
    def derivatives(self) -> tuple[float, ...]:
        """Bounds on sum |D^k y| over all derivatives of order 0, 1, ..., as far as they exist."""

    def sobolev(self, r: int) -> float:
        """Bound on the norm in W_{r,m}; y divided by it is a target of the theorems.

        >>> FourierTarget(1, 1).sobolev(1) < 1.4
        True
        """
        known = self.derivatives()
        if not 0 <= r < len(known):
            raise ConfigError(
                f"r={r} was given, but this target has bounded derivatives up to order "
                f"{len(known) - 1} only"
            )
        return sum(known[: r + 1])

    def _set_dims(self, m1: int, m2: int) -> None:
        if m1 < 0 or m2 < 0 or m1 + m2 < 1:
            raise ConfigError(
                f"m1={m1}, m2={m2} was given; dimensions are at least 0, and at least 1 together"
            )
        self.m1, self.m2 = m1, m2


class BumpTarget(CubeTarget):
    """The hard functions of Lemma 15: pieces^m cubes, one bump in each, with random signs.

    [-1, 1]^m, m = m1 + m2, is cut into ``pieces``^m cubes of side 2 / pieces. On each, y is +b or
    -b; b is zero on the cube's surface and `height` at its centre. An approximation with an
    error below `height` determines all pieces^m signs. With z in [-1, 1]^m the position inside the
    cube:

    - "tent": height * (1 - max_i |z_i|), height = 1 / pieces;
    - "smooth": height * prod_i cos^2(pi z_i / 2), once continuously differentiable everywhere,
      height = 1 / (pieces * c_m) with the largest 1-norm c_m of the gradient of the product.

    Both have Lipschitz constant 1. (The paper's cubes have side 1 / pieces, which tile [0, 1]^m.)

    >>> y = BumpTarget(1, 1, pieces=4)
    >>> y(torch.tensor([[0.25]]), torch.tensor([[0.25]])).abs()
    tensor([0.2500])
    """

    lipschitz = 1.0

    def __init__(self, m1: int, m2: int, pieces: int, shape: str = "tent", seed: int = 0) -> None:
        self._set_dims(m1, m2)
        if pieces < 1:
            raise ConfigError(f"pieces={pieces} was given; at least one bump per axis is wanted")
        if shape not in SHAPES:
            raise ConfigError(f"shape={shape!r} is unknown; choose one of {', '.join(SHAPES)}")
        self.pieces, self.shape, self.seed = pieces, shape, seed
        dims = m1 + m2
        self.height = 1.0 / pieces if shape == "tent" else 1.0 / (pieces * _steepness(dims))
        bits = torch.randint(0, 2, (pieces**dims,), generator=_generator(seed))
        self.signs = 2 * bits.to(torch.int8) - 1  # [pieces^m], the last axis fastest

    def at(self, points: Tensor) -> Tensor:
        scaled = (points + 1) * (self.pieces / 2)
        cube = scaled.floor().clamp(0, self.pieces - 1)
        z = 2 * (scaled - cube) - 1
        index = torch.zeros(points.shape[:-1], dtype=torch.int64, device=points.device)
        for axis in range(points.shape[-1]):
            index = index * self.pieces + cube[..., axis].long()
        if self.shape == "tent":
            bump = (1 - z.abs().amax(-1)).clamp(min=0)
        else:
            bump = (z.clamp(-1, 1) * (math.pi / 2)).cos().square().prod(-1)
        return self.signs.to(points.device)[index].to(points.dtype) * bump * self.height

    def derivatives(self) -> tuple[float, ...]:
        """Up to order 1: a tent bends sharply. All partial derivatives have the same bound."""
        slope = 1.0 if self.shape == "tent" else math.pi / 2
        return self.height, (self.m1 + self.m2) * slope * self.height * self.pieces

    def centres(self) -> Tensor:
        """Where |y| = height: [pieces^m, m]."""
        axis = (torch.arange(self.pieces, dtype=torch.float64) + 0.5) * (2 / self.pieces) - 1
        return torch.cartesian_prod(*[axis] * (self.m1 + self.m2)).reshape(-1, self.m1 + self.m2)


class FourierTarget(CubeTarget):
    """A smooth random function: cosines of random phase up to ``frequencies`` per axis.

    y(p) = sum_k a_k cos(pi k.p + phase_k) over one of each pair k, -k of whole vectors k != 0 with
    |k_i| <= frequencies; a_k is normal, with standard deviation 1 / (1 + |k|_2^2). Then scaled so
    that sum_k |a_k| pi |k|_1 = 1, which bounds the 1-norm of the gradient, hence `lipschitz` = 1
    (the largest gradient itself is smaller). `curvature` = sum_k |a_k| pi^2 |k|_1^2 bounds
    |u.H u| <= curvature * max_i |u_i|^2 for the second derivatives H.
    """

    lipschitz = 1.0

    def __init__(self, m1: int, m2: int, frequencies: int = 2, seed: int = 0) -> None:
        self._set_dims(m1, m2)
        if frequencies < 1:
            raise ConfigError(f"frequencies={frequencies} was given; at least 1 is wanted")
        self.frequencies, self.seed = frequencies, seed
        waves = [
            k
            for k in itertools.product(range(-frequencies, frequencies + 1), repeat=m1 + m2)
            if k > (0,) * (m1 + m2)
        ]
        self.waves = torch.tensor(waves, dtype=torch.float64)  # [waves, m]
        generator = _generator(seed)
        normal = torch.randn(len(waves), generator=generator, dtype=torch.float64)
        normal = normal / (1 + self.waves.square().sum(-1))
        self.phases = 2 * math.pi * torch.rand(len(waves), generator=generator, dtype=torch.float64)
        slopes = math.pi * self.waves.abs().sum(-1)
        self.amplitudes = normal / (normal.abs() * slopes).sum()
        self.curvature = float((self.amplitudes.abs() * slopes.square()).sum())
        self.height = float(self.amplitudes.abs().sum())

    def at(self, points: Tensor) -> Tensor:
        angle = math.pi * (points @ self.waves.to(points).T) + self.phases.to(points)
        return angle.cos() @ self.amplitudes.to(points)

    def derivatives(self) -> tuple[float, ...]:
        size, waves = self.amplitudes.abs(), self.waves.abs()
        first = waves.sum(-1)
        second = (first.square() + waves.square().sum(-1)) / 2  # sum of k_i k_j over i <= j
        orders = (torch.ones_like(first), math.pi * first, math.pi**2 * second)
        return tuple(float((size * order).sum()) for order in orders)


class FactoredTarget(CubeTarget):
    """y(x, I) = mean_j b_j(x) c_j(I): a target whose weights S(I) = W h(I) move in few directions.

    The setting of Theorem 6, with ``width`` = w. Whatever the primary, the weights that fit y_I can
    be linear in the w numbers c_j(I). Each b_j and c_j has Lipschitz constant 1 and values in
    [-1, 1], so y has `lipschitz` = 2 (a step in x and a step in I each change it by one at most).

    ``pieces=None``: all factors are `FourierTarget`s. With ``pieces``, b_j for even j and c_j for
    odd j are `BumpTarget`s (hard at scale 1 / pieces in x and in I), their partners smooth.
    """

    lipschitz = 2.0

    def __init__(
        self,
        m1: int,
        m2: int,
        width: int = 2,
        pieces: int | None = None,
        frequencies: int = 2,
        seed: int = 0,
    ) -> None:
        self._set_dims(m1, m2)
        if width < 1 or m1 < 1 or m2 < 1:
            raise ConfigError(f"width={width}, m1={m1}, m2={m2} was given; each is at least 1")
        self.width, self.pieces, self.seed = width, pieces, seed

        def factor(dims: int, number: int, hard: bool) -> CubeTarget:
            own_seed = seed * 1000 + number
            if hard and pieces is not None:
                return BumpTarget(dims, 0, pieces, seed=own_seed)
            return FourierTarget(dims, 0, frequencies, seed=own_seed)

        self._basis = [factor(m1, 2 * j, j % 2 == 0) for j in range(width)]
        self._coefficients = [factor(m2, 2 * j + 1, j % 2 == 1) for j in range(width)]
        pairs = zip(self._basis, self._coefficients, strict=True)
        self.height = sum(b.height * c.height for b, c in pairs) / width

    def basis(self, x: Tensor) -> Tensor:
        """b(x) / w: [..., m1] -> [..., w]."""
        return torch.stack([b.at(x) for b in self._basis], dim=-1) / self.width

    def coefficients(self, condition: Tensor) -> Tensor:
        """c(I): [..., m2] -> [..., w]."""
        return torch.stack([c.at(condition) for c in self._coefficients], dim=-1)

    @property
    def curvature(self) -> float | None:
        """Bound on |u.H u| / max_i |u_i|^2 when all factors are smooth, else None.

        (b c)'' = b'' c + 2 b' c' + b c'', each factor bounded by its own constants.
        """
        total = 0.0
        for b, c in zip(self._basis, self._coefficients, strict=True):
            if not isinstance(b, FourierTarget) or not isinstance(c, FourierTarget):
                return None
            total += b.curvature * c.height + 2.0 + b.height * c.curvature
        return total / self.width

    def derivatives(self) -> tuple[float, ...]:
        """By the product rule; as many orders as every factor has."""
        total: list[float] = []
        for b, c in zip(self._basis, self._coefficients, strict=True):
            left, right = b.derivatives(), c.derivatives()
            orders = range(min(len(left), len(right)))
            product = [sum(left[i] * right[n - i] for i in range(n + 1)) for n in orders]
            total = product if not total else [a + p for a, p in zip(total, product, strict=False)]
        return tuple(value / self.width for value in total)

    def at(self, points: Tensor) -> Tensor:
        x, condition = points[..., : self.m1], points[..., self.m1 :]
        return (self.basis(x) * self.coefficients(condition)).sum(-1)


def _steepness(dims: int) -> float:
    """c_m: the largest 1-norm of the gradient of prod_i cos^2(pi z_i / 2).

    With t_i = tan(pi z_i / 2) it is pi * sum_i t_i / prod_i (1 + t_i^2). Where it is stationary,
    all t_i / (1 + t_i^2) are equal, so t_i is a or 1/a; with one 1/a the value is at most pi / 2,
    with two or more it is a saddle. All equal: t^2 = 1 / (2 m - 1). For m = 1 this is pi / 2.
    """
    t = 1 / math.sqrt(2 * dims - 1)
    return math.pi * dims * t / (1 + t * t) ** dims


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)

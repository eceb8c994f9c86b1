"""Features of the points z: random cosines, or their exact limit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from weightloom.errors import KernelError, ShapeError
from weightloom.kernels.covariance import Covariance
from weightloom.kernels.inputs import input_covariance, paired_covariance
from weightloom.kernels.parameters import Parameters

__all__ = ["FourierFeatures"]

_TERMS = 5  # of the sum over images or waves: the next term is below 1e-17 where either is used


class FourierFeatures(Parameters):
    """p(z) = sqrt(2) cos(scale W z + b), W ~ N(0, 1), b ~ U[-pi, pi], or the limit of many of them.

    `count` features are sampled with `seed`; `count=None` is their exact limit, with covariance
    exp(-|scale (z - z')|^2 / 2) and variance 1. `scale` is one number or one for each coordinate,
    and may be a tensor that requires gradients. `kind="pairs"` takes cos and sin of the same
    frequency in place of a random phase (count must be even): variance exactly 1.

    `period` (a length T, or one for each coordinate; exact limit only) puts the points on a torus:
    the product over coordinates of theta(t) / theta(0), t = z - z', with the periodised Gaussian
    theta(t) = sum_m exp(-(scale (t + m T))^2 / 2), which is positive definite there.

    "On Infinite-Width Hypernetworks" has no sqrt(2) in front: its limit is half of this (Remark 2).

    >>> 1 - FourierFeatures(scale=2.0).covariance(torch.zeros(1, 1), torch.ones(1, 1)).gap
    tensor([[0.1353]])
    """

    def __init__(
        self,
        scale: float | Sequence[float] | Tensor = 1.0,
        count: int | None = None,
        *,
        seed: int = 0,
        kind: str = "phase",
        period: float | Sequence[float] | None = None,
    ) -> None:
        _check_positive("scale", scale)
        if kind not in ("phase", "pairs"):
            raise KernelError(f'kind is {kind!r}; wanted "phase" or "pairs"')
        if count is not None and (count < 1 or (kind == "pairs" and count % 2)):
            raise KernelError(
                f"count is {count}; pass a positive number (even for pairs), or None for the limit"
            )
        if period is not None:
            _check_positive("period", period)
            if count is not None:
                raise KernelError(
                    f"period is {period} and count {count}, but random features have no period; "
                    "leave out one of them"
                )
        self.scale, self.count, self.seed = scale, count, seed
        self.kind, self.period = kind, period

    @property
    def requires_grad(self) -> bool:
        """Whether the scale requires a gradient."""
        return isinstance(self.scale, Tensor) and self.scale.requires_grad

    def transform(self, z: Tensor) -> Tensor:
        """The sampled features of z [n, d]: [n, count]."""
        if self.count is None:
            raise KernelError("the exact limit has no finite list of features; set count=")
        scaled = z * _vector("scale", self.scale, z)
        frequencies, phases = self._sample(z)
        angles = scaled @ frequencies.mT
        if self.kind == "pairs":
            return math.sqrt(2) * torch.cat([angles.cos(), angles.sin()], 1)
        return math.sqrt(2) * (angles + phases).cos()

    def covariance(self, z: Tensor, z2: Tensor | None = None) -> Covariance:
        """Covariance of the features for all pairs: z [n, d], z2 [m, d] (None: z again)."""
        if self.count is not None:
            return input_covariance(self.transform(z), None if z2 is None else self.transform(z2))
        others = z if z2 is None else z2
        gap = self._limit(z[:, None, :], others[None, :, :])
        return Covariance(torch.ones_like(z[:, :1]), torch.ones_like(others[:, :1]).mT, gap)

    def paired(self, z: Tensor, z2: Tensor) -> Covariance:
        """The same for row i of z with row i of z2: three vectors [n]."""
        if self.count is not None:
            return paired_covariance(self.transform(z), self.transform(z2))
        gap = self._limit(z, z2)
        return Covariance(torch.ones_like(gap), torch.ones_like(gap), gap)

    def _limit(self, z: Tensor, z2: Tensor) -> Tensor:
        """The gap of the limit for broadcast rows [..., d], in float64 inside.

        Coordinate by coordinate, as a product of covariances: no tensor of all differences.
        """
        wide, wide2 = z.double(), z2.double()
        scales = _vector("scale", self.scale, wide)
        periods = None if self.period is None else _vector("period", self.period, wide)
        exponent = torch.zeros(1, dtype=torch.float64, device=z.device)
        gap = exponent
        for axis in range(z.shape[-1]):
            apart = wide[..., axis] - wide2[..., axis]
            if periods is None:
                exponent = exponent + (scales[axis] * apart).square() / 2
            else:
                along_axis = _torus_gap(apart, scales[axis], float(periods[axis]))
                gap = gap + along_axis - gap * along_axis
        return (-torch.expm1(-exponent) if periods is None else gap).to(z.dtype)

    def _sample(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Frequencies [k, d] and phases [k]; always sampled in float64 on the CPU."""
        count = self.count or 0
        k = count // 2 if self.kind == "pairs" else count
        generator = torch.Generator().manual_seed(self.seed)
        frequencies = torch.randn(k, z.shape[1], generator=generator, dtype=torch.float64)
        phases = (2 * torch.rand(k, generator=generator, dtype=torch.float64) - 1) * math.pi
        return frequencies.to(z), phases.to(z)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> FourierFeatures:
        """The features that `config()` described."""
        return cls(**config)


def _torus_gap(apart: Tensor, scale: Tensor, period: float) -> Tensor:
    """1 - theta(t) / theta(0) on a circle, without cancellation for small t.

    A sum over few images of a narrow Gaussian, or over few waves of a wide one.
    """
    t = (apart - period * torch.round(apart.detach() / period)).abs()
    if float(scale.detach()) * period < math.sqrt(2 * math.pi):
        return _from_waves(t, scale * period, period)
    return _from_images(t, scale, period)


def _from_waves(t: Tensor, width: Tensor, period: float) -> Tensor:
    """Poisson's form: theta(t) ~ sum_k a_k cos(2 pi k t / T), a_k = exp(-2 (pi k / (s T))^2)."""
    top, bottom = torch.zeros_like(t), torch.ones_like(width)
    for k in range(1, _TERMS + 1):
        weight = 2 * torch.exp(-2 * (math.pi * k / width).square())
        top = top + 2 * weight * torch.sin((math.pi * k / period) * t).square()
        bottom = bottom + weight
    return top / bottom


def _from_images(t: Tensor, scale: Tensor, period: float) -> Tensor:
    """theta(0) - theta(t), images m and -m together so that terms linear in t cancel exactly.

    For a pair: 2 exp(-(s m T)^2/2) (1 - exp(-(s t)^2/2)) - (e^(-p) - e^(-q))^2 with
    p = (s (m T - t))^2/4 and q = (s (m T + t))^2/4.
    """
    near = -torch.expm1(-(scale * t).square() / 2)
    top, bottom = near, torch.ones_like(scale)
    for m in range(1, _TERMS + 1):
        weight = 2 * torch.exp(-(scale * m * period).square() / 2)
        ends = torch.exp(-(scale * (m * period - t)).square() / 4)
        top = top + weight * near - (ends * torch.expm1(-scale.square() * m * period * t)).square()
        bottom = bottom + weight
    return top / bottom


def _vector(name: str, value: Any, z: Tensor) -> Tensor:
    """One number for each coordinate of z, in z's type."""
    vector = torch.as_tensor(value, dtype=z.dtype, device=z.device)
    if vector.ndim and len(vector) != z.shape[-1]:
        raise ShapeError(
            f"{name} has {len(vector)} numbers but z has {z.shape[-1]} coordinates; pass one "
            "number, or one for each coordinate"
        )
    return vector.expand(z.shape[-1])


def _check_positive(name: str, value: Any) -> None:
    numbers = torch.as_tensor(value, dtype=torch.float64).detach()
    if numbers.ndim > 1 or not bool((torch.isfinite(numbers) & (numbers > 0)).all()):
        raise KernelError(f"{name} is {value}; pass a positive number, or one for each coordinate")

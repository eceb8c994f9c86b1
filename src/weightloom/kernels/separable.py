"""A hypernetwork's kernel on a grid, as a short sum of Kronecker products.

Over images i, j and coordinates a, b the kernel is factor_ij G(r_ij; Q_ab): once the norms are
taken out, the images enter through one number, the correlation r of the weights that are written
for them (Corollary 1 of "On Infinite-Width Hypernetworks"). So

    G(r; Q_ab) = sum_k w_k(r) G(r_k; Q_ab)

with few r_k: G is interpolated in r on panels (`panels`), and only those interpolation points are
kept that are needed to reproduce the others within the tolerance. Pairs of equal images, r = 1,
where the kernel has its kink, are an exact term of their own; so are opposite ones, r = -1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.errors import KernelError
from weightloom.kernels import fused
from weightloom.kernels.covariance import Covariance
from weightloom.kernels.covariance import scale as norms
from weightloom.kernels.hyperkernel import ConditionPart, HyperKernel
from weightloom.kernels.panels import Panels
from weightloom.linalg import KroneckerTerms

__all__ = ["Separation", "obstacle", "separate"]

# Pairs beyond these count as coincident or opposite. A gap near 2 is known to 4e-16 only, which is
# why the second is wider.
_COINCIDENT, _OPPOSITE = 1e-15, 2 - 4e-15
_SPREAD = 64  # variances that differ by fewer units in the last place count as equal
_COLUMNS = 4096  # pairs of coordinates from which the terms are chosen, before all are checked
_ROUNDS = 6
_MARGIN = 8  # pairs outside the sample are fitted a little worse than those in it
_NORMS_DIFFER = (
    "the images differ in norm, and g is not homogeneous (its activation, or its biases): "
    "scale the rows of the conditions to one length"
)
_CHUNK = 1 << 21  # numbers stored at once
_CACHED = (
    1 << 16
)  # numbers that the kernel is evaluated at together, so that they stay in the cache


@dataclass(frozen=True, eq=False)
class Separation:
    """The terms, and how far their sum can be from the kernel."""

    terms: KroneckerTerms
    error: float  # bound on the error of any entry, divided by the largest diagonal entry
    points: int  # interpolation points before the choice

    @property
    def rank(self) -> int:
        """Kronecker terms, those of coincident images included."""
        return len(self.terms.left) + (self.terms.weights is not None)


def obstacle(kernel: HyperKernel, part: ConditionPart) -> str | None:
    """Why the images' norms cannot be factored out of the kernel, or None."""
    if kernel.g.homogeneous or _common_variance(part.covariance) is not None:
        return None
    return _NORMS_DIFFER


def separate(
    kernel: HyperKernel,
    conditions: ConditionPart,  # of images [n] with images [m]
    points: Covariance,  # of coordinates [P] with coordinates [Q]
    *,
    tolerance: float = 1e-10,
    gram: bool = False,  # both sides are the same: only upper halves are looked at
) -> Separation:
    """The kernel matrix over (images x coordinates) as Kronecker terms.

    ``tolerance`` bounds the error of every entry as a share of the largest diagonal entry.
    """
    variance = None if kernel.g.homogeneous else _common_variance(conditions.covariance)
    if variance is None and not kernel.g.homogeneous:
        raise KernelError(f"this kernel does not separate on these data: {_NORMS_DIFFER}")
    conditions, points = _double_part(conditions), _double(points)
    profile = _Profile(kernel, variance, points)
    factor, gap = profile.factors(conditions), conditions.covariance.gap
    inside = (gap > _COINCIDENT) & (gap < _OPPOSITE)
    left, right, error, count = [], [], 0.0, 0
    if inside.any():
        low, high = float(gap[inside].min()), float(gap[inside].max())
        panels = Panels.covering(low, high, tolerance / 2)
        chosen = _choose(profile, panels, tolerance / 2)
        weights = _weights(panels, chosen.mixing, gap, inside, gram) * factor
        left.append(weights)
        right.append(profile.at(panels.points[chosen.index]))
        error, count = chosen.error, len(panels.points)
    corners = [(gap <= _COINCIDENT, 0.0), (gap >= _OPPOSITE, 2.0)]
    diagonal = None
    for where, value in corners:
        if not where.any():
            continue
        corner = profile.at(torch.tensor([value], dtype=torch.float64))[0]
        part = torch.where(where, factor, 0.0)
        if gram and value == 0.0 and int(where.sum()) == len(gap):
            diagonal = (part.diagonal().clone(), corner)
        else:
            left.append(part[None])
            right.append(corner[None])
    terms = KroneckerTerms(
        torch.cat([gap.new_zeros(0, *gap.shape), *left]),
        torch.cat([gap.new_zeros(0, *profile.shape), *right]),
        *(diagonal or (None, None)),
    )
    return Separation(terms, error, count)


class _Profile:
    """G(r; Q): the kernel between conditions of one norm and correlation r, at all point pairs."""

    def __init__(self, kernel: HyperKernel, variance: float | None, points: Covariance) -> None:
        self.kernel, self.points = kernel, points
        self.homogeneous = variance is None
        self.variance = 1.0 if variance is None else variance
        self.shape = points.gap.shape

    def factors(self, conditions: ConditionPart) -> Tensor:
        """The factors of G for each pair of images, [n, m].

        With homogeneous activations Q^l grows as s^l, s^2 being the product of the two variances
        of the weights: the NNGP as s^H, the tangent kernel of g as s^(H-1).
        """
        tangent = conditions.ntk
        scale = torch.ones_like(conditions.covariance.gap)
        if self.homogeneous:
            power = self.kernel.g.depth - (tangent is not None)
            scale = norms(conditions.covariance) ** power * scale
        return scale if tangent is None else scale * tangent

    def at(self, gaps: Tensor, points: Covariance | None = None) -> Tensor:
        """G at gaps [k] and all point pairs (or those given): [k, ...]."""
        points = self.points if points is None else points
        shape = (-1, *(1 for _ in points.gap.shape))
        step = max(1, _CACHED // points.gap.numel())
        parts = [self._at(gap.view(shape), points) for gap in gaps.split(step)]
        return torch.cat(parts)

    def _at(self, gap: Tensor, points: Covariance) -> Tensor:
        joined = self.kernel.join(self._conditions(gap), points)
        return joined.expand(len(gap), *points.gap.shape)

    def _conditions(self, gap: Tensor) -> ConditionPart:
        """Conditions of the one norm with these gaps."""
        variance = torch.full_like(gap, self.variance)
        ntk = torch.ones_like(gap) if self.kernel.kind == "ntk" else None
        return ConditionPart(Covariance(variance, variance[:1], gap), ntk)

    def largest(self) -> float:
        """The largest diagonal entry of G: conditions that coincide, at one point."""
        zero = torch.zeros(1, dtype=torch.float64)
        sides = (self.points.left.reshape(-1), self.points.right.reshape(-1))
        variances = torch.cat(sides)
        same = Covariance(variances, variances, torch.zeros_like(variances))
        return float(self.at(zero, same).max())

    def pairs(self, index: Tensor) -> Covariance:
        """Chosen pairs of points, counted row by row: three vectors."""
        i, j = index // self.shape[1], index % self.shape[1]
        left, right = self.points.left.reshape(-1), self.points.right.reshape(-1)
        return Covariance(left[i], right[j], self.points.gap[i, j])

    def rows(self, gaps: Tensor, index: Tensor) -> Tensor:
        """G at gaps [k] and all pairs of chosen points with all points: [k, rows, Q]."""
        points, Q = self.points, self.shape[1]
        if not fused.supports(self.kernel, gaps.dtype):
            part = Covariance(points.left[index], points.right, points.gap[index])
            return self.at(gaps, part)
        here = (torch.arange(len(gaps)).repeat_interleave(len(index)), index.repeat(len(gaps)))
        there = (torch.zeros(Q, dtype=torch.long), None)
        out = torch.empty(len(gaps) * len(index), Q, dtype=gaps.dtype)
        fused.join(self.kernel, self._conditions(gaps[:, None]), points, here, there, out)
        return out.view(len(gaps), len(index), Q)


@dataclass(frozen=True, eq=False)
class _Choice:
    index: Tensor  # [r] which interpolation points are kept
    mixing: Tensor  # [points, r] how the others follow from them
    error: float  # bound, as a share of the largest diagonal entry


def _choose(profile: _Profile, panels: Panels, tolerance: float) -> _Choice:
    """Points from which all others follow at every pair of coordinates, checked at all of them."""
    largest = profile.largest()
    sample = _sample(profile.points.gap)
    for _ in range(_ROUNDS):
        table = profile.at(panels.points, profile.pairs(sample)) / largest
        index = _pivots(table, tolerance / panels.amplification / _MARGIN)
        mixing = torch.linalg.lstsq(table[index].T, table.T, driver="gelsd").solution.T
        worst, where = _check(profile, panels.points, index, mixing)
        bound = panels.error + panels.amplification * worst / largest
        if bound <= panels.error + tolerance:
            break
        sample = torch.cat([sample, where])
    return _Choice(index, mixing, bound)


def _sample(gap: Tensor) -> Tensor:
    """Pairs of coordinates spread evenly over the gaps that occur, the smallest among them."""
    order = gap.reshape(-1).argsort()
    if len(order) <= _COLUMNS:
        return order
    spread = torch.linspace(0, len(order) - 1, _COLUMNS // 2).long()
    return torch.cat([order[: _COLUMNS // 2], order[spread]]).unique()


def _pivots(table: Tensor, tolerance: float) -> Tensor:
    """Rows of [points, columns] whose span contains all others up to ``tolerance``: [r].

    Gram-Schmidt that always takes the row with the largest entry left, projected out twice.
    """
    rest = table.clone()
    chosen: list[int] = []
    while len(chosen) < min(table.shape):
        size = rest.abs().amax(1)
        row = int(size.argmax())
        if float(size[row]) <= tolerance:
            break
        chosen.append(row)
        direction = rest[row] / torch.linalg.vector_norm(rest[row])
        for _ in range(2):
            rest -= torch.outer(rest @ direction, direction)
    return torch.tensor(chosen, dtype=torch.long)


def _check(profile: _Profile, gaps: Tensor, index: Tensor, mixing: Tensor) -> tuple[float, Tensor]:
    """The largest error at any interpolation point and pair of coordinates, and the worst pairs."""
    P, Q = profile.points.gap.shape
    worst, where = 0.0, torch.zeros(0, dtype=torch.long)
    step = max(1, _CHUNK // (len(gaps) * Q))
    for start in range(0, P, step):
        rows = torch.arange(start, min(start + step, P))
        table = profile.rows(gaps, rows).reshape(len(gaps), -1)
        error = (table - mixing @ table[index]).abs().amax(0)
        worst = max(worst, float(error.max()))
        where = torch.cat([where, start * Q + error.argsort(descending=True)[:32]])
    return worst, where


def _weights(panels: Panels, mixing: Tensor, gap: Tensor, inside: Tensor, gram: bool) -> Tensor:
    """w_k(r_ij) for every pair of images, 0 for coincident and opposite ones: [r, n, m]."""
    rows, columns = (inside.triu(1) if gram else inside).nonzero(as_tuple=True)
    out = gap.new_zeros(mixing.shape[1], *gap.shape)
    step = max(1, _CHUNK // mixing.shape[1])
    for i, j in zip(rows.split(step), columns.split(step), strict=True):
        part = panels.interpolate(gap[i, j], mixing).T
        out[:, i, j] = part
        if gram:
            out[:, j, i] = part
    return out


def _common_variance(covariance: Covariance) -> float | None:
    """The common variance of all conditions, or None."""
    low = min(float(covariance.left.min()), float(covariance.right.min()))
    high = max(float(covariance.left.max()), float(covariance.right.max()))
    spread = _SPREAD * torch.finfo(covariance.left.dtype).eps
    return high if high - low <= spread * high else None


def _double(part: Covariance) -> Covariance:
    return Covariance(part.left.double(), part.right.double(), part.gap.double())


def _double_part(part: ConditionPart) -> ConditionPart:
    ntk = None if part.ntk is None else part.ntk.double()
    return ConditionPart(_double(part.covariance), ntk)

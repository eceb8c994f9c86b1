"""Predictions from a grid: a kernel between new points and all of a grid, times alpha."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from weightloom.kernels import fused
from weightloom.kernels.covariance import Covariance
from weightloom.kernels.hyper import ConditionPart, HyperKernel
from weightloom.kernels.regression.problem import GridProblem, GridQuery, PointQuery, Query
from weightloom.kernels.separable import obstacle, separate
from weightloom.kernels.unique import unique_rows

__all__ = ["cross_mean", "cross_rows", "outer_join", "prior_variance"]

_CHUNK = 1 << 24  # numbers held at once


def outer_join(kernel: HyperKernel, condition: ConditionPart, points: Covariance) -> Tensor:
    """Every row at every pair of an image and a coordinate: [k, n, P].

    ``condition`` holds the rows' conditions with n images, [k, n]; ``points`` the rows' points with
    P coordinates, [k, P], or one row [1, P] that all share.
    """
    (k, n), P = condition.covariance.gap.shape, points.gap.shape[1]
    if not fused.supports(kernel, points.gap.dtype):
        ntk = None if condition.ntk is None else condition.ntk.unsqueeze(2)
        part = ConditionPart(condition.covariance.unsqueeze(2), ntk)
        return kernel.join(part, points.unsqueeze(1)).expand(k, n, P)
    shared = len(points.gap) == 1
    here = (None, torch.zeros(k, dtype=torch.long) if shared else None)
    there = (torch.arange(n).repeat_interleave(P), torch.arange(P).repeat(n))
    out = torch.empty(k, n * P, dtype=points.gap.dtype)
    return fused.join(kernel, condition, points, here, there, out).view(k, n, P)


def cross_mean(kernel: HyperKernel, problem: GridProblem, alpha: Tensor, query: Query) -> Tensor:
    """K(query, grid) alpha for alpha [n, P, c]: [N, c] or [n', P', c]."""
    if isinstance(query, PointQuery):
        images, image = unique_rows(query.x)
        coordinates, place = unique_rows(query.z)
        # Every distinct image at every distinct coordinate is more than was asked for; where the
        # two hardly repeat it would be far more.
        if len(images) * len(coordinates) > 64 * len(image):
            return _point_mean(kernel, problem, alpha, query)
        return cross_mean(kernel, problem, alpha, GridQuery(images, coordinates))[image, place]
    parts = []
    for images in query.images.split(_step(problem, len(query.coordinates))):
        condition = kernel.condition_part(images, problem.images)
        if obstacle(kernel, condition) is not None:
            part = GridQuery(images, query.coordinates)
            mean = _point_mean(kernel, problem, alpha, part.points())
        else:
            points = kernel.point_part(query.coordinates, problem.coordinates)
            terms = separate(kernel, condition, points).terms
            mean = terms.matmul(alpha.double().reshape(-1, alpha.shape[2]))
        parts.append(mean.view(len(images), -1, alpha.shape[2]))
    return torch.cat(parts).to(alpha.dtype)


def cross_rows(
    kernel: HyperKernel, problem: GridProblem, query: PointQuery, step: int | None = None
) -> Iterator[Tensor]:
    """K(query, grid), ``step`` rows at a time: [k, n, P]."""
    n, P = problem.shape
    step = max(1, _CHUNK // (n * P)) if step is None else step
    for x, z in zip(query.x.split(step), query.z.split(step), strict=True):
        condition = kernel.condition_part(x, problem.images)
        points = kernel.point_part(z, problem.coordinates)
        yield outer_join(kernel, condition, points)


def _point_mean(
    kernel: HyperKernel, problem: GridProblem, alpha: Tensor, query: PointQuery
) -> Tensor:
    rows = cross_rows(kernel, problem, query)
    return torch.cat([torch.einsum("knp,npc->kc", part, alpha) for part in rows])


def prior_variance(kernel: HyperKernel, query: Query) -> Tensor:
    """The kernel of every point with itself: [N] or [n, P]."""
    if isinstance(query, PointQuery):
        return kernel.diagonal(query.x, query.z)
    both = query.points()
    return kernel.diagonal(both.x, both.z).view(query.shape)


def _step(problem: GridProblem, places: int) -> int:
    """How many new images to take at once."""
    return max(1, _CHUNK // max(*problem.shape, places) // 16)

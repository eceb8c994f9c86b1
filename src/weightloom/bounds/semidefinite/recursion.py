"""The ellipsoid of a whole network, stage by stage: a bound on its Lipschitz constant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from weightloom.bounds.blocks.kinds import Sum, shapes_along
from weightloom.bounds.chain import Chain
from weightloom.bounds.network_norms import Bound, product
from weightloom.bounds.semidefinite.ellipsoids import after_slopes, largest
from weightloom.bounds.semidefinite.images import (
    explicit_matrix,
    filter_of,
    keeps_shape,
    torus_for,
)
from weightloom.bounds.semidefinite.signals import Ellipsoid, summed
from weightloom.bounds.stages import (
    Conv,
    Dense,
    Elementwise,
    MaxPool,
    Nonnegative,
    Reshape,
    Scale,
    Shape,
    Stage,
)

__all__ = ["WorkLimits", "Multipliers", "Norms", "closed_form", "propagated"]


@dataclass(frozen=True)
class WorkLimits:
    """Work that is still done; a larger stage contributes its norm, as in the product."""

    units: int = 1024
    """rows of a matrix"""
    products: float = 2**33
    """multiplications over all frequencies of a convolution"""
    entries: int = 2**24
    """numbers in one stack of matrices"""


@dataclass
class Multipliers:
    """log scales and slack of each activation (see `after_slopes`), in order.

    Without values they are the closed form's: zero. ``sizes`` collects how many units each has.
    """

    values: Sequence[tuple[Tensor, Tensor]] | None = None
    sizes: list[int] = field(default_factory=list)

    def next(self, n: int) -> tuple[Tensor | None, Tensor | float]:
        self.sizes.append(n)
        if self.values is None:
            return None, 0.0
        return self.values[len(self.sizes) - 1]


class Norms:
    """The 2-norm of each stage, computed once: for large stages it is most of the work."""

    def __init__(self, chain: Chain, whole: Bound | None = None) -> None:
        self.product = product(chain, "2") if whole is None else whole
        factors = (factor.value for _, factor in self.product.layers)
        keys = zip(chain.stages, chain.shapes, strict=True)
        self._known = {
            (id(stage), shape): factor for (stage, shape), factor in zip(keys, factors, strict=True)
        }

    def of(self, stage: Stage, shape: Shape | None) -> float:
        """By identity: the chain keeps its stages alive."""
        key = (id(stage), shape)
        if key not in self._known:
            self._known[key] = stage.factor("2", shape).value
        return self._known[key]


def closed_form(
    chain: Chain, limits: WorkLimits | None = None, norms: Norms | None = None
) -> Bound:
    """The 2-norm bound of ECLipsE-Fast: one number for all multipliers of a layer.

    Never above the product of the layers' norms: on tiny images, where the zeros around them weigh
    most, the product may be smaller and is returned. A proven bound, except that stages too large
    for it count with their norm, which for more than 1024 rows holds but for a chance of 1e-12.
    """
    norms = norms or Norms(chain)
    with torch.no_grad():
        log = float(propagated(chain, Multipliers(), limits or WorkLimits(), norms))
    return Bound(min(log, norms.product.log), "layer by layer, closed form (ECLipsE-Fast)")


def propagated(
    chain: Chain, multipliers: Multipliers, limits: WorkLimits, norms: Norms | None = None
) -> Tensor:
    """The logarithm of the bound; differentiable in the multipliers."""
    spread = Ellipsoid(torch.tensor(0.0, dtype=torch.float64))
    walk = _Walk(chain, multipliers, limits, norms or Norms(chain))
    return walk.run(spread).ball().log / 2


@dataclass
class _Walk:
    chain: Chain
    multipliers: Multipliers
    limits: WorkLimits
    norms: Norms

    def run(self, spread: Ellipsoid) -> Ellipsoid:
        """After all stages."""
        pairs = zip(self.chain.stages, self.chain.shapes, strict=True)
        for index, (stage, shape) in enumerate(pairs):
            if float(spread.log.detach()) == -math.inf:
                break
            spread = self.step(spread, index, stage, shape)
        return spread

    def step(self, spread: Ellipsoid, index: int, stage: Stage, shape: Shape | None) -> Ellipsoid:
        """After one stage: by its rule, or by its norm where no rule fits."""
        after: Ellipsoid | None = None
        if isinstance(stage, Dense):
            after = self._dense(spread, index, stage, shape)
        elif isinstance(stage, Elementwise):
            after = self._slopes(spread, *stage.activation.slopes)
        elif isinstance(stage, Reshape):
            after = self._reshape(spread, stage, shape)
        elif shape is not None and isinstance(stage, Sum):
            after = self._sum(spread, stage, shape)
        elif shape is not None and isinstance(stage, Scale):
            after = self._scale(spread, stage, shape)
        elif shape is not None and isinstance(stage, Conv | Nonnegative):
            after = self._linear_on_image(spread, index, stage, shape)
        elif shape is not None and isinstance(stage, MaxPool):
            after = self._max_pool(spread, stage, shape)
        if after is None:
            after = spread.ball(self.norms.of(stage, shape))
        return after

    def _dense(
        self, spread: Ellipsoid, index: int, stage: Dense, shape: Shape | None
    ) -> Ellipsoid | None:
        weight = stage.module.weight.detach().double()
        if len(weight) > self.limits.units:
            return None
        flat = shape is not None and len(shape) == 1
        if spread.matrices is None or spread.axis == "last" or (spread.axis == "all" and flat):
            return spread.through(weight, "last")
        images = self._flattened(index)
        if spread.axis != "first" or images is None or math.prod(images) != weight.shape[1]:
            return None
        if len(images) < 2 or images[0] != spread.size:  # flattened twice
            return None
        frequencies = math.prod(images[1:]) if spread.torus is None else spread.torus.frequencies
        if len(weight) * images[0] * frequencies > self.limits.entries:
            return None
        return spread.through_image_matrix(weight.reshape(len(weight), *images))

    def _flattened(self, index: int) -> Shape | None:
        """The shape of the images that were flattened before this stage."""
        for before in range(index - 1, -1, -1):
            stage = self.chain.stages[before]
            if isinstance(stage.module, nn.Flatten):
                return self.chain.shapes[before]
            if not isinstance(stage, Elementwise) and not keeps_shape(stage):
                return None
        return None

    def _slopes(self, spread: Ellipsoid, low: float, high: float) -> Ellipsoid | None:
        if spread.matrices is None:
            return spread.ball(max(abs(low), abs(high)))
        if spread.untrimmed:  # a slope of zero beyond the edge of the image
            low, high = min(low, 0.0), max(high, 0.0)
        log_scales, slack = self.multipliers.next(spread.matrices.shape[-1])
        after = after_slopes(spread.matrices, low, high, log_scales, slack)
        return replace(spread.changed(after), untrimmed=False)

    def _reshape(self, spread: Ellipsoid, stage: Stage, shape: Shape | None) -> Ellipsoid | None:
        if keeps_shape(stage) or spread.matrices is None or spread.axis == "all":
            return spread
        if shape == (spread.size,) and spread.torus is None:
            return replace(spread, axis="all")
        whole = isinstance(stage.module, nn.Flatten) and stage.module.start_dim == 1
        whole = whole and stage.module.end_dim in (-1, len(shape or ()))
        return spread if whole and spread.axis == "first" else None

    def _scale(self, spread: Ellipsoid, stage: Scale, shape: Shape) -> Ellipsoid | None:
        if spread.axis == "last" and len(shape) > 1 and spread.matrices is not None:
            return None
        factors = stage.scale.detach().double()
        if spread.matrices is None:
            return spread.scaled(factors, "all" if len(shape) == 1 else "first")
        if spread.axis == "all":
            factors = factors.repeat_interleave(math.prod(shape[1:]))
        if len(factors) != spread.matrices.shape[-1]:
            return None
        return spread.scaled(factors, spread.axis)

    def _sum(self, spread: Ellipsoid, stage: Sum, shape: Shape) -> Ellipsoid:
        """Each branch from the same ellipsoid, and one that contains all sums."""
        ends = []
        for branch in stage.branches:
            shapes = tuple(shapes_along(branch, shape))[:-1]
            walk = replace(self, chain=Chain(branch, shapes))
            ends.append(walk.run(spread))
        return summed(ends)

    # -- images -----------------------------------------------------------------------------------

    def _linear_on_image(
        self, spread: Ellipsoid, index: int, stage: Conv | Nonnegative, shape: Shape
    ) -> Ellipsoid | None:
        after = self._shape_after(index)
        filters = filter_of(stage, shape)
        image = spread.matrices is None or spread.axis == "first"
        if filters is None or not image:
            return self._as_matrix(spread, stage, shape, after)
        if spread.torus is not None and spread.untrimmed and max(filters.padding) > 0:
            spread = self._slopes(spread, 0.0, 1.0) or spread
        torus = spread.torus
        if torus is not None and not torus.holds(shape[1:], filters.padding, filters.stride):
            return None
        if torus is None:
            torus = torus_for(self.chain.stages[index:], self.chain.known_shapes()[index:])
            spread = spread.placed(torus)
        out, given = filters.kernel.shape[:2]
        entries = torus.frequencies * out * max(out, given)
        if entries > self.limits.entries or entries * given > self.limits.products:
            return None
        return spread.through_filter(filters.kernel, torus, filters.stride, after[1:])

    def _as_matrix(
        self, spread: Ellipsoid, stage: Conv | Nonnegative, shape: Shape, after: Shape
    ) -> Ellipsoid | None:
        """A small linear stage written out; its output is one vector."""
        rows, columns = math.prod(after), math.prod(shape)
        if rows > self.limits.units or rows * columns > self.limits.entries:
            return None
        matrix = explicit_matrix(stage, shape, after)
        if spread.matrices is None or spread.axis == "all":
            return spread.through(matrix.flatten(1), "all")
        return spread.through_image_matrix(matrix) if spread.axis == "first" else None

    def _max_pool(self, spread: Ellipsoid, stage: MaxPool, shape: Shape) -> Ellipsoid | None:
        """Channels stay apart: what a channel can do is bounded by its share of a diagonal."""
        if spread.matrices is None or spread.axis != "first" or len(shape) < 2:
            return None
        log_scales, _ = self.multipliers.next(spread.matrices.shape[-1])
        scales = torch.ones(spread.matrices.shape[-1], dtype=torch.float64)
        if log_scales is not None:
            scales = torch.exp(log_scales - log_scales.mean())
        root = scales.sqrt().to(spread.matrices.dtype)
        top = largest(spread.matrices / (root[:, None] * root))
        diagonal = torch.diag(self.norms.of(stage, shape) ** 2 * top * scales)[None]
        return replace(spread, torus=None, untrimmed=False).changed(diagonal, axis="first")

    def _shape_after(self, index: int) -> Shape:
        shapes, stages = self.chain.known_shapes(), self.chain.stages
        if index + 1 < len(stages):
            return shapes[index + 1]
        out = stages[index].absolute(torch.zeros(1, *shapes[index], dtype=torch.float64))
        return tuple(out.shape[1:])

"""Ellipsoids of vectors and of images, and what linear layers do to them.

Of an image only ellipsoids that do not change when the image is shifted are kept: one channels x
channels matrix for each frequency. For that, the image stands in a larger torus (a grid that closes
on itself) with zeros around it. A convolution with zero padding is then one product for each
frequency, exactly; what it writes beyond the image's edge is cut off by the next activation, whose
slopes there are taken to be zero. So no matrix over all pixels is ever built, and strides average
the matrices of those frequencies that fall together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from weightloom.bounds.semidefinite.ellipsoids import largest, log_of, sandwich, summed_sandwich
from weightloom.bounds.stages import Shape

__all__ = ["Ellipsoid", "ImageTorus", "summed"]


@dataclass(frozen=True)
class ImageTorus:
    """Where an image of shape (channels, *window) stands: in a torus of these sizes."""

    sizes: Shape
    window: Shape

    @property
    def frequencies(self) -> int:
        return math.prod(self.sizes)

    def holds(self, window: Shape, padding: Shape, stride: Shape) -> bool:
        """Whether a filter with this padding and stride can read an image of this size in it."""
        sizes = zip(self.sizes, window, padding, stride, strict=True)
        return all(n >= w + p and n % s == 0 for n, w, p, s in sizes)

    def transform(self, images: Tensor) -> Tensor:
        """Images [*rest, *smaller] to coefficients [frequencies, *rest] of the plain sum."""
        axes = tuple(range(-len(self.sizes), 0))
        coefficients = torch.fft.fftn(images.to(torch.complex128), s=list(self.sizes), dim=axes)
        return coefficients.flatten(-len(self.sizes)).movedim(-1, 0)

    def coarser(self, matrices: Tensor, stride: Shape, window: Shape) -> tuple[ImageTorus, Tensor]:
        """Every stride-th pixel: frequencies that become the same one are averaged."""
        grid = matrices.reshape(*self.sizes, *matrices.shape[1:])
        for axis, step in enumerate(stride):
            grid = grid.unflatten(axis, (step, -1)).mean(axis)
        sizes = tuple(n // s for n, s in zip(self.sizes, stride, strict=True))
        return ImageTorus(sizes, window), grid.flatten(0, len(sizes) - 1)


@dataclass(frozen=True)
class Ellipsoid:
    """exp(log) times an ellipsoid for the difference of two values of one layer.

    ``matrices``: None, the ball; [1, n, n] over the axis ``axis`` of the value ("last", "first" for
    channels, "all" for the flattened value), the same and independent along its other axes; or one
    for each frequency of ``torus``. ``untrimmed``: the values beyond the image's edge are not zero.
    """

    log: Tensor
    matrices: Tensor | None = None
    axis: str = "last"
    torus: ImageTorus | None = None
    untrimmed: bool = False

    @property
    def size(self) -> int:
        """Rows of each matrix."""
        return 0 if self.matrices is None else self.matrices.shape[-1]

    def top(self) -> Tensor:
        """The squared length of the longest difference, without exp(log)."""
        return torch.tensor(1.0) if self.matrices is None else largest(self.matrices)

    def ball(self, factor: float = 1.0) -> Ellipsoid:
        """The ball around this ellipsoid, after a map with this Lipschitz constant."""
        return Ellipsoid(self.log + log_of(self.top() * factor**2))

    def changed(self, matrices: Tensor, **others: object) -> Ellipsoid:
        """Other matrices, scaled to a largest eigenvalue of 1 so that no network overflows."""
        top = largest(matrices)
        if float(top.detach()) == 0:
            return replace(self, log=torch.tensor(-math.inf), matrices=matrices, **others)  # type: ignore[arg-type]
        return replace(self, log=self.log + top.log(), matrices=matrices / top, **others)  # type: ignore[arg-type]

    def through(self, weight: Tensor, axis: str) -> Ellipsoid:
        """After a matrix [out, in] along an axis."""
        return self.changed(sandwich(weight[None], self.matrices), axis=axis, torus=None)

    def through_image_matrix(self, weight: Tensor) -> Ellipsoid:
        """After a matrix [out, *(channels, *window)] that reads an image."""
        if self.torus is None:  # the same matrix at every pixel
            rows = weight.flatten(2).movedim(2, 0)  # [pixels, out, channels]
        else:
            # <w, x> is a sum over frequencies; the plain sum has sqrt(frequencies) too much.
            rows = self.torus.transform(weight).conj() / math.sqrt(self.torus.frequencies)
        g = summed_sandwich(rows, self.matrices)
        return self.changed(g, axis="all", torus=None, untrimmed=False)

    def through_filter(
        self, kernel: Tensor, torus: ImageTorus, stride: Shape, window: Shape
    ) -> Ellipsoid:
        """After a convolution [out, in, *taps] (dilation expanded) on the torus.

        A shift of the image, as by padding, does not change the ellipsoid.
        """
        g = sandwich(torus.transform(kernel), self.matrices)
        torus, g = torus.coarser(g, stride, window)
        return self.changed(g, axis="first", torus=torus, untrimmed=True)

    def placed(self, torus: ImageTorus) -> Ellipsoid:
        """An image in a torus: the same matrix at all frequencies."""
        matrices = self.matrices
        if matrices is not None:
            matrices = matrices.to(torch.complex128)
        return replace(self, matrices=matrices, torus=torus, axis="first")

    def scaled(self, factors: Tensor, axis: str) -> Ellipsoid:
        """Every entry of the axis times a number [n]."""
        own = factors.to(torch.float64)
        if self.matrices is None:
            return self.changed(torch.diag(own.square())[None], axis=axis)
        own = own.to(self.matrices.dtype)
        return self.changed(self.matrices * (own[:, None] * own), axis=axis)


def summed(ends: Sequence[Ellipsoid]) -> Ellipsoid:
    """An ellipsoid that holds the sum of one vector from each: sum X_b / a_b, where sum a_b = 1.

    By Cauchy-Schwarz, for any a_b > 0. With a_b proportional to the longest axes, the longest axis
    of the sum is at most the sum of the longest axes.
    """
    parts = [end for end in ends if float(end.log.detach()) > -math.inf]
    if not parts:
        return Ellipsoid(torch.tensor(-math.inf))
    logs = torch.stack([end.ball().log / 2 for end in parts])  # of the longest axes
    total = torch.logsumexp(logs, 0)
    shaped = [end for end in parts if end.matrices is not None]
    first = max(shaped, key=lambda end: end.torus is not None, default=None)
    if first is None or not all(_alike(end, first) for end in parts):
        return Ellipsoid(2 * total)
    eye = torch.eye(first.size, dtype=torch.float64)[None]
    scales = [torch.exp(end.log - total - log) for end, log in zip(parts, logs, strict=True)]
    matrices = sum(
        (eye if end.matrices is None else end.matrices) * scale
        for end, scale in zip(parts, scales, strict=True)
    )
    untrimmed = any(end.untrimmed for end in parts)
    whole = replace(first, log=2 * total, untrimmed=untrimmed)
    return whole.changed(torch.as_tensor(matrices))


def _alike(end: Ellipsoid, first: Ellipsoid) -> bool:
    """Whether two ellipsoids are about the same values in the same place."""
    if end.matrices is None:
        return True
    everywhere = end.torus is None and end.axis == "first"  # the same at all frequencies
    return (
        end.axis == first.axis
        and end.size == first.size
        and (everywhere or end.torus == first.torus)
    )

"""Functions by their Fourier transforms: Lemma 2.9, (2.10), (2.11) and the Gaussian."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from weightloom.construct.layers import shallow_network
from weightloom.construct.shallow import Cosine, Threshold
from weightloom_papers.claims import PaperClaim, Size, Statement
from weightloom_papers.deep_learning_theory.claims.judging import (
    SURE,
    Measured,
    every,
    generator,
    grid,
)

__all__ = ["CLAIMS"]

TURN = 2 * math.pi
# The trapezoidal rule on functions like exp(-pi x^2), spacing 1/16, is exact up to rounding: the
# first term it neglects is exp(-pi 16^2). 1e-11 leaves room for the sums.
QUADRATURE = 1e-11


def _line(reach: float, step: float = 1 / 16) -> Tensor:
    return torch.arange(-reach, reach + step / 2, step, dtype=torch.float64)


def _transform(values: Tensor, x: Tensor, w: Tensor) -> Tensor:
    """g~(w) = integral of exp(-2 pi i w x) g(x) dx by the trapezoidal rule, along every axis."""
    wave = torch.exp(-1j * TURN * w[:, None] * x) * (x[1] - x[0])
    transform = values.to(torch.complex128)
    for axis in range(values.dim()):
        transform = torch.movedim(torch.tensordot(wave, transform, ([1], [axis])), 0, axis)
    return transform


def rules(size: Size) -> list[Measured]:
    """The transform from its definition, inverted, and that of the gradient; one and two axes."""
    x = w = _line(6.0)
    line = (-math.pi * (x - 0.3) ** 2).exp()
    odd = x * (-math.pi * x**2).exp()
    rows = []
    cases = {"exp(-pi (x - 0.3)^2)": line, "x exp(-pi x^2)": odd,
             "exp(-pi (x - 0.3)^2) y exp(-pi y^2)": torch.outer(line, odd)}  # fmt: skip
    slopes = {"line": -TURN * (x - 0.3) * line, "odd": (1 - TURN * x**2) * (-math.pi * x**2).exp()}
    gradients = [[slopes["line"]], [slopes["odd"]],
                 [torch.outer(slopes["line"], odd), torch.outer(line, slopes["odd"])]]  # fmt: skip
    for (name, g), gradient in zip(cases.items(), gradients, strict=True):
        transform = _transform(g, x, w)
        back = _transform(transform.conj(), w, x).conj()  # conjugates turn -i into +i
        parts = torch.stack([_transform(slope, x, w) for slope in gradient])
        lengths = torch.meshgrid(*[w] * g.dim(), indexing="ij")
        radius = torch.stack(lengths).square().sum(0).sqrt()
        size_of = parts.abs().square().sum(0).sqrt()
        theta = transform.angle() / TURN
        polar = (transform.abs() * torch.exp(1j * TURN * theta) - transform).abs().max()
        rows.append(
            Measured(name=name, inverse=float((back - g).abs().max()),
                derivative=float((TURN * radius * transform.abs() - size_of).abs().max()),
                without=float((radius * transform.abs() - size_of).abs().max()),
                polar=float(polar), theta=float(theta.abs().max()))
        )  # fmt: skip
    return rows


RULES = (
    "{r.name}: inverted back to within {r.inverse:.2g}, transform of the gradient off by "
    "{r.derivative:.2g}, polar form by {r.polar:.2g}"
)


@torch.no_grad()
def cosines(size: Size) -> list[Measured]:
    """exp(-pi (x - c)^2) by a network of cosines at regular frequencies: (2.10) as a sum."""
    w = _line(5.0, 1 / 32)
    x = grid(-1, 1, 81)
    rows = []
    for shift in (0.0, 0.1, 0.3) if size == "quick" else (0.0, 0.1, 0.2, 0.3, 0.45, 0.7):
        transform = torch.exp(-math.pi * w**2) * torch.exp(-1j * TURN * shift * w)
        outer, theta = transform.abs() / 32, transform.angle() / TURN
        wanted = (-math.pi * (x[:, 0] - shift) ** 2).exp()
        off = {}
        for phase in (TURN, 1.0):
            net = shallow_network(TURN * w[:, None], phase * theta, outer, 0.0, Cosine())
            off[phase] = float((net(x)[:, 0] - wanted).abs().max())
        rows.append(Measured(shift=shift, count=len(w), off=off[TURN], radians=off[1.0]))
    return rows


COSINES = (
    "exp(-pi (x - {r.shift})^2), {r.count} cosines: off by {r.off:.2g} on [-1, 1]; with the phase "
    "outside of 2 pi by {r.radians:.2g}"
)


@torch.no_grad()
def thresholds(size: Size) -> list[Measured]:
    """Both sides of (2.11) for single frequencies; the right one as a network of thresholds."""
    count = 20_000
    rows = []
    for theta in (0.0, 0.15, -0.3):
        for length in (0.5, 1.0, 1.7):
            b = (torch.arange(count, dtype=torch.float64) + 0.5) * length / count
            sides = {}
            for sign in (1, -1):
                own, mirrored = sign * theta, -sign * theta  # theta(-w) = -theta(w)
                bracket = (TURN * (mirrored - b)).sin() - (TURN * (own + b)).sin()
                ones = torch.full((count, 1), float(sign) * length, dtype=torch.float64)
                outer = TURN * bracket * length / count
                sides[sign] = shallow_network(ones, -b, outer, 0.0, Threshold())
            x = grid(-1, 1, 9 if size == "quick" else 41)
            left = (TURN * (length * x[:, 0] + theta)).cos() - math.cos(TURN * theta)
            right, other = (sides[sign](x)[:, 0] for sign in (1, -1))
            apart = (left - right).abs()
            worst = int(apart.argmax())
            # The left side is the same for w and -w.
            both, half = ((left - (right + other) / share).abs() for share in (2, 4))
            rows.append(
                Measured(theta=theta, length=length, wx=length * float(x[worst]),
                    left=float(left[worst]), right=float(right[worst]),
                    pointwise=float(apart.max()),
                    together=float(both.max()), half=float(half.max()),
                    allowed=2 * TURN * length / count)
            )  # fmt: skip
    return rows


POINTWISE = (
    "theta = {r.theta}, |w| = {r.length}, w.x = {r.wx:.4g}: left side {r.left:.4g}, right side "
    "{r.right:.4g}"
)
TOGETHER = (
    "theta = {r.theta}, |w| = {r.length}: mean over w and -w off by at most {r.together:.2g} on "
    "[-1, 1]"
)


def gaussians(size: Size) -> list[Measured]:
    """Transforms of exp(-|x|^2/(2 s^2)), height (2 pi s^2)^(-d/2), by quadrature at frequencies."""
    rows = []
    for dims in (1, 2):
        for sigma in (0.4, 0.7, 1.0):
            x = _line(10 * sigma, sigma / 8)
            w = torch.tensor([0.0, 0.2, 0.5], dtype=torch.float64) / sigma
            profile = (-(x**2) / (2 * sigma**2)).exp()
            transform = _transform(profile if dims == 1 else torch.outer(profile, profile), x, w)
            squares = torch.stack(torch.meshgrid(*[w**2] * dims, indexing="ij")).sum(0)
            height = (TURN * sigma**2) ** (dims / 2)
            shape, flat = (-2 * factor * sigma**2 * squares for factor in (math.pi**2, math.pi))

            def away(scale: float, wanted: Tensor, transform: Tensor = transform) -> float:
                return float(((scale * transform).abs() / wanted.exp() - 1).abs().max())

            rows.append(
                Measured(dims=dims, sigma=sigma, printed=away(height, shape),
                    corrected=away(1 / height, shape), wrong=away(1 / height, flat))
            )  # fmt: skip
    return rows


GAUSSIANS = (
    "d = {r.dims}, sigma = {r.sigma}: exp(-2 pi^2 sigma^2 |w|^2) is off by {r.printed:.3g} for "
    "height (2 pi sigma^2)^(d/2), by {r.corrected:.2g} for (2 pi sigma^2)^(-d/2), relative"
)


def gaussian_norms(size: Size) -> list[Measured]:
    """The integral of |w| |g~(w)| by Monte Carlo, for Gaussian densities g."""
    draws = 20_000 if size == "quick" else 400_000
    rows = []
    for dims in (1, 2, 5, 20, 50):
        for sigma in (1 / math.sqrt(TURN), 0.5, 1.0):
            # g~ / integral of g~ is the density of N(0, I / (2 pi sigma)^2).
            w = torch.randn(draws, dims, generator=generator(dims), dtype=torch.float64)
            lengths = w.norm(dim=-1) / (TURN * sigma)
            total = (TURN * sigma**2) ** (-dims / 2)
            rows.append(
                Measured(dims=dims, sigma=sigma, value=total * float(lengths.mean()),
                    spread=total * float(lengths.std()) / math.sqrt(draws),
                    bound=math.sqrt(dims / TURN) * (TURN * sigma**2) ** (-(dims + 1) / 2))
            )  # fmt: skip
    return rows


NORMS = (
    "d = {r.dims}, sigma = {r.sigma:.4g}: integral of |w| |g~| is {r.value:.4g} (standard error "
    "{r.spread:.1g}), bound {r.bound:.4g}"
)

CLAIMS = (
    PaperClaim(
        name="deep-learning-theory/fourier-rules",
        place="Lemma 2.9",
        items=(47,),
        measure=rules,
        printed=Statement(
            "The transform is inverted by exp(+2 pi i w.x); 2 pi |w| |g~(w)| is the norm of the "
            "transform of the gradient; g~ = |g~| exp(2 pi i theta), |theta| <= 1.",
            every(
                lambda r: max(r.inverse, r.derivative, r.polar, r.theta - 1),
                lambda r: QUADRATURE,
                RULES,
            ),
        ),
        wrong=Statement(
            "|w| |g~(w)| is the norm of the transform of the gradient, without 2 pi.",
            every(lambda r: r.without, lambda r: QUADRATURE, RULES),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/cosine-form",
        place="(2.10)",
        items=(7,),
        measure=cosines,
        printed=Statement(
            "g(x) = integral of |g~(w)| cos(2 pi (w.x + theta(w))) dw.",
            every(lambda r: r.off, lambda r: QUADRATURE, COSINES),
        ),
        wrong=Statement(
            "g(x) = integral of |g~(w)| cos(2 pi w.x + theta(w)) dw.",
            every(lambda r: r.radians, lambda r: QUADRATURE, COSINES),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/cosines-as-thresholds",
        place="(2.11)",
        items=(48,),
        measure=thresholds,
        printed=Statement(
            "For every w, cos(2 pi (w.x + theta(w))) - cos(2 pi theta(w)) = 2 pi integral over "
            "0 <= b <= |w| of [sin(2 pi (-b + theta(-w))) - sin(2 pi (b + theta(w)))] "
            "1[w.x >= b] db, |x| <= 1.",
            every(lambda r: r.pointwise, lambda r: r.allowed, POINTWISE),
        ),
        corrected=Statement(
            "Only after integrating over w: the mean of the right side over w and -w is the left "
            "side (theta(-w) = -theta(w)).",
            every(lambda r: r.together, lambda r: r.allowed, TOGETHER),
        ),
        wrong=Statement(
            "The same mean with one sine in the bracket: half of it.",
            every(lambda r: r.half, lambda r: r.allowed, TOGETHER),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/gaussian-transform",
        place="Section 2.3, Gaussians",
        items=(9,),
        measure=gaussians,
        printed=Statement(
            "g(x) = (2 pi sigma^2)^(d/2) exp(-|x|^2/(2 sigma^2)) has the transform "
            "exp(-2 pi^2 sigma^2 |w|^2).",
            every(lambda r: r.printed, lambda r: QUADRATURE, GAUSSIANS),
        ),
        corrected=Statement(
            "(2 pi sigma^2)^(-d/2) exp(-|x|^2/(2 sigma^2)) has it.",
            every(lambda r: r.corrected, lambda r: QUADRATURE, GAUSSIANS),
        ),
        wrong=Statement(
            "It has the transform exp(-2 pi sigma^2 |w|^2).",
            every(lambda r: r.wrong, lambda r: QUADRATURE, GAUSSIANS),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/gaussian-barron-norm",
        place="Section 2.3, Gaussians",
        items=(9,),
        measure=gaussian_norms,
        printed=Statement(
            "The integral of |w| |g~(w)| of a Gaussian density is at most sqrt(d) / (sqrt(2 pi) "
            "(2 pi sigma^2)^((d+1)/2)); O(sqrt(d)) if 2 pi sigma^2 >= 1.",
            every(lambda r: r.value, lambda r: r.bound + SURE * r.spread, NORMS),
        ),
        wrong=Statement(
            "It is at most 0.9 of that.",
            every(lambda r: r.value, lambda r: 0.9 * r.bound + SURE * r.spread, NORMS),
        ),
    ),
)

"""The kernels again, slowly: textbook formulas with 60 digits, and plain quadrature.

Nothing here is written for stability. With 60 digits arccos near 1 has digits to spare, so the
formulas can stay as the papers print them (corrected as theory.md says).
"""

from __future__ import annotations

import itertools
import math

import mpmath as mp
import numpy as np
import torch

from weightloom.kernels import Covariance

mp.mp.dps = 60


def _two_slopes(positive, negative):
    """E[s s] and E[s' s'] of a piecewise linear function, from arccos."""

    def value(left, right, cross):
        k = mp.sqrt(left * right)
        t = mp.acos(max(min(cross / k, mp.mpf(1)), mp.mpf(-1))) if k else mp.pi / 2
        same = k * (mp.sin(t) + (mp.pi - t) * mp.cos(t)) / (2 * mp.pi)  # both positive
        opposite = k * (mp.sin(t) - t * mp.cos(t)) / (2 * mp.pi)  # u > 0 > v, E[u |v|]
        p, n = mp.mpf(positive), mp.mpf(negative)
        moment = (p * p + n * n) * same - 2 * p * n * opposite
        share = (mp.pi - t) / (2 * mp.pi)
        return moment, (p * p + n * n) * share + 2 * p * n * (mp.mpf(1) / 2 - share)

    return value


def _erf(left, right, cross):
    n2 = (1 + 2 * left) * (1 + 2 * right)
    return 2 / mp.pi * mp.asin(2 * cross / mp.sqrt(n2)), 4 / mp.pi / mp.sqrt(n2 - 4 * cross**2)


def _sin(left, right, cross):
    damping = mp.exp(-(left + right) / 2)
    return damping * mp.sinh(cross), damping * mp.cosh(cross)


def _cos(left, right, cross):
    return _sin(left, right, cross)[::-1]


def _exp(left, right, cross):
    value = mp.exp((left + right) / 2 + cross)
    return value, value


def _by_trapezoid(function, slope):
    """E of an analytic function by the trapezoidal rule in two dimensions (spectrally accurate)."""

    def value(left, right, cross, step="0.25", reach=9):
        step = mp.mpf(step)
        a, b = mp.sqrt(left), cross / mp.sqrt(left)
        c = mp.sqrt(max(right - b * b, mp.mpf(0)))
        grid = [step * i for i in range(-int(reach / step), int(reach / step) + 1)]
        mass = [mp.exp(-t * t / 2) * step / mp.sqrt(2 * mp.pi) for t in grid]
        moment = rise = mp.mpf(0)
        for s, ms in zip(grid, mass, strict=True):
            first, first_slope = function(a * s), slope(a * s)
            inner = [b * s + c * t for t in grid]
            moment += (
                ms * first * mp.fsum(m * function(v) for m, v in zip(mass, inner, strict=True))
            )
            rise += (
                ms * first_slope * mp.fsum(m * slope(v) for m, v in zip(mass, inner, strict=True))
            )
        return moment, rise

    return value


def _gelu(left, right, cross):
    full = (1 + left) * (1 + right)
    square = full - cross**2
    d, angle = mp.sqrt(square), mp.asin(cross / mp.sqrt(full))
    moment = cross * angle + (cross**2 + left * right * square) / (full * d)
    slope = angle + (cross / d) * (1 / square + (1 - left * right) / full + 1)
    return cross / 4 + moment / (2 * mp.pi), mp.mpf(1) / 4 + slope / (2 * mp.pi)


MOMENTS = {
    "relu": _two_slopes(1, 0),
    "abs": _two_slopes(1, -1),
    "identity": _two_slopes(1, 1),
    "leaky_relu": _two_slopes(1, "0.01"),
    "erf": _erf,
    "sin": _sin,
    "cos": _cos,
    "exp": _exp,
    "tanh": _by_trapezoid(mp.tanh, lambda t: mp.sech(t) ** 2),
    "gelu": _gelu,
}


def exact(number):
    """A float as the number that it is."""
    return mp.mpf(float(number))


def dot(x, y):
    """x.y / d of two rows of floats, exactly."""
    return mp.fsum(exact(a) * exact(b) for a, b in zip(x, y, strict=True)) / len(x)


def triple(x, y):
    """Second moments (left, right, cross) of two rows."""
    return dot(x, x), dot(y, y), dot(x, y)


def layer(tower, moments, weights=(1, 1, 1)):
    """Q -> weights * (sigma_w^2 Q + sigma_b^2), for the three second moments at once."""
    w2, b2 = exact(tower.sigma_w) ** 2, exact(tower.sigma_b) ** 2
    return tuple(s * (w2 * q + b2) for s, q in zip(weights, moments, strict=True))


def activate(tower, moments):
    """gain^2 E[s s] for (u, u), (v, v), (u, v), and gain^2 E[s' s']."""
    left, right, cross = moments
    function, g2 = MOMENTS[tower.nonlinearity.name], exact(tower.gain) ** 2
    (a, _), (b, _), (c, slope) = (
        function(left, left, left),
        function(right, right, right),
        function(left, right, cross),
    )
    return (g2 * a, g2 * b, g2 * c), g2 * slope


def tower_kernels(tower, moments):
    """Second moments of the output and the tangent kernel of a plain network."""
    now = layer(tower, moments)
    tangent = now[2]
    for _ in range(tower.depth - 1):
        q, slope = activate(tower, now)
        now = layer(tower, q)
        tangent = now[2] + exact(tower.sigma_w) ** 2 * slope * tangent
    return now, tangent


def hyper_kernel(kernel, x, z, x2, z2):
    """The kernel of two points, each a row of floats, with 60 digits."""
    f, g = kernel.f, kernel.g
    weights, tangent_f = tower_kernels(f, triple(x, x2))
    q = triple(z, z2)
    inner = layer(g, q)
    tangent = inner[2]
    for _ in range(g.depth - 1):
        q, slope = activate(g, layer(g, q, weights))
        inner = layer(g, q)
        tangent = inner[2] + weights[2] * exact(g.sigma_w) ** 2 * slope * tangent
    return weights[2] * inner[2] if kernel.kind == "nngp" else tangent_f * tangent


def gap_after(name, left, right, gap):
    """The gap that an activation makes of (left, right, gap), with 60 digits."""
    left, right, gap = exact(left), exact(right), exact(gap)
    function = MOMENTS[name]
    cross = mp.sqrt(left * right) * (1 - gap)
    moment = function(left, right, cross)[0]
    return 1 - moment / mp.sqrt(function(left, left, left)[0] * function(right, right, right)[0])


def by_polar_quadrature(function, left, right, gap, radial=60, angular=60):
    """E[s(u) s(v)] by Gauss quadrature in polar coordinates, panels cut where u = 0 or v = 0.

    Accurate for functions that are smooth on either side of 0, kinks and jumps at 0 included.
    """
    rho = 1 - gap
    other = math.sqrt(gap * (2 - gap))
    turned = math.atan2(other, rho)
    quarter = math.pi / 2
    ends = (quarter, -quarter, turned + quarter, turned - quarter)
    cuts = sorted({end % (2 * math.pi) for end in ends})
    cuts.append(cuts[0] + 2 * math.pi)
    points, weights = np.polynomial.legendre.leggauss(angular)
    r, wr = np.polynomial.legendre.leggauss(radial)
    r, wr = 6 * (r + 1), 6 * wr
    total = 0.0
    for low, high in itertools.pairwise(cuts):
        a = low + (high - low) / 2 * (points + 1)
        u = math.sqrt(left) * np.outer(r, np.cos(a))
        v = math.sqrt(right) * np.outer(r, rho * np.cos(a) + other * np.sin(a))
        values = function(torch.from_numpy(u)) * function(torch.from_numpy(v))
        mass = np.outer(wr * r * np.exp(-(r**2) / 2), weights * (high - low) / 2) / (2 * math.pi)
        total += float((values.numpy() * mass).sum())
    return total


def covariance(left, right, gap, dtype=torch.float64):
    """A covariance of one pair."""
    return Covariance(*(torch.tensor([float(part)], dtype=dtype) for part in (left, right, gap)))

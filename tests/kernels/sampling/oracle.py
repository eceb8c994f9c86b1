"""The kernels of a hypernetwork by slow quadrature, in numpy, written from theory.md alone.

Shares no code with the library. Also knows what the paper prints, so that a test can show that
sampled networks tell the two apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy import special

ANGLES = np.polynomial.legendre.leggauss(24)
RADII = np.polynomial.legendre.leggauss(120)


def _gelu(t):
    return t * special.ndtr(t)


def _gelu_slope(t):
    return special.ndtr(t) + t * np.exp(-(t**2) / 2) / math.sqrt(2 * math.pi)


# name: (s, s'); kinks at 0 only
FUNCTIONS = {
    "relu": (lambda t: np.maximum(t, 0), lambda t: (t > 0) * 1.0),
    "leaky_relu": (lambda t: np.where(t > 0, t, 0.2 * t), lambda t: np.where(t > 0, 1.0, 0.2)),
    "abs": (np.abs, np.sign),
    "identity": (lambda t: t, np.ones_like),
    "erf": (special.erf, lambda t: 2 / math.sqrt(math.pi) * np.exp(-(t**2))),
    "sin": (np.sin, np.cos),
    "cos": (np.cos, lambda t: -np.sin(t)),
    "tanh": (np.tanh, lambda t: 1 / np.cosh(t) ** 2),
    "gelu": (_gelu, _gelu_slope),
}


@dataclass(frozen=True)
class Plain:
    """The settings of a tower."""

    depth: int
    activation: str = "relu"
    gain: float = math.sqrt(2)
    sigma_w: float = 1.0
    sigma_b: float = 0.0


def expectation(function, left, right, cross):
    """E[function(u) function(v)] in polar coordinates, between the angles where u or v is 0."""
    rho = float(np.clip(cross / math.sqrt(left * right), -1, 1))
    other = math.acos(rho)  # v = sqrt(right) r cos(angle - other), u = sqrt(left) r cos(angle)
    edges = {math.pi / 2, 3 * math.pi / 2, (other + math.pi / 2) % (2 * math.pi)}
    edges |= {(other + 3 * math.pi / 2) % (2 * math.pi), 0.0, 2 * math.pi}
    edges = sorted(edges)
    (nodes, weights), (radius, mass) = ANGLES, RADII
    radius, mass = 6 * (radius + 1), 6 * mass  # [0, 12]: the rest is below 1e-30
    mass = mass * radius * np.exp(-(radius**2) / 2) / (2 * math.pi)
    total = 0.0
    for low, high in pairwise(edges):
        angle = (low + high) / 2 + (high - low) / 2 * nodes
        u = math.sqrt(left) * np.outer(np.cos(angle), radius)
        v = math.sqrt(right) * np.outer(np.cos(angle - other), radius)
        total += (high - low) / 2 * weights @ (function(u) * function(v)) @ mass
    return total


def moments(tower, covariance):
    """(gain^2 E[s s], gain^2 E[s' s']) of a 2 x 2 covariance, as 2 x 2 matrices."""
    value, slope = (
        np.array(
            [
                [
                    expectation(f, covariance[i, i], covariance[j, j], covariance[i, j])
                    if i != j
                    else expectation(f, covariance[i, i], covariance[i, i], covariance[i, i])
                    for j in (0, 1)
                ]
                for i in (0, 1)
            ]
        )
        for f in FUNCTIONS[tower.activation]
    )
    return tower.gain**2 * value, tower.gain**2 * slope


def tower_kernels(tower, inputs):
    """(covariance, tangent kernel) of the output, 2 x 2 each, from the inputs' covariance."""
    covariance = tower.sigma_w**2 * inputs + tower.sigma_b**2
    tangent = covariance
    for _ in range(tower.depth - 1):
        value, slope = moments(tower, covariance)
        covariance = tower.sigma_w**2 * value + tower.sigma_b**2
        tangent = covariance + tower.sigma_w**2 * slope * tangent
    return covariance, tangent


def hyper_kernels(f, g, x, x2, z, z2, printed=()):
    """(nngp, hyperkernel) of one pair. ``printed`` names slips of the paper to keep.

    "one layer more": S^L where the covariance of the generated weights is S^{L-1} (Eq. 8).
    "no factor": the backward step of g without S (Lemma 6).
    """
    shared, tangent_f = tower_kernels(f, _inputs(x, x2))
    if "one layer more" in printed:
        shared = f.sigma_w**2 * moments(f, shared)[0] + f.sigma_b**2
    values = g.sigma_w**2 * _inputs(z, z2) + g.sigma_b**2
    tangent_g = values
    for _ in range(g.depth - 1):
        value, slope = moments(g, shared * values)
        values = g.sigma_w**2 * value + g.sigma_b**2
        factor = 1.0 if "no factor" in printed else shared
        tangent_g = values + g.sigma_w**2 * slope * factor * tangent_g
    return (shared * values)[0, 1], (tangent_f * tangent_g)[0, 1]


def _inputs(a, b):
    both = np.stack([a, b])
    return both @ both.T / len(a)

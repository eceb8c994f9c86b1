"""Direct formulas for what the deep constructions compute, without any ReLU."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch


def triangle(x, power=1):
    """Delta^power by applying the definition again and again."""
    x = np.asarray(x, dtype=float)
    for _ in range(power):
        x = np.where((x < 0) | (x > 1), 0.0, np.where(x < 0.5, 2 * x, 2 - 2 * x))
    return x


def squares(x, i):
    """h_i: interpolation of x^2 at the multiples of 2^-i."""
    nodes = np.arange(2**i + 1) / 2**i
    return np.interp(x, nodes, nodes**2)


def printed_product(x, y, i):
    """Corollary 4.3 as it stands."""
    return (4 * squares((x + y) / 2, i) - squares(x, i) - squares(y, i)) / 2


def difference_product(x, y, i):
    return squares(np.abs(x + y) / 2, i) - squares(np.abs(x - y) / 2, i)


def run(certified, points):
    """The network at points (anything that numpy understands), as a numpy array [n, outputs]."""
    dtype = next(certified.network.parameters()).dtype
    with torch.no_grad():
        return certified.network(torch.as_tensor(points).to(dtype)).double().numpy()


def grid(n, d, low=0.0, high=1.0):
    axes = [np.linspace(low, high, n)] * d
    return np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, d)


def wave(a, shift=0.3):
    """sin(a.x + shift) / 2 for torch, and its derivatives for numpy."""
    a = tuple(a)

    def target(p):
        return (p * torch.tensor(a, dtype=p.dtype)).sum(-1).add(shift).sin() / 2

    def derivative(alpha, x):
        order = sum(alpha)
        factor = math.prod(c**k for c, k in zip(a, alpha, strict=True))
        return factor * np.sin(x @ np.array(a) + shift + order * math.pi / 2) / 2

    return target, derivative


def taylor_sum(derivative, x, s, r):
    """sum_v hat_v(x) P_v(x) on [0, 1]^d at one x; hats of the Kuhn triangulation by sorting."""
    d = len(x)
    u = np.asarray(x) * s
    corner = np.minimum(np.floor(u), s - 1)
    parts = u - corner
    order = np.argsort(-parts, kind="stable")
    gaps = [1.0, *parts[order], 0.0]
    total = 0.0
    for step in range(d + 1):
        v = corner / s
        for alpha in itertools.product(range(r), repeat=d):
            if sum(alpha) < r:
                term = derivative(alpha, v) / math.prod(map(math.factorial, alpha))
                power = math.prod((x[i] - v[i]) ** k for i, k in enumerate(alpha))
                total += (gaps[step] - gaps[step + 1]) * term * power
        if step < d:
            corner[order[step]] += 1
    return total

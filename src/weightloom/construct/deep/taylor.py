"""Taylor polynomials on the cells of a grid: their error, and the network that sums them.

The approximant is that of Theorem 5.4: sum_v hat_v(x) P_v(x) over the points v of a grid with s
cells per axis, P_v the Taylor polynomial at v. The theorem says degree r; its error needs degree
r - 1 only. Its proof multiplies signed numbers and numbers above 1 with a product that is made for
[0, 1]; here products take [-1, 1] and every factor is scaled to that range. Its bumps are products;
here they are the hats of `weightloom.construct.deep.partition`, which sum to one exactly.

**Order of summation.** It differs from the theorem's. Let u = s x. Points v whose coordinates agree
modulo 2 form a class; there are 2^d. Their hats do not overlap, and on the support of each the
zigzag coordinate w (see `zigzags`) is u - v, up to signs. So the sum over one class is

    sum_alpha w^alpha Psi_alpha(x),
    Psi_alpha(x) = sum_v (+-) D^alpha g(v) / (s^|alpha| alpha!) hat_v(x),

and Psi is linear in the hats, so it needs no units. A polynomial in w with these coefficients, by
Horner's rule, takes one product for each alpha != 0. The number of products does not depend on s
(the theorem has one polynomial and one product for each of the (s+1)^d points), so there are
O(s^d + k) units instead of O(k s^d), with constants that depend on d and r.

**Errors.** Let A_alpha = max_v |coefficient of alpha| + the A of the terms multiplied into it. It
bounds the partial sum at alpha, and the product is scaled by it. Every product is off by at most
A_alpha 4^-(k+1), and later steps do not enlarge this because |w| <= 1. In a class whose hats vanish
at x the products vanish too, and at most d + 1 classes are left. So the error is at most the Taylor
remainder (see `remainder`) + the d + 1 largest of sum_alpha A_alpha 4^-(k+1) + rounding. Values and
derivatives of the target are assumed to be what torch returns.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weightloom.construct.certified import Function
from weightloom.construct.deep.circuits import Circuit, Wires, add_products, matrix
from weightloom.construct.deep.partition import grid_hats, sign, weighted, zigzags
from weightloom.construct.deep.polynomial import exponents
from weightloom.construct.grid import Box, Grid
from weightloom.construct.interpolation import node_values
from weightloom.errors import ConfigError

__all__ = ["Horner", "Smoothness", "partials", "remainder", "smoothness"]


# A sampled maximum is below the true one; the estimate is larger by this factor.
ALLOWANCE = 1.1


def partials(
    target: Function, points: Tensor, lowest: int, highest: int
) -> dict[tuple[int, ...], Tensor]:
    """D^alpha target at points [n, d], each [n], for lowest <= |alpha| <= highest."""
    dims = points.shape[1]

    def value(x: Tensor) -> Tensor:
        return target(x[None]).reshape(())

    derivative: Function = value
    values: dict[tuple[int, ...], Tensor] = {}
    for degree in range(highest + 1):
        if degree >= lowest:
            try:
                table = torch.func.vmap(derivative, chunk_size=4096)(points)
            except RuntimeError as reason:
                raise ConfigError(
                    f"derivatives of order {degree} could not be taken by torch.func: {reason}; "
                    f"write the function with differentiable torch operations on [n, {dims}]"
                ) from reason
            for alpha in (a for a in exponents(dims, degree) if sum(a) == degree):
                axes = [axis for axis, times in enumerate(alpha) for _ in range(times)]
                entry = table
                for axis in axes:
                    entry = entry.select(1, axis)
                values[alpha] = entry.detach().to(torch.float64)
        derivative = torch.func.jacfwd(derivative)
    for alpha, column in values.items():
        if not bool(torch.isfinite(column).all()):
            row = int((~torch.isfinite(column)).nonzero()[0])
            raise ConfigError(
                f"the derivative {alpha} of the function is {float(column[row])} at "
                f"{points[row].tolist()}; finite derivatives are wanted everywhere on the domain"
            )
    return values


@dataclass(frozen=True)
class Smoothness:
    """|D^alpha g| <= bound for all |alpha| = r; ``sampled`` if the bound is an estimate."""

    r: int
    bound: float
    sampled: bool


def smoothness(target: Function, box: Box, r: int, claimed: float | None) -> Smoothness:
    """The claimed bound, after a test at 3,000 points, or an estimate if nothing is claimed."""
    if claimed is not None and not 0 <= claimed < math.inf:
        raise ConfigError(f"derivative_bound={claimed} was given; a finite number >= 0 is wanted")
    outputs = node_values(target, Grid(box, (3,) * box.dims, corners=True)).shape[1]
    if outputs != 1:
        raise ConfigError(f"the function has {outputs} outputs; wanted one number for each point")
    generator = torch.Generator().manual_seed(0)
    points = torch.cat([box.grid(2000), box.sample(1000, generator)])
    values = partials(target, points, r, r)
    alpha = max(values, key=lambda a: float(values[a].abs().max()))
    at = int(values[alpha].abs().argmax())
    largest = float(values[alpha][at].abs())
    if claimed is None:
        return Smoothness(r, ALLOWANCE * largest, True)
    if largest > claimed * (1 + 1e-9) + 1e-12:
        where = ", ".join(f"{c:.6g}" for c in points[at].tolist())
        raise ConfigError(
            f"derivatives of order {r} were claimed to be at most {claimed:g}, but the derivative "
            f"{alpha} at ({where}) is {float(values[alpha][at]):.6g}; pass derivative_bound= at "
            f"least its size, or none for an estimate"
        )
    return Smoothness(r, float(claimed), False)


def remainder(r: int, spacings: tuple[float, ...]) -> float:
    """Largest error of the mean of Taylor polynomials of degree r - 1, for derivatives up to 1.

    Expanded at v, |g(x) - P_v(x)| <= M (sum_i |x_i - v_i|)^r / r!. The hats are the probabilities
    of v: along each axis it is the lower node with probability 1 - t and the upper one with t, so

        E |x_i - v_i|^r = h_i^r ((1 - t) t^r + t (1 - t)^r) <= kappa_r h_i^r,

    and (a_1 + ... + a_d)^r <= d^(r-1) (a_1^r + ... + a_d^r). Theorem 5.4 has kappa_r = 1 (and
    leaves out 1/r! in the end); kappa_1, ..., kappa_4 are 1/2, 1/4, 1/8, 1/12.
    """
    d = len(spacings)
    return d ** (r - 1) * kappa(r) * sum(h**r for h in spacings) / math.factorial(r)


def kappa(r: int) -> float:
    """Maximum of (1 - t) t^r + t (1 - t)^r on [0, 1], rounded up.

    On a grid, plus half a step times the slope, which is at most r + 1.
    """
    steps = 2**20
    t = torch.arange(steps // 2 + 1, dtype=torch.float64) / steps
    return float(((1 - t) * t**r + t * (1 - t) ** r).max()) + (r + 1) / (2 * steps)


Exponent = tuple[int, ...]


class Horner:
    """Coefficients of the polynomials in w, class by class, and the network that sums them."""

    def __init__(self, target: Function, box: Box, s: int, r: int) -> None:
        self.box, self.s, self.r, self.d = box, s, r, box.dims
        grid = Grid(box, (s + 1,) * box.dims, corners=True)
        self.spacings = grid.spacings
        self.classes = list(itertools.product((0, 1), repeat=box.dims))
        v = grid.indices()
        places = 2 ** torch.arange(box.dims - 1, -1, -1)
        self.member = (v % 2 * places).sum(-1)  # class of each node
        h, sigma = torch.tensor(grid.spacings, dtype=torch.float64), sign(v)
        self.coefficients: dict[Exponent, Tensor] = {}
        for alpha, values in partials(target, grid.nodes(), 0, r - 1).items():
            powers = torch.tensor(alpha)
            scale = (h**powers).prod() / math.prod(map(math.factorial, alpha))
            self.coefficients[alpha] = values * scale * (sigma**powers).prod(-1)
        self.amplitude = self._amplitudes()
        each = sum((a for alpha, a in self.amplitude.items() if any(alpha)), torch.zeros(1))
        # Only d + 1 hats, all of different classes, are nonzero at one point.
        self.worst = float(each.sort(descending=True).values[: self.d + 1].sum())

    def _amplitudes(self) -> dict[Exponent, Tensor]:
        """A_alpha of every class, [2^d]: bounds on the partial sums of Horner's rule."""
        bounds: dict[Exponent, Tensor] = {}
        for alpha, c in self.coefficients.items():
            largest = torch.zeros(len(self.classes), dtype=torch.float64)
            bounds[alpha] = largest.scatter_reduce_(0, self.member, c.abs(), "amax")
        for alpha in sorted(bounds, key=sum, reverse=True):
            if any(alpha):
                upper, _ = parent(alpha)
                bounds[upper] = bounds[upper] + bounds[alpha]
        return bounds

    def build(self, k: int, dtype: torch.dtype, sparse: bool | None) -> tuple[nn.Sequential, float]:
        """The network with k levels of squaring per product, and a bound on its rounding."""
        circuit = Circuit(self.box, dtype)
        x = circuit.inputs()
        low = torch.tensor(self.box.low, dtype=torch.float64)
        u = (x - low) * (1 / torch.tensor(self.spacings, dtype=torch.float64))
        hats, lines = grid_hats(circuit, u, self.s, self.r > 1)
        pending = {t: self._psi(hats, t) for t in range(self.r)}
        partial, w = pending.pop(self.r - 1), zigzags(lines, self.s) if self.r > 1 else lines
        for t in range(self.r - 1, 0, -1):
            partial = self._step(circuit, partial, w, pending.pop(t - 1), t, k)
            if t > 1:
                w = circuit.relay(w, partial.level)
                pending = {q: circuit.relay(psi, partial.level) for q, psi in pending.items()}
        network, rounding = circuit.network(partial, sparse)
        return network, float(rounding)

    def _lanes(self, t: int) -> list[tuple[int, Exponent]]:
        """(class, alpha) of the partial sums of degree t; all classes together for t = 0."""
        of_degree = [alpha for alpha in self.coefficients if sum(alpha) == t]
        return list(itertools.product(range(len(self.classes) if t else 1), of_degree))

    def _psi(self, hats: Wires, t: int) -> Wires:
        """Psi of all lanes of degree t."""
        rows, columns, values = [], [], []
        for lane, (c, alpha) in enumerate(self._lanes(t)):
            nodes = (self.member == c).nonzero()[:, 0] if t else torch.arange(len(self.member))
            rows.append(torch.full_like(nodes, lane))
            columns.append(nodes)
            values.append(self.coefficients[alpha][nodes])
        shape = (len(rows), len(self.member))
        by = matrix(torch.cat(rows), torch.cat(columns), torch.cat(values), shape)
        return weighted(hats, by, self.d)

    def _step(
        self, circuit: Circuit, partial: Wires, w: Wires, psi: Wires, t: int, k: int
    ) -> Wires:
        """psi + sum over the terms of degree t of w_axis * partial: one degree of Horner's rule."""
        above = {lane: j for j, lane in enumerate(self._lanes(t - 1))}
        kept, coordinate, rows, scale = [], [], [], []
        for lane, (c, alpha) in enumerate(self._lanes(t)):
            amplitude = float(self.amplitude[alpha][c])
            if amplitude == 0.0:  # these derivatives vanish at all points of the class
                continue
            upper, axis = parent(alpha)
            kept.append(lane)
            coordinate.append(2 * axis + self.classes[c][axis])
            rows.append(above[(c if t > 1 else 0), upper])
            scale.append(amplitude)
        size = torch.zeros(len(psi), dtype=torch.float64)
        size.index_add_(0, torch.tensor(rows, dtype=torch.int64), torch.tensor(scale).double())
        low, high = psi.low - size, psi.high + size
        if not kept:
            return circuit.relay(psi, psi.level + k + 1)
        factors = torch.tensor(scale, dtype=torch.float64)
        x = (partial[kept] * (1 / factors)).refine(-1.0, 1.0)
        by = matrix(torch.tensor(rows), torch.arange(len(kept)), factors, (len(psi), len(kept)))
        return add_products(circuit, x, w[coordinate], k, by, low, high, psi)


def parent(alpha: Exponent) -> tuple[Exponent, int]:
    """The exponent that is lower by one along alpha's last axis, and this axis."""
    axis = max(axis for axis, times in enumerate(alpha) if times)
    return tuple(a - (j == axis) for j, a in enumerate(alpha)), axis

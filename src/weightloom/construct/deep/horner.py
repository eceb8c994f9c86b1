"""The approximant of Theorem 5.4 and the order in which it is summed.

The approximant is the theorem's: sum_v hat_v(x) P_v(x) over the points v of a grid with s cells per
axis, P_v the Taylor polynomial at v. The theorem says degree r; its error needs degree r - 1 only.
Its proof multiplies signed numbers and numbers above 1 with a product that is made for [0, 1]: here
products take [-1, 1] and every factor is scaled into it. Its bumps are products; here they are the
hats of `weightloom.construct.deep.hats`, which sum to one exactly.

The order of summation is new. Let u = s x. Points v whose coordinates agree modulo 2 form a class;
there are 2^d. Their hats do not overlap, and one zigzag coordinate w (see `hats`) is u - v, up to
signs, on the support of each. So the sum over one class is

    sum_alpha w^alpha Psi_alpha(x),
    Psi_alpha(x) = sum_v (+-) D^alpha g(v) / (s^|alpha| alpha!) hat_v(x),

and Psi is linear in the hats: it costs no unit. A polynomial in w with these coefficients, by
Horner's rule, takes one product for each alpha != 0. The number of products does not depend on s
(the theorem has one polynomial and one product for each of the (s+1)^d points), so that there are
O(s^d + k) units instead of O(k s^d), with constants that depend on d and r.

Errors. Let A_alpha = max_v |coefficient of alpha| + the A of the terms multiplied into it: it
bounds the partial sum at alpha, by which the product is scaled. Every product is off by at most
A_alpha 4^-(k+1), and this is not enlarged later because |w| <= 1. In a class whose hats vanish at x
the products vanish too, and at most d + 1 classes are left. So the error is at most the Taylor
remainder (see `remainder`) + the d + 1 largest of sum_alpha A_alpha 4^-(k+1) + rounding. Values and
derivatives of the target are taken as torch returns them.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn

from weightloom.construct.box import Box
from weightloom.construct.certified import Function
from weightloom.construct.deep.blocks import add_products
from weightloom.construct.deep.circuit import Circuit
from weightloom.construct.deep.hats import grid_hats, sign, weighted, zigzags
from weightloom.construct.deep.taylor import partials
from weightloom.construct.deep.wires import Wires, matrix
from weightloom.construct.grid import Grid

__all__ = ["Horner"]

Exponent = tuple[int, ...]


class Horner:
    """Coefficients of the polynomials in w, class by class, and the network they make."""

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
        for alpha, found in partials(target, grid.nodes(), 0, r - 1).items():
            powers = torch.tensor(alpha)
            scale = (h**powers).prod() / math.prod(map(math.factorial, alpha))
            self.coefficients[alpha] = found * scale * (sigma**powers).prod(-1)
        self.amplitude = self._amplitudes()
        each = sum((a for alpha, a in self.amplitude.items() if any(alpha)), torch.zeros(1))
        # Only d + 1 hats, all of different classes, are not zero at one place.
        self.worst = float(each.sort(descending=True).values[: self.d + 1].sum())

    def _amplitudes(self) -> dict[Exponent, Tensor]:
        """A_alpha of every class, [2^d]: bounds on the partial sums of Horner's rule."""
        found: dict[Exponent, Tensor] = {}
        for alpha, c in self.coefficients.items():
            largest = torch.zeros(len(self.classes), dtype=torch.float64)
            found[alpha] = largest.scatter_reduce_(0, self.member, c.abs(), "amax")
        for alpha in sorted(found, key=sum, reverse=True):
            if any(alpha):
                upper, _ = parent(alpha)
                found[upper] = found[upper] + found[alpha]
        return found

    def build(self, k: int, dtype: torch.dtype, sparse: bool | None) -> tuple[nn.Sequential, float]:
        circuit = Circuit(self.box, dtype)
        x = circuit.inputs()
        low = torch.tensor(self.box.low, dtype=torch.float64)
        u = (x - low) * (1 / torch.tensor(self.spacings, dtype=torch.float64))
        hats, lines = grid_hats(circuit, u, self.s, self.r > 1)
        waiting = {t: self._psi(hats, t) for t in range(self.r)}
        partial, w = waiting.pop(self.r - 1), zigzags(lines, self.s) if self.r > 1 else lines
        for t in range(self.r - 1, 0, -1):
            partial = self._step(circuit, partial, w, waiting.pop(t - 1), t, k)
            if t > 1:
                w = circuit.relay(w, partial.level)
                waiting = {q: circuit.relay(psi, partial.level) for q, psi in waiting.items()}
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
    """The exponent that is one lower along alpha's last axis, and this axis."""
    axis = max(axis for axis, times in enumerate(alpha) if times)
    return tuple(a - (j == axis) for j, a in enumerate(alpha)), axis

"""ReLU networks that are assembled part by part, with bounds on ranges and rounding.

`Wires` holds n affine forms (lanes) of the units of one level, and what is known about each: its
range on the domain, how far the computed number may be from the exact one, and the rounding of the
sum over its terms. Ranges let a signed number pass a ReLU with one unit; the rest becomes the
rounding part of a certificate. Rounding follows the standard model: a sum of m products in any
order is off by at most gamma_m = m u / (1 - m u) times the sum of the absolute products, where u is
half the machine epsilon.

`Circuit` is the network under construction. Level 0 is the input; the units of level t see only
those of level t - 1, as in `nn.Sequential`. A part of the network takes `Wires` and returns
`Wires`. Parts side by side may differ in depth: `Circuit.relay` passes the numbers of the shallow
one on, with one unit per number and level. Signed numbers pass too, because the range of every
number is known: relu(a - low) + low = a.

The parts that the deep constructions share follow below: Delta, sums of squares, products.

**Squares** (Theorem 4.2). h_i = x - sum_{j <= i} Delta^j(x) / 4^j interpolates x^2 at the multiples
of 2^-i, and 0 <= h_i(x) - x^2 <= 4^-(i+1) on [0, 1], attained half-way between neighbours. h_i is
increasing and convex.

**Products** (Corollary 4.3, corrected). The printed (4 h((x+y)/2) - h(x) - h(y)) / 2 does not
vanish at x = 0: it is 4^-i Delta^i(y) / 2 there. Here

    x y ~ h_i(p) - h_i(q),   p = |x + y| / 2,   q = |x - y| / 2,     x, y in [-1, 1].

Both errors are in [0, 4^-(i+1)], so that of the difference is at most 4^-(i+1) in size. x = 0 or
y = 0 gives p = q and 0. For x, y >= 0, p >= q and h_i is increasing with h_i(1) = 1, so the values
are in [0, 1]; otherwise they are in [-1, 1]. One layer for the absolute values and i for the
squares make i + 1. The partial sum h_j(p) - h_j(q) needs one unit per layer, not one for each
square, and when several products are added up only their sum needs one (see `add_squares`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from weightloom.construct.grid import Box
from weightloom.construct.layers import Entries, SparseLinear
from weightloom.errors import UnsupportedModuleError

__all__ = [
    "Circuit",
    "Wires",
    "absolute",
    "add_products",
    "add_squares",
    "delta_step",
    "eye",
    "gamma",
    "matrix",
    "multiply_lanes",
]


def gamma(terms: Tensor, dtype: torch.dtype) -> Tensor:
    """Relative rounding of a sum of ``terms`` products and a bias, in any order.

    Four roundings in addition to the terms: the bias, the weight (rounded when it was computed, and
    again to ``dtype``) and the product.
    """
    off = (terms + 4) * (torch.finfo(dtype).eps / 2)
    return off / (1 - off).clamp(min=1e-3)


def matrix(rows: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """A sparse matrix from its entries; entries at the same place are added."""
    index = torch.stack([rows, columns])
    return torch.sparse_coo_tensor(index, values, shape, check_invariants=False).coalesce()


@dataclass(frozen=True)
class Wires:
    """n affine forms of the units of one level; every tensor but the entries is [n]."""

    level: int
    rows: Tensor
    columns: Tensor
    values: Tensor
    """entries of the forms, sorted by lane: lane rows[e] has values[e] times unit columns[e]"""
    constant: Tensor
    low: Tensor
    high: Tensor
    """range of the exact number on the domain"""
    slack: Tensor
    """|form applied to the computed units - exact number| is at most this"""
    mass: Tensor
    """bound on the sum of the absolute terms of the form"""
    terms: Tensor
    """how many of them can be nonzero at the same time"""

    def __len__(self) -> int:
        return len(self.constant)

    def mix(self, by: Tensor) -> Wires:
        """New lanes by @ old lanes; ``by`` is a sparse [m, n] matrix."""
        by = by.coalesce()
        to, origin = by.indices()
        factors, size = by.values(), by.shape[0]
        # Every entry of ``by`` multiplies the entries of one lane, which are contiguous.
        counts = torch.bincount(self.rows, minlength=len(self))
        starts, sizes = (counts.cumsum(0) - counts)[origin], counts[origin]
        within = torch.arange(int(sizes.sum())) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
        entries = starts.repeat_interleave(sizes) + within
        weights = factors.repeat_interleave(sizes) * self.values[entries]
        width = int(self.columns.max()) + 1 if len(self.columns) else 1
        mixed = matrix(to.repeat_interleave(sizes), self.columns[entries], weights, (size, width))
        kept = mixed.values() != 0

        def total(of: Tensor) -> Tensor:
            return torch.zeros(size, dtype=torch.float64).index_add_(0, to, of)

        up = factors >= 0
        low, high = self.low[origin], self.high[origin]
        return Wires(
            self.level,
            mixed.indices()[0, kept],
            mixed.indices()[1, kept],
            mixed.values()[kept],
            total(factors * self.constant[origin]),
            total(factors * torch.where(up, low, high)),
            total(factors * torch.where(up, high, low)),
            total(factors.abs() * self.slack[origin]),
            total(factors.abs() * self.mass[origin]),
            total(self.terms[origin]),
        )

    def __getitem__(self, lanes: Sequence[int] | Tensor | slice) -> Wires:
        index = lanes if isinstance(lanes, slice | Tensor) else torch.tensor(lanes).long()
        chosen = torch.arange(len(self))[index]
        ones = torch.ones(len(chosen), dtype=torch.float64)
        return self.mix(matrix(torch.arange(len(chosen)), chosen, ones, (len(chosen), len(self))))

    def __mul__(self, factors: float | Tensor) -> Wires:
        n = len(self)
        spread = torch.as_tensor(factors, dtype=torch.float64).expand(n)
        return self.mix(matrix(torch.arange(n), torch.arange(n), spread, (n, n)))

    def __add__(self, other: Wires | Tensor | float) -> Wires:
        if isinstance(other, Wires):
            n = len(self)
            lanes, ones = torch.arange(n).repeat(2), torch.ones(2 * n, dtype=torch.float64)
            return cat([self, other]).mix(matrix(lanes, torch.arange(2 * n), ones, (n, 2 * n)))
        shift = torch.as_tensor(other, dtype=torch.float64)
        return replace(
            self, constant=self.constant + shift, low=self.low + shift, high=self.high + shift
        )

    def __neg__(self) -> Wires:
        return self * -1.0

    def __sub__(self, other: Wires | Tensor | float) -> Wires:
        return self + -other

    def refine(
        self,
        low: Tensor | float | None = None,
        high: Tensor | float | None = None,
        slack: Tensor | float | None = None,
        mass: Tensor | float | None = None,
        terms: float | None = None,
    ) -> Wires:
        """The same forms, with bounds that are sharper than those of interval arithmetic."""
        known = {"low": low, "high": high, "slack": slack, "mass": mass, "terms": terms}
        given = {
            name: torch.as_tensor(value, dtype=torch.float64).expand(len(self))
            for name, value in known.items()
            if value is not None
        }
        return replace(self, **given)  # type: ignore[arg-type]

    def rounding(self, dtype: torch.dtype) -> Tensor:
        """Bound on |computed form - exact form| for the same values of the units."""
        return gamma(self.terms, dtype) * (self.mass + self.constant.abs())


def cat(parts: Sequence[Wires]) -> Wires:
    """All lanes, one part after the other; the parts are forms of the same level."""
    levels = {part.level for part in parts}
    if len(levels) != 1:
        raise ValueError(f"wires of levels {sorted(levels)} were joined; relay them first")
    rows, start = [], 0
    for part in parts:
        rows.append(part.rows + start)
        start += len(part)
    names = ("columns", "values", "constant", "low", "high", "slack", "mass", "terms")
    joined = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
    return Wires(level=levels.pop(), rows=torch.cat(rows), **joined)


class Circuit:
    """A ReLU network under construction; `network` turns it into an `nn.Sequential`."""

    def __init__(self, domain: Box, dtype: torch.dtype = torch.float64) -> None:
        self.domain, self.dtype = domain, dtype
        self.levels: list[list[Wires]] = [[]]  # preactivations of the units of each level
        self.widths = [domain.dims]

    @property
    def nodes(self) -> int:
        return sum(self.widths[1:])

    def inputs(self) -> Wires:
        """The coordinates of the input.

        Exact in float64. A smaller type rounds them, while the certificate compares with the target
        at the point before rounding.
        """
        low, high = (
            torch.tensor(s, dtype=torch.float64) for s in (self.domain.low, self.domain.high)
        )
        largest = torch.maximum(low.abs(), high.abs())
        exact = self.dtype == torch.float64
        slack = largest * (0.0 if exact else torch.finfo(self.dtype).eps / 2)
        return self._units(0, 0, low, high, slack)

    def relu(self, wires: Wires) -> Wires:
        """One new unit for each lane, on the next level."""
        level = wires.level + 1
        if level == len(self.levels):
            self.levels.append([])
            self.widths.append(0)
        first = self.widths[level]
        self.levels[level].append(wires)
        self.widths[level] += len(wires)
        slack = wires.slack + wires.rounding(self.dtype)
        return self._units(level, first, wires.low.clamp(min=0), wires.high.clamp(min=0), slack)

    def relay(self, wires: Wires, level: int) -> Wires:
        """The same numbers at a later level; constants need no unit."""
        while wires.level < level:
            if not len(wires.rows):
                return replace(wires, level=level)
            # A lane that is never negative needs no shift.
            shift = torch.where(wires.low < 0, wires.low, torch.zeros_like(wires.low))
            wires = self.relu(wires - shift) + shift
        return wires

    def align(self, *parts: Wires) -> list[Wires]:
        """All parts at the level of the deepest."""
        level = max(part.level for part in parts)
        return [self.relay(part, level) for part in parts]

    def join(self, *parts: Wires) -> Wires:
        """All lanes of all parts at one level."""
        return cat(self.align(*parts))

    def embed(self, layers: Iterable[nn.Module], wires: Wires) -> Wires:
        """The outputs of an existing network of affine layers and ReLUs for these numbers."""
        for layer in layers:
            if isinstance(layer, nn.ReLU):
                wires = self.relu(wires)
            elif isinstance(layer, nn.Linear | SparseLinear):
                matrix = layer.matrix() if isinstance(layer, SparseLinear) else layer.weight
                wires = wires.mix(_sparse(matrix.detach()))
                if layer.bias is not None:
                    wires = wires + layer.bias.detach().to(torch.float64)
            elif isinstance(layer, nn.Sequential):
                wires = self.embed(layer, wires)
            else:
                raise UnsupportedModuleError(
                    f"{type(layer).__name__} cannot be taken into a ReLU network; wanted an "
                    f"nn.Sequential of nn.Linear (or SparseLinear) and nn.ReLU"
                )
        return wires

    def network(self, outputs: Wires, sparse: bool | None = None) -> tuple[nn.Sequential, Tensor]:
        """The network that returns ``outputs``, and a bound on the rounding of each output.

        Units that do not influence the outputs are kept; constructions only add what they need.
        """
        layers: list[nn.Module] = []
        # A constant may have been relayed beyond the last unit.
        last = outputs.level if len(outputs.rows) else min(outputs.level, len(self.levels) - 1)
        for level in range(1, last + 1):
            layers += [self._layer(cat(self.levels[level]), level - 1, sparse), nn.ReLU()]
        layers.append(self._layer(outputs, last, sparse))
        return nn.Sequential(*layers), outputs.slack + outputs.rounding(self.dtype)

    def _layer(self, forms: Wires, below: int, sparse: bool | None) -> nn.Module:
        entries = Entries(len(forms), self.widths[below])
        entries.add(forms.rows, forms.columns, forms.values)
        entries.bias += forms.constant
        return entries.layer(self.dtype, sparse)

    def _units(self, level: int, first: int, low: Tensor, high: Tensor, slack: Tensor) -> Wires:
        n = len(low)
        lanes, ones = torch.arange(n), torch.ones(n, dtype=torch.float64)
        mass = torch.maximum(low.abs(), high.abs()) + slack
        zeros = torch.zeros(n, dtype=torch.float64)
        return Wires(level, lanes, lanes + first, ones, zeros, low, high, slack, mass, ones)


def _sparse(weight: Tensor) -> Tensor:
    return (weight if weight.is_sparse else weight.to_sparse()).to(torch.float64)


def eye(n: int, factor: float | Tensor = 1.0) -> Tensor:
    """The identity times ``factor`` (one number, or one for each lane), sparse."""
    lanes = torch.arange(n)
    return matrix(lanes, lanes, torch.as_tensor(factor, dtype=torch.float64).expand(n), (n, n))


def delta_step(circuit: Circuit, x: Wires, exact: bool = False) -> tuple[Wires, Wires]:
    """Delta(x) = 2 relu(x) - 4 relu(x - 1/2) for x <= 1, with two units; and relu(x) itself.

    Delta is 2-Lipschitz, so the error of x at most doubles; interval arithmetic would give a factor
    of 6. ``exact``: x is an exact floating-point number in [0, 1], and then so is Delta(x): 2 x, or
    2 - 2 x, which has no more binary digits after the point than x.
    """
    same = circuit.relu(x)
    upper = circuit.relu(x - 0.5)
    local = 2 * (same.slack - x.slack) + 4 * (upper.slack - x.slack)
    slack = 2 * x.slack + (0 if exact else local)
    return (same * 2.0 + upper * -4.0).refine(0.0, 1.0, slack), same


def add_squares(
    circuit: Circuit,
    x: Wires,
    i: int,
    by: Tensor,
    low: Tensor | float,
    high: Tensor | float,
    base: Wires | None = None,
) -> Wires:
    """base + by @ h_i(x), i levels deeper; x in [0, 1], ``by`` sparse [outputs, lanes].

    ``low`` and ``high`` bound base + by @ h_j(x) for every j <= i. Two units per lane and level,
    and one per output for the partial sum (none on the first level if there is no base).
    """
    power, same = delta_step(circuit, x)
    total = same.mix(by) + power.mix(by * -0.25)
    if base is not None:
        total = total + circuit.relay(base, total.level)
    for j in range(2, i + 1):
        power, _ = delta_step(circuit, power)
        total = total.refine(low, high)
        total = circuit.relay(total, power.level) + power.mix(by * -(4.0**-j))
    return total.refine(low, high)


def absolute(circuit: Circuit, x: Wires) -> Wires:
    """|x| for x in [-1, 1]: two units, or one for lanes that are never negative."""
    up = circuit.relu(x)
    if bool((x.low >= 0).all()):
        return up.refine(0.0, 1.0)
    down = circuit.relu(-x)
    # |.| is 1-Lipschitz: the error of x is not doubled, only each half's own rounding adds.
    return (up + down).refine(0.0, 1.0, up.slack + down.slack - x.slack)


def add_products(
    circuit: Circuit,
    x: Wires,
    y: Wires,
    i: int,
    by: Tensor,
    low: Tensor | float,
    high: Tensor | float,
    base: Wires | None = None,
) -> Wires:
    """base + by @ (products of x and y, lane by lane), i + 1 levels deeper; x, y in [-1, 1]."""
    p, q = absolute(circuit, (x + y) * 0.5), absolute(circuit, (x - y) * 0.5)
    both = torch.cat([by, -by], 1)
    return add_squares(circuit, cat([p, q]), i, both, low, high, base)


def multiply_lanes(circuit: Circuit, x: Wires, y: Wires, i: int) -> Wires:
    """Products lane by lane of numbers in [0, 1]: error 4^-(i+1), range [0, 1], exact zeros."""
    return add_products(circuit, x, y, i, eye(len(x)), 0.0, 1.0)

"""The parts that the deep constructions share: Delta, squares summed up, products, hats on a line.

Squares (Theorem 4.2). h_i = x - sum_{j <= i} Delta^j(x) / 4^j interpolates x^2 at the multiples of
2^-i, and 0 <= h_i(x) - x^2 <= 4^-(i+1) on [0, 1], attained half-way between neighbours. h_i is
increasing and convex.

Products (Corollary 4.3, corrected). The printed (4 h((x+y)/2) - h(x) - h(y)) / 2 does not vanish
at x = 0: it is 4^-i Delta^i(y) / 2 there. Here

    x y ~ h_i(p) - h_i(q),   p = |x + y| / 2,   q = |x - y| / 2,     x, y in [-1, 1].

Both errors are in [0, 4^-(i+1)], so that of the difference is at most 4^-(i+1) in size. x = 0 or
y = 0 gives p = q and 0. For x, y >= 0, p >= q and h_i is increasing with h_i(1) = 1, so the values
are in [0, 1]; else in [-1, 1]. One layer for the absolute values, i for the squares: i + 1. The sum
h_j(p) - h_j(q) so far needs one unit per layer, not one for each square, and when several products
are added up only their sum needs one: this is what `add_squares` is for.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weightloom.construct.deep.circuit import Circuit
from weightloom.construct.deep.wires import Wires, cat, matrix

__all__ = ["add_products", "absolute", "add_squares", "delta_step", "eye", "multiply_lanes"]


def eye(n: int, factor: float | Tensor = 1.0) -> Tensor:
    """factor times the identity, sparse; one factor or one for each lane."""
    lanes = torch.arange(n)
    return matrix(lanes, lanes, torch.as_tensor(factor, dtype=torch.float64).expand(n), (n, n))


def delta_step(circuit: Circuit, x: Wires, exact: bool = False) -> tuple[Wires, Wires]:
    """Delta(x) = 2 relu(x) - 4 relu(x - 1/2) for x <= 1, with two units; and relu(x) itself.

    Delta is 2-Lipschitz, so what was wrong before at most doubles; interval arithmetic would see a
    factor of 6. ``exact``: x is a floating-point number in [0, 1] without rounding, and then
    Delta(x) is too: 2 x, or 2 - 2 x which has no more binary digits behind the point than x.
    """
    same = circuit.relu(x)
    above = circuit.relu(x - 0.5)
    local = 2 * (same.slack - x.slack) + 4 * (above.slack - x.slack)
    slack = 2 * x.slack + (0 if exact else local)
    return (same * 2.0 + above * -4.0).refine(0.0, 1.0, slack), same


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
    and one per output for the sum so far (none on the first level, if there is no base).
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
    # |.| is 1-Lipschitz: what was wrong before is not doubled, only each half's own rounding adds.
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

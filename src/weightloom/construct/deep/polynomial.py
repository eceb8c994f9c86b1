"""Squares, products and monomials, with errors that fall by a factor of four per layer.

"Deep learning theory", Theorem 4.2, Corollary 4.3, Lemmas 5.3 and 5.4, as corrected in
`weightloom.construct.deep.circuits`. All inputs are in [0, 1].
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from weightloom.construct.certified import Certified, Function
from weightloom.construct.checks import (
    MAX_NODES,
    limit_nodes,
    require_levels,
    require_precision,
    require_whole,
)
from weightloom.construct.deep.circuits import (
    Circuit,
    Wires,
    add_squares,
    eye,
    matrix,
    multiply_lanes,
)
from weightloom.construct.grid import Box

__all__ = ["exponents", "monomials", "multiply", "product", "square"]


def square(
    i: int | None = None,
    *,
    eps: float | None = None,
    dtype: torch.dtype = torch.float64,
    sparse: bool | None = None,
) -> Certified:
    """x^2 on [0, 1] with error 4^-(i+1): i hidden layers, 3 i - 1 units.

    Theorem 4.2: h_i = x - sum_{j <= i} Delta^j(x) / 4^j, the interpolation of x^2 at the multiples
    of 2^-i. Printed with 2 i layers and 5 i units; i hidden layers with two units for Delta and one
    for the sum so far (none in the first layer) are enough. The error is exactly 4^-(i+1),
    half-way between neighbours. ``eps`` chooses the least i.

    >>> c = square(6)
    >>> halfway = torch.tensor([[1 / 128]]).double()
    >>> c.nodes, c.layers, c.verify(extra=halfway).error == 4.0**-7
    (17, 7, True)
    """
    i = require_levels("i", i, eps)
    require_precision(dtype)
    circuit = Circuit(Box.cube(1, 0, 1), dtype)
    out = add_squares(circuit, circuit.inputs(), i, eye(1), 0.0, 1.0)
    return _certified(circuit, out, 4.0 ** -(i + 1), lambda p: p[:, 0].square(), sparse)


def product(
    i: int | None = None,
    *,
    eps: float | None = None,
    dtype: torch.dtype = torch.float64,
    sparse: bool | None = None,
) -> Certified:
    """x y on [0, 1]^2 with error 4^-(i+1), range [0, 1] and zeros where x = 0 or y = 0.

    Corollary 4.3 corrected: h_i((x + y) / 2) - h_i(|x - y| / 2), with i + 1 hidden layers and
    5 i + 2 units. The printed (4 h_i((x+y)/2) - h_i(x) - h_i(y)) / 2 is claimed to vanish at x = 0,
    but is 4^-i Delta^i(y) / 2 there; it has 3 squares instead of 2.

    >>> c = product(6)
    >>> c.nodes, c.layers, c.verify().error <= 4.0**-7 + 1e-12
    (32, 8, True)
    """
    i = require_levels("i", i, eps)
    return multiply(i, 2, dtype=dtype, sparse=sparse)


def multiply(
    k: int,
    l: int,  # noqa: E741 (the paper's letter)
    *,
    dtype: torch.dtype = torch.float64,
    sparse: bool | None = None,
    max_nodes: int = MAX_NODES,
) -> Certified:
    """x_1 ... x_l on [0, 1]^l with error (l - 1) 4^-(k+1) and range [0, 1]; 0 where any x_j is.

    Lemma 5.3, prod_{k,l}, as a balanced tree: (k + 1) ceil(log2 l) hidden layers. The lemma uses a
    chain and prints O(k l + l^2) units, but relaying the inputs that are not yet used costs
    O(k l^2). Here a factor is relayed only where the number of factors is odd.

    >>> c = multiply(6, 8)
    >>> c.nodes, c.layers
    (224, 22)
    """
    require_levels("k", k, None)
    require_whole("l", l, 2, 2**16)
    require_precision(dtype)
    limit_nodes(_tree_nodes(k, l), max_nodes, f"a product of {l} factors", "take fewer levels k")
    circuit = Circuit(Box.cube(l, 0, 1), dtype)
    factors = circuit.inputs()
    while len(factors) > 1:
        pairs = 2 * (len(factors) // 2)
        products = multiply_lanes(circuit, factors[0:pairs:2], factors[1:pairs:2], k)
        left = factors[pairs:]
        factors = circuit.join(products, left) if len(left) else products
    return _certified(circuit, factors, (l - 1) * 4.0 ** -(k + 1), lambda p: p.prod(-1), sparse)


def _tree_nodes(k: int, count: int) -> int:
    """Hidden units of `multiply`."""
    nodes = 0
    while count > 1:
        nodes += count // 2 * (5 * k + 2) + count % 2 * (k + 1)
        count = count // 2 + count % 2
    return nodes


def exponents(d: int, r: int) -> list[tuple[int, ...]]:
    """All alpha in N^d with |alpha| <= r, by degree: C(d + r, r) tuples (Lemma 5.4 prints d^r).

    >>> exponents(2, 2)
    [(0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (0, 2)]
    """
    return [
        tuple(axes.count(axis) for axis in range(d))
        for degree in range(r + 1)
        for axes in itertools.combinations_with_replacement(range(d), degree)
    ]


def monomials(
    k: int,
    r: int,
    d: int,
    *,
    dtype: torch.dtype = torch.float64,
    sparse: bool | None = None,
    max_nodes: int = MAX_NODES,
) -> Certified:
    """All x^alpha with |alpha| <= r on [0, 1]^d, in the order of `exponents`; error (r-1) 4^-(k+1).

    Lemma 5.4, mono_{k,r}. There every monomial is a network of its own with error r 4^-k, and their
    number is printed as at most d^r; it is C(d + r, r), which is larger for r = 1. Here a monomial
    is the product of two others of about half its degree: one product (or square) each, and
    (k + 1) ceil(log2 r) hidden layers.

    >>> c = monomials(6, 3, 2)
    >>> c.nodes, c.layers
    (245, 15)
    >>> c.network(torch.tensor([[0.5, 1.0]]).double())[0, -4:]  # x^3, x^2 y, x y^2, y^3
    tensor([0.1250, 0.2500, 0.5000, 1.0000], ...)
    """
    require_levels("k", k, None)
    require_whole("r", r, 1, 64)
    require_whole("d", d, 1, 64)
    require_precision(dtype)
    count = math.comb(d + r, r)
    what, advice = f"the set of all {count:,} monomials", "take fewer levels k or a lower degree r"
    limit_nodes(
        3 * k * (count - d - 1), max_nodes, what, advice
    )  # a lower bound, before listing them
    names = exponents(d, r)
    limit_nodes(_mono_nodes(k, names, r), max_nodes, what, advice)
    circuit = Circuit(Box.cube(d, 0, 1), dtype)
    known = circuit.inputs()
    place = {alpha: lane for lane, alpha in enumerate(names[1 : d + 1])}
    degree = 1
    while degree < r:
        new = [alpha for alpha in names if degree < sum(alpha) <= 2 * degree]
        known = circuit.join(known, _halves(circuit, known, place, new, k))
        place |= {alpha: len(place) + j for j, alpha in enumerate(new)}
        degree *= 2
    constant = known[0:1] * 0.0 + 1.0  # the empty product: a bias, no unit
    out = circuit.join(constant, known)

    def target(points: Tensor) -> Tensor:
        return points[:, None].pow(torch.tensor(names)).prod(-1)

    return _certified(circuit, out, (r - 1) * 4.0 ** -(k + 1), target, sparse)


def split(alpha: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two exponents of about equal degree whose sum is alpha; equal ones if alpha is even."""
    half = [a // 2 for a in alpha]
    other = [a // 2 for a in alpha]
    for axis in (axis for axis, a in enumerate(alpha) if a % 2):
        (half if sum(half) <= sum(other) else other)[axis] += 1
    return tuple(half), tuple(other)


def _halves(
    circuit: Circuit,
    known: Wires,
    place: dict[tuple[int, ...], int],
    new: list[tuple[int, ...]],
    k: int,
) -> Wires:
    """The new monomials as products or squares of known ones, k + 1 levels deeper."""
    pairs = [tuple(place[half] for half in split(alpha)) for alpha in new]
    squares = [j for j, (a, b) in enumerate(pairs) if a == b]
    others = [j for j, (a, b) in enumerate(pairs) if a != b]
    parts = []
    if squares:
        roots = circuit.relay(known[[pairs[j][0] for j in squares]], known.level + 1)
        parts.append(add_squares(circuit, roots, k, eye(len(squares)), 0.0, 1.0))
    if others:
        x, y = (known[[pairs[j][side] for j in others]] for side in (0, 1))
        parts.append(multiply_lanes(circuit, x, y, k))
    order = torch.tensor(squares + others)
    ones = torch.ones(len(order), dtype=torch.float64)
    both = circuit.join(*parts)
    return both.mix(matrix(order, torch.arange(len(order)), ones, (len(order), len(order))))


def _mono_nodes(k: int, names: list[tuple[int, ...]], r: int) -> int:
    """Hidden units of `monomials`."""
    nodes, degree = 0, 1
    while degree < r:
        relayed = sum(0 < sum(alpha) <= degree for alpha in names)
        nodes += relayed * (k + 1)
        for alpha in (alpha for alpha in names if degree < sum(alpha) <= 2 * degree):
            first, second = split(alpha)
            nodes += 3 * k if first == second else 5 * k + 2
        degree *= 2
    return nodes


def _certified(
    circuit: Circuit, out: Wires, error: float, target: Function, sparse: bool | None
) -> Certified:
    network, rounding = circuit.network(out, sparse)
    bound = error + float(rounding.max())
    return Certified.of(network, bound, circuit.domain, target)

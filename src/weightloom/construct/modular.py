"""The hypernetwork of Theorem 5, built by hand ("On the Modularity of Hypernetworks").

The primary g has fixed layers that compute the hat functions of a grid of x; only its output
weights are generated, theta_v(I) = y(v, I), one for each node v. f is a ReLU network that
interpolates I -> (y(v, I))_v on a grid of I, all nodes v at once. Together

    h(x, I) = sum_v hat_v(x) sum_w hat_w(I) y(v, w),

a product of two interpolations, whose error is bounded in `weightloom.construct.grid`. With n
nodes per axis the error is of order 1 / n (r = 1), g has N_g = n^m1 generated weights, and a plain
network of (x, I) built the same way has n^(m1 + m2) output weights. The hypernetwork has those too,
in f.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from weightloom.construct.certified import Certified
from weightloom.construct.checks import MAX_NODES
from weightloom.construct.grid import Box, Grid, Regularity
from weightloom.construct.hats import hat_layers, rounding
from weightloom.construct.interpolation import choose_grids, node_values
from weightloom.construct.layers import dense_layer, measure

__all__ = ["CertifiedHypernetwork", "JointNetwork", "factored_hypernetwork", "hypernetwork"]

Conditional = Callable[[Tensor, Tensor], Tensor]


class JointNetwork(nn.Module):
    """h(x, I) = <hats(x), f(I)> on joint points [n, m1 + m2], evaluated point by point."""

    def __init__(self, primary: nn.Sequential, encoder: nn.Sequential, m1: int) -> None:
        super().__init__()
        self.primary, self.encoder, self.m1 = primary, encoder, m1

    def forward(self, points: Tensor) -> Tensor:
        hats = self.primary[:-1](points[..., : self.m1])
        return (hats * self.encoder(points[..., self.m1 :])).sum(-1)


@dataclass(frozen=True)
class CertifiedHypernetwork(Certified):
    """A certified h(x, I) = g(x; f(I)); ``network`` takes joint points (x, I).

    ``primary`` is g: pass it to `HyperNetwork(primary, generate=generated)` and let the head return
    the output of ``encoder`` = f, the output weights [N_g]. nodes, layers and nonzeros are those of
    both together; g's own size, fixed layers included, is `primary_nonzeros`.
    """

    primary: nn.Sequential = field(default_factory=nn.Sequential, repr=False)
    encoder: nn.Sequential = field(default_factory=nn.Sequential, repr=False)
    generated: str = ""
    """name of the generated parameter inside ``primary``"""
    primary_size: int = 0
    """N_g, generated weights"""
    primary_nonzeros: int = 0
    """nonzero entries of g, generated ones included"""


def hypernetwork(
    target: Conditional,
    x: Box | int,
    condition: Box | int,
    *,
    eps: float | None = None,
    counts: int | Sequence[int] | None = None,
    corners: bool = False,
    lipschitz: float = 1.0,
    norm: str = "max",
    curvature: float | None = None,
    dtype: torch.dtype = torch.float64,
    sparse: bool | None = None,
    max_nodes: int = MAX_NODES,
) -> CertifiedHypernetwork:
    """The hypernetwork of Theorem 5 for y(x, I), with a bound on its error.

    ``target`` maps x [n, m1] and I [n, m2] to [n] (leading dimensions broadcast); ``x`` and
    ``condition`` are boxes, or m1 and m2 for [-1, 1]^m1 and [-1, 1]^m2. The rest is as in
    `interpolate`; ``counts`` are for all axes, those of x first.

    >>> y = lambda x, condition: (x[..., 0] - condition[..., 0]).abs() / 2
    >>> c = hypernetwork(y, 1, 1, eps=0.1)
    >>> c.primary_size, c.verify().error <= c.error_bound <= 0.1 + 1e-9
    (17, True)
    """
    boxes = [Box.cube(domain) if isinstance(domain, int) else domain for domain in (x, condition)]
    claim = Regularity(lipschitz, norm, curvature)
    over_x, over_i = choose_grids(claim, boxes, eps, counts, corners, max_nodes)
    nodes = over_x.nodes()

    def all_nodes(conditions: Tensor) -> Tensor:  # [n, m2] -> [n, nodes of x]
        return target(nodes, conditions[:, None, :])

    table = node_values(all_nodes, over_i)  # [nodes of I, nodes of x]
    claim.check(over_x, table.T)
    claim.check(over_i, table)
    encoder = nn.Sequential(
        *hat_layers(over_i, dtype, sparse), dense_layer(table.T.to(dtype), None)
    )
    largest = float(table.abs().max())
    return _certify(target, claim, over_x, over_i, encoder, largest, dtype, sparse)


def factored_hypernetwork(
    basis: Callable[[Tensor], Tensor],
    coefficients: Callable[[Tensor], Tensor],
    x: Box | int,
    condition: Box | int,
    *,
    eps: float | None = None,
    counts: int | Sequence[int] | None = None,
    corners: bool = False,
    lipschitz: float = 1.0,
    norm: str = "max",
    curvature: float | None = None,
    dtype: torch.dtype = torch.float64,
    sparse: bool | None = None,
    max_nodes: int = MAX_NODES,
) -> CertifiedHypernetwork:
    """The same network for y(x, I) = <basis(x), coefficients(I)>, with far fewer parameters in all.

    The setting of Theorem 6: the weights theta(I) = W c(I) vary in w directions only. ``basis``
    maps x [n, m1] to [n, w] and ``coefficients`` I [n, m2] to [n, w]; f interpolates the w numbers
    c(I) and its last layer is W[v, j] = basis_j(v). Interpolation is linear in the values, so this
    computes the same function as `hypernetwork` on the same grids, with w (n^m1 + n^m2) instead of
    n^(m1 + m2) numbers. ``lipschitz``, ``norm`` and ``curvature`` are those of y.
    """
    boxes = [Box.cube(domain) if isinstance(domain, int) else domain for domain in (x, condition)]
    claim = Regularity(lipschitz, norm, curvature)
    over_x, over_i = choose_grids(claim, boxes, eps, counts, corners, max_nodes)
    table, mixing = node_values(coefficients, over_i), node_values(basis, over_x)
    last = [dense_layer(table.T.to(dtype), None), dense_layer(mixing.to(dtype), None)]
    encoder = nn.Sequential(*hat_layers(over_i, dtype, sparse), *last)

    def target(x: Tensor, condition: Tensor) -> Tensor:
        return (basis(x) * coefficients(condition)).sum(-1)

    largest = float((mixing.abs().amax(0) * table.abs().amax(0)).sum())
    return _certify(target, claim, over_x, over_i, encoder, largest, dtype, sparse)


def _certify(
    target: Conditional,
    claim: Regularity,
    over_x: Grid,
    over_i: Grid,
    encoder: nn.Sequential,
    largest: float,
    dtype: torch.dtype,
    sparse: bool | None,
) -> CertifiedHypernetwork:
    fixed = hat_layers(over_x, dtype, sparse)
    # The output weights of the first condition, as placeholders; every call replaces them.
    with torch.no_grad():
        at = torch.tensor(over_i.first, dtype=dtype)
        weights = encoder(at[None])
    primary = nn.Sequential(*fixed, dense_layer(weights, None))
    m1 = over_x.dims
    fixed_size, f_size = measure(nn.Sequential(*fixed)), measure(encoder)
    bound = claim.error(over_x, over_i)
    # Each interpolation may be off by its rounding; the other one's weights sum to one.
    bound += 2 * (rounding(over_x, largest, dtype) + rounding(over_i, largest, dtype))
    return CertifiedHypernetwork(
        network=JointNetwork(primary, encoder, m1),
        error_bound=bound,
        nodes=f_size.nodes + fixed_size.nodes + over_x.size,
        layers=f_size.layers + fixed_size.layers + 1,
        nonzeros=f_size.nonzeros + fixed_size.nonzeros,
        domain=Box(over_x.box.low + over_i.box.low, over_x.box.high + over_i.box.high),
        target=lambda points: target(points[..., :m1], points[..., m1:]),
        primary=primary,
        encoder=encoder,
        generated=f"{len(fixed)}.weight",
        primary_size=over_x.size,
        primary_nonzeros=fixed_size.nonzeros + over_x.size,
    )

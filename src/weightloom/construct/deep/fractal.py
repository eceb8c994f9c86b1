"""Iterates of the triangle map, and what they compute ("Deep learning theory", Section 4.1).

Delta(x) is 2 x on [0, 1/2], 2 - 2 x on [1/2, 1] and 0 elsewhere. Delta^L has 2^(L-1) teeth, for two
or three units per layer: Delta^L(x) = Delta(<2^(L-1) x>) with <.> the fractional part. Proposition
4.1 prints this for all real x; it holds on [0, 1] (at x = 5/4, L = 1 the left side is 0, the right
one 1/2).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weightloom.construct.certified import Certified, Function
from weightloom.construct.checks import require_precision, require_whole
from weightloom.construct.deep.circuits import Circuit, Wires, absolute, delta_step
from weightloom.construct.grid import Box
from weightloom.errors import ConfigError

__all__ = ["bits", "delta", "parity", "triangle", "viral"]

# 2^-L must be a normal number in float32.
MAX_POWER = 120


def triangle(x: Tensor, power: int = 1) -> Tensor:
    """Delta^power(x) by the fractal identity, for x in [0, 1]; 0 outside.

    >>> triangle(torch.tensor([0.0, 0.125, 0.25, 0.5, 1.0]), 2)
    tensor([0.0000, 0.5000, 1.0000, 0.0000, 0.0000])
    """
    scaled = x * 2.0 ** (power - 1)
    part = scaled - scaled.floor()
    value = torch.minimum(2 * part, 2 - 2 * part)
    return torch.where((x < 0) | (x > 1), torch.zeros_like(value), value)


def delta(
    power: int = 1,
    *,
    units: int = 2,
    dtype: torch.dtype = torch.float64,
    sparse: bool | None = None,
) -> Certified:
    """Delta^power, exactly: ``power`` hidden layers of two units on [0, 1], or three on [-1, 2].

    Section 4.1 and Proposition 4.1. Two units, 2 relu(x) - 4 relu(x - 1/2), suffice for x <= 1; the
    third, 2 relu(x - 1), makes Delta vanish beyond 1. Theorem 4.4 counts 2 layers for each power;
    one hidden layer is enough. Nothing is rounded: where x is a floating-point number in [0, 1], so
    are 2 x, 2 - 2 x, and every partial sum in between, hence the bound 0 (in float32: 2^power times
    the rounding of the input).

    >>> c = delta(20)
    >>> c.nodes, c.layers, c.error_bound, c.verify().error
    (40, 21, 0.0, 0.0)
    """
    require_whole("power", power, 1, MAX_POWER)
    require_whole(
        "units", units, 2, 3, ": 2 relu(x) - 4 relu(x - 1/2), or all of the line with a third"
    )
    require_precision(dtype)
    box = Box.cube(1, 0, 1) if units == 2 else Box.cube(1, -1, 2)
    circuit = Circuit(box, dtype)
    x = circuit.inputs()
    for _ in range(power):
        beyond = circuit.relu(x - 1.0) * 2.0 if units == 3 else None
        slack = 2 * x.slack
        x, _ = delta_step(circuit, x, exact=True)
        if beyond is not None:
            x = (x + beyond).refine(0.0, 1.0, slack)
    network, _ = circuit.network(x, sparse)
    return Certified.of(network, float(x.slack), box, lambda p: triangle(p[:, 0], power))


def viral(
    f: Certified | nn.Sequential,
    power: int,
    *,
    sparse: bool | None = None,
) -> Certified:
    """f o Delta^power for a ReLU network f on [0, 1]: 2^power copies of f, every other flipped.

    Section 4.1, item 3. If f(x) = f(1 - x), flipping changes nothing, and the result is
    f(<2^power x>). A certificate of f (bound and target) carries over; a plain network becomes its
    own target. Adds 2 power units and power layers.

    >>> c = viral(delta(3), 4)
    >>> c.nodes, c.verify(lambda p: triangle(p[:, 0], 7)).error
    (14, 0.0)
    """
    require_whole("power", power, 1, MAX_POWER)
    network = f.network if isinstance(f, Certified) else f
    if not isinstance(network, nn.Sequential):
        raise ConfigError(
            f"f is a {type(network).__name__}; wanted an nn.Sequential of nn.Linear and nn.ReLU, "
            f"or a Certified one"
        )
    dtype = next(network.parameters()).dtype
    require_precision(dtype)
    box = Box.cube(1, 0, 1)
    if isinstance(f, Certified) and (f.domain.dims != 1 or not _covers(f.domain)):
        raise ConfigError(
            f"f is certified on {f.domain}; wanted a function of one number on [0, 1]"
        )
    circuit = Circuit(box, dtype)
    x = circuit.inputs()
    for _ in range(power):
        x, _ = delta_step(circuit, x, exact=True)
    first = next(layer for layer in network.modules() if hasattr(layer, "in_features"))
    if first.in_features != 1:
        raise ConfigError(f"f takes {first.in_features} numbers; wanted a function of one number")
    composed, rounding = circuit.network(circuit.embed(network, x), sparse)
    inner = f.target if isinstance(f, Certified) and f.target else _in_float64(network)
    bound = float(rounding.max()) + (f.error_bound if isinstance(f, Certified) else 0.0)
    return Certified.of(composed, bound, box, lambda p: inner(triangle(p, power)))


def _covers(box: Box) -> bool:
    return box.low[0] <= 0 and box.high[0] >= 1


def _in_float64(network: nn.Sequential) -> Function:
    dtype = next(network.parameters()).dtype
    return lambda p: network(p.to(dtype)).to(torch.float64)


def parity(d: int, *, dtype: torch.dtype = torch.float64, sparse: bool | None = None) -> Certified:
    """The product of d signs, with 2 ceil(log2 d) units.

    Section 4.1, item 2, corrected. With m the number of x_j = +1 and 2^L >= d,

        prod_j x_j = (-1)^d (1 - 2 Delta^L(m / 2^L)),    m = (d + sum_j x_j) / 2,

    because Delta^L is 0 at even and 1 at odd multiples of 2^-L. The printed Delta^(L-1) of
    (d + sum x) / (2 d) is right for 56 of the 256 sign vectors at d = 8; d need not be a power of
    two here. The bound is for the same formula on all of [-1, 1]^d; at the corners it is the
    product.

    >>> c = parity(8)
    >>> signs = torch.tensor([[1, -1, 1, 1, -1, 1, -1, 1]]).double()
    >>> c.nodes, c.network(signs).item()
    (6, -1.0)
    """
    require_whole("d", d, 1, 2**20)
    require_precision(dtype)
    steps = max(1, (d - 1).bit_length())
    sign = -1.0 if d % 2 else 1.0
    box = Box.cube(d)
    circuit = Circuit(box, dtype)
    ones = torch.ones(1, d, dtype=torch.float64).to_sparse()
    scale = 2.0**-steps / 2
    x = (circuit.inputs().mix(ones) + float(d)) * scale
    for _ in range(steps):
        x, _ = delta_step(circuit, x.refine(0.0, 1.0))
    network, rounding = circuit.network(x * (-2 * sign) + sign, sparse)

    def target(points: Tensor) -> Tensor:
        return sign * (1 - 2 * triangle((points.sum(-1) + d) * scale, steps))

    # The target is rounded too: its sum of d + 1 numbers, then doubled in every step.
    own = 4.0 * (d + 2) * d * torch.finfo(torch.float64).eps
    return Certified.of(network, float(rounding) + own, box, target)


def bits(
    count: int, *, dtype: torch.dtype = torch.float64, sparse: bool | None = None
) -> Certified:
    """The first ``count`` binary digits of x in [0, 1], exactly at the multiples of 2^-count.

    Section 4.1, item 4. Let x' = x + 2^-(count+1), the middle of the cell above x. Delta^(j-1)(x')
    is above 1/2 where the j-th digit of the Gray code of x is 1. A ramp of width 2^-count reads it,
    and digit j is |digit (j-1) - Gray digit j|. A continuous function cannot jump, so between
    neighbouring multiples of 2^-count every output is linear; the target is this interpolation of
    the digits. All digits are 1 at x = 1.

    >>> bits(4).network(torch.tensor([[11 / 16]]).double())
    tensor([[1., 0., 1., 1.]], ...)
    """
    require_precision(dtype)
    # The ramps have slope 2^count; beyond this, the rounding bound exceeds half a digit.
    most = 38 if dtype == torch.float64 else 12
    require_whole("count", count, 1, most, f" (the slope 2^count must be resolved in {dtype})")
    box = Box.cube(1, 0, 1)
    circuit = Circuit(box, dtype)
    y = circuit.inputs() + 2.0 ** -(count + 1)
    digits: list[Wires] = []
    for j in range(1, count + 1):
        steep = (y - 0.5) * 2.0 ** (count - j + 1)
        gray = (circuit.relu(steep + 0.5) - circuit.relu(steep - 0.5)).refine(0.0, 1.0)
        if digits:
            digits[-1] = circuit.relay(digits[-1], gray.level)
            gray = absolute(circuit, digits[-1] - gray)
        digits.append(gray)
        if j < count:
            y, _ = delta_step(circuit, y)
    network, rounding = circuit.network(circuit.join(*digits), sparse)

    def target(points: Tensor) -> Tensor:
        places = torch.arange(count - 1, -1, -1)
        scaled = points.to(torch.float64) * 2.0**count
        below = scaled.floor().clamp(max=2.0**count - 1)
        above = (below + 1).clamp(max=2.0**count - 1)
        low, high = ((number.long() >> places & 1).double() for number in (below, above))
        return low + (high - low) * (scaled - below)

    return Certified.of(network, float(rounding.max()), box, target)

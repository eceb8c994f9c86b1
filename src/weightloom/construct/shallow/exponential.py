"""Networks of exponentials, and their conversion to other activations: Lemma 2.7, Theorem 2.5.

Sums a.exp(V x) are closed under addition and multiplication and separate points, hence dense in
the continuous functions on [0, 1]^d (Stone-Weierstrass; not constructive). Each becomes a network
of another activation when an approximant p of exp on an interval replaces every exponential:

    f(x) = sum_j a_j p(v_j.x),   |f - h| <= sum_j |a_j| * sup |p - exp|.

p is needed on the range of the v_j.x only, which for x in [0, 1]^d is inside |r| <= max_j |v_j|_1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weightloom.construct.certified import Certified, Function
from weightloom.construct.checks import (
    MAX_SHALLOW_NODES,
    gamma,
    limit_nodes,
    require_choice,
    require_positive,
    round_up,
    roundoff,
)
from weightloom.construct.grid import Box
from weightloom.construct.layers import read_shallow, shallow_network
from weightloom.construct.shallow.interval import relu_interpolant, stack_steps
from weightloom.errors import ConfigError
from weightloom.networks.activations import Exponential, Threshold, lookup

__all__ = ["ExpNetwork", "exp_approximant", "reduce_exponentials"]


@dataclass(frozen=True, eq=False)
class ExpNetwork:
    """h(x) = sum_j outer_j exp(inner_j.x): outer [m], inner [m, d]; closed under + and *.

    >>> f = ExpNetwork.separating(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 0.0]))
    >>> (f * f + f)(torch.tensor([[0.0, 0.0]])).item()
    2.0
    """

    outer: Tensor
    inner: Tensor

    def __post_init__(self) -> None:
        if self.inner.dim() != 2 or self.outer.shape != self.inner.shape[:1]:
            raise ConfigError(
                f"outer has shape {list(self.outer.shape)} and inner {list(self.inner.shape)}; "
                f"wanted [m] and [m, d]"
            )
        if not bool(torch.isfinite(self.outer).all() and torch.isfinite(self.inner).all()):
            raise ConfigError("outer and inner must be finite; look for NaN or infinity in them")
        object.__setattr__(self, "outer", self.outer.detach().double())
        object.__setattr__(self, "inner", self.inner.detach().double())

    @classmethod
    def separating(cls, x: Tensor, other: Tensor) -> ExpNetwork:
        """z -> exp(<z - other, x - other>): 1 at ``other`` and exp(|x - other|^2) at ``x``.

        (The proof of Lemma 2.7 prints the two values the other way round.)
        """
        x, other = x.double(), other.double()
        difference = x - other
        return cls((-(other @ difference)).exp()[None], difference[None])

    def __call__(self, x: Tensor) -> Tensor:
        return (x.double() @ self.inner.T).exp() @ self.outer

    def __add__(self, other: ExpNetwork) -> ExpNetwork:
        return ExpNetwork(
            torch.cat([self.outer, other.outer]), torch.cat([self.inner, other.inner])
        )

    def __mul__(self, other: ExpNetwork | float) -> ExpNetwork:
        if not isinstance(other, ExpNetwork):
            return ExpNetwork(self.outer * other, self.inner)
        inner = (self.inner[:, None] + other.inner).flatten(0, 1)
        return ExpNetwork(torch.outer(self.outer, other.outer).flatten(), inner)

    __rmul__ = __mul__

    def network(self, dtype: torch.dtype = torch.float64) -> nn.Sequential:
        """The same as an `nn.Sequential` with `Exponential` activations."""
        bias = torch.zeros_like(self.outer)
        return shallow_network(self.inner, bias, self.outer, 0.0, Exponential(), dtype)

    def range(self, domain: Box) -> tuple[float, float]:
        """Least and largest v_j.x over the domain and over j."""
        if domain.dims != self.inner.shape[1]:
            raise ConfigError(
                f"the domain has {domain.dims} dimensions, the network {self.inner.shape[1]}"
            )
        ends = torch.tensor([domain.low, domain.high], dtype=torch.float64)
        products = self.inner[:, None] * ends  # [m, 2, d]
        return float(products.amin(1).sum(-1).min()), float(products.amax(1).sum(-1).max())


def exp_approximant(
    low: float,
    high: float,
    eps: float,
    activation: str = "relu",
    *,
    dtype: torch.dtype = torch.float64,
    max_nodes: int = MAX_SHALLOW_NODES,
) -> Certified:
    """exp on [low, high] within ``eps``, by "relu" or "threshold" nodes.

    Both are adaptive: thresholds at equal steps of exp, corners of the polygon where exp bends.

    >>> exp_approximant(-1.0, 1.0, 0.01).nodes, exp_approximant(-1.0, 1.0, 0.01, "threshold").nodes
    (6, 118)
    """
    require_choice("activation", activation, ("relu", "threshold"))
    require_positive("eps", eps)
    domain = Box((float(low),), (float(high),))
    if high > 700:
        raise ConfigError(f"exp({high:g}) is not a finite number; scale the problem down")

    def exp(p: Tensor) -> Tensor:
        return p[:, 0].exp()

    steep = math.exp(high)
    if activation == "relu":
        return relu_interpolant(
            exp,
            eps=eps,
            curvature=steep,
            domain=domain,
            adaptive=True,
            dtype=dtype,
            max_nodes=max_nodes,
        )
    bottom = math.exp(low)
    count = round_up((steep - bottom) / (2 * eps))
    limit_nodes(count, max_nodes, "a network of ceil((exp(high) - exp(low)) / (2 * eps)) steps")
    step = (steep - bottom) / count
    heights = bottom + step * (torch.arange(count, dtype=torch.float64) + 0.5)
    starts = (heights - step / 2).log().clamp(min=low)
    starts[0] = low
    # The computed logarithms move the starts by a few units in the last place.
    error = step / 2 + 8 * roundoff(torch.float64) * steep * max(1.0, abs(low), abs(high))
    return stack_steps(exp, domain, starts, heights, error, steep, dtype)


def reduce_exponentials(
    network: ExpNetwork,
    approximant: Certified | str = "relu",
    *,
    eps: float | None = None,
    domain: Box | None = None,
    target: Function | None = None,
    target_error: float = 0.0,
    activation_slope: float | None = None,
    dtype: torch.dtype = torch.float64,
    max_nodes: int = MAX_SHALLOW_NODES,
) -> Certified:
    """Replace the exponentials of ``network`` by another activation: step 2 of Theorem 2.5.

    ``approximant`` is "relu" or "threshold" (then ``eps`` is the error wanted), or a certified
    shallow network for exp on an interval that contains every v_j.x, x in ``domain`` (by default
    the unit cube). The bound is |a|_1 times that of the approximant, plus rounding, plus
    ``target_error``, your bound for |h - target| if you pass a ``target``. For an activation that
    is not in the table pass its Lipschitz constant (``activation_slope``).

    >>> h = ExpNetwork(torch.tensor([0.5, 0.5]), torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))  # cosh
    >>> c = reduce_exponentials(h, eps=0.05)
    >>> c.nodes, c.verify().error <= c.error_bound < 0.0501
    (6, True)
    """
    domain = Box.cube(network.inner.shape[1], 0.0, 1.0) if domain is None else domain
    low, high = network.range(domain)
    weight = float(network.outer.abs().sum())
    if isinstance(approximant, str):
        if eps is None:
            raise ConfigError(
                f"approximant={approximant!r} is built for an error; give it: eps=..."
            )
        require_positive("eps", eps)
        # Rounding may leave the interval by a little.
        margin = 16 * gamma(domain.dims + 4, dtype) * max(1.0, _reach(network, domain))
        each = eps / weight if weight else 1.0
        approximant = exp_approximant(
            low - margin, high + margin, each, approximant, dtype=dtype, max_nodes=max_nodes
        )
    elif eps is not None:
        raise ConfigError("eps is the approximant's own where one is given; leave eps out")
    inner, bias, outer, offset, activation = read_shallow(approximant.network)
    (below, above) = approximant.domain.sides[0]
    if inner.shape[1] != 1 or not (below <= low and high <= above):
        raise ConfigError(
            f"the approximant is for {inner.shape[1]} input(s) on [{below:g}, {above:g}]; one on "
            f"an interval that holds [{low:g}, {high:g}] is wanted"
        )
    m, n = len(network.outer), len(outer)
    limit_nodes(m * n, max_nodes, f"a network of {m} exponentials * {n} nodes")
    # Unit (j, i): s(w_i v_j.x + b_i) with weight a_j u_i.
    weights = (network.inner[:, None] * inner).flatten(0, 1)
    last = torch.outer(network.outer, outer).flatten()
    constant = offset * float(network.outer.sum())
    built = shallow_network(weights, bias.repeat(m), last, constant, activation, dtype)
    bound = target_error + weight * approximant.error_bound
    bound += _rounding(network, approximant, domain, activation, activation_slope, dtype)
    return Certified.of(built, bound, domain, network if target is None else target)


def _rounding(
    network: ExpNetwork,
    approximant: Certified,
    domain: Box,
    activation: nn.Module,
    slope: float | None,
    dtype: torch.dtype,
) -> float:
    """What rounding adds to |a|_1 sup |p - exp|.

    z = w_i v_j.x + b_i is computed with an error of at most gamma(d + 4) Z, Z = |w_i| |v_j|.|x| +
    |b_i|. After an activation with slope S this is at most S gamma(d + 4) Z. For thresholds it
    moves v_j.x by gamma(d + 4) Z / |w_i|, less than half of any step, so at most one step is
    decided wrongly, and only where exp differs by (largest exp) * (that move). The sum of m n terms
    adds gamma(m n + 4) times their absolute values.
    """
    inner, bias, outer, offset, _ = read_shallow(approximant.network)
    reach = torch.tensor(domain.sides, dtype=torch.float64).abs().amax(1)
    size = inner.abs().T * (network.inner.abs() @ reach)[:, None] + bias.abs()  # Z [m, n]
    wrong = gamma(len(reach) + 4, dtype) + gamma(len(reach) + 4, torch.float64)
    weights = torch.outer(network.outer.abs(), outer.abs())  # [m, n]
    if isinstance(activation, Threshold):
        if bool((inner == 0).any()):
            raise ConfigError("a threshold of the approximant has weight 0; leave it out")
        moved = wrong * float((size / inner.abs().T).max())
        _check_steps(network, approximant, domain, (-bias / inner[:, 0]).sort().values, moved)
        steep = math.exp(approximant.domain.high[0])
        in_front = float(network.outer.abs().sum()) * steep * moved
        values = torch.ones_like(size)
    else:
        known = lookup(activation)
        if slope is None and known is not None:
            slope = known.lipschitz
        if slope is None:
            raise ConfigError(
                f"how steep {type(activation).__name__} gets is not known here; pass "
                f"activation_slope= (its Lipschitz constant)"
            )
        in_front = slope * wrong * float((weights * size).sum())
        with torch.no_grad():
            at_zero = float(activation(torch.zeros(1, dtype=torch.float64)).abs())
        values = at_zero + slope * size
    total = float((weights * values).sum()) + abs(offset) * float(network.outer.abs().sum())
    return in_front + gamma(weights.numel() + 4, dtype) * total


def _reach(network: ExpNetwork, domain: Box) -> float:
    """Largest |v_j|.|x| over the domain."""
    largest = torch.tensor(domain.sides, dtype=torch.float64).abs().amax(1)
    return float((network.inner.abs() @ largest).max())


def _check_steps(
    network: ExpNetwork, approximant: Certified, domain: Box, starts: Tensor, moved: float
) -> None:
    """Raise unless steps are wider than rounding and the interval leaves room for it."""
    width = float(starts.diff().min()) if len(starts) > 1 else math.inf
    low, high = network.range(domain)
    (below, above) = approximant.domain.sides[0]
    if not 2 * moved < width:
        raise ConfigError(
            f"steps {width:.2g} wide are too narrow for rounding, which moves them by {moved:.2g}; "
            f"use torch.float64 or allow a larger error"
        )
    if low - moved < below or high + moved > above:
        raise ConfigError(
            f"the approximant's interval [{below:g}, {above:g}] must hold [{low:g}, {high:g}] and "
            f"{moved:.2g} more at both ends, for rounding"
        )

"""Planting a given network close to a random one (Theorem 3.10, corrected).

The reference is g(x) = sum_i alpha_i relu(beta_i . x) with |beta_i| = 1. Among m random rows v_0j
many point nearly along beta_i, |v_0j/|v_0j| - beta_i| <= tau, with the sign of out_j equal to that
of alpha_i. n of them are lengthened by c |alpha_i|, c = sqrt(m) / (tau n). Rows keep their
directions, so F(x; V) = F_0(x; V) for every x, and the increments add up to

    (sqrt(m) / tau) g(x)   up to   sqrt(m) |alpha|_1 |x|,   beside the noise F(x; V0) = O(sqrt(m)).

Multiplied by tau / sqrt(m) this is g up to O(tau): the noise becomes negligible as tau shrinks.

What is corrected (d dimensions, tau_d = tau^(d-1) / 2^(d+2), n = ceil(m tau_d)):

    printed                                        the proof gives
    scale 2^(d+1) sqrt(m) / tau^(d-1)              sqrt(m) / tau
    rows move by 2^(d+1) max|alpha| / (tau^(d-1) sqrt(m))   2^(d+2) max|alpha| / (tau^d sqrt(m))
    |V - V0| <= 2^(d+1) |alpha| / tau^(d-1)        2^((d+2)/2) |alpha| / tau^((d+1)/2)
    noise 16 d sqrt(m) ln(m/delta)                 32 d (as in Lemma 3.15), or sharper
    m >= 4^(d+2) ln(1/delta) / tau^(2d-2)          ln(k/delta), a union over k directions; half of
                                                   it suffices by Hoeffding
    with probability 1 - delta                     1 - 3 delta: the noise alone takes 2 delta

Here delta is the whole probability of failure, half of it for the directions, half for the noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from weightloom.construct.certified import Certified
from weightloom.construct.checks import MAX_NODES
from weightloom.construct.grid import Box
from weightloom.construct.layers import measure
from weightloom.errors import ConfigError, ShapeError
from weightloom_papers.deep_learning_theory.near_init.bounds import uniform_noise_bound
from weightloom_papers.deep_learning_theory.near_init.shallow import Shallow, largest_output

__all__ = ["Planted", "PlantingBounds", "plant", "planting_bounds"]


@dataclass(frozen=True)
class PlantingBounds:
    """The numbers of Theorem 3.10 for out_j = +-1: how far V is from V0, and F from scale * g."""

    width: int
    """m that suffices"""
    scale: float
    """F is compared with scale * g"""
    row: float
    """largest |v_j - v_0j|"""
    distance: float
    """|V - V0|"""
    error: float
    """sup of |F(x; V) - scale g(x)| over |x| <= 1"""


def planting_bounds(
    alpha: Tensor, dims: int, tau: float, delta: float, width: int, *, form: str = "corrected"
) -> PlantingBounds:
    """Theorem 3.10 in numbers: "printed", "corrected", or "sharp" (the noise of Lemma 3.15, sharp).

    >>> sizes = planting_bounds(torch.tensor([1.0, -2.0]), 2, 0.25, 0.01, 100_000)
    >>> sizes.width, round(sizes.scale, 1), round(sizes.row, 3), round(sizes.distance, 2)
    (12271, 1264.9, 1.619, 71.55)
    """
    _check_numbers(tau, delta)
    largest, norm1, norm2 = (float(torch.linalg.vector_norm(alpha, p)) for p in (math.inf, 1, 2))
    root = math.sqrt(width)
    if form == "printed":
        scale = 2 ** (dims + 1) / tau ** (dims - 1)
        enough = math.ceil(4 ** (dims + 2) * math.log(1 / delta) / tau ** (2 * dims - 2))
        error = root * (16 * dims * math.log(width / delta) + norm1)
        return PlantingBounds(enough, scale * root, scale * largest / root, scale * norm2, error)
    noise = uniform_noise_bound(
        width, dims, delta / 2, 1.0, form="sharp" if form == "sharp" else "corrected"
    )
    share = tau ** (dims - 1) / 2 ** (dims + 2)
    return PlantingBounds(
        width=width_needed(len(alpha), dims, tau, delta),
        scale=root / tau,
        row=largest / (tau * share * root),
        distance=norm2 / (tau * math.sqrt(share)),
        error=noise + root * norm1,
    )


def width_needed(k: int, dims: int, tau: float, delta: float) -> int:
    """m such that each of k caps has m tau_d rows of the right sign with probability 1 - delta/2.

    Each row is in a cap with probability at least 2 tau_d (Ball, Lemma 2.3). By Hoeffding and a
    union bound, 2 m tau_d - sqrt(m/2 ln(2k/delta)) >= m tau_d.
    """
    return math.ceil(4 ** (dims + 2) / 2 * math.log(2 * k / delta) / tau ** (2 * dims - 2))


@dataclass(frozen=True)
class Planted(Certified):
    """A random network with g planted in it: ``network`` is (tau / sqrt m) F(x; V), close to g.

    ``error_bound`` is for |x| <= 1, and ``domain`` is the cube inside that ball. If ``certain`` is
    false, the bound on the noise F(x; V0) holds with probability 1 - ``delta``/2 over V0. That
    enough rows point along each beta_i has been counted, not assumed. In one and two dimensions the
    noise is computed, and the bound is certain.
    """

    start: Shallow = field(kw_only=True, repr=False)
    """the random network, with the same scale: F(x; V0) tau / sqrt m"""
    hidden: Tensor = field(kw_only=True, repr=False)
    """V"""
    tau: float = field(kw_only=True)
    delta: float = field(kw_only=True)
    bounds: PlantingBounds = field(kw_only=True, repr=False)
    """the theorem's numbers for out_j = +-1"""
    signal_error: float = field(kw_only=True)
    """bound on |increments - g|, from the chosen rows; at most tau |alpha|_1"""
    noise_error: float = field(kw_only=True)
    """bound on |F(x; V0)| tau / sqrt m"""
    certain: bool = field(kw_only=True)

    @property
    def distance(self) -> float:
        """|V - V0|, measured."""
        return float(torch.linalg.vector_norm(self.hidden - self.start.hidden))

    @property
    def row(self) -> float:
        """largest |v_j - v_0j|, measured."""
        return float((self.hidden - self.start.hidden).norm(dim=1).max())

    def taylor(self, x: Tensor) -> Tensor:
        """F_0(x; V) at points [n, d]: [n], scaled as ``network`` is; equal to it up to rounding."""
        return self.start.taylor(x, self.hidden)


def plant(
    alpha: Tensor,
    beta: Tensor,
    tau: float,
    *,
    delta: float = 0.01,
    width: int | None = None,
    spread: str = "first",
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    max_nodes: int = MAX_NODES,
) -> Planted:
    """Sample a random ReLU network and move it a little so that it becomes g (Theorem 3.10).

    g(x) = sum_i alpha_i relu(beta_i . x), ``alpha`` [k], ``beta`` [k, d] with rows of norm 1 that
    are more than 2 tau apart. ``width`` is the theorem's by default. A smaller one works as long as
    enough rows point along each beta_i. ``spread="all"`` lengthens every row near beta_i instead of
    the first ceil(m tau_d): the same function in the limit, at a smaller distance.

    >>> g = plant(torch.tensor([1.0, -0.5]), torch.eye(2), tau=0.25)
    >>> g.nodes, g.certain, g.verify().error <= g.error_bound < 0.7
    (12271, True, True)
    """
    alpha, beta = alpha.double(), beta.double()
    _check_reference(alpha, beta, tau)
    _check_numbers(tau, delta)
    if spread not in ("first", "all"):
        raise ConfigError(f"spread={spread!r} is unknown; choose 'first' or 'all'")
    k, dims = beta.shape
    m = width_needed(k, dims, tau, delta) if width is None else width
    _check_width(m, dims, tau, max_nodes)
    # out_j = a_j tau / sqrt m, rounded to the type in which the network will run.
    start = Shallow.sample(m, dims, rho=tau, seed=seed)
    start = Shallow(start.hidden.to(dtype).double(), start.out.to(dtype).double(), start.sigma)
    moved, signal = _lengthen(start, alpha, beta, tau, spread)
    moved = moved.to(dtype).double()
    noise = _noise_bound(start, delta)
    network = Shallow(moved.to(dtype), start.out.to(dtype), start.sigma).network()
    size = measure(network)
    bound = noise + signal + _rounding(start, moved, alpha, dtype)
    return Planted(
        network=network,
        error_bound=bound,
        nodes=size.nodes,
        layers=size.layers,
        nonzeros=size.nonzeros,
        domain=Box.cube(dims, -1 / math.sqrt(dims), 1 / math.sqrt(dims)),
        target=reference(alpha, beta),
        start=start,
        hidden=moved,
        tau=tau,
        delta=delta,
        bounds=planting_bounds(alpha, dims, tau, delta, m, form="sharp"),
        signal_error=signal,
        noise_error=noise,
        certain=dims <= 2,
    )


def _noise_bound(start: Shallow, delta: float) -> float:
    """sup of |F(x; V0)|, |x| <= 1: exact up to d = 2, else with probability 1 - delta/2."""
    if start.dims <= 2:
        return largest_output(start)
    level = start.largest_out
    return uniform_noise_bound(start.width, start.dims, delta / 2, level, form="sharp")


def reference(alpha: Tensor, beta: Tensor) -> Callable[[Tensor], Tensor]:
    """g itself: points [n, d] to [n]."""
    return lambda x: torch.relu(x.double() @ beta.T) @ alpha


def _lengthen(
    start: Shallow, alpha: Tensor, beta: Tensor, tau: float, spread: str
) -> tuple[Tensor, float]:
    """V, and a bound on |increments - g| over |x| <= 1, from the chosen rows."""
    m, dims = start.hidden.shape
    units = start.hidden / start.hidden.norm(dim=1, keepdim=True)
    wanted = math.ceil(m * tau ** (dims - 1) / 2 ** (dims + 2))
    moved, signal = start.hidden.clone(), 0.0
    for a, b in zip(alpha, beta, strict=True):
        if a == 0:
            continue
        close = ((units - b).norm(dim=1) <= tau) & (start.out * a > 0)
        rows = close.nonzero()[:, 0]
        if len(rows) < wanted:
            raise ConfigError(
                f"only {len(rows)} of {m:,} rows point along {[round(float(c), 4) for c in b]} "
                f"within tau={tau:g} with the right sign, {wanted} are wanted; take a larger "
                f"width (the theorem asks for {width_needed(len(alpha), dims, tau, 0.01):,} at "
                f"delta=0.01) or tau, or another seed"
            )
        rows = rows[:wanted] if spread == "first" else rows
        moved[rows] += abs(float(a)) * math.sqrt(m) / (tau * len(rows)) * units[rows]
        # Each increment is |out_j| c |alpha_i| relu(unit_j . x); those weights sum to |alpha_i|.
        signal += abs(float(a)) * float((units[rows] - b).norm(dim=1).mean())
    return moved, signal


def _rounding(start: Shallow, moved: Tensor, alpha: Tensor, dtype: torch.dtype) -> float:
    """A bound on the rounding error of the network on |x| <= 1.

    Terms out_j relu(v_j . x): each weight and input is stored to a relative u, d products are added
    for a node and m for the output, so the sum is off by gamma_(d + m + 4) sum_j |out_j| |v_j|
    (|.| of absolute values, Cauchy-Schwarz). In float64 the target is a sum of k such terms, and
    the noise was computed by running sums of 2m.
    """
    m, dims = start.hidden.shape
    terms = float((start.out.abs() * moved.norm(dim=1)).sum())
    steps = dims + m + 6
    unit, double = torch.finfo(dtype).eps / 2, torch.finfo(torch.float64).eps / 2
    gamma = steps * unit / (1 - steps * unit)
    target_error = (4 * m + dims + len(alpha) + 6) * double * (float(alpha.abs().sum()) + terms)
    return gamma * terms + target_error


def _check_reference(alpha: Tensor, beta: Tensor, tau: float) -> None:
    if beta.dim() != 2 or alpha.shape != beta.shape[:1] or not len(alpha):
        raise ShapeError(
            f"alpha {tuple(alpha.shape)} and beta {tuple(beta.shape)} do not fit; wanted [k] and "
            f"[k, d] with k >= 1"
        )
    if not bool(torch.isfinite(alpha).all() & torch.isfinite(beta).all()):
        raise ConfigError("alpha or beta holds NaN or infinity; a reference network is finite")
    norms = beta.norm(dim=1)
    off = int((norms - 1).abs().argmax())
    if abs(float(norms[off]) - 1) > 1e-6:
        raise ConfigError(
            f"beta[{off}] has norm {float(norms[off]):.6g}; wanted rows of norm 1 (move the factor "
            f"into alpha: alpha relu(c b . x) = c alpha relu(b . x) for c > 0)"
        )
    apart = torch.cdist(beta, beta) + 4 * torch.eye(len(beta), dtype=beta.dtype)
    if not float(apart.min()) > 2 * tau:
        i, j = divmod(int(apart.argmin()), len(beta))
        raise ConfigError(
            f"beta[{i}] and beta[{j}] are {float(apart.min()):.6g} apart, but more than "
            f"2 tau = {2 * tau:g} is wanted, so that no row is near both; take a smaller tau"
        )


def _check_width(m: int, dims: int, tau: float, max_nodes: int) -> None:
    if m > max_nodes:
        raise ConfigError(
            f"tau={tau:g} in {dims} dimensions asks for {m:,} nodes, more than "
            f"max_nodes={max_nodes:,}; take a larger tau, give a smaller width, or raise max_nodes"
        )


def _check_numbers(tau: float, delta: float) -> None:
    if not 0 < tau <= 2:
        raise ConfigError(f"tau={tau} was given; wanted 0 < tau <= 2, a distance on the sphere")
    if not 0 < delta < 1:
        raise ConfigError(f"delta={delta} was given; a probability strictly between 0 and 1 wanted")

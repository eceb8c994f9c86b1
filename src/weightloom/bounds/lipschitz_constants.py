"""Lipschitz constants: proven upper bounds, and lower bounds attained by a pair of points."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import jvp, vjp

from weightloom.bounds.chain import Chain, double_copy, read_chain
from weightloom.bounds.network_norms import Bound, norm_name, paths, product
from weightloom.bounds.semidefinite import closed_form, tuned
from weightloom.bounds.semidefinite.recursion import Norms
from weightloom.errors import ConfigError
from weightloom.networks.kernels import plain_attention

__all__ = ["Attained", "lipschitz", "lipschitz_lower"]

# The search: scales of the first points, distances of the pairs, and steps of the power method.
SPREADS = (0.1, 1.0, 10.0)
DISTANCES = tuple(10.0**k for k in range(-5, 3))
ALTERNATIONS = 2


def lipschitz(
    net: nn.Module,
    norm: float | str = 1,
    *,
    input_shape: Sequence[int] | None = None,
    method: str = "best",
    radius: float | None = None,
) -> Bound:
    """Upper bound on how much the output moves per unit of input, both measured in ``norm``.

    ``norm`` is 1 (as C(f) of modularity, Eq. 5), 2 or math.inf. The result is a float with ``log``,
    ``name`` and ``layers``. ``method``:

    - "product" multiplies the norms of the layers and the activations' constants (norm 1: exactly
      C(f));
    - "paths" takes the norm of the one matrix |W_k| ... |W_1|, which does not change when neurons
      are rescaled;
    - "sdp-fast" (2-norm) follows the ellipsoid of possible differences from layer to layer
      (ECLipsE-Fast: Xu and Sivaranjani 2024), also through convolutions. Never above "product";
    - "sdp" (2-norm) also searches for the best multiplier of each unit (LipSDP: Fazlyab et al.
      2019): seconds for a few hundred units, and the smallest of all;
    - "best" is the smallest of all but "sdp".

    Residual sums, LayerNorm, attention and gates are read, too. The last two have a Lipschitz
    constant for inputs of bounded length only: ``radius`` is the largest 2-norm of a row (token) of
    the input. It is not needed where a LayerNorm stands in front of them.

    >>> net = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1))
    >>> with torch.no_grad():  # |x|
    ...     _ = net[0].weight.copy_(torch.tensor([[1.0], [-1.0]]))
    ...     _ = net[2].weight.fill_(1.0)
    >>> [round(float(lipschitz(net, 2, method=m)), 2) for m in ("product", "sdp-fast", "sdp")]
    [2.0, 1.41, 1.0]
    """
    p = norm_name(norm)
    if method not in ("best", *_METHODS):
        choices = ", ".join(("best", *_METHODS))
        raise ConfigError(f"method={method!r} was given; choose one of {choices}")
    if method.startswith("sdp") and p != "2":
        raise ConfigError(
            f"method={method!r} with norm={norm!r} was given; semidefinite bounds are about the "
            f"2-norm: give norm=2, or method='best'"
        )
    chain = read_chain(net, input_shape, blocks=True, radius=radius)
    if method != "best":
        return _METHODS[method](chain, p)
    return smallest(upper_bounds(chain, p))


def upper_bounds(chain: Chain, p: str) -> Iterator[Bound]:
    """Every bound that is computed without a search."""
    known = None not in chain.shapes
    if p == "2" and known:
        stage_norms = Norms(chain)
        yield from (stage_norms.product, closed_form(chain, norms=stage_norms))
    else:
        yield product(chain, p)
    if known and chain.entrywise:
        yield paths(chain, p)


def smallest(bounds: Iterable[Bound]) -> Bound:
    """The smallest bound; of those that differ by rounding the first, which has factors to show."""
    return min(bounds, key=lambda bound: round(bound.log, 9))


def _semidefinite(bound: Callable[[Chain], Bound]) -> Callable[[Chain, str], Bound]:
    def compute(chain: Chain, p: str) -> Bound:
        chain.known_shapes()  # or an error that asks for input_shape
        return bound(chain)

    return compute


_METHODS: dict[str, Callable[[Chain, str], Bound]] = {
    "product": product,
    "paths": paths,
    "sdp-fast": _semidefinite(closed_form),
    "sdp": _semidefinite(tuned),
}


@dataclass(frozen=True)
class Attained:
    """Two inputs x, y with ||f(x) - f(y)|| = value * ||x - y||: a lower bound to check."""

    value: float
    norm: str
    x: Tensor
    y: Tensor

    def __float__(self) -> float:
        return self.value

    def check(self, net: nn.Module) -> float:
        """The ratio of this pair, recomputed in double precision."""
        ratios = _ratios(double_copy(net), self.x[None], self.y[None], self.norm)
        return float(ratios[0])


def lipschitz_lower(
    net: nn.Module,
    norm: float | str = 1,
    *,
    input_shape: Sequence[int] | None = None,
    low: float | None = None,
    high: float | None = None,
    starts: int = 64,
    rounds: int = 20,
    seed: int = 0,
) -> Attained:
    """The largest ratio ||f(x) - f(y)|| / ||x - y|| that a search finds, with the two points.

    The search begins at ``starts`` random points, each with the direction v that the Jacobian J
    stretches most (the power method for p-norms of Boyd and Higham: v <- dual(J^T dual(J v))). In
    each of ``rounds`` rounds the points move along the gradient of ||J(x) v|| and at random; a move
    is kept if it increases ||J(x) v||. ReLU networks need the random moves, because this gradient
    is zero. Finally the pairs x, x + h v are evaluated for several distances h, and the best one is
    returned. ``low`` and ``high`` confine both points to a box.
    """
    p = norm_name(norm)
    _check_search(low, high, starts, rounds)
    shape = read_chain(net, input_shape, blocks=True).known_shapes()[0]
    with plain_attention():
        return _searched(double_copy(net), p, shape, low, high, starts, rounds, seed)


def _searched(
    f: nn.Module,
    p: str,
    shape: tuple[int, ...],
    low: float | None,
    high: float | None,
    starts: int,
    rounds: int,
    seed: int,
) -> Attained:
    generator = torch.Generator().manual_seed(seed)
    box = None if low is None or high is None else (low, high)
    x = _first_points(starts, shape, box, generator)
    v, stretch = _stretch(f, x, _directions(starts, shape, p, generator), p)
    smooth = True
    for step in range(rounds):
        reach = 0.7**step * (x.flatten(1).abs().amax(1) + 0.1).reshape(-1, *[1] * len(shape))
        noise = torch.randn(x.shape, dtype=torch.float64, generator=generator)
        moves = [noise]
        if smooth:
            moves.append(_uphill(f, x, v, p))
            smooth = bool(moves[1].any())
        for move in moves:
            near = _inside(x + reach * move, box)
            turned, new = _stretch(f, near, v, p)
            better = (new > stretch).reshape(-1, *[1] * len(shape))
            x, v = torch.where(better, near, x), torch.where(better, turned, v)
            stretch = torch.maximum(new, stretch)
    return _best_pair(f, x, v, p, box)


def _check_search(low: float | None, high: float | None, starts: int, rounds: int) -> None:
    if (low is None) != (high is None) or (low is not None and not low < float(high or 0)):
        raise ConfigError(
            f"low={low}, high={high} was given; wanted both or neither, with low < high"
        )
    if starts < 1 or rounds < 0:
        raise ConfigError(
            f"starts={starts}, rounds={rounds} was given; wanted at least one start and no "
            f"negative number of rounds"
        )


def _first_points(
    starts: int,
    shape: tuple[int, ...],
    box: tuple[float, float] | None,
    generator: torch.Generator,
) -> Tensor:
    if box is not None:
        unit = torch.rand(starts, *shape, dtype=torch.float64, generator=generator)
        return box[0] + (box[1] - box[0]) * unit
    x = torch.randn(starts, *shape, dtype=torch.float64, generator=generator)
    spread = torch.tensor(SPREADS, dtype=torch.float64)[torch.arange(starts) % len(SPREADS)]
    return x * spread.reshape(-1, *[1] * len(shape))


def _inside(x: Tensor, box: tuple[float, float] | None) -> Tensor:
    return x if box is None else x.clamp(*box)


def _directions(starts: int, shape: tuple[int, ...], p: str, generator: torch.Generator) -> Tensor:
    return _unit(torch.randn(starts, *shape, dtype=torch.float64, generator=generator), p)


def _norm(x: Tensor, p: str) -> Tensor:
    """p-norm of every row, [n]."""
    return torch.linalg.vector_norm(x.flatten(1), float(p), dim=1)


def _unit(x: Tensor, p: str) -> Tensor:
    return x / _norm(x, p).clamp_min(1e-300).reshape(-1, *[1] * (x.dim() - 1))


def _dual(y: Tensor, p: str) -> Tensor:
    """The u with <u, y> = ||y||_p and dual norm 1: the gradient of the norm."""
    if p == "2":
        return _unit(y, "2")
    if p == "1":
        return torch.where(y >= 0, 1.0, -1.0).to(y.dtype)
    flat = y.flatten(1)
    at = flat.abs().argmax(1, keepdim=True)
    return torch.zeros_like(flat).scatter(1, at, flat.gather(1, at).sign()).reshape(y.shape)


def _steepest(g: Tensor, p: str) -> Tensor:
    """The v with ||v||_p = 1 and the largest <g, v>: the gradient of the dual norm."""
    return _dual(g, {"1": "inf", "2": "2", "inf": "1"}[p])


def _stretch(f: nn.Module, x: Tensor, v: Tensor, p: str) -> tuple[Tensor, Tensor]:
    """Directions v [n, *] of unit norm with large ||J(x) v||, and these norms [n]."""
    pull = vjp(f, x)[1]
    pushed = jvp(f, (x,), (v,))[1]
    best, best_v = _norm(pushed, p), v
    for _ in range(ALTERNATIONS):
        turned = _steepest(pull(_dual(pushed, p))[0], p)
        pushed = jvp(f, (x,), (turned,))[1]
        new = _norm(pushed, p)
        better = (new > best).reshape(-1, *[1] * (v.dim() - 1))
        best_v, best = torch.where(better, turned, best_v), torch.maximum(best, new)
    return best_v, best


def _uphill(f: nn.Module, x: Tensor, v: Tensor, p: str) -> Tensor:
    """Gradient of ||J(x) v||, scaled to a largest entry of 1; zero where it vanishes.

    Also zero where it is not known: every point that the search visits gives a lower bound.
    """

    def total(at: Tensor) -> Tensor:
        return _norm(jvp(f, (at,), (v,))[1], p).sum()

    try:
        slope = torch.nan_to_num(torch.func.grad(total)(x))
    except RuntimeError:  # PyTorch has no second derivative of hardsigmoid and some others
        return torch.zeros_like(x)
    return _unit(slope, "inf")


@torch.no_grad()
def _ratios(f: nn.Module, x: Tensor, y: Tensor, p: str) -> Tensor:
    """||f(x) - f(y)|| / ||x - y|| for every pair, [n]; 0 where it is not defined."""
    distance = _norm(x - y, p)
    ratios = _norm(f(x) - f(y), p) / distance
    return torch.where((distance > 0) & ratios.isfinite(), ratios, 0.0)


def _best_pair(
    f: nn.Module, x: Tensor, v: Tensor, p: str, box: tuple[float, float] | None
) -> Attained:
    """The best of the pairs x, x + h v. h is relative to x, so that rounding stays small."""
    size = (1 + x.flatten(1).abs().amax(1)).reshape(-1, *[1] * (x.dim() - 1))
    best: Attained | None = None
    for h in DISTANCES:
        for sign in (1.0, -1.0):
            y = _inside(x + sign * h * size * v, box)
            ratios = _ratios(f, x, y, p)
            top = int(ratios.argmax())
            if best is None or float(ratios[top]) > best.value * (1 + 1e-9):
                best = Attained(float(ratios[top]), p, x[top].clone(), y[top].clone())
    if best is None or not math.isfinite(best.value):
        raise ConfigError("no pair of points with finite outputs was found; check the weights")
    return best

"""Norms that bound a network's Lipschitz constant, by name.

C(f) of "On the Modularity of Hypernetworks", Eq. 5, is one of several products of layer norms. It
bounds the change of the output in the 1-norm per change of the input in the 1-norm, and nothing
else: for sum(x) of 100 numbers C = 1, but the Lipschitz constant is 10 in the 2-norm and 100 in the
max norm. It also changes when a ReLU neuron's incoming weights are doubled and its outgoing ones
halved, which does not change the function; the path norm does not change. So every norm is reported
by name.

All are kept as logarithms, so that wide and deep networks do not overflow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from weightloom.bounds.chain import Chain, read_chain
from weightloom.bounds.spectral import Factor
from weightloom.bounds.widths import log_or_minus_inf
from weightloom.errors import ConfigError
from weightloom.tables import aligned

__all__ = ["Bound", "norm_name", "norms", "path_norm", "spectral_complexity"]

# Rounds of power iteration for the 2-norm of the dominating matrix; each gives an upper bound.
ROUNDS = 20


class Bound(float):
    """A float (infinite where it overflows) with its logarithm, its name and its factors."""

    log: float
    name: str
    layers: tuple[tuple[str, Factor], ...]

    def __new__(cls, log: float, name: str, layers: Sequence[tuple[str, Factor]] = ()) -> Bound:
        bound = super().__new__(cls, math.exp(log) if log < 709.78 else math.inf)
        bound.log, bound.name, bound.layers = log, name, tuple(layers)
        return bound

    def __reduce__(self) -> tuple[type[Bound], tuple[float, str, tuple[tuple[str, Factor], ...]]]:
        return Bound, (self.log, self.name, self.layers)  # the default would keep the float alone

    def table(self) -> str:
        """One line per layer: its factor and how it was computed."""
        rows = [
            [name, f"{factor.value:.6g}", "exact" if factor.exact else factor.how]
            for name, factor in self.layers
        ]
        rows.append([self.name, f"{float(self):.6g}", f"(ln = {self.log:.6g})"])
        return "\n".join(aligned(rows, "lrl", widths=[20, 11]))


def spectral_complexity(net: nn.Module, input_shape: Sequence[int] | None = None) -> Bound:
    """C(f) = Lip(s)^(k-1) * prod ||W_i||_1: an upper bound from 1-norm to 1-norm.

    Spectral complexity (modularity, Eq. 5).

    ||W||_1 is the largest column sum of |W|. Each activation contributes its own Lipschitz
    constant, including one after the last layer. Not invariant under rescaling of neurons.

    >>> net = nn.Sequential(nn.Linear(100, 1, bias=False))
    >>> _ = nn.init.ones_(net[0].weight)
    >>> float(spectral_complexity(net))
    1.0
    """
    return product(read_chain(net, input_shape), "1", "spectral complexity C(f)")


def path_norm(net: nn.Module, input_shape: Sequence[int] | None = None) -> Bound:
    """Sum over all paths from an input to an output of the product of the |weights| on the path.

    Equals 1^T |W_k| ... |W_1| 1 times the activations' Lipschitz constants. It bounds the Lipschitz
    constant from the max norm to the 1-norm, so also from any p-norm to itself, and does not
    change when neurons are rescaled. Biases lie on no path from an input.

    >>> net = nn.Sequential(nn.Linear(3, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
    >>> for layer in (net[0], net[2]):
    ...     _ = nn.init.constant_(layer.weight, -2.0)
    >>> round(float(path_norm(net)), 9)  # 6 paths of weight 4
    24.0
    """
    return _path_norm(read_chain(net, input_shape))


def norms(net: nn.Module, input_shape: Sequence[int] | None = None) -> dict[str, Bound]:
    """Every norm by name: products of layer norms (1, 2, inf, Frobenius), paths, C(f).

    ``paths 1``, ``paths 2``, ``paths inf`` are the norms of the one matrix |W_k| ... |W_1|: upper
    bounds on the Lipschitz constant that do not change when neurons are rescaled. They and the
    path norm are left out if a network with convolutions comes without ``input_shape``.
    """
    return all_norms(read_chain(net, input_shape))


def all_norms(chain: Chain) -> dict[str, Bound]:
    """`norms` of a network that has been read."""
    bounds = {f"product {p}": product(chain, p) for p in ("1", "2", "inf")}
    c = bounds["product 1"]
    bounds["spectral complexity"] = Bound(c.log, "spectral complexity C(f)", c.layers)
    bounds["product frobenius"] = _frobenius(chain)
    largest = max(float(s.module.weight.detach().abs().max()) for s in chain.affine)
    bounds["largest weight"] = Bound(log_or_minus_inf(largest), "largest weight")
    if None not in chain.shapes:
        bounds["path norm"] = _path_norm(chain)
        bounds |= {f"paths {p}": paths(chain, p) for p in ("1", "2", "inf")}
    return bounds


def product(chain: Chain, p: str, name: str | None = None) -> Bound:
    """The product of the stages' factors in norm p."""
    pairs = zip(chain.stages, chain.shapes, strict=True)
    layers = [(stage.name, stage.factor(p, shape)) for stage, shape in pairs]
    log = sum(log_or_minus_inf(factor.value) for _, factor in layers)
    return Bound(log, name or f"product of {norm_name(p)} norms", layers)


def paths(chain: Chain, p: str) -> Bound:
    """The p-norm of |W_k| ... |W_1| (with activations' constants), which dominates every Jacobian.

    1 and inf: the largest column and row sum. 2: for M >= 0 and any x > 0 the largest eigenvalue
    of M^T M is at most max_i (M^T M x)_i / x_i (Collatz and Wielandt), so each round of
    power iteration gives a proven upper bound; the smallest is returned.
    """
    name = f"paths, {norm_name(p)} norm"
    if p == "inf":
        last, log = _forward(chain, _ones(chain))
        return Bound(log + log_or_minus_inf(float(last.max())), name)
    if p == "1":
        out, _ = _forward(chain, _ones(chain))
        first, log = _backward(chain, torch.ones_like(out))
        return Bound(log + log_or_minus_inf(float(first.max())), name)
    x, best = _ones(chain), math.inf
    for _ in range(ROUNDS):
        forward, log = _forward(chain, x)
        back, more = _backward(chain, forward)
        new = (log + more + log_or_minus_inf(float((back / x).max()))) / 2
        done, best = new == -math.inf or best - new < 1e-6, min(best, new)
        if done:
            break
        # Kept positive: the bound holds for any positive x, and entries may fall to zero.
        x = back / back.max() + 1e-9
    return Bound(best, name)


def _path_norm(chain: Chain) -> Bound:
    last, log = _forward(chain, _ones(chain))
    return Bound(log + log_or_minus_inf(float(last.sum())), "path norm")


def norm_name(norm: float | str) -> str:
    """The name of a supported norm: "1", "2" or "inf"; 1, 2 and math.inf are accepted too."""
    names = {1: "1", 2: "2", math.inf: "inf", "1": "1", "2": "2", "inf": "inf"}
    if isinstance(norm, bool) or norm not in names:
        raise ConfigError(f"norm={norm!r} was given; choose 1, 2 or math.inf ('inf')")
    return names[norm]


def _frobenius(chain: Chain) -> Bound:
    """prod ||W_i||_F times the activations' constants; W_i of a convolution is its kernel."""
    sizes = [
        float(torch.linalg.vector_norm(s.module.weight.detach(), dtype=torch.float64))
        for s in chain.affine
    ]
    slopes = [a.lipschitz for a in chain.activations]
    return Bound(sum(map(log_or_minus_inf, sizes + slopes)), "product of Frobenius norms")


def _ones(chain: Chain) -> Tensor:
    return torch.ones(1, *chain.known_shapes()[0], dtype=torch.float64)


@torch.no_grad()
def _forward(chain: Chain, u: Tensor) -> tuple[Tensor, float]:
    """(v, log) with |W_k| ... |W_1| u = exp(log) v; rescaled at every stage to avoid overflow."""
    log = 0.0
    for stage in chain.stages:
        u, more = _scaled(stage.absolute(u))
        log += more
    return u, log


def _backward(chain: Chain, v: Tensor) -> tuple[Tensor, float]:
    """The same with the transposed matrices, from the output to the input."""
    log = 0.0
    for stage, shape in zip(reversed(chain.stages), reversed(chain.known_shapes()), strict=True):
        v, more = _scaled(stage.absolute_transposed(v, shape))
        log += more
    return v, log


def _scaled(u: Tensor) -> tuple[Tensor, float]:
    largest = float(u.max())
    return (u / largest, math.log(largest)) if largest > 0 else (u, 0.0)

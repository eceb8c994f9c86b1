"""Maurey's lemma: k samples approximate a mean with a squared error of order 1/k (Section 2.4).

If X = E V in a Hilbert space and V_1, ..., V_k are independent samples, then

    E |X - mean_i V_i|^2 = (E |V|^2 - |X|^2) / k <= E |V|^2 / k <= sup |V|^2 / k      (Lemma 2.16).

For a signed measure mu the samples are s |mu|_1 g(.; w) with w sampled in proportion to |mu| and s
its sign (Lemma 2.17). The bound holds in expectation, and therefore for some sample; Example 2.18
(1) states it for every sample, which is false: for f = sin(2 pi x) and P at the point x = 1 every
third sample is above |mu|_1^2 / k, and for P uniform on [0, 1] about one in eight. `best_draw`
looks for one that is below.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from weightloom.construct.certified import WIDEST, Function
from weightloom.construct.checks import require_neurons
from weightloom.construct.layers import read_shallow, shallow_network
from weightloom.errors import CertificateError, ConfigError

__all__ = ["LawRow", "NeuronMeasure", "SignedMeasure", "best_draw", "fit_exponent", "sampling_law"]


class NetworkSampler(Protocol):
    """Anything that samples networks: `InfiniteNetwork` and `NeuronMeasure`."""

    def evaluate(self, points: Tensor) -> Tensor: ...

    def sample(
        self, m: int, generator: torch.Generator, dtype: torch.dtype = ...
    ) -> nn.Sequential: ...

    def bound(self, m: int, points: Tensor | None = None) -> float: ...


@dataclass(frozen=True, eq=False)
class SignedMeasure:
    """sum_i weights_i vectors_i in R^p: weights [n] of any sign, vectors [n, p].

    >>> mu = SignedMeasure(torch.eye(2), torch.tensor([0.75, -0.25]))
    >>> mu.mass, mu.second_moment(), mu.expected_error(10)
    (1.0, 1.0, 0.0375)
    """

    vectors: Tensor
    weights: Tensor

    def __post_init__(self) -> None:
        if self.vectors.dim() != 2 or self.weights.shape != self.vectors.shape[:1]:
            raise ConfigError(
                f"vectors have shape {list(self.vectors.shape)} and weights "
                f"{list(self.weights.shape)}; wanted [n, p] and [n]"
            )
        if not bool(torch.isfinite(self.vectors).all() and torch.isfinite(self.weights).all()):
            raise ConfigError("vectors and weights must be finite")
        if not bool((self.weights != 0).any()):
            raise ConfigError("all weights are zero; a measure with some mass is wanted")
        object.__setattr__(self, "vectors", self.vectors.double())
        object.__setattr__(self, "weights", self.weights.double())

    @property
    def mass(self) -> float:
        """|mu|_1."""
        return float(self.weights.abs().sum())

    def mean(self) -> Tensor:
        return self.weights @ self.vectors

    def second_moment(self) -> float:
        """E |V|^2 for V = s |mu|_1 vector, sampled in proportion to |weights|."""
        return self.mass * float(self.weights.abs() @ self.vectors.square().sum(-1))

    def bound(self, k: int) -> float:
        """E |V|^2 / k."""
        return self.second_moment() / require_neurons(k)

    def expected_error(self, k: int) -> float:
        """(E |V|^2 - |E V|^2) / k, exactly."""
        return (self.second_moment() - float(self.mean().square().sum())) / require_neurons(k)

    def sample(self, k: int, generator: torch.Generator, trials: int = 1) -> Tensor:
        """Means of k samples: [trials, p]."""
        size = trials * require_neurons(k)
        atoms = torch.multinomial(
            self.weights.abs(), size, replacement=True, generator=generator
        ).reshape(trials, k)
        # Count how often each atom occurs; then one product serves all trials.
        counts = torch.zeros(trials, len(self.weights), dtype=torch.float64)
        counts.scatter_add_(1, atoms, torch.ones_like(atoms, dtype=torch.float64))
        return self.mass / k * (counts * self.weights.sign()) @ self.vectors


class NeuronMeasure:
    """A shallow network as a signed measure over its neurons; `sample` returns a smaller one.

    The measure's weights are the output weights a_j: neurons are sampled in proportion to |a_j| and
    get the weight |a|_1 sign(a_j) / m. Repeated neurons are merged. The output bias is kept.

    >>> wide = nn.Sequential(nn.Linear(2, 500), nn.ReLU(), nn.Linear(500, 1))
    >>> small = NeuronMeasure(wide).sample(20, torch.Generator().manual_seed(0))
    >>> small[0].out_features <= 20
    True
    """

    def __init__(self, network: nn.Module) -> None:
        self.weight, self.bias, self.outer, self.offset, self.activation = read_shallow(network)
        if not bool((self.outer != 0).any()):
            raise ConfigError("all output weights are zero; a network with some is wanted")
        self.mass = float(self.outer.abs().sum())

    def _neurons(self, points: Tensor) -> Tensor:
        with torch.no_grad():
            return self.activation(points.double() @ self.weight.T + self.bias)

    def evaluate(self, points: Tensor) -> Tensor:
        return self._neurons(points) @ self.outer + self.offset

    def second_moment(self, points: Tensor) -> float:
        """E |V|^2 in L2 of the points."""
        return self.mass * float(self._neurons(points).square().mean(0) @ self.outer.abs())

    def bound(self, m: int, points: Tensor | None = None) -> float:
        if points is None:
            raise ConfigError("how large the neurons are depends on the points; pass points=")
        return self.second_moment(points) / require_neurons(m)

    def expected_error(self, m: int, points: Tensor) -> float:
        mean = float((self.evaluate(points) - self.offset).square().mean())
        return (self.second_moment(points) - mean) / require_neurons(m)

    def sample(
        self, m: int, generator: torch.Generator, dtype: torch.dtype = torch.float64
    ) -> nn.Sequential:
        indices = torch.multinomial(
            self.outer.abs(), require_neurons(m), replacement=True, generator=generator
        )
        kept, times = indices.unique(return_counts=True)
        outer = self.mass / m * times * self.outer[kept].sign()
        return shallow_network(
            self.weight[kept], self.bias[kept], outer, self.offset, self.activation, dtype
        )


@dataclass(frozen=True)
class LawRow:
    """Sampled networks of one width: their mean squared error, and Maurey's bound."""

    width: int
    error: float
    """mean over the trials of the mean squared error over the points"""
    standard_error: float
    bound: float
    above: float
    """fraction of trials whose error is above the bound, which the lemma allows"""


def sampling_law(
    form: NetworkSampler,
    widths: Sequence[int],
    points: Tensor,
    *,
    trials: int = 100,
    generator: torch.Generator,
    target: Function | None = None,
    tight: bool = False,
) -> list[LawRow]:
    """Width against the mean squared error of sampled networks, with standard errors.

    ``target`` is the function that ``form`` equals, where evaluating the form is out of reach
    (Gaussians in many dimensions); ``tight`` takes the points' own E |V|^2 in the bound.

    >>> from weightloom.construct.shallow import ThresholdForm
    >>> form = ThresholdForm(lambda b: torch.ones(len(b)))            # g(x) = x
    >>> x = torch.linspace(0, 1, 101, dtype=torch.float64)[:, None]
    >>> rows = sampling_law(form, [10, 100], x, generator=torch.Generator().manual_seed(0))
    >>> [row.error < row.bound for row in rows], [round(row.bound, 9) for row in rows]
    ([True, True], [0.1, 0.01])
    """
    if trials < 2:
        raise ConfigError(f"trials={trials} was given; at least 2 are needed for standard errors")
    wanted = form.evaluate(points) if target is None else target(points)
    rows = []
    for width in widths:
        bound = form.bound(width, points if tight else None)
        errors = torch.stack(
            [_error(form.sample(width, generator), points, wanted) for _ in range(trials)]
        )
        spread = float(errors.std()) / math.sqrt(trials)
        # Errors equal to the bound up to rounding are not above it. Ties are common where errors
        # are those of a random walk.
        above = float((errors > bound * (1 + 1e-9)).double().mean())
        rows.append(LawRow(width, float(errors.mean()), spread, bound, above))
    return rows


def fit_exponent(rows: Sequence[LawRow]) -> float:
    """The slope of log error against log width, by least squares: -1 is Maurey's law."""
    if len({row.width for row in rows}) < 2:
        raise ConfigError(
            f"{len(rows)} row(s) were given; at least two different widths are wanted"
        )
    x = torch.tensor([row.width for row in rows], dtype=torch.float64).log()
    y = torch.tensor([row.error for row in rows], dtype=torch.float64).log()
    x = x - x.mean()
    return float((x @ y) / (x @ x))


def best_draw(
    form: NetworkSampler,
    m: int,
    points: Tensor,
    *,
    generator: torch.Generator,
    tries: int = 100,
    target: Function | None = None,
) -> tuple[nn.Sequential, float]:
    """A sampled network that keeps Maurey's bound, and its mean squared error over the points.

    One exists (Lemma 2.16); the first one in ``tries`` samples is returned.
    """
    wanted = form.evaluate(points) if target is None else target(points)
    bound = form.bound(m, points if isinstance(form, NeuronMeasure) else None)
    least = math.inf
    for _ in range(tries):
        network = form.sample(m, generator)
        error = float(_error(network, points, wanted))
        if error <= bound:
            return network, error
        least = min(least, error)
    raise CertificateError(
        f"none of {tries} draws of {m} neurons has a mean squared error below {bound:.4g}; the "
        f"least was {least:.4g}: the target is not the function that the form equals"
    )


@torch.no_grad()
def _error(network: nn.Module, points: Tensor, wanted: Tensor) -> Tensor:
    """Mean squared error over the points, in batches that fit."""
    dtype = next(network.parameters()).dtype
    width = max(p.numel() for p in network.parameters())
    rows = max(1, WIDEST // max(1, width))
    given = torch.cat([network(x.to(dtype))[:, 0] for x in points.split(rows)])
    return (given.double() - wanted).square().mean()

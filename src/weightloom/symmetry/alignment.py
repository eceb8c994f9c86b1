"""Brings one network as close to another as the symmetries allow, and interpolates between them."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from weightloom.errors import ConfigError, MissingDependencyError, OutputError, ShapeError
from weightloom.networks.finiteness import require_finite
from weightloom.symmetry.canonical import normalize
from weightloom.symmetry.equivalence import architecture_mismatch, default_tolerance
from weightloom.symmetry.group import apply, apply_to_tensors, compose, invert, tensors_of
from weightloom.symmetry.matching.assignment import weight_matching
from weightloom.symmetry.matching.search import match
from weightloom.symmetry.reading.reader import read
from weightloom.symmetry.spec import Element, Spec

__all__ = ["Alignment", "Barrier", "align", "interpolate", "loss_barrier"]

_METHODS = ("auto", "exact", "normalized", "raw")

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Alignment:
    """b aligned to a.

    ``module``: b with ``element`` applied, the same function as b. Distances: the 2-norm of the
    difference of all weights, before and after. ``method``: "exact" (b is equivalent to a), "raw"
    or "normalized" (linear assignment, without or after fixing scales and signs), or "none" if
    nothing came closer than b itself.
    """

    module: nn.Module
    element: Element
    distance_before: float
    distance_after: float
    method: str


def align(a: nn.Module, b: nn.Module, method: str = "auto", sweeps: int = 50) -> Alignment:
    """A network with the function of b and weights as close to those of a as can be found.

    ``method``:

    - "exact": units are matched as in `equivalent`. b must be equivalent to a (else a
      `ConfigError`).
    - "raw": weight matching (git re-basin, Ainsworth et al. 2023, Algorithm 1): space after space,
      the permutation with the largest inner product of all weights around it, a linear assignment;
      repeated until nothing improves, at most ``sweeps`` times. Signs are part of the scores where
      the activation is odd, even or a sigmoid.
    - "normalized": "raw" after `normalize` on both networks, then the scales of a.
    - "auto": "exact" if possible, else the better of the other two.

    Assignment finds a local optimum; finding the global one is NP-hard.

    >>> net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> from weightloom.symmetry import random_equivalent
    >>> align(net, random_equivalent(net)).method
    'exact'
    """
    if method not in _METHODS:
        raise ConfigError(f"method is {method!r}; known are {', '.join(_METHODS)}")
    require_finite(a, b)
    spec = read(a)
    mismatch = architecture_mismatch(a, b, spec, read(b))
    if mismatch is not None:
        raise ShapeError(f"only networks of the same architecture can be aligned: {mismatch}")
    tensors_a, tensors_b = tensors_of(a), tensors_of(b)
    candidates = {"none": Element(), **_candidates(a, b, spec, method, sweeps)}
    distances = {
        name: _distance(tensors_a, apply_to_tensors(element, spec, tensors_b))
        for name, element in candidates.items()
    }
    best = min(distances, key=lambda name: (distances[name], name == "none"))
    element, before = candidates[best], _distance(tensors_a, tensors_b)
    return Alignment(apply(element, b, spec), element, before, distances[best], best)


def _candidates(
    a: nn.Module, b: nn.Module, spec: Spec, method: str, sweeps: int
) -> dict[str, Element]:
    """Elements that may bring b close to a, by method."""
    tensors_a, tensors_b = tensors_of(a), tensors_of(b)
    if method in ("auto", "exact"):
        exact = match(spec, tensors_a, tensors_b, default_tolerance(a, b))
        if exact.same and exact.element is not None:
            return {"exact": exact.element}
        if method == "exact":
            raise ConfigError(f"b is not equivalent to a ({exact.mismatch}); use method='auto'")
    candidates: dict[str, Element] = {}
    if method in ("auto", "raw"):
        candidates["raw"] = weight_matching(spec, tensors_a, tensors_b, sweeps)
    if method in ("auto", "normalized"):
        candidates["normalized"] = _match_normalized(a, b, spec, sweeps)
    return candidates


def _match_normalized(a: nn.Module, b: nn.Module, spec: Spec, sweeps: int) -> Element:
    # One spec for both: networks of different architecture were refused before.
    (normal_a, to_a), (normal_b, to_b) = normalize(a, spec=spec), normalize(b, spec=spec)
    element = weight_matching(spec, tensors_of(normal_a), tensors_of(normal_b), sweeps)
    return compose(invert(to_a), compose(element, to_b))


def _distance(a: Tensors, b: Tensors) -> float:
    squares = (
        float((a[name].double() - b[name].double()).square().sum())
        for name in a
        if a[name].is_floating_point()
    )
    return float(sum(squares)) ** 0.5


def interpolate(a: nn.Module, b: nn.Module, t: float) -> nn.Module:
    """The network with weights (1 - t) a + t b; integer buffers are those of a.

    >>> half = interpolate(nn.Linear(1, 1), nn.Linear(1, 1), 0.5)
    """
    result = copy.deepcopy(a)
    tensors, others = tensors_of(result), tensors_of(b)
    wrong = [name for name in {**tensors, **others} if name not in tensors or name not in others]
    wrong += [n for n in tensors if n in others and tensors[n].shape != others[n].shape]
    if wrong:
        raise ShapeError(f"tensor {wrong[0]!r} is not in both networks with the same shape")
    with torch.no_grad():
        for name, tensor in tensors.items():
            if tensor.is_floating_point():
                tensor.copy_(torch.lerp(tensor.double(), others[name].double(), float(t)))
    return result


@dataclass(frozen=True)
class Barrier:
    """Losses along the line from a (t = 0) to b (t = 1).

    ``losses`` and ``barrier``: with b aligned to a. ``naive_losses`` and ``naive_barrier``: with b
    as given. A barrier is the largest height of the loss above the straight line between its ends,
    at least 0.
    """

    ts: tuple[float, ...]
    losses: tuple[float, ...]
    barrier: float
    naive_losses: tuple[float, ...]
    naive_barrier: float
    alignment: Alignment

    def plot(self, path: str | os.PathLike[str]) -> Path:
        """Draws both curves into a file (the suffix sets the format) and returns its path."""
        try:
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
        except ImportError as error:
            raise MissingDependencyError(
                "the figure needs matplotlib; pip install 'weightloom[plot]'"
            ) from error
        figure = Figure(figsize=(5, 3.2), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.plot(self.ts, self.naive_losses, "o--", color="0.55", label="as given")
        axes.plot(self.ts, self.losses, "o-", color="tab:blue", label="aligned")
        axes.set_xlabel("t: (1 - t) a + t b")
        axes.set_ylabel("loss")
        axes.legend(frameon=False)
        target = Path(path)
        try:
            figure.savefig(target)
        except (OSError, ValueError) as error:
            raise OutputError(f"cannot write the figure to {target}: {error}") from error
        return target


def loss_barrier(
    a: nn.Module,
    b: nn.Module,
    loss: Callable[[nn.Module], float],
    steps: int = 11,
    method: str = "auto",
) -> Barrier:
    """The loss barrier between a and b, before and after `align`.

    ``loss`` takes a network and returns a number (on data that both were trained for).
    """
    if steps < 3:
        raise ConfigError(f"steps is {steps}; at least 3 points are needed to see a barrier")
    ts = tuple(step / (steps - 1) for step in range(steps))
    aligned = align(a, b, method)
    naive = tuple(float(loss(interpolate(a, b, t))) for t in ts)
    losses = tuple(float(loss(interpolate(a, aligned.module, t))) for t in ts)
    return Barrier(ts, losses, _height(ts, losses), naive, _height(ts, naive), aligned)


def _height(ts: tuple[float, ...], losses: tuple[float, ...]) -> float:
    lines = ((1 - t) * losses[0] + t * losses[-1] for t in ts)
    return max(0.0, *(value - line for value, line in zip(losses, lines, strict=True)))

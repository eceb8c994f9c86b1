"""Brings one network as close to another as the symmetries allow."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from weightloom.errors import ConfigError, ShapeError
from weightloom.symmetry.aligning.averaging import distance, require_values, working_tensors
from weightloom.symmetry.aligning.batches import DataBatches
from weightloom.symmetry.aligning.candidates import METHODS, Variant, candidates
from weightloom.symmetry.aligning.judging import Judge, Loss
from weightloom.symmetry.equivalence import (
    architecture_mismatch,
    default_tolerance,
    equivalent,
)
from weightloom.symmetry.group import apply, check_element, tensors_of
from weightloom.symmetry.matching.search import match
from weightloom.symmetry.reading.reader import read
from weightloom.symmetry.spec import Element, Spec

__all__ = [
    "NONE",
    "Alignment",
    "align",
    "best_of",
    "by_method",
    "check_method",
    "exact_element",
    "finite_losses",
    "spec_of_all",
]

NONE: Variant = ("none", 0)


@dataclass(frozen=True)
class Alignment:
    """b aligned to a.

    ``module``: a network with the function of b, ``apply(element, b)``. ``method``: what brought it
    there, "exact" (b is equivalent to a), "weights", "normalized weights" (weight matching,
    without or after fixing scales and signs), "activations", "refined activations" (activation
    matching, alone or followed by weight matching), or "none" (b as it was given). ``scores``: what
    the candidates were chosen by; smaller is better. Distances: the 2-norm of the difference of all
    weights, before and after. ``unseen``: spaces that activation matching did not see while the
    networks ran, and that were aligned by weights.

    ``element`` is None where "exact" found the same function in other weights that no element maps
    to each other (clones that were removed first, BatchNorm folded in another way): ``module`` is
    then a copy of a.
    """

    module: nn.Module
    element: Element | None
    distance_before: float
    distance_after: float
    method: str
    scores: dict[str, float] = field(default_factory=dict)
    unseen: tuple[str, ...] = ()


def align(
    a: nn.Module,
    b: nn.Module,
    data: Any = None,
    *,
    method: str | None = None,
    loss: Loss | None = None,
    repair: bool = True,
    sweeps: int = 50,
    progress: bool = False,
) -> Alignment:
    """A network with the function of b whose units are those of a, as far as can be found.

    ``method``:

    - "exact": b must be equivalent to a (`equivalent`, else a `ConfigError`); its weights become
      those of a.
    - "weights": weight matching (git re-basin, Ainsworth et al. 2023, Algorithm 1): space after
      space, the permutation with the largest inner product of all weights around it, a linear
      assignment; repeated until nothing improves, at most ``sweeps`` times. Once on the weights as
      they are, and once after `normalize` on both networks. Signs are part of the scores where the
      activation is odd, even or a sigmoid.
    - "activations": units are partners if their values on ``data`` are correlated, before and after
      the activation; also followed by weight matching that starts there.
    - None: "exact" if b is found to be equivalent; else the best of all.

    What is best is decided by ``loss`` (a function of a network): the barrier halfway between a and
    the aligned network. Without a loss, by data: how far the output of the network halfway is from
    the average of both outputs. Without data, by the distance of the weights. With data, the
    network halfway is repaired (see `repair`) if that is better, as `merge` does it;
    ``repair=False`` leaves it as it is.

    ``data``: inputs as one tensor, (inputs, targets), a dict of keyword arguments, or any iterable
    of such batches that can be read again, a DataLoader for instance; a few hundred to a few
    thousand inputs are enough. Both networks are run in eval mode. ``progress`` shows a bar for
    each pass. Assignment finds a local optimum; finding the global one is NP-hard.

    >>> net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> from weightloom.symmetry import random_equivalent
    >>> align(net, random_equivalent(net)).method
    'exact'
    """
    check_method(method, data)
    require_values(a, b)
    if method == "exact":
        return _exact(a, b)
    spec = spec_of_all([a, b])
    if method is None:
        element = exact_element(a, b, spec)
        if element is not None:
            return _result(a, b, spec, element, "exact", {}, ())
    batches = None if data is None else DataBatches(data, progress)
    proposed = candidates(a, b, spec, method, batches, sweeps)
    elements = {NONE: Element(), **proposed.elements}
    scores = _scores(a, b, spec, elements, Judge(loss, batches, repair))
    best = best_of(scores)
    return _result(a, b, spec, elements[best], best[0], by_method(scores), proposed.unseen)


def best_of(scores: dict[Variant, float]) -> Variant:
    """What has the smallest score; what changes nothing only if it is better than the others."""
    return min(scores, key=lambda variant: (scores[variant], variant == NONE))


def by_method(scores: dict[Variant, float]) -> dict[str, float]:
    """The smallest score of each method."""
    methods = dict.fromkeys(method for method, _ in scores)
    return {m: min(score for (name, _), score in scores.items() if name == m) for m in methods}


def check_method(method: str | None, data: Any) -> None:
    """Refuses methods that do not exist, or that need data."""
    if isinstance(data, str):
        raise ConfigError(f"data is {data!r}; a method is given by name: method={data!r}")
    known = ("exact", *METHODS)
    if method is not None and method not in known:
        raise ConfigError(f"method is {method!r}; known are {', '.join(known)} and None")
    if method == "activations" and data is None:
        raise ConfigError("method='activations' compares values on data; pass data=, e.g. inputs")


def spec_of_all(networks: Sequence[nn.Module]) -> Spec:
    """The symmetries that all networks have; refuses networks of different architectures."""
    spec = read(networks[0])
    for index, network in enumerate(networks[1:], start=1):
        mismatch = architecture_mismatch(networks[0], network, spec, read(network))
        if mismatch is not None:
            raise ShapeError(
                f"only networks of the same architecture can be aligned; network {index} differs "
                f"from network 0: {mismatch}"
            )
    return spec


def exact_element(a: nn.Module, b: nn.Module, spec: Spec) -> Element | None:
    """The element that maps all weights of b to those of a, if there is one."""
    tensors_a, tensors_b = tensors_of(a), tensors_of(b)
    tensors_b = {name: t.to(tensors_a[name]) for name, t in tensors_b.items()}
    result = match(spec, tensors_a, tensors_b, default_tolerance(a, b))
    return result.element if result.same else None


def finite_losses(judge: Judge, networks: Sequence[nn.Module]) -> tuple[float, ...]:
    """The loss of each network; none without a loss. Refuses NaN and infinity."""
    if judge.loss is None:
        return ()
    losses = tuple(judge.loss_of(network) for network in networks)
    for index, value in enumerate(losses):
        if not math.isfinite(value):
            raise ConfigError(
                f"the loss of network {index} is {value}, so no barrier can be measured; check the "
                "loss and its data"
            )
    return losses


def _exact(a: nn.Module, b: nn.Module) -> Alignment:
    """b mapped onto a, for every pair that `equivalent` calls the same."""
    verdict = equivalent(a, b)
    if not verdict.same:
        raise ConfigError(f"b is not equivalent to a ({verdict}); use method=None")
    spec = read(b)
    if verdict.element is not None and not verdict.reduced and _fits(verdict.element, spec):
        moved = apply(verdict.element, b, spec)
        tensors_a, tensors_b = working_tensors(a, moved)
        size = distance(tensors_a, {name: 0 * tensor for name, tensor in tensors_a.items()})
        # The tolerance is relative to the length of a row; a row has so many entries at most.
        entries = max(t.numel() // max(len(t), 1) for t in tensors_a.values() if t.dim())
        rounding = math.sqrt(entries) * verdict.tolerance
        if distance(tensors_a, tensors_b) <= rounding * size:
            return _result(a, b, spec, verdict.element, "exact", {}, ())
    before = distance(tensors_of(a), tensors_of(b))
    return Alignment(copy.deepcopy(a), None, before, 0.0, "exact")


def _fits(element: Element, spec: Spec) -> bool:
    """Whether an element of the networks with folded norms belongs to this one, too."""
    try:
        check_element(element, spec)
    except (ConfigError, ShapeError):
        return False
    return True


def _scores(
    a: nn.Module, b: nn.Module, spec: Spec, elements: dict[Variant, Element], judge: Judge
) -> dict[Variant, float]:
    """How good each element is; one network is made at a time."""
    losses = finite_losses(judge, [a, b])
    here = tensors_of(a)
    scores = {}
    for variant, element in elements.items():
        moved = apply(element, b, spec)
        if judge.loss is None and judge.batches is None:
            scores[variant] = distance(here, tensors_of(moved))
        else:
            scores[variant] = judge.score([a, moved], (0.5, 0.5), losses)
    return scores


def _result(
    a: nn.Module,
    b: nn.Module,
    spec: Spec,
    element: Element,
    method: str,
    scores: dict[str, float],
    unseen: tuple[str, ...],
) -> Alignment:
    module = apply(element, b, spec)
    before, after = (distance(tensors_of(a), tensors_of(other)) for other in (b, module))
    return Alignment(module, element, before, after, method, scores, unseen)

"""One network from several: aligned to each other, averaged, repaired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from weightloom.errors import ConfigError
from weightloom.symmetry.aligning.activations import activation_matching, correlations
from weightloom.symmetry.aligning.alignment import (
    NONE,
    align,
    best_of,
    by_method,
    check_method,
    exact_element,
    finite_losses,
    spec_of_all,
)
from weightloom.symmetry.aligning.averaging import average, require_values, working_tensors
from weightloom.symmetry.aligning.batches import DataBatches
from weightloom.symmetry.aligning.candidates import (
    Variant,
    candidates,
    refined,
    without_scales_before_norms,
)
from weightloom.symmetry.aligning.judging import Judge, Loss
from weightloom.symmetry.aligning.repairing import shares_of
from weightloom.symmetry.group import apply, compose
from weightloom.symmetry.spec import Element

__all__ = ["Merged", "merge"]

Families = dict[Variant, list[Element]]

_ROUNDS = 20  # of aligning each network to the others; a handful is usual


@dataclass(frozen=True)
class Merged:
    """What `merge` returns.

    ``module``: the merged network. ``networks``: what was averaged, each aligned to the first.
    ``weights``: their shares. ``method``: how they were aligned, as in `Alignment`; ``scores``:
    what it was chosen by (smaller is better). ``repaired``: whether statistics were repaired.
    ``unseen``: spaces that were aligned by weights because the data did not show them.

    With a loss: ``losses`` of the networks, ``loss`` of the merged one, ``naive_loss`` of the
    average of the networks as given; else None. ``barrier`` and ``naive_barrier`` are the heights
    of the two above the average of ``losses``, at least 0.
    """

    module: nn.Module
    networks: tuple[nn.Module, ...]
    weights: tuple[float, ...]
    method: str
    scores: dict[str, float]
    repaired: bool
    unseen: tuple[str, ...] = ()
    losses: tuple[float, ...] | None = None
    loss: float | None = None
    naive_loss: float | None = None

    @property
    def barrier(self) -> float | None:
        """The merged network's loss above the average loss of the networks, at least 0."""
        return self._height(self.loss)

    @property
    def naive_barrier(self) -> float | None:
        """The same for the average of the networks as they were given."""
        return self._height(self.naive_loss)

    def _height(self, loss: float | None) -> float | None:
        if loss is None or self.losses is None:
            return None
        pairs = zip(self.weights, self.losses, strict=True)
        return max(0.0, loss - sum(weight * value for weight, value in pairs))

    def __str__(self) -> str:
        text = f"{len(self.networks)} networks merged, aligned by {self.method}"
        text += ", statistics repaired" if self.repaired else ""
        if self.losses is None:
            return text
        own = ", ".join(f"{value:.4g}" for value in self.losses)
        return (
            f"{text}; losses {own}; merged {self.loss:.4g} (barrier {self.barrier:.3g}), averaged "
            f"as given {self.naive_loss:.4g} (barrier {self.naive_barrier:.3g})"
        )


def merge(
    networks: Sequence[nn.Module],
    data: Any = None,
    weights: Sequence[float] | None = None,
    *,
    method: str | None = None,
    loss: Loss | None = None,
    repair: bool = True,
    sweeps: int = 50,
    progress: bool = False,
) -> Merged:
    """The average of networks of one architecture, after their units were brought into one order.

    All are aligned to the first (`align`; ``method`` and ``data`` mean the same). With three or
    more, each is then aligned to the others until nothing changes (git re-basin, Algorithm 3). The
    average has the ``weights`` (shares; default: equal), dtype and device of the first network.
    With data its statistics are repaired (`repair`); networks with BatchNorm need that, because
    averaged running statistics are not those of the average. With a loss, what is repaired is kept
    only if its loss is lower.

    With ``method=None`` all methods are tried, and the merged network that is best is returned: by
    the loss, else by how far its outputs on the data are from the average of all outputs, else by
    the distance of the weights.

    >>> from weightloom.symmetry import random_equivalent
    >>> net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    >>> copies = [random_equivalent(net) for _ in range(3)]
    >>> print(merge([net, *copies]))
    4 networks merged, aligned by exact
    """
    networks = list(networks)
    if len(networks) < 2:
        raise ConfigError(f"{len(networks)} networks are given; at least two are needed to merge")
    check_method(method, data)
    shares = shares_of(weights, len(networks))
    require_values(*networks)
    judge = Judge(loss, None if data is None else DataBatches(data, progress), repair)
    exact = _exact(networks, method)
    if exact is not None:
        return _exactly_merged(networks, exact, shares, judge)
    work = _Merging(networks, shares, judge, sweeps)
    return work.best(method)


def _exact(networks: list[nn.Module], method: str | None) -> list[nn.Module] | None:
    """All networks mapped onto the first, if all of them are the same function."""
    first, *others = networks
    if method == "exact":
        return [first, *(align(first, other, method="exact").module for other in others)]
    if method is not None:
        return None
    spec = spec_of_all(networks)
    moved = [first]
    for other in others:
        element = exact_element(first, other, spec)
        if element is None:
            return None
        moved.append(apply(element, other, spec))
    return moved


def _exactly_merged(
    networks: list[nn.Module], moved: list[nn.Module], shares: tuple[float, ...], judge: Judge
) -> Merged:
    """Networks that are the same: the average is one of them, so there is nothing to repair."""
    merged = average(moved, shares)
    result = Merged(merged, tuple(moved), shares, "exact", {}, False)
    return _with_losses(result, networks, judge)


def _with_losses(result: Merged, networks: list[nn.Module], judge: Judge) -> Merged:
    if judge.loss is None:
        return result
    return replace(
        result,
        losses=finite_losses(judge, networks),
        loss=judge.loss_of(result.module),
        naive_loss=judge.loss_of(average(networks, result.weights)),
    )


class _Merging:
    """Tries methods, each with all networks, and keeps the best average."""

    def __init__(
        self, networks: list[nn.Module], shares: tuple[float, ...], judge: Judge, sweeps: int
    ) -> None:
        self.networks, self.shares = networks, shares
        self.judge, self.sweeps = judge, sweeps
        self.spec = spec_of_all(networks)
        # Scales are chosen pair by pair; among several networks only the order changes.
        self.allowed = without_scales_before_norms(self.spec, networks[0])

    def best(self, method: str | None) -> Merged:
        losses = finite_losses(self.judge, self.networks)
        families, unseen = self._families(method)
        scores: dict[Variant, float] = {}
        best, aligned = NONE, self.networks
        for variant, elements in families.items():
            moved = self._aligned(variant, elements)
            scores[variant] = self.judge.score(moved, self.shares, losses)
            if best_of(scores) == variant:
                best, aligned = variant, moved
        merged, is_repaired = self.judge.join(aligned, self.shares)
        methods = by_method(scores)
        result = Merged(merged, tuple(aligned), self.shares, best[0], methods, is_repaired, unseen)
        return _with_losses(result, self.networks, self.judge)

    def _families(self, method: str | None) -> tuple[Families, tuple[str, ...]]:
        """The elements of all networks but the first, by candidate."""
        first, *others = self.networks
        families: Families = {NONE: [Element() for _ in others]}
        unseen: tuple[str, ...] = ()
        for other in others:
            proposed = candidates(first, other, self.spec, method, self.judge.batches, self.sweeps)
            unseen = proposed.unseen
            for name, element in proposed.elements.items():
                families.setdefault(name, []).append(element)
        return families, unseen

    def _aligned(self, name: Variant, elements: list[Element]) -> list[nn.Module]:
        """The networks with these elements, then each aligned to the others until none moves."""
        pairs = zip(elements, self.networks[1:], strict=True)
        moved = [self.networks[0], *(apply(element, b, self.spec) for element, b in pairs)]
        if name == NONE or len(moved) < 3:
            return moved
        for _ in range(_ROUNDS):
            changed = False
            for index in range(1, len(moved)):
                step = self._step(name, moved, index)
                if not step.is_identity():
                    changed = True
                    elements[index - 1] = compose(step, elements[index - 1])
                    moved[index] = apply(elements[index - 1], self.networks[index], self.spec)
            if not changed:
                break
        return moved

    def _step(self, name: Variant, moved: list[nn.Module], index: int) -> Element:
        """What brings one network closer to the others."""
        others = [network for place, network in enumerate(moved) if place != index]
        method, variant = name
        if method == "activations" and self.judge.batches is not None:
            seen = correlations(others, moved[index], self.allowed, self.judge.batches, "matching")
            return activation_matching(self.allowed, seen.after() if variant else seen)
        shares = [share for place, share in enumerate(self.shares) if place != index]
        mean = average(others, shares_of(shares if any(shares) else None, len(others)))
        a, b = working_tensors(mean, moved[index])
        return refined(self.allowed, a, b, Element(), self.sweeps)

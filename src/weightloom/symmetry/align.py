"""Brings one network as close to another as the symmetries allow, and mixes the two."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from weightloom.errors import ConfigError, ShapeError
from weightloom.symmetry.assignment import assign
from weightloom.symmetry.equivalent import architecture_mismatch, default_tolerance
from weightloom.symmetry.group import apply, apply_to_tensors, compose, invert, move, tensors_of
from weightloom.symmetry.match_ties import match
from weightloom.symmetry.read import read
from weightloom.symmetry.spec import Attention, Axis, Element, Kind, Space, Spec

__all__ = ["Alignment", "align", "interpolate"]

_METHODS = ("auto", "exact", "normalized", "raw")
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Alignment:
    """b brought close to a.

    ``module``: b with ``element`` applied, the same function. Distances: the 2-norm of the
    difference of all weights, before and after. ``method``: "exact" (b is a in disguise),
    "normalized" or "raw" (linear assignment, after or without fixing scales and signs), or
    "none" if nothing came closer than b itself.
    """

    module: nn.Module
    element: Element
    distance_before: float
    distance_after: float
    method: str


def align(a: nn.Module, b: nn.Module, method: str = "auto", sweeps: int = 50) -> Alignment:
    """The copy of b that is closest to a, as far as it can be found.

    "exact": units are matched as in `equivalent`, which needs b to be a disguised copy of a (else a
    `ConfigError`). "raw": weight matching (git re-basin, Ainsworth et al. 2023, Algorithm 1): space
    after space, the exchange with the largest inner product of all weights around it, a linear
    assignment; repeated until nothing improves, at most ``sweeps`` times. Signs are chosen inside
    the scores where the activation is odd, even or a sigmoid. "normalized": the same after
    `normalize` on both, and then the scales of a. "auto": exact if possible, else the better of
    the two. Assignment finds a local optimum; the true one is an NP-hard problem.

    >>> net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> from weightloom.symmetry import random_equivalent
    >>> align(net, random_equivalent(net)).method
    'exact'
    """
    if method not in _METHODS:
        raise ConfigError(f"method is {method!r}; known are {', '.join(_METHODS)}")
    spec = read(a)
    mismatch = architecture_mismatch(a, b, spec, read(b))
    if mismatch is not None:
        raise ShapeError(f"only networks of the same architecture can be aligned: {mismatch}")
    first, second = tensors_of(a), tensors_of(b)
    before = _distance(first, second)
    candidates: dict[str, Element] = {"none": Element()}
    if method in ("auto", "exact"):
        found = match(spec, first, second, default_tolerance(a, b))
        if found.same and found.element is not None:
            candidates["exact"] = found.element
        elif method == "exact":
            raise ConfigError(
                f"b is not a disguised copy of a ({found.mismatch}); use method='auto'"
            )
    if method in ("auto", "raw") and "exact" not in candidates:
        candidates["raw"] = weight_matching(spec, first, second, sweeps)
    if method in ("auto", "normalized") and "exact" not in candidates:
        candidates["normalized"] = _normalized(a, b, spec, sweeps)
    distances = {
        name: _distance(first, apply_to_tensors(element, spec, second))
        for name, element in candidates.items()
    }
    best = min(distances, key=lambda name: (distances[name], name == "none"))
    element = candidates[best]
    return Alignment(apply(element, b, spec), element, before, distances[best], best)


def weight_matching(spec: Spec, a: Tensors, b: Tensors, sweeps: int = 50) -> Element:
    """Exchanges and signs that increase the inner product of a and b until none does any more."""
    element = Element()
    last = -float("inf")
    for _ in range(sweeps):
        total = 0.0
        for space in spec.spaces.values():
            order, factor, score = _best(spec, space, a, b, element)
            element.permutation[space.name] = order
            if factor is not None:
                element.factor[space.name] = factor
            total += score
        for one in spec.attentions:
            element.permutation[one.head_space] = _heads(spec, one, a, b, element)
        if total <= last + 1e-12 * abs(last):
            break
        last = total
    return element


def interpolate(a: nn.Module, b: nn.Module, t: float) -> nn.Module:
    """The network with weights (1 - t) a + t b; buffers that are not numbers are those of a.

    >>> half = interpolate(nn.Linear(1, 1), nn.Linear(1, 1), 0.5)
    """
    result = copy.deepcopy(a)
    other = tensors_of(b)
    mine = tensors_of(result)
    wrong = [n for n in {**mine, **other} if n not in mine or n not in other]
    wrong += [n for n in mine if n in other and mine[n].shape != other[n].shape]
    if wrong:
        raise ShapeError(f"tensor {wrong[0]!r} is not in both networks with the same shape")
    with torch.no_grad():
        for name, tensor in mine.items():
            if tensor.is_floating_point():
                tensor.copy_(torch.lerp(tensor.double(), other[name].double(), float(t)))
    return result


def _normalized(a: nn.Module, b: nn.Module, spec: Spec, sweeps: int) -> Element:
    from weightloom.symmetry.normalize import normalize

    (plain_a, to_a), (plain_b, to_b) = normalize(a)[:2], normalize(b)[:2]
    found = weight_matching(spec, tensors_of(plain_a), tensors_of(plain_b), sweeps)
    return compose(invert(to_a), compose(found, to_b))


def _best(
    spec: Spec, space: Space, a: Tensors, b: Tensors, element: Element
) -> tuple[Tensor, Tensor | None, float]:
    """Exchange and signs of one space with the largest score, the others as they are."""
    scores = {"out": torch.zeros(()), "in": torch.zeros(()), "fixed": torch.zeros(())}
    for axis in spec.axes_of(space.name):
        mine = _slices(a[axis.tensor], axis, space.size)
        moved = _moved(spec, axis.tensor, b[axis.tensor], element, axis.dim)
        scores[axis.side] = scores[axis.side] + mine @ _slices(moved, axis, space.size).t()
    size = torch.Size((space.size, space.size))
    out, others = scores["out"].expand(size), (scores["in"] + scores["fixed"]).expand(size)
    signs: Tensor | None = None
    if space.kind.signs:
        # A sign turns the incoming weights; odd functions and sigmoids turn the outgoing ones too.
        # (The shift of the next bias for sigmoids is left out of the score.)
        turned = out if space.kind in (Kind.EVEN, Kind.ABSOLUTE) else out + scores["in"]
        rest = others if space.kind in (Kind.EVEN, Kind.ABSOLUTE) else scores["fixed"].expand(size)
        signs = torch.where(turned < 0, -1.0, 1.0).double()
        total = turned.abs() + rest
    else:
        total = out + others
    order = assign(total)
    rows = torch.arange(space.size)
    factor = None if signs is None else signs[rows, order]
    return order, factor, float(total[rows, order].double().sum())


def _slices(tensor: Tensor, axis: Axis, size: int) -> Tensor:
    return tensor.movedim(axis.dim, 0).reshape(size, -1)


def _moved(spec: Spec, name: str, tensor: Tensor, element: Element, but: int | None) -> Tensor:
    """A tensor of b with all axes moved but one."""
    for axis in spec.axes_of_tensor(name):
        if axis.dim != but:
            factor = element.factor.get(axis.space)
            if factor is not None and axis.side == "in":
                factor = spec.spaces[axis.space].kind.outgoing(factor)
            factor = None if axis.side == "fixed" else factor
            tensor = move(tensor, axis, element.permutation.get(axis.space), factor)
    for one in spec.attentions:
        order = element.permutation.get(one.head_space)
        if order is not None and name in (one.in_weight, one.in_bias, one.out_weight):
            tensor = _exchange_heads(tensor, one, order, name == one.out_weight)
    return tensor


def _blocks(tensor: Tensor, one: Attention, is_out: bool) -> Tensor:
    """The entries of each head [heads, ...]."""
    if is_out:
        return tensor.unflatten(1, (one.heads, one.head_dim)).movedim(1, 0)
    return tensor.unflatten(0, (3, one.heads, one.head_dim)).movedim(1, 0)


def _exchange_heads(tensor: Tensor, one: Attention, order: Tensor, is_out: bool) -> Tensor:
    blocks = _blocks(tensor, one, is_out)[order]
    return blocks.movedim(0, 1).reshape(tensor.shape)


def _heads(spec: Spec, one: Attention, a: Tensors, b: Tensors, element: Element) -> Tensor:
    """The exchange of heads with the largest inner product; their maps are left as they are."""
    others = replace(
        element, permutation={k: v for k, v in element.permutation.items() if k != one.head_space}
    )
    total = torch.zeros(one.heads, one.heads)
    for name in (one.in_weight, one.in_bias, one.out_weight):
        if name is not None:
            mine = _blocks(a[name], one, name == one.out_weight).flatten(1)
            moved = _moved(spec, name, b[name], others, None)
            total = total + mine @ _blocks(moved, one, name == one.out_weight).flatten(1).t()
    return assign(total)


def _distance(a: Tensors, b: Tensors) -> float:
    squares = (
        float((a[name].double() - b[name].double()).square().sum())
        for name in a
        if a[name].is_floating_point()
    )
    return float(sum(squares)) ** 0.5

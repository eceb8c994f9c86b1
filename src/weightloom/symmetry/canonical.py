"""Canonical forms: one representative for all equivalent networks.

`normalize` fixes scales and signs, so that equivalent networks differ by permutations (and
rounding) only. `canonicalize` fixes the permutation: biases in descending order.

The rule for scales and signs must not depend on the order of incoming units, which is not fixed
yet. So every unit gets a *key*, a number that moves with it: fixed random numbers for the network's
input, and for a unit i the projection t_i of its normalised incoming weights on the keys before it,

    t_i = sum_j w_ij key_j r_position + r_0 b_i,

where r are fixed random numbers for the positions of a kernel (or of a flattened channel) and for
the bias. Scales give the incoming vector (w_i, b_i) the 2-norm 1; signs make t_i positive. When
several layers write a space (a residual stream), the first of them decides.

No rule for signs is stable everywhere: a continuous odd function vanishes somewhere, and near that
point rounding decides. The *margin* |t_i| / (|(w_i, b_i)| |keys|) is the distance from it; below a
few roundings of the dtype the sign is arbitrary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from weightloom.networks.finiteness import require_finite
from weightloom.symmetry.fingerprints import ranks_of
from weightloom.symmetry.group import (
    apply,
    apply_to_tensors,
    compose,
    flipped_columns,
    split_heads,
    tensors_of,
)
from weightloom.symmetry.reading.reader import read
from weightloom.symmetry.spec import Axis, Element, Kind, Layer, Space, Spec

__all__ = ["Canonical", "Normal", "canonicalize", "normal_element", "normalize"]

_LEADING = 8  # incoming weights that all units are sorted by at once; the rest only breaks ties


@dataclass(frozen=True)
class Normal:
    """The element that normalises a network, and how stable its signs are."""

    element: Element
    margins: dict[str, Tensor]
    """for each space with signs, the margin of each unit; infinite where all weights are zero"""

    @property
    def smallest_margin(self) -> float:
        """The smallest margin of all signs that were chosen; infinite if there are none."""
        smallest = [float(margins.min()) for margins in self.margins.values() if len(margins)]
        return min(smallest, default=float("inf"))


def normalize(
    module: nn.Module, exact: bool = False, *, spec: Spec | None = None
) -> tuple[nn.Module, Element]:
    """A copy with scales and signs fixed, and the element that was applied; the order stays.

    Spaces of the kinds SCALE, ABSOLUTE and FREE get incoming vectors (weights and bias of the first
    layer that writes them) of 2-norm 1; those of the kinds SIGN, FLIP, EVEN, ABSOLUTE and FREE get
    a sign by the rule in this module's docstring. Units without incoming weights get the factor 1.

    With ``exact``, scales are powers of two: nothing is rounded in ReLU networks and outputs stay
    bitwise the same, but norms are only in [1/2, 1), so equivalent networks keep different weights.
    Fold BatchNorm first (`fold`). The maps of attention are left alone. ``spec`` saves reading the
    module again.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> new, _ = normalize(net)
    >>> row = torch.cat((new[0].weight, new[0].bias[:, None]), 1)
    >>> torch.allclose(row.norm(dim=1), torch.ones(3))
    True
    """
    require_finite(module)
    spec = read(module) if spec is None else spec
    element = normal_element(spec, tensors_of(module), exact).element
    return apply(element, module, spec), element


def normal_element(spec: Spec, tensors: dict[str, Tensor], exact: bool = False) -> Normal:
    """The element of `normalize` with its margins, from tensors by name (not changed)."""
    work = _Normalizer(spec, dict(tensors), exact)
    for space in spec.spaces.values():
        work.normalize(space)
    return Normal(Element(factor=work.factors), work.margins)


class _Normalizer:
    """Takes the spaces in order of execution; biases move when units before them are flipped."""

    def __init__(self, spec: Spec, tensors: dict[str, Tensor], exact: bool) -> None:
        self.spec, self.tensors, self.exact = spec, tensors, exact
        self.factors: dict[str, Tensor] = {}
        self.keys: dict[str, Tensor] = {}
        self.margins: dict[str, Tensor] = {}

    def normalize(self, space: Space) -> None:
        norm, projection, size = self._measure(space)
        factor = torch.ones(space.size, dtype=torch.float64)
        usable = (norm > 0) & torch.isfinite(norm)
        if space.kind.scales:
            scale = torch.exp2(-torch.frexp(norm).exponent.double()) if self.exact else 1 / norm
            factor = torch.where(usable, scale, factor)
        if space.kind.signs:
            factor = torch.where(projection < 0, -factor, factor)
            margin = projection.abs() / (norm * size)
            self.margins[space.name] = torch.where(usable, margin, torch.inf)
        self.factors[space.name] = factor
        key = projection * factor
        spread = key.square().mean().sqrt()
        # The overall size is irrelevant; without any weights, all units get the same key.
        self.keys[space.name] = key / spread if float(spread) > 0 else torch.ones_like(key)
        if space.kind is Kind.FLIP:
            self._shift(space, factor)

    def _measure(self, space: Space) -> tuple[Tensor, Tensor, float]:
        """2-norm and projection of incoming vectors [units]; 2-norm of the keys projected on."""
        norm = torch.zeros(space.size, dtype=torch.float64)
        projection, size = norm.clone(), 0.0
        producers = self.spec.producers(space.name)
        layer = next((layer for layer in producers if _has_rows(layer)), None)
        if layer is not None:
            norm, projection, size = self._project(layer, space)
        # Units whose row in the first layer is zero: the biases of the other layers decide. (Their
        # weights read spaces that are not normalised yet.)
        for number, axis in enumerate(self.spec.axes_of(space.name, "out")):
            tensor = self.tensors[axis.tensor]
            if tensor.ndim == 1 and bool((norm == 0).any()):
                values = torch.where(norm == 0, tensor.double().cpu(), 0.0)
                coefficient = _random(1, 7 + number)
                norm, projection = norm + values.abs(), projection + coefficient * values
        return norm, projection, max(size, 1e-300)

    def _project(self, layer: Layer, space: Space) -> tuple[Tensor, Tensor, float]:
        weight, bias = self._effective(layer)
        direction, scale = self._columns(layer, weight)
        bias_key = _random(1, 5)
        if scale is not None:
            weight = weight * scale.to(weight).reshape(1, -1)
        norm = torch.linalg.vector_norm(weight, dim=1).double().cpu()
        projection = (weight @ direction.to(weight)).double().cpu()
        size = float(torch.cat((direction, bias_key)).norm())
        if bias is not None:
            bias = bias.double().cpu()
            norm, projection = torch.hypot(norm, bias), projection + bias_key * bias
        return norm, projection, size

    def _effective(self, layer: Layer) -> tuple[Tensor, Tensor | None]:
        """Weight [units, inputs] and bias of a layer, in a form that other spaces do not change.

        For attention W_O W_V, summed over heads, which no permutation or map of heads changes.
        """
        weight = self.tensors[str(layer.weight)]
        bias = None if layer.bias is None else self.tensors[layer.bias]
        if layer.kind == "embedding":
            return weight.T, None
        if layer.kind == "attention":
            parts = split_heads(self.tensors, self.spec.attention(layer.name))
            total = (parts["out"] @ parts["value"]).sum(0)
            return total[:, :-1], parts["bias"] + total[:, -1]
        return weight.flatten(1), bias

    def _columns(self, layer: Layer, weight: Tensor) -> tuple[Tensor, Tensor | None]:
        """What the columns of a layer are projected on, and their scale before that."""
        count = weight.shape[1]
        if layer.input is None:
            return _random(count, 1), None
        if layer.input not in self.keys:  # a loop: the layer reads what it writes
            return torch.zeros(count, dtype=torch.float64), torch.zeros(count)
        key, space = self.keys[layer.input], self.spec.spaces[layer.input]
        places = count // len(key)
        direction = torch.outer(key, _random(places, 3)).flatten()
        scale = 1 / space.kind.outgoing(self.factors[layer.input])
        same = bool((scale == 1).all())  # saves a copy of the weights
        return direction, None if same else scale.repeat_interleave(places)

    def _shift(self, space: Space, factor: Tensor) -> None:
        """Shifts the biases after flipped units as `apply` does, but from the old columns."""
        for axis in self.spec.axes_of(space.name, "in"):
            layer = next(layer for layer in self.spec.layers if layer.weight == axis.tensor)
            if layer.bias is not None:
                added = space.constant * flipped_columns(self.tensors[axis.tensor], axis, factor)
                bias = self.tensors[layer.bias]
                self.tensors[layer.bias] = bias.double() + added.to(bias.device)


def _has_rows(layer: Layer) -> bool:
    return layer.kind in ("linear", "conv", "embedding", "attention")


def _random(count: int, seed: int) -> Tensor:
    """Fixed normal numbers: the same for every network."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, generator=generator, dtype=torch.float64)


@dataclass(frozen=True)
class Canonical:
    """A network in canonical order.

    ``element``: what was applied. ``smallest_gap``: the smallest difference of two neighbouring
    keys (biases) in any layer. If it is as small as rounding errors, an equivalent network may be
    put in another order: use `equivalent`, not canonical forms, to compare networks that were
    rounded differently. ``ties``: how many pairs of neighbours have exactly equal keys and were
    ordered by their weights.
    """

    module: nn.Module
    element: Element
    smallest_gap: float
    ties: int


def canonicalize(module: nn.Module, scales: bool = False) -> Canonical:
    """The copy of a network whose hidden units have descending biases, layer by layer.

    As in functional-equivalence, which leaves ties open. Here units with equal biases (or layers
    without biases) are ordered by their incoming weights, inputs in canonical order, the larger
    first weight first. Clones are then ordered by the colours of `fingerprint`, which depend on the
    outgoing weights; swapping units that are still tied changes nothing. So two networks that
    differ by a permutation have bitwise the same form. A space that several layers write has the
    key of the first of them. Heads of attention are in the order of `fingerprint`. With ``scales``,
    scales and signs are fixed first (`normalize`).

    >>> net = nn.Sequential(nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> bias = canonicalize(net).module[0].bias
    >>> bool((bias[:-1] >= bias[1:]).all())
    True
    """
    require_finite(module)
    spec, first = read(module), Element()
    if scales:
        module, first = normalize(module, spec=spec)
    tensors = tensors_of(module)
    colours = ranks_of(module, spec)
    element, gap, ties = Element(), float("inf"), 0
    for space in spec.spaces.values():
        moved = apply_to_tensors(element, spec, tensors)
        order, keys = _order(spec, space, moved, colours[space.name])
        permutation = {**element.permutation, space.name: order}
        element = replace(element, permutation=permutation)
        if keys is not None and len(keys) > 1:
            steps = keys[order][:-1] - keys[order][1:]
            gap = min(gap, float(steps.min()))
            ties += int((steps == 0).sum())
    heads = {layer.head_space: _sorted_by(colours[layer.head_space]) for layer in spec.attentions}
    element = replace(element, permutation={**element.permutation, **heads})
    result = apply(element, module, spec)
    return Canonical(result, compose(element, first), gap, ties)


def _sorted_by(ranks: np.ndarray) -> Tensor:
    return torch.from_numpy(np.argsort(ranks, kind="stable"))


def _order(
    spec: Spec, space: Space, tensors: dict[str, Tensor], colour: np.ndarray
) -> tuple[Tensor, Tensor | None]:
    """The canonical order of one space and its main key (None without biases)."""
    axes = spec.axes_of(space.name, "out")
    biases = [tensors[axis.tensor] for axis in axes if tensors[axis.tensor].dim() == 1]
    projections = {layer.output.weight for layer in spec.attentions}
    rows = [
        _rows(tensors[axis.tensor], axis, space.size)
        for axis in axes
        if tensors[axis.tensor].dim() > 1
        and axis.tensor not in projections
        and _is_ordered(spec, axis)
    ]
    columns: list[np.ndarray] = [colour]
    full = torch.cat(rows, dim=1).double().numpy() if rows else None
    if full is not None:
        columns += [-full[:, place] for place in reversed(range(min(_LEADING, full.shape[1])))]
    key = biases[0].double() if biases else None
    if key is not None:
        columns.append(-key.numpy())
    order = np.lexsort(columns)
    if full is not None and full.shape[1] > _LEADING:
        order = _break_ties(order, columns[1:], full, colour)
    return torch.from_numpy(np.ascontiguousarray(order)), key


def _break_ties(
    order: np.ndarray, columns: list[np.ndarray], full: np.ndarray, colour: np.ndarray
) -> np.ndarray:
    """The order with runs of units that agree in all leading keys sorted by all their weights."""
    keys = np.stack(columns)[:, order]
    new = np.concatenate([[True], (keys[:, 1:] != keys[:, :-1]).any(0)])
    starts = np.append(np.where(new)[0], len(order))
    for start, stop in pairwise(starts):
        if stop - start > 1:
            run = order[start:stop]
            order[start:stop] = sorted(run, key=lambda unit: ((-full[unit]).tolist(), colour[unit]))
    return order


def _rows(tensor: Tensor, axis: Axis, size: int) -> Tensor:
    return tensor.movedim(axis.dim, 0).reshape(size, -1)


def _is_ordered(spec: Spec, axis: Axis) -> bool:
    """Whether the units along the tensor's other axes are in canonical order already."""
    names = list(spec.spaces)
    others = (other for other in spec.axes_of_tensor(axis.tensor) if other.dim != axis.dim)
    return all(names.index(other.space) < names.index(axis.space) for other in others)

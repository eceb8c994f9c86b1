"""Scales and signs fixed by a rule, so that copies differ by exchanges (and rounding) only.

The rule must not depend on the order of the units that come in, which is not fixed yet. Therefore
every unit gets a *key*, a number that follows it around: for the network's input fixed random
numbers, for a unit i the projection t_i of its normalised incoming weights on the keys before it,

    t_i = sum_j w_ij key_j r_position + r_0 b_i,

where r are fixed random numbers for the positions of a kernel (or of a flattened channel) and for
the bias. Scales make the incoming vector (w_i, b_i) one of 2-norm 1; signs make t_i positive. When
several layers write a space (a residual stream), the first of them decides.

No rule for signs is safe everywhere: a continuous odd function must vanish somewhere, and near
there rounding decides. The *margin* |t_i| / (|(w_i, b_i)| |keys|) says how far away that is; below
a few roundings of the dtype a sign means nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weightloom.symmetry.attention import split
from weightloom.symmetry.group import apply, tensors_of
from weightloom.symmetry.read import read
from weightloom.symmetry.spec import Axis, Element, Kind, Layer, Space, Spec

__all__ = ["Normal", "normal_element", "normalize"]


@dataclass(frozen=True)
class Normal:
    """The element that normalises a network, and how clear its signs are."""

    element: Element
    margins: dict[str, Tensor]
    """for each space with signs, the margin of each unit; infinite where all weights are zero"""

    @property
    def smallest_margin(self) -> float:
        """Of all signs that were chosen; infinite if there are none."""
        found = [float(one.min()) for one in self.margins.values() if len(one)]
        return min(found, default=float("inf"))


def normalize(module: nn.Module, exact: bool = False) -> tuple[nn.Module, Element]:
    """A copy with scales and signs fixed, and the element that led there; the order stays.

    Spaces of the kinds SCALE, ABSOLUTE and FREE get incoming vectors (weights and bias of the first
    layer that writes them) of 2-norm 1; those of the kinds SIGN, FLIP, EVEN, ABSOLUTE and FREE get
    a sign by the rule above. Units without incoming weights keep their factor 1. With ``exact``,
    scales are powers of two: nothing is rounded in ReLU networks, outputs stay bitwise the same,
    and the norms lie in [1/2, 1), so that copies with other scales keep different weights.
    BatchNorm should be folded before (`fold`). The maps of attention are left alone.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> new, _ = normalize(net)
    >>> row = torch.cat((new[0].weight, new[0].bias[:, None]), 1)
    >>> torch.allclose(row.norm(dim=1), torch.ones(3))
    True
    """
    spec = read(module)
    element = normal_element(spec, tensors_of(module), exact).element
    return apply(element, module, spec), element


def normal_element(spec: Spec, tensors: dict[str, Tensor], exact: bool = False) -> Normal:
    """The element of `normalize` from the tensors by name, with its margins; writes nothing."""
    work = _Work(spec, dict(tensors), exact)
    for space in spec.spaces.values():
        work.normalise(space)
    return Normal(Element(factor=work.factors), work.margins)


class _Work:
    """Spaces in order of execution; biases move when units before them are flipped."""

    def __init__(self, spec: Spec, tensors: dict[str, Tensor], exact: bool) -> None:
        self.spec, self.tensors, self.exact = spec, tensors, exact
        self.factors: dict[str, Tensor] = {}
        self.keys: dict[str, Tensor] = {}
        self.margins: dict[str, Tensor] = {}

    def normalise(self, space: Space) -> None:
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
        # The overall size means nothing; with no weights at all, all units are alike.
        self.keys[space.name] = key / spread if float(spread) > 0 else torch.ones_like(key)
        if space.kind is Kind.FLIP:
            self._shift(space, factor)

    def _measure(self, space: Space) -> tuple[Tensor, Tensor, float]:
        """2-norm and projection of incoming vectors [units]; 2-norm of the projection's keys."""
        norm = torch.zeros(space.size, dtype=torch.float64)
        projection, size = norm.clone(), 0.0
        layer = next((one for one in self.spec.producers(space.name) if _writes(one)), None)
        if layer is not None:
            norm, projection, size = self._project(layer, space)
        # Units that the first layer leaves at zero: the biases of the others decide. (Their weights
        # come from spaces that are not normalised yet.)
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
        ahead = _random(1, 5)
        if scale is not None:
            weight = weight * scale.to(weight).reshape(1, -1)
        norm = torch.linalg.vector_norm(weight, dim=1).double().cpu()
        projection = (weight @ direction.to(weight)).double().cpu()
        size = float(torch.cat((direction, ahead)).norm())
        if bias is not None:
            there = bias.double().cpu()
            norm, projection = torch.hypot(norm, there), projection + ahead * there
        return norm, projection, size

    def _effective(self, layer: Layer) -> tuple[Tensor, Tensor | None]:
        """Weight [units, numbers that come in] and bias of a layer, without what is not invariant:
        for attention W_O W_V, summed over heads, which no exchange or map of heads changes."""
        weight = self.tensors[str(layer.weight)]
        bias = None if layer.bias is None else self.tensors[layer.bias]
        if layer.kind == "embedding":
            return weight.T, None
        if layer.kind == "attention":
            parts = split(self.tensors, self.spec.attention(layer.name))
            total = (parts["out"] @ parts["value"]).sum(0)
            return total[:, :-1], parts["bias"] + total[:, -1]
        return weight.flatten(1), bias

    def _columns(self, layer: Layer, weight: Tensor) -> tuple[Tensor, Tensor | None]:
        """What the columns of a layer are projected on, and what they are multiplied by before."""
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
        """Biases after flipped units, as in `apply` but with the rows and columns still the old."""
        for axis in self.spec.axes_of(space.name, "in"):
            layer = next(one for one in self.spec.layers if one.weight == axis.tensor)
            if layer.bias is not None:
                added = space.constant * _flipped_columns(self.tensors[axis.tensor], axis, factor)
                bias = self.tensors[layer.bias]
                self.tensors[layer.bias] = bias.double() + added.to(bias.device)


def _flipped_columns(weight: Tensor, axis: Axis, factor: Tensor) -> Tensor:
    flipped = (factor < 0).repeat_interleave(axis.repeat).to(weight.device)
    return weight[:, flipped].flatten(1).sum(1, dtype=torch.float64)


def _writes(layer: Layer) -> bool:
    return layer.kind in ("linear", "conv", "embedding", "attention")


def _random(count: int, seed: int) -> Tensor:
    """Fixed normal numbers: the same for every network."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, generator=generator, dtype=torch.float64)

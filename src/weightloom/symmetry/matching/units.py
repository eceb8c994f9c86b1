"""Which units of two networks correspond, decided in a few passes over the weights.

Both networks have the same `Spec`. Space by space, in order of execution, every unit gets a *key*:
a few fixed random projections of its incoming weights and bias. The weights are not moved for this,
only the random vectors are: the probe of b is the probe of a, permuted and divided as the inputs
are. So a key costs one pass over the weights. Units with nearby keys (up to the factors that the
kind of the space allows) get the same *colour*. In a network without clones every colour then has
one unit of each network, and the matching is done. Keys only propose: `matching.verification`
compares all entries.

Units that share a colour (clones, ties) form a class: all units of a class get the same random
number in the probes of the next layer, so later keys do not depend on their order. Then the
outgoing weights split classes until nothing changes (colour refinement). What is left is searched,
see `matching.search`.
"""

from __future__ import annotations

import zlib
from dataclasses import replace

import torch
from torch import Tensor

from weightloom.symmetry.matching.keys import (
    Colours,
    NoMatchError,
    classify,
    project,
    split,
    working,
)
from weightloom.symmetry.spec import Attention, Axis, Element, Gain, Kind, Space, Spec

__all__ = ["NetworkPair"]

_PROBES = 4  # two are enough for width 4096 in float32; four make accidental neighbours rare


class NetworkPair:
    """Two networks with the same spec, and what is known so far about their units.

    ``tensors``: the state dicts of a and b. ``colour[space]``: the colours [units] of both; a
    colour is the index of the first unit of a that has it. ``gauge[space]``: for both networks the
    factors [units] that bring the units to a common normal form. ``inner``: the tensors of
    attention layers. ``sums``: see `matching.search.match`.
    """

    def __init__(
        self,
        spec: Spec,
        a: dict[str, Tensor],
        b: dict[str, Tensor],
        tolerance: float,
        sums: bool = False,
    ) -> None:
        self.spec, self.sums = spec, sums
        self.tensors = (a, b)
        self.tolerance = tolerance
        self.colour: dict[str, Colours] = {}
        self.gauge: dict[str, Colours] = {}
        self._axes: dict[str, list[Axis]] = {}
        for axis in spec.axes:
            self._axes.setdefault(axis.tensor, []).append(axis)
        self._gains = spec.gains_by_axis()
        self.gain_gauge = {gain.name: (_gauge(gain, a), _gauge(gain, b)) for gain in spec.gains}
        self.inner = {name for attention in spec.attentions for name in attention.tensors}
        self._shifts = {
            layer.bias: layer
            for layer in spec.layers
            if layer.bias is not None and layer.kind != "attention" and self._flips(layer.input)
        }

    def _flips(self, space: str | None) -> bool:
        return space is not None and self.spec.spaces[space].kind is Kind.FLIP

    # ---- colours

    def forward(self) -> None:
        """First colours of all spaces, in order of execution."""
        for space in self.spec.spaces.values():
            keys = self.incoming(space)
            if keys is None:  # the inputs of all its producers have no colours yet: one class
                zeros = torch.zeros(space.size, dtype=torch.long)
                self.colour[space.name] = (zeros, zeros)
                ones = torch.ones(space.size, dtype=torch.float64)
                self.gauge[space.name] = (ones, ones)
                continue
            self.colour[space.name], self.gauge[space.name] = self._classify(space, keys)

    def _classify(self, space: Space, keys: Colours) -> tuple[Colours, Colours]:
        tolerance = self._key_tolerance(space)
        try:
            return classify(keys, space.kind, tolerance)
        except NoMatchError:
            pass  # a key may be short by chance: try again with more tolerance
        try:
            return classify(keys, space.kind, 16 * tolerance)
        except NoMatchError as error:
            raise NoMatchError(f"layer {space.name!r}: {error}") from None

    def incoming(self, space: Space) -> tuple[Tensor, Tensor] | None:
        """Sum of the keys of all tensors that write the space and whose inputs are coloured."""
        axes = [axis for axis in self.spec.axes_of(space.name, "out") if self.usable(axis)]
        parts = [[self.key(axis, side) for axis in axes] for side in (0, 1)]
        written = {axis.tensor for axis in self.spec.axes_of(space.name, "out")}
        for attention in self.spec.attentions:
            value = attention.value
            ready = self._rest_is_coloured(value.weight, value.dim)
            if attention.output.weight in written and ready:
                for side in (0, 1):
                    parts[side].append(self._through_heads(attention, side))
        if not parts[0]:
            return None
        return torch.stack(parts[0]).sum(0), torch.stack(parts[1]).sum(0)

    def refine(self) -> None:
        """Splits classes by all weights that enter or leave their units, until nothing changes."""
        changed = True
        while changed and self.ties():
            changed = False
            for name in self.ties():
                for axis in filter(self.usable, self.spec.axes_of(name)):
                    colours = self._split(axis)
                    if not torch.equal(colours[0], self.colour[name][0]):
                        self.colour[name] = colours
                        changed = True

    def _split(self, axis: Axis) -> Colours:
        """The colours of one space, split by the keys along one axis."""
        name = axis.space
        keys = self._normalised_key(axis, 0), self._normalised_key(axis, 1)
        try:
            return split(keys, self.colour[name], self._key_tolerance(self.spec.spaces[name]))
        except NoMatchError as error:
            raise NoMatchError(f"layer {name!r}: {error}") from None

    def ties(self) -> list[str]:
        """The spaces with a colour that several units of a network share."""
        return [name for name, (a, _) in self.colour.items() if len(torch.unique(a)) < len(a)]

    def element(self) -> Element:
        """The group element that maps b to a; needs colours without ties."""
        permutation, factor = {}, {}
        for name, (a, b) in self.colour.items():
            where = torch.empty_like(b)
            where[b] = torch.arange(len(b))
            permutation[name] = where[a]
            gauge_a, gauge_b = self.gauge[name]
            if self.spec.spaces[name].kind is not Kind.PERMUTE:
                factor[name] = gauge_b[permutation[name]] / gauge_a
        for gain in self.spec.gains:
            gauge_a, gauge_b = self.gain_gauge[gain.name]
            order = permutation.get(gain.space)
            factor[gain.name] = (gauge_b if order is None else gauge_b[order]) / gauge_a
        return Element(permutation, factor, {})

    # ---- keys

    def usable(self, axis: Axis) -> bool:
        """Whether all other axes of the tensor are coloured, so that its slices are comparable."""
        if axis.tensor in self.inner:
            return False
        shift = self._shifts.get(axis.tensor)
        if shift is not None and shift.input not in self.colour:
            return False  # a bias that may have been shifted by flipped units
        return self._rest_is_coloured(axis.tensor, axis.dim)

    def _rest_is_coloured(self, tensor: str, dim: int) -> bool:
        others = (axis for axis in self._axes.get(tensor, []) if axis.dim != dim)
        return all(axis.space in self.colour for axis in others)

    def key(self, axis: Axis, side: int) -> Tensor:
        """Random projections [units, probes] of the slices of one tensor, one for each unit."""
        tensor = self.tensor(axis.tensor, side)
        rows = tensor.movedim(axis.dim, 0).reshape(self.spec.spaces[axis.space].size, -1)
        keys = project(rows, self._probe(axis, side, tensor))
        return self._without_gain(keys, 0, replace(axis, repeat=1), axis, side)

    def slices(self, axis: Axis, side: int, units: Tensor) -> Tensor:
        """Normalised weights [units, entries] of a few units, inputs in the order of a.

        Units of an input class with ties keep the order that they have in each network.
        """
        tensor = self.tensor(axis.tensor, side).movedim(axis.dim, 0).double()
        tensor = tensor.unflatten(0, (-1, axis.repeat)).index_select(0, units)
        for other in self._axes[axis.tensor]:
            if other.dim == axis.dim:
                continue
            dim = 1 + other.dim + (other.dim < axis.dim)
            colour, gauge = self.colour[other.space][side], self.gauge[other.space][side]
            tensor = self._times(tensor, dim, other, gauge)
            tensor = self._without_gain(tensor, dim, other, other, side)
            order = torch.argsort(colour, stable=True)
            tensor = tensor.index_select(dim, other.positions(order))
        own = self.gauge[axis.space][side].index_select(0, units)
        tensor = self._times(tensor, 0, replace(axis, repeat=1), own)
        return self._without_gain(tensor, 0, replace(axis, repeat=1), axis, side, units).flatten(1)

    def _without_gain(
        self,
        tensor: Tensor,
        dim: int,
        along: Axis,
        axis: Axis,
        side: int,
        units: Tensor | None = None,
    ) -> Tensor:
        """A tensor with the gain that one axis may have besides its factor removed, see `Gain`.

        ``along`` has the positions of each unit in ``dim`` of this tensor, ``units`` its units.
        """
        view = [1] * tensor.dim()
        view[dim] = -1
        for gain, place in self._gains.get((axis.tensor, axis.dim), ()):
            gauge = self.gain_gauge[gain.name][side]
            gauge = gauge if units is None else gauge[units]
            factor = gauge if place.side == "out" else 1 / gain.kind.outgoing(gauge)
            tensor = tensor * factor.repeat_interleave(along.repeat).reshape(view)
        return tensor

    def _times(self, tensor: Tensor, dim: int, axis: Axis, gauge: Tensor) -> Tensor:
        """A tensor with the factors of one axis removed."""
        kind = self.spec.spaces[axis.space].kind
        if kind is Kind.PERMUTE or axis.side == "fixed":
            return tensor
        factor = gauge if axis.side == "out" else 1 / kind.outgoing(gauge)
        view = [1] * tensor.dim()
        view[dim] = -1
        return tensor * factor.repeat_interleave(axis.repeat).reshape(view)

    def tensor(self, name: str, side: int) -> Tensor:
        """A tensor of one network; biases after flipped units are corrected (see `Kind.FLIP`)."""
        tensor = self.tensors[side][name]
        layer = self._shifts.get(name)
        if layer is None or layer.weight is None or layer.input not in self.gauge:
            return tensor
        axis = next(a for a in self._axes[layer.weight] if a.space == layer.input and a.dim == 1)
        flipped = (self.gauge[axis.space][side] < 0).to(tensor.dtype)
        if not flipped.any():
            return tensor
        weight = self.tensors[side][layer.weight]
        shape = [1] * weight.dim()
        shape[1] = -1
        ones = flipped.repeat_interleave(axis.repeat).reshape(shape).expand(1, *weight.shape[1:])
        shift = project(weight.reshape(len(weight), -1), ones.reshape(-1, 1)).squeeze(1)
        return tensor + (self.spec.spaces[axis.space].constant * shift).to(tensor.dtype)

    def _probe(self, axis: Axis, side: int, tensor: Tensor) -> Tensor:
        """The random vectors [entries of a slice, probes], moved as this network's inputs are."""
        shape = list(tensor.movedim(axis.dim, 0).shape)
        generator = torch.Generator().manual_seed(zlib.crc32(f"{axis.tensor} {axis.dim}".encode()))
        base = torch.randn(
            axis.repeat, *shape[1:], _PROBES, generator=generator, dtype=torch.float64
        )
        for other in self._axes.get(axis.tensor, []):
            if other.dim == axis.dim:
                continue
            dim = other.dim + (other.dim < axis.dim)  # without the own axis, repeat first
            colour, gauge = self.colour[other.space][side], self.gauge[other.space][side]
            base = base.index_select(dim, other.positions(colour))
            base = self._times(base, dim, other, gauge)
            base = self._without_gain(base, dim, other, other, side)
        return base.reshape(-1, _PROBES).to(working(tensor.dtype))

    def _normalised_key(self, axis: Axis, side: int) -> Tensor:
        """The key with the unit's own factor removed."""
        gauge = self.gauge[axis.space][side]
        return self._times(self.key(axis, side), 0, replace(axis, repeat=1), gauge)

    def _through_heads(self, attention: Attention, side: int) -> Tensor:
        """Key of W_O W_V and b_O + W_O b_V, which no permutation or map of heads changes."""
        tensors, value, output = self.tensors[side], attention.value, attention.output
        axis = Axis(value.weight, value.dim, "", "out")
        probe = self._probe(axis, side, tensors[value.weight])
        count = attention.kv_heads * attention.head_dim
        values = project(value.rows(tensors[value.weight], count), probe)
        if value.bias is not None:
            values = values + value.rows(tensors[value.bias], count)[:, None]
        heads = values.unflatten(0, (attention.kv_heads, attention.head_dim))
        values = heads.repeat_interleave(attention.group, 0).flatten(0, 1)
        out = output.rows(tensors[output.weight], len(values)).t()
        keys = project(out, values.to(probe.dtype))
        if output.bias is None:
            return keys
        return keys + tensors[output.bias].double()[:, None]

    def _key_tolerance(self, space: Space) -> float:
        """How far apart keys of the same unit may be, relative to their length.

        A projection of n terms is rounded by about eps sqrt(n), and a deviation within the
        tolerance moves it by a few tolerances. The factor 8 covers keys that are short by chance.
        At most 0.05: beyond it, keys of different units would count as equal.
        """
        widest, eps = 1, 0.0
        for axis in self.spec.axes_of(space.name):
            tensor = self.tensors[0][axis.tensor]
            widest = max(widest, tensor.numel() // tensor.shape[axis.dim])
            eps = max(eps, torch.finfo(working(tensor.dtype)).eps)
        return min(0.05, 8 * (self.tolerance + eps * widest**0.5))


def _gauge(gain: Gain, tensors: dict[str, Tensor]) -> Tensor:
    """The factors [units] that make a gain 1 (or positive, or of size one, as its kind allows).

    The gain is the first vector that they multiply or divide; without one, nothing is removed. An
    entry of zero keeps the factor 1: nothing that it multiplies has an effect.
    """
    vectors = (axis for axis in gain.axes if tensors[axis.tensor].dim() == 1)
    axis = next((axis for axis in vectors if axis.repeat == 1 and axis.side != "fixed"), None)
    if axis is None:
        return torch.ones(gain.size, dtype=torch.float64)
    value = tensors[axis.tensor].double()
    usable = torch.isfinite(value) & (value != 0)
    value = torch.where(usable, value, 1.0)
    size = value.abs() if gain.kind.scales else torch.ones_like(value)
    size = size * torch.where(value < 0, -1.0, 1.0) if gain.kind.signs else size
    return size if axis.side == "in" else 1 / size

"""Which unit of one network is which unit of another, decided in a few passes over the weights.

Both networks have the same `Spec`. Space by space, in order of execution, every unit gets a *key*:
a few fixed random projections of its incoming weights and bias. The inputs are not moved for this,
only the random vectors are: the probe of b is the probe of a, exchanged and divided as the inputs
were. So a key costs one pass over the weights. Units with nearby keys (up to the factors that the
kind of the space allows) get the same *colour*; in a network without clones every colour then has
one unit of each network, and the matching is done. The keys only propose: `match_verify` compares
all entries.

Colours that several units share (clones, ties) stay classes: all units of a class get the same
random number in the probes of the next layer, so later keys do not depend on their order. Then the
outgoing weights are used to split classes, until nothing changes (colour refinement). What is left
is searched, see `match_ties`.
"""

from __future__ import annotations

import zlib
from dataclasses import replace

import torch
from torch import Tensor

from weightloom.symmetry.match_keys import Colours, NoMatchError, classify, project, split
from weightloom.symmetry.spec import Attention, Axis, Element, Kind, Space, Spec

__all__ = ["Pair"]

_PROBES = 4  # two would do for width 4096 in float32; four make accidental neighbours rare


class Pair:
    """Two networks with the same spec, and what is known so far about their units.

    ``tensors``: the state dicts of a and b. ``colour[space]``: the colours [units] of both; a
    colour is the index of the first unit of a that has it. ``gauge[space]``: for each network
    the factors [units] that bring the units to a common normal form.
    """

    def __init__(
        self, spec: Spec, a: dict[str, Tensor], b: dict[str, Tensor], tolerance: float
    ) -> None:
        self.spec = spec
        self.tensors = (a, b)
        self.tolerance = tolerance
        self.colour: dict[str, Colours] = {}
        self.gauge: dict[str, Colours] = {}
        self._axes: dict[str, list[Axis]] = {}
        for axis in spec.axes:
            self._axes.setdefault(axis.tensor, []).append(axis)
        self.inner = {
            name
            for one in spec.attentions
            for name in (one.in_weight, one.in_bias, one.out_weight, one.out_bias)
            if name is not None
        }
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
            if keys is None:  # nothing is known about its producers yet: one class
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
            pass  # a key can be unluckily short: look again, less closely
        try:
            return classify(keys, space.kind, 16 * tolerance)
        except NoMatchError as error:
            raise NoMatchError(f"layer {space.name!r}: {error}") from None

    def incoming(self, space: Space) -> tuple[Tensor, Tensor] | None:
        """Sum of the keys of all tensors that write the space and whose inputs are coloured."""
        axes = [axis for axis in self.spec.axes_of(space.name, "out") if self.usable(axis)]
        parts = [[self.key(axis, side) for axis in axes] for side in (0, 1)]
        for one in self.spec.attentions:
            written = {axis.tensor for axis in self.spec.axes_of(space.name, "out")}
            if one.out_weight in written and self._rest_is_coloured(one.in_weight, 0):
                for side in (0, 1):
                    parts[side].append(self._through_heads(one, side))
        if not parts[0]:
            return None
        return torch.stack(parts[0]).sum(0), torch.stack(parts[1]).sum(0)

    def refine(self) -> None:
        """Splits classes by all weights that enter or leave their units, until nothing changes."""
        changed = True
        while changed and self.ties():
            changed = False
            for name in self.ties():
                space = self.spec.spaces[name]
                for axis in self.spec.axes_of(name):
                    if not self.usable(axis):
                        continue
                    keys = tuple(self._normal(axis, side) for side in (0, 1))
                    try:
                        colours = split(
                            (keys[0], keys[1]), self.colour[name], self._key_tolerance(space)
                        )
                    except NoMatchError as error:
                        raise NoMatchError(f"layer {name!r}: {error}") from None
                    if not torch.equal(colours[0], self.colour[name][0]):
                        self.colour[name] = colours
                        changed = True

    def ties(self) -> list[str]:
        """The spaces with a colour that several units of a network share."""
        return [name for name, (a, _) in self.colour.items() if len(torch.unique(a)) < len(a)]

    def element(self) -> Element:
        """The group element that brings b to a; needs colours without ties."""
        permutation, factor = {}, {}
        for name, (a, b) in self.colour.items():
            where = torch.empty_like(b)
            where[b] = torch.arange(len(b))
            permutation[name] = where[a]
            gauge_a, gauge_b = self.gauge[name]
            if self.spec.spaces[name].kind is not Kind.PERMUTE:
                factor[name] = gauge_b[permutation[name]] / gauge_a
        return Element(permutation, factor, {})

    # ---- keys

    def usable(self, axis: Axis) -> bool:
        """Whether all other axes of the tensor are coloured, so that its entries mean the same."""
        if axis.tensor in self.inner:
            return False
        shift = self._shifts.get(axis.tensor)
        if shift is not None and shift.input not in self.colour:
            return False  # a bias that flipped units have moved
        return self._rest_is_coloured(axis.tensor, axis.dim)

    def _rest_is_coloured(self, tensor: str, dim: int) -> bool:
        others = (one for one in self._axes.get(tensor, []) if one.dim != dim)
        return all(one.space in self.colour for one in others)

    def key(self, axis: Axis, side: int) -> Tensor:
        """Random projections [units, probes] of the slices of one tensor, one for each unit."""
        tensor = self.tensor(axis.tensor, side)
        rows = tensor.movedim(axis.dim, 0).reshape(self.spec.spaces[axis.space].size, -1)
        return project(rows, self._probe(axis, side, tensor))

    def slices(self, axis: Axis, side: int, units: Tensor) -> Tensor:
        """Normalised weights [units, entries] of a few units, inputs in the order of a.

        Where an input class is still open, its units keep the order they have in each network.
        """
        tensor = self.tensor(axis.tensor, side).movedim(axis.dim, 0).double()
        tensor = tensor.unflatten(0, (-1, axis.repeat)).index_select(0, units)
        for other in self._axes[axis.tensor]:
            if other.dim == axis.dim:
                continue
            dim = 1 + other.dim + (other.dim < axis.dim)
            colour, gauge = self.colour[other.space][side], self.gauge[other.space][side]
            tensor = self._times(tensor, dim, other, gauge)
            order = torch.argsort(colour, stable=True)
            tensor = tensor.index_select(dim, _spread(order, other.repeat))
        own = self.gauge[axis.space][side].index_select(0, units)
        return self._times(tensor, 0, replace(axis, repeat=1), own).flatten(1)

    def _times(self, tensor: Tensor, dim: int, axis: Axis, gauge: Tensor) -> Tensor:
        """A tensor with the factors of one axis taken out."""
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
        """The random vectors [entries of a slice, probes] as this network's inputs need them."""
        shape = list(tensor.movedim(axis.dim, 0).shape)
        generator = torch.Generator().manual_seed(zlib.crc32(f"{axis.tensor} {axis.dim}".encode()))
        base = torch.randn(
            axis.repeat, *shape[1:], _PROBES, generator=generator, dtype=torch.float64
        )
        for other in self._axes.get(axis.tensor, []):
            if other.dim == axis.dim:
                continue
            dim = other.dim + (other.dim < axis.dim)  # the own axis is gone, repeat is first
            colour, gauge = self.colour[other.space][side], self.gauge[other.space][side]
            base = base.index_select(dim, _spread(colour, other.repeat))
            base = self._times(base, dim, other, gauge)
        return base.reshape(-1, _PROBES).to(_working(tensor.dtype))

    def _normal(self, axis: Axis, side: int) -> Tensor:
        """The key with the unit's own factor taken out."""
        gauge = self.gauge[axis.space][side]
        return self._times(self.key(axis, side), 0, replace(axis, repeat=1), gauge)

    def _through_heads(self, one: Attention, side: int) -> Tensor:
        """Key of W_O W_V and b_O + W_O b_V, which neither heads nor their inner maps change."""
        tensors = self.tensors[side]
        joined, out = tensors[one.in_weight], tensors[one.out_weight]
        probe = self._probe(Axis(one.in_weight, 0, "", "out"), side, joined)
        inside = project(joined[-len(joined) // 3 :], probe)
        if one.in_bias is not None:
            inside = inside + tensors[one.in_bias][-len(inside) :, None]
        keys = project(out, inside.to(probe.dtype))
        return keys if one.out_bias is None else keys + tensors[one.out_bias].double()[:, None]

    def _key_tolerance(self, space: Space) -> float:
        """How far apart keys of the same unit may be, relative to their length.

        Rounding of a projection of n terms is about eps sqrt(n), a deviation within the tolerance
        moves it by a few tolerances. The factor 8 covers keys that happen to be short. Never more
        than 0.05: beyond it, keys of different units would be taken for the same.
        """
        widest, eps = 1, 0.0
        for axis in self.spec.axes_of(space.name):
            tensor = self.tensors[0][axis.tensor]
            widest = max(widest, tensor.numel() // tensor.shape[axis.dim])
            eps = max(eps, torch.finfo(_working(tensor.dtype)).eps)
        return min(0.05, 8 * (self.tolerance + eps * widest**0.5))


def _spread(units: Tensor, repeat: int) -> Tensor:
    """Positions along an axis on which each unit has ``repeat`` consecutive places."""
    if repeat == 1:
        return units
    return (units.unsqueeze(1) * repeat + torch.arange(repeat)).reshape(-1)


def _working(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32

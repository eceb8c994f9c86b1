"""What `read` has collected so far: classes of units, values, axes, layers.

A *class* of units becomes a space at the end. It starts with every kind of symmetry and loses those
that an operation on its values does not commute with. Adding two values unites their classes
(union-find) and keeps the symmetries that both have. A class that contains units of the network's
input or output is fixed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from weightloom.errors import UnsupportedModuleError
from weightloom.networks.activations import Activation
from weightloom.symmetry.spec import Attention, Axis, Kind, Layer, Space, Spec

__all__ = ["Classes", "Reader", "Value", "unsupported"]

_ALL = frozenset({Kind.SCALE, Kind.SIGN, Kind.FLIP, Kind.EVEN})
# The basic kinds that each kind consists of.
_PARTS = {
    Kind.PERMUTE: frozenset[Kind](),
    Kind.FREE: frozenset({Kind.SCALE, Kind.SIGN}),
    Kind.ABSOLUTE: frozenset({Kind.SCALE, Kind.EVEN}),
} | {kind: frozenset({kind}) for kind in _ALL}


def unsupported(name: str, what: object, why: str) -> UnsupportedModuleError:
    """An `UnsupportedModuleError` that names the layer and its type."""
    kind = type(what).__name__ if isinstance(what, nn.Module) else str(what)
    return UnsupportedModuleError(f"layer {name!r} ({kind}) cannot be read: {why}")


@dataclass(frozen=True)
class Value:
    """A tensor inside the network: which class its units belong to, and where they are.

    ``layout`` says where the units are: "last" dimension, "channel" (dimension 1, positions after
    it), "flat" (last dimension, each unit with several positions) or "any" (the network's input).
    ``phase`` is "post" after an activation of the kinds FLIP, EVEN or ABSOLUTE, else "pre": the
    sign of a unit acts on the two in different ways. ``layers`` are the indices of layers whose
    output has not passed an activation yet.
    """

    units: int
    layout: str
    phase: str = "pre"
    layers: tuple[int, ...] = ()


@dataclass
class Classes:
    """Union-find over classes of units, with the symmetries that each of them still has."""

    parents: list[int] = field(default_factory=list)
    sizes: list[int | None] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    allowed: list[frozenset[Kind]] = field(default_factory=list)
    constants: list[float | None] = field(default_factory=list)
    fixed: list[bool] = field(default_factory=list)

    def new(self, name: str, size: int | None, fixed: bool = False) -> int:
        self.parents.append(len(self.parents))
        self.sizes.append(size)
        self.names.append(name)
        self.allowed.append(_ALL)
        self.constants.append(None)
        self.fixed.append(fixed)
        return len(self.parents) - 1

    def root(self, units: int) -> int:
        while self.parents[units] != units:
            units = self.parents[units]
        return units

    def size(self, units: int) -> int | None:
        return self.sizes[self.root(units)]

    def drop(self, units: int, *kinds: Kind) -> None:
        root = self.root(units)
        self.allowed[root] -= set(kinds)

    def fix(self, units: int) -> None:
        self.fixed[self.root(units)] = True

    def flip(self, units: int, constant: float) -> None:
        """Records a FLIP activation with constant c; a second one must have the same c."""
        root = self.root(units)
        if self.constants[root] not in (None, constant):
            self.drop(root, Kind.FLIP)
        self.constants[root] = constant

    def unite(self, a: int, b: int, name: str, what: object) -> None:
        a, b = sorted((self.root(a), self.root(b)))
        if a == b:
            return
        if None not in (self.sizes[a], self.sizes[b]) and self.sizes[a] != self.sizes[b]:
            raise unsupported(
                name, what, f"it joins {self.sizes[a]} units with {self.sizes[b]}; only values "
                "with the same units can be combined"
            )  # fmt: skip
        self.parents[b] = a
        self.sizes[a] = self.sizes[b] if self.sizes[a] is None else self.sizes[a]
        self.allowed[a] &= self.allowed[b]
        self.fixed[a] = self.fixed[a] or self.fixed[b]
        constant = self.constants[b]
        if constant is not None:
            self.flip(a, constant)

    def space(self, root: int) -> Space:
        allowed, size = self.allowed[root], self.sizes[root]
        kinds = (
            Kind.FREE, Kind.ABSOLUTE, Kind.SCALE, Kind.SIGN, Kind.FLIP, Kind.EVEN, Kind.PERMUTE
        )  # fmt: skip
        kind = next(kind for kind in kinds if _PARTS[kind] <= allowed)
        constant = self.constants[root] if kind is Kind.FLIP else None
        return Space(self.names[root], size or 0, kind, constant or 0.0)


class Reader:
    """Collects classes, axes and layers; `finish` turns them into a `Spec`."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.classes = Classes()
        self.axes: list[tuple[Axis, int]] = []
        self.layers: list[tuple[Layer, int | None, int | None]] = []
        self.attentions: list[Attention] = []
        # A tensor that several layers share has several names; the first one is used.
        self._names: dict[int, str] = {}
        for name, tensor in (
            *module.named_parameters(remove_duplicate=False),
            *module.named_buffers(remove_duplicate=False),
        ):
            self._names.setdefault(id(tensor), name)

    def tensor_name(self, layer: str, what: object, tensor: Tensor | None) -> str | None:
        """The name of a layer's tensor in the state dict; None for None."""
        if tensor is None:
            return None
        if id(tensor) not in self._names:
            raise unsupported(
                layer, what, "its weights are computed from other tensors; remove the "
                "parametrization first (torch.nn.utils.parametrize.remove_parametrizations)"
            )  # fmt: skip
        return self._names[id(tensor)]

    def axis(self, tensor: str | None, dim: int, units: int, side: str, repeat: int = 1) -> None:
        if tensor is not None:
            self.axes.append((Axis(tensor, dim, "", side, repeat), units))

    def layer(self, layer: Layer, given: int | None, written: int | None) -> int:
        self.layers.append((layer, given, written))
        return len(self.layers) - 1

    def activate(self, value: Value, activation: Activation) -> Value:
        """The value after an activation, which restricts the symmetries of its class."""
        units, kind, phase = value.units, activation.kind, value.phase
        commutes = _PARTS[kind]
        lost = {Kind.SCALE, Kind.SIGN} - commutes
        # A sign passes odd functions and ends at an even one (after which anything may follow). A
        # flip passes odd functions and happens once; after it only layers may follow.
        if Kind.SIGN not in commutes and not (Kind.EVEN in commutes or phase == "post"):
            lost.add(Kind.EVEN)
        passes = phase == "pre" and (Kind.SIGN in commutes or Kind.FLIP in commutes)
        if not passes and kind is not Kind.FREE:
            lost.add(Kind.FLIP)
        if kind is Kind.FREE and phase == "post":
            lost.add(Kind.FLIP)  # a factor would change the constant
        self.classes.drop(units, *lost)
        if kind is Kind.FLIP:
            self.classes.flip(units, activation.constant)
        for index in value.layers:
            layer, given, written = self.layers[index]
            self.layers[index] = (replace(layer, activation=activation.name), given, written)
        ended = kind in (Kind.FLIP, Kind.EVEN, Kind.ABSOLUTE)
        return replace(value, phase="post" if ended else phase, layers=())

    def finish(self) -> Spec:
        """The spec: classes that share a tensor are united, fixed ones left out."""
        merged = self._merge_axes()
        layers = self._distinct_layers()
        names: dict[int, str] = {}
        spaces: dict[str, Space] = {}
        for root in range(len(self.classes.parents)):
            if self.classes.root(root) == root and not self.classes.fixed[root]:
                space = self.classes.space(root)
                names[root] = space.name
                spaces[space.name] = space

        def named(units: int | None) -> str | None:
            return None if units is None else names.get(self.classes.root(units))

        axes = ((axis, named(units)) for axis, units in merged)
        return Spec(
            spaces=spaces,
            axes=tuple(replace(axis, space=space) for axis, space in axes if space is not None),
            attentions=tuple(dict.fromkeys(self.attentions)),
            layers=tuple(
                replace(layer, input=named(given), output=named(written))
                for layer, given, written in layers
            ),
        )

    def _merge_axes(self) -> list[tuple[Axis, int]]:
        """One axis for each dimension of each tensor, however often a layer is used."""
        merged: dict[tuple[str, int], tuple[Axis, int]] = {}
        for axis, units in self.axes:
            key = (axis.tensor, axis.dim)
            first, owner = merged.setdefault(key, (axis, units))
            self.classes.unite(owner, units, axis.tensor, "shared tensor")
            if first.repeat != axis.repeat:
                self.classes.fix(owner)
            if first.side != axis.side:
                # Multiplied and divided by the same factor: only signs allow both.
                signs = () if "fixed" in (first.side, axis.side) else (Kind.SIGN,)
                self.classes.drop(owner, *(_ALL - set(signs)))
        return list(merged.values())

    def _distinct_layers(self) -> list[tuple[Layer, int | None, int | None]]:
        """Each layer once; the bias of a layer that is used twice cannot absorb two shifts."""
        users: dict[str, list[int | None]] = {}
        for layer, given, _ in self.layers:
            for tensor in {layer.weight, layer.bias} - {None}:
                users.setdefault(str(tensor), []).append(given)
        for given in (units for many in users.values() if len(many) > 1 for units in many):
            if given is not None:
                self.classes.drop(given, Kind.FLIP)
        kept: dict[str, tuple[Layer, int | None, int | None]] = {}
        for entry in self.layers:
            kept.setdefault(entry[0].name, entry)
        return list(kept.values())

"""The symmetries of a network as data: which axes of which tensors move together, and how.

A *space* is a set of hidden units that can be permuted: the outputs of one layer, or of several
layers whose outputs are added. Every tensor axis that these units index is listed once as an
`Axis`. The algorithms (apply, match, align, reduce) read these lists and never mention an
architecture. `weightloom.symmetry.reading.reader.read` creates them.

A unit with output s(w x + b) can be replaced by one with incoming weights f (w, b) if its outgoing
weights compensate for f. Which f are possible is the `Kind` of its space.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from weightloom.errors import UnsupportedModuleError
from weightloom.networks.activations import Kind

__all__ = [
    "Attention", "Axis", "Element", "Gain", "Kind", "Layer", "Projection", "Space", "Spec",
]  # fmt: skip


@dataclass(frozen=True)
class Space:
    """Hidden units that can be permuted.

    ``name`` is the dotted name of the first layer that writes it ("0", "body.2"). ``constant`` is c
    in s(-t) = c - s(t) for the kind FLIP, else 0.
    """

    name: str
    size: int
    kind: Kind
    constant: float = 0.0


@dataclass(frozen=True)
class Axis:
    """One axis of one tensor that is indexed by the units of a space.

    ``tensor`` is the tensor's name in the state dict. ``side`` is "out": multiplied by the unit's
    factor; "in": divided by it (see `Kind.outgoing`); "fixed": permuted only (slopes of a PReLU).
    Each unit has ``repeat`` consecutive positions (the pixels of a flattened channel): the index
    along the axis is unit * repeat + position.
    """

    tensor: str
    dim: int
    space: str
    side: str
    repeat: int = 1

    def positions(self, units: Tensor) -> Tensor:
        """Indices along the axis of these units [n], in their order: [n * repeat]."""
        if self.repeat == 1:
            return units
        return (units[:, None] * self.repeat + torch.arange(self.repeat)).reshape(-1)


@dataclass(frozen=True)
class Projection:
    """Where the heads of queries, keys, values or outputs are: consecutive positions of a matrix.

    Along dimension ``dim`` of ``weight``, from ``start`` on, head by head; and from ``start`` on in
    ``bias``, if there is one. ``dim`` is 0 for the rows of an nn.Linear. Of the output projection,
    heads are columns (``dim`` 1) and no positions of ``bias``.
    """

    weight: str
    bias: str | None
    dim: int = 0
    start: int = 0

    def rows(self, tensor: Tensor, size: int) -> Tensor:
        """The part of the weight (or of the bias) that belongs to the heads: [size, ...]."""
        dim = self.dim if tensor.dim() > 1 else 0
        return tensor.movedim(dim, 0)[self.start : self.start + size]


@dataclass(frozen=True)
class Attention:
    """The tensors of one attention layer.

    ``query`` has ``heads`` heads, ``key`` and ``value`` have ``kv_heads``, each of which serves
    heads / kv_heads consecutive query heads; all heads have ``head_dim`` entries. ``output`` reads
    them. The output does not change when heads are permuted (groups as a whole, and inside of each
    group), nor under q -> A q, k -> A^-T k and v -> B v, W_O -> W_O B^-1 in each head of the keys,
    for any invertible A and B.

    With rotary embeddings A has to commute with the rotation of the pairs (i, i + d / 2)
    (``rotary="half"``) or (2 i, 2 i + 1) ("interleaved"): for each pair it is a rotation times a
    scale. ``movable``: whether heads can be permuted; they cannot if something else has a number
    for each head.
    """

    name: str
    heads: int
    head_dim: int
    query: Projection
    key: Projection
    value: Projection
    output: Projection
    kv_heads: int
    rotary: str | None = None
    movable: bool = True

    @classmethod
    def fused(
        cls,
        name: str,
        heads: int,
        head_dim: int,
        in_weight: str,
        in_bias: str | None,
        out_weight: str,
        out_bias: str | None,
    ) -> Attention:
        """The layout of nn.MultiheadAttention: queries, keys and values in one matrix."""
        starts = (0, heads * head_dim, 2 * heads * head_dim)
        query, key, value = (Projection(in_weight, in_bias, 0, start) for start in starts)
        output = Projection(out_weight, out_bias, 1)
        return cls(name, heads, head_dim, query, key, value, output, kv_heads=heads)

    @property
    def in_weight(self) -> str:
        """The one matrix of queries, keys and values, where there is one."""
        if {self.query.weight, self.key.weight, self.value.weight} != {self.query.weight}:
            raise UnsupportedModuleError(
                f"the queries, keys and values of {self.name!r} are separate matrices; use "
                "Attention.query, .key and .value"
            )
        return self.query.weight

    @property
    def in_bias(self) -> str | None:
        """The bias of `in_weight`."""
        return self.query.bias if self.in_weight else None

    @property
    def out_weight(self) -> str:
        """The matrix of the output projection."""
        return self.output.weight

    @property
    def out_bias(self) -> str | None:
        """The bias of the output projection, which heads do not index."""
        return self.output.bias

    @property
    def group(self) -> int:
        """Query heads for each head of the keys."""
        return self.heads // self.kv_heads

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the tensors that the layer has, each once."""
        parts = (self.query, self.key, self.value, self.output)
        names = [name for part in parts for name in (part.weight, part.bias) if name is not None]
        return tuple(dict.fromkeys(names))

    @property
    def head_space(self) -> str:
        """Key of the permutation of heads [heads] in `Element.permutation`."""
        return f"{self.name}.heads"

    @property
    def query_map(self) -> str:
        """Key of the matrices A [kv_heads, head_dim, head_dim] in `Element.maps`."""
        return f"{self.name}.query"

    @property
    def value_map(self) -> str:
        """Key of the matrices B [kv_heads, head_dim, head_dim] in `Element.maps`."""
        return f"{self.name}.value"


@dataclass(frozen=True)
class Gain:
    """A factor for each unit besides that of its space, such as the gain of a LayerNorm.

    The tensors of the ``axes`` of side "out" are multiplied by it and those of side "in" divided:
    gain times f, columns of the next layers over f. ``space`` is the space whose permutation moves
    the units; "" if they cannot be permuted.
    """

    owner: str
    space: str
    size: int
    kind: Kind
    axes: tuple[Axis, ...]

    @property
    def name(self) -> str:
        """Key of the factors in `Element.factor`: it names the space that permutes them."""
        return f"{self.space}::{self.owner}"


@dataclass(frozen=True)
class Layer:
    """One layer with weights, in order of execution.

    ``kind``: "linear" and "conv" (weight [out, in, ...]); "depthwise" (weight [units, 1, ...]);
    "embedding" (weight [entries, out]); "norm" (LayerNorm, or BatchNorm that was not folded);
    "prelu" (one slope for each unit) and "attention" (weight and bias of the output projection, the
    rest in `Spec.attentions` under the same name). ``input`` and ``output`` are names of spaces, or
    None where units cannot be permuted: the network's input and output, and everything that is
    added to them. ``activation`` names the first activation between this layer and the next one, if
    there is one.
    """

    name: str
    kind: str
    weight: str | None
    bias: str | None
    input: str | None
    output: str | None
    activation: str | None = None


@dataclass(frozen=True)
class Spec:
    """All symmetries of one network that `read` finds; spaces are in order of execution."""

    spaces: dict[str, Space]
    axes: tuple[Axis, ...]
    attentions: tuple[Attention, ...] = ()
    layers: tuple[Layer, ...] = ()
    gains: tuple[Gain, ...] = ()

    def axes_of(self, space: str, side: str | None = None) -> tuple[Axis, ...]:
        """The axes that a space indexes; with ``side``, only those of that side."""
        axes = (axis for axis in self.axes if axis.space == space)
        return tuple(axis for axis in axes if side is None or axis.side == side)

    def axes_of_tensor(self, tensor: str) -> tuple[Axis, ...]:
        """The axes of a tensor that some space indexes."""
        return tuple(axis for axis in self.axes if axis.tensor == tensor)

    def gains_by_axis(self) -> dict[tuple[str, int], list[tuple[Gain, Axis]]]:
        """The gains that act along a dimension of a tensor, with their axis there."""
        result: dict[tuple[str, int], list[tuple[Gain, Axis]]] = {}
        for gain in self.gains:
            for axis in gain.axes:
                result.setdefault((axis.tensor, axis.dim), []).append((gain, axis))
        return result

    def producers(self, space: str) -> tuple[Layer, ...]:
        """The layers that write a space, in order of execution."""
        return tuple(layer for layer in self.layers if layer.output == space)

    def consumers(self, space: str) -> tuple[Layer, ...]:
        """The layers that read a space, in order of execution."""
        return tuple(layer for layer in self.layers if layer.input == space)

    def attention(self, name: str) -> Attention:
        """The attention layer of this name."""
        return next(layer for layer in self.attentions if layer.name == name)


@dataclass(frozen=True)
class Element:
    """One element of the symmetry group; spaces and maps without an entry stay as they are.

    New unit i is old unit permutation[i], with its incoming weights multiplied by factor[i] (after
    the permutation). Both are keyed by space; the permutation of the heads of an attention layer
    has the key `Attention.head_space`; factors of a `Gain` have the key `Gain.name`. ``maps`` holds
    the matrices A and B of attention layers: new head h of the keys is an old one with
    k -> A[h]^-T k and v -> B[h] v, and its queries become A[h] q. Factors and maps are float64,
    permutations int64.

    >>> Element(permutation={"0": torch.tensor([1, 0])}).is_identity()
    False
    """

    permutation: dict[str, Tensor] = field(default_factory=dict)
    factor: dict[str, Tensor] = field(default_factory=dict)
    maps: dict[str, Tensor] = field(default_factory=dict)

    def is_identity(self) -> bool:
        """Whether nothing changes at all (exactly)."""
        return (
            all(bool((p == torch.arange(len(p))).all()) for p in self.permutation.values())
            and all(bool((f == 1).all()) for f in self.factor.values())
            and all(
                torch.equal(m, torch.eye(m.shape[-1]).to(m).expand_as(m))
                for m in self.maps.values()
            )
        )

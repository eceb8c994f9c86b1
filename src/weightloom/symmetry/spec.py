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

from weightloom.networks.activations import Kind

__all__ = ["Attention", "Axis", "Element", "Kind", "Layer", "Space", "Spec"]


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
class Attention:
    """The tensors of one nn.MultiheadAttention that attends to its own input.

    ``in_weight`` [3 E, E] and ``in_bias`` ([3 E] or None) hold queries, keys and values in this
    order, each with heads * head_dim rows, head by head. The output projection is ``out_weight``
    [E, E] and ``out_bias`` ([E] or None). The output does not change when heads are permuted, nor
    under q -> A q, k -> A^-T k and v -> B v, W_O -> W_O B^-1 in each head, for any invertible A
    and B.
    """

    name: str
    heads: int
    head_dim: int
    in_weight: str
    in_bias: str | None
    out_weight: str
    out_bias: str | None

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the tensors that the layer has: two weights, and the biases if there are any."""
        names = (self.in_weight, self.in_bias, self.out_weight, self.out_bias)
        return tuple(name for name in names if name is not None)

    @property
    def head_space(self) -> str:
        """Key of the permutation of heads [heads] in `Element.permutation`."""
        return f"{self.name}.heads"

    @property
    def query_map(self) -> str:
        """Key of the matrices A [heads, head_dim, head_dim] in `Element.maps`."""
        return f"{self.name}.query"

    @property
    def value_map(self) -> str:
        """Key of the matrices B [heads, head_dim, head_dim] in `Element.maps`."""
        return f"{self.name}.value"


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

    def axes_of(self, space: str, side: str | None = None) -> tuple[Axis, ...]:
        """The axes that a space indexes; with ``side``, only those of that side."""
        axes = (axis for axis in self.axes if axis.space == space)
        return tuple(axis for axis in axes if side is None or axis.side == side)

    def axes_of_tensor(self, tensor: str) -> tuple[Axis, ...]:
        """The axes of a tensor that some space indexes."""
        return tuple(axis for axis in self.axes if axis.tensor == tensor)

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
    has the key `Attention.head_space`. ``maps`` holds the matrices A and B of attention layers: new
    head h is old head permutation[h] with q -> A[h] q, k -> A[h]^-T k, v -> B[h] v. Factors and
    maps are float64, permutations int64.

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

"""The symmetries of a network as data: which axes of which tensors move together, and how.

A *space* is a set of hidden units that may be exchanged: the outputs of one layer, or of several
layers whose outputs are added. Every tensor axis that is indexed by these units is listed once as
an `Axis`. The algorithms (apply, match, align, reduce) read these lists and never mention an
architecture. `weightloom.symmetry.read` writes them.

One unit with output s(w x + b) may be replaced by one with incoming weights f (w, b), if the
weights that leave it make up for f. What f may be is the `Kind` of its space.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import torch
from torch import Tensor

__all__ = ["Attention", "Axis", "Element", "Kind", "Layer", "Space", "Spec"]


class Kind(Enum):
    """What may be done to one unit besides exchanging it with another: its factors f.

    ======== ================== ======================== =====================================
    kind     f                  outgoing weights         examples
    ======== ================== ======================== =====================================
    PERMUTE  1                  as they are              GELU, softplus; around a LayerNorm
    SCALE    positive           divided by f             ReLU, leaky ReLU; max pooling keeps it
    SIGN     +1, -1             divided by f             tanh, sin, erf: s(-t) = -s(t)
    FLIP     +1, -1             divided by f, and the    sigmoid: s(-t) = c - s(t)
                                next bias gets c times
                                the old column if f = -1
    EVEN     +1, -1             as they are              cos, x^2: s(-t) = s(t)
    ABSOLUTE not 0              divided by |f|           abs: s(f t) = |f| s(t)
    FREE     not 0              divided by f             nothing between two linear layers
    ======== ================== ======================== =====================================

    FREE is a subgroup of the truth: between two linear layers any invertible matrix may be put
    (and its inverse after it), not only one with a single entry per row. The exchanges and factors
    here are all of that group which keeps units apart.
    """

    PERMUTE = "permute"
    SCALE = "scale"
    SIGN = "sign"
    FLIP = "flip"
    EVEN = "even"
    ABSOLUTE = "absolute"
    FREE = "free"

    @property
    def scales(self) -> bool:
        """Whether |f| may differ from 1."""
        return self in (Kind.SCALE, Kind.ABSOLUTE, Kind.FREE)

    @property
    def signs(self) -> bool:
        """Whether f may be negative."""
        return self in (Kind.SIGN, Kind.FLIP, Kind.EVEN, Kind.ABSOLUTE, Kind.FREE)

    def outgoing(self, factor: Tensor) -> Tensor:
        """What the weights that leave the units are divided by."""
        return factor.abs() if self in (Kind.EVEN, Kind.ABSOLUTE) else factor


@dataclass(frozen=True)
class Space:
    """Hidden units that may be exchanged.

    ``name`` is the dotted name of the first layer that writes it ("0", "body.2"); ``constant`` is c
    of s(-t) = c - s(t) for the kind FLIP, else 0.
    """

    name: str
    size: int
    kind: Kind
    constant: float = 0.0


@dataclass(frozen=True)
class Axis:
    """One axis of one tensor that is indexed by the units of a space.

    ``tensor`` is its name in the state dict. ``side`` is "out": multiplied by the unit's factor;
    "in": divided by it (see `Kind.outgoing`); "fixed": exchanged only (slopes of a PReLU).
    ``repeat`` consecutive positions belong to each unit (the pixels of a flattened channel): the
    index along the axis is unit * repeat + position.
    """

    tensor: str
    dim: int
    space: str
    side: str
    repeat: int = 1


@dataclass(frozen=True)
class Attention:
    """The tensors of one nn.MultiheadAttention that attends to its own input.

    in_weight [3 E, E] and in_bias [3 E] or None hold queries, keys and values, in this order, each
    with heads * head_dim rows, head by head; out_weight [E, E], out_bias [E] or None. Heads may be
    exchanged; in each head q -> A q, k -> A^-T k and v -> B v, W_O -> W_O B^-1 change nothing, for
    any invertible A and B.
    """

    name: str
    heads: int
    head_dim: int
    in_weight: str
    in_bias: str | None
    out_weight: str
    out_bias: str | None

    @property
    def head_space(self) -> str:
        """Key of the exchange of heads [heads] in `Element.permutation`."""
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
    rest in `Spec.attentions` under the same name). ``input`` and ``output`` are spaces, or None
    where units cannot be exchanged: the network's input and output and all that is added to them.
    ``activation`` names the first activation after the layer and before the next one, if any.
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
    """All symmetries of one network that `read` knows; spaces are in order of execution."""

    spaces: dict[str, Space]
    axes: tuple[Axis, ...]
    attentions: tuple[Attention, ...] = ()
    layers: tuple[Layer, ...] = ()

    def axes_of(self, space: str, side: str | None = None) -> tuple[Axis, ...]:
        """The axes that one space indexes, all or those of one side."""
        found = (axis for axis in self.axes if axis.space == space)
        return tuple(axis for axis in found if side is None or axis.side == side)

    def axes_of_tensor(self, tensor: str) -> tuple[Axis, ...]:
        """The axes of one tensor that can be moved."""
        return tuple(axis for axis in self.axes if axis.tensor == tensor)

    def producers(self, space: str) -> tuple[Layer, ...]:
        """The layers that write a space, in order of execution."""
        return tuple(layer for layer in self.layers if layer.output == space)

    def consumers(self, space: str) -> tuple[Layer, ...]:
        """The layers that read a space, in order of execution."""
        return tuple(layer for layer in self.layers if layer.input == space)

    def attention(self, name: str) -> Attention:
        """The attention layer of this name."""
        return next(one for one in self.attentions if one.name == name)


@dataclass(frozen=True)
class Element:
    """One element of the symmetry group; what is missing is left as it is.

    New unit i is old unit permutation[i], with its incoming weights multiplied by factor[i] (after
    the exchange). Both are keyed by space; the exchange of the heads of an attention layer has the
    key `Attention.head_space`. ``maps`` has the matrices A and B of attention layers: new head h is
    old head permutation[h] with q -> A[h] q, k -> A[h]^-T k, v -> B[h] v. Factors and maps are
    float64, exchanges int64.

    >>> Element(permutation={"0": torch.tensor([1, 0])}).is_identity()
    False
    """

    permutation: dict[str, Tensor] = field(default_factory=dict)
    factor: dict[str, Tensor] = field(default_factory=dict)
    maps: dict[str, Tensor] = field(default_factory=dict)

    def is_identity(self) -> bool:
        """Whether nothing moves at all (exactly)."""
        return (
            all(bool((p == torch.arange(len(p))).all()) for p in self.permutation.values())
            and all(bool((f == 1).all()) for f in self.factor.values())
            and all(
                torch.equal(m, torch.eye(m.shape[-1]).to(m).expand_as(m))
                for m in self.maps.values()
            )
        )

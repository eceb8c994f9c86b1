"""The adapter head: one trunk, shared by all layers, writes a low-rank change of each matrix."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weightloom.errors import HeadError
from weightloom.hyper.heads.base import Head, InitTarget, key, like
from weightloom.hyper.rows import Factored, Generated, Written
from weightloom.networks import WeightSpec

__all__ = ["AdapterHead"]

_HALF = (torch.float16, torch.bfloat16)


class _Kind(NamedTuple):
    """Tensors that share output layers: their names differ in numbers only, their shape is one."""

    stored: str
    """its name inside ``nn.ModuleDict``"""
    shape: tuple[int, ...]
    names: list[str]
    factored: bool
    """written as two factors; otherwise in full"""


class AdapterHead(Head):
    """W = W_0 + (alpha / rank) left(phi) right(phi), all layers written by one shared network.

    A residual network of this ``width`` sees the features, a learned embedding of the tensor's
    depth and one of its kind. One output layer per kind then writes left [out, r] and right
    [r, in]. So the number of learned numbers depends on how many kinds of matrices there are, not
    on how many layers: what text-to-LoRA does (Charakorn and others, 2025).

    The kind is the parameter's name without its numbers, and its shape:
    ``model.layers.*.self_attn.q_proj.weight [4096, 4096]``. The depth is those numbers: the 3 in
    ``model.layers.3.self_attn.q_proj.weight``. With several numbers (layer 3, expert 5) each
    combination has an embedding of its own.

    W_0 stays in the primary. At the start left is zero and right is not, so the change is exactly
    zero and gradients are not; right starts as LoRA's does, the same for all conditions. Vectors,
    and matrices that two factors would not make smaller, are written in full; for adapters that
    other libraries can read leave them out: ``generate=["*.q_proj.weight", "*.v_proj.weight"]``.
    In front of a primary in half precision the head itself is float32.
    """

    relative = True
    depth_of: Tensor
    kind_of: Tensor

    def __init__(
        self,
        rank: int = 8,
        width: int = 512,
        depth_embedding: int = 64,
        kind_embedding: int = 64,
        alpha: float | None = None,
    ) -> None:
        super().__init__()
        options = {
            "rank": rank,
            "width": width,
            "depth_embedding": depth_embedding,
            "kind_embedding": kind_embedding,
        }
        for label, value in options.items():
            if value < 1:
                raise HeadError(f"{label}={value} was given; an adapter head needs at least 1")
        if alpha is not None and not alpha > 0:
            raise HeadError(
                f"alpha={alpha} was given; the change is alpha / rank times left right, so alpha "
                f"must be positive (None: alpha = rank)"
            )
        self.rank = rank
        self.width = width
        self.depth_embedding = depth_embedding
        self.kind_embedding = kind_embedding
        self.alpha = float(rank if alpha is None else alpha)

    @property
    def scale(self) -> float:
        """alpha / rank"""
        return self.alpha / self.rank

    # -- building --------------------------------------------------------------------------------

    def _allocate(self, spec: WeightSpec, features: int, values: Mapping[str, Tensor]) -> None:
        options = _at_least_single(like(values))
        self.kinds = self._kinds_of(spec)
        depths = [_numbers(name) for kind in self.kinds for name in kind.names]
        rows = {depth: row for row, depth in enumerate(dict.fromkeys(depths))}
        counts = torch.tensor([len(kind.names) for kind in self.kinds])
        device = options["device"]
        self._index("depth_of", torch.tensor([rows[depth] for depth in depths]), device)
        self._index("kind_of", torch.arange(len(self.kinds)).repeat_interleave(counts), device)
        self.depths = nn.Parameter(torch.empty(len(rows), self.depth_embedding, **options))
        self.kind_vectors = nn.Parameter(
            torch.empty(len(self.kinds), self.kind_embedding, **options)
        )
        # First layer of the trunk on [phi, depth, kind], kept in parts: phi's part is the same for
        # all tensors, the other two for all conditions.
        self.from_features = nn.Linear(features, self.width, **options)
        self.from_depth = nn.Linear(self.depth_embedding, self.width, bias=False, **options)
        self.from_kind = nn.Linear(self.kind_embedding, self.width, bias=False, **options)
        self.inner = nn.Linear(self.width, self.width, **options)
        self.outer = nn.Linear(self.width, self.width, **options)
        self._allocate_outputs(options)

    def _index(self, name: str, values: Tensor, device: torch.device) -> None:
        if device.type != "meta":
            values = values.to(device)
        self.register_buffer(name, values, persistent=False)

    def _allocate_outputs(self, options: dict[str, Any]) -> None:
        self.left = nn.ModuleDict()
        self.right = nn.ModuleDict()
        self.full = nn.ModuleDict()
        for kind in self.kinds:
            out, inner = _matrix(kind.shape)
            if kind.factored:
                self.left[kind.stored] = nn.Linear(self.width, out * self.rank, **options)
                self.right[kind.stored] = nn.Linear(self.width, self.rank * inner, **options)
            else:
                self.full[kind.stored] = nn.Linear(self.width, math.prod(kind.shape), **options)

    def _kinds_of(self, spec: WeightSpec) -> list[_Kind]:
        groups: dict[tuple[str, tuple[int, ...]], list[str]] = {}
        for name, shape in spec.shapes.items():
            groups.setdefault((_pattern(name), shape), []).append(name)
        kinds = []
        for (pattern, shape), names in groups.items():
            stored = f"{key(pattern)}/{'x'.join(map(str, shape))}"
            kinds.append(_Kind(stored, shape, names, self._pays(shape)))
        return kinds

    def _pays(self, shape: tuple[int, ...]) -> bool:
        out, inner = _matrix(shape)
        return len(shape) > 1 and self.rank * (out + inner) < out * inner

    # -- generating ------------------------------------------------------------------------------

    def generate(self, features: Tensor) -> dict[str, Generated]:
        if self.spec is None:
            raise HeadError("this head was not built; pass it to a HyperNetwork first")
        hidden = self._trunk(features.to(self.depths.dtype))
        parts = hidden.split([len(kind.names) for kind in self.kinds])
        generated: dict[str, Generated] = {}
        for kind, part in zip(self.kinds, parts, strict=True):
            write = self._factored if kind.factored else self._full
            generated.update(zip(kind.names, write(kind, part), strict=True))
        return {name: generated[name] for name in self.spec}

    def _trunk(self, features: Tensor) -> Tensor:
        """features [b, k] -> one row for each tensor and condition, [tensors, b, width].

        Tensors come first, so that each one's rows are contiguous. The result is normalised: its
        squares have mean 1, whatever the features are.
        """
        place = self.from_depth(self.depths)[self.depth_of]
        place = place + self.from_kind(self.kind_vectors)[self.kind_of]
        hidden = F.silu(self.from_features(features) + place.unsqueeze(1))
        hidden = hidden + self.outer(F.silu(self.inner(self._normal(hidden))))
        return self._normal(hidden)

    def _normal(self, hidden: Tensor) -> Tensor:
        return F.layer_norm(hidden, (self.width,))

    def _factored(self, kind: _Kind, hidden: Tensor) -> list[Generated]:
        """One product for all layers of a kind: hidden [layers, b, width]."""
        out, inner = _matrix(kind.shape)
        # Under autocast products come back in half precision; weights keep the head's type.
        left = self.left[kind.stored](hidden).to(self.depths.dtype)
        right = self.right[kind.stored](hidden).to(self.depths.dtype)
        if self.scale != 1.0:
            left = left * self.scale
        # unbind and not indexing, whose backward pass writes the whole tensor each time.
        # left is stored as [r, out]: products with a batch of few rows read it fastest that way.
        lefts = left.unflatten(2, (self.rank, out)).transpose(2, 3).unbind(0)
        rights = right.unflatten(2, (self.rank, inner)).unbind(0)
        pairs = zip(lefts, rights, strict=True)
        return [Factored(*pair, None, kind.shape) for pair in pairs]

    def _full(self, kind: _Kind, hidden: Tensor) -> list[Generated]:
        written = self.full[kind.stored](hidden).to(self.depths.dtype)
        shaped = written.reshape(*written.shape[:2], *kind.shape)
        return [Written(tensor) for tensor in shaped.unbind(0)]

    # -- the start -------------------------------------------------------------------------------

    @torch.no_grad()
    def initialise(self, targets: Mapping[str, InitTarget], moment: float) -> None:
        """A change with the variance of ``targets``; their offsets are not used.

        Tensors of one kind share their output layer, so they get the mean of their variances.
        """
        self._initialise_trunk(moment)
        for kind in self.kinds:
            variance = sum(targets[name].variance for name in kind.names) / len(kind.names)
            if not kind.factored:
                self._draw(self.full[kind.stored], variance)
                continue
            # Each entry is the scaled sum of r products, so each factor carries the square root.
            each = math.sqrt(variance / self.rank) / self.scale
            self._draw(self.left[kind.stored], each)
            self._draw(self.right[kind.stored], each)

    def _draw(self, layer: nn.Module, variance: float) -> None:
        """Outputs with this variance: the rows that the layer sees have mean square 1."""
        weight, bias = layer.weight, layer.bias
        weight.normal_(0.0, math.sqrt(variance / self.width))  # type: ignore[operator]
        bias.zero_()  # type: ignore[operator]

    def default(self) -> None:
        self.zero(1.0)

    @torch.no_grad()
    def zero(self, moment: float) -> None:
        """No change, as LoRA starts: left is zero; right is drawn once and kept in a bias.

        Only the bias ("bias-hyperinit", Beck and others 2023): with a random weight matrix too,
        every condition would start with another right factor.
        """
        self._initialise_trunk(moment)
        for layers in (self.left, self.right, self.full):
            for layer in layers.values():
                self._draw(layer, 0.0)
        for kind in self.kinds:
            if kind.factored:
                bound = 1.0 / math.sqrt(_matrix(kind.shape)[1])
                self.right[kind.stored].bias.uniform_(-bound, bound)  # type: ignore[operator]

    def _initialise_trunk(self, moment: float) -> None:
        """A third of the first layer's variance each from features, depth and kind."""
        self.depths.normal_()
        self.kind_vectors.normal_()
        parts = (self.from_features, self.from_depth, self.from_kind)
        for layer, square in zip(parts, (moment, 1.0, 1.0), strict=True):
            layer.weight.normal_(0.0, 1.0 / math.sqrt(3.0 * layer.in_features * square))
        for layer in (self.inner, self.outer):
            layer.weight.normal_(0.0, 1.0 / math.sqrt(self.width))
        for layer in (self.from_features, self.inner, self.outer):
            layer.bias.zero_()

    def extra_repr(self) -> str:
        return f"rank={self.rank}, width={self.width}, alpha={self.alpha:g}"


def _at_least_single(options: dict[str, Any]) -> dict[str, Any]:
    """float32 in place of half precision: small steps of training would be rounded away there."""
    return {**options, "dtype": torch.float32} if options["dtype"] in _HALF else options


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """The tensor as an [out, in] matrix: trailing dimensions belong to the input."""
    return (shape[0] if shape else 1), math.prod(shape[1:])


def _pattern(name: str) -> str:
    """The name with every number replaced.

    >>> _pattern("layers.3.experts.5.up.weight")
    'layers.*.experts.*.up.weight'
    """
    return ".".join("*" if part.isdecimal() else part for part in name.split("."))


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.split(".") if part.isdecimal())

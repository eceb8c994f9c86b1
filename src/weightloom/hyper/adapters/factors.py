"""The change of one layer as two thin factors, in PEFT's orientation."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from weightloom.errors import ShapeError
from weightloom.networks.layers import CONVOLUTIONS, is_conv1d

__all__ = ["KINDS", "AdapterLayer", "as_in"]

KINDS = ("linear", "transposed", "embedding", "convolution")


@dataclass(frozen=True, eq=False)
class AdapterLayer:
    """The change of one layer: its weight moves by ``alpha / rank`` times B A.

    ==============  ==================  ==============  ========================================
    kind            A                   B               the layer's own weight
    ==============  ==================  ==============  ========================================
    "linear"        [r, in]             [out, r]        [out, in]
    "transposed"    [r, in]             [out, r]        [in, out], as in transformers' Conv1D
    "embedding"     [r, rows]           [width, r]      [rows, width]
    "convolution"   [r, in, *kernel]    [out, r, 1...]  [out, in, *kernel]
    ==============  ==================  ==============  ========================================
    """

    A: Tensor
    B: Tensor
    alpha: float
    kind: str = "linear"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ShapeError(f"kind={self.kind!r} is unknown; choose one of {', '.join(KINDS)}")
        dims = (self.A.dim(), self.B.dim())
        fits = min(dims) >= 3 if self.kind == "convolution" else dims == (2, 2)
        if not fits or dims[0] != dims[1] or self.A.shape[0] != self.B.shape[1]:
            raise ShapeError(
                f"A has shape {tuple(self.A.shape)} and B {tuple(self.B.shape)}; the factors of a "
                f"{self.kind} layer are A [r, in, ...] and B [out, r, ...] with the same r"
            )
        if self.rank == 0:
            raise ShapeError("the factors have rank 0; leave a layer without a change out")

    @property
    def rank(self) -> int:
        return self.A.shape[0]

    @property
    def scaling(self) -> float:
        """alpha / rank, the factor in front of B A"""
        return self.alpha / self.rank

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the layer's own weight."""
        out, inner = self.B.shape[0], tuple(self.A.shape[1:])
        return (*inner, out) if self.kind in ("transposed", "embedding") else (out, *inner)

    def matrices(self) -> tuple[Tensor, Tensor]:
        """left and right with left right = the change in the weight's own layout, as a matrix."""
        A, B = self.A.flatten(1), self.B.flatten(1)
        if self.kind in ("transposed", "embedding"):
            return self.scaling * A.t(), B.t()
        return self.scaling * B, A

    def change(self) -> Tensor:
        """The change itself, in the shape of the layer's weight."""
        left, right = self.matrices()
        return (left @ right).reshape(self.shape)

    def with_factors(self, A: Tensor, B: Tensor) -> AdapterLayer:
        """A layer of this kind with other factors, [r, in...] and [out, r], and scaling 1."""
        rank = A.shape[0]
        shaped = B.reshape(B.shape[0], rank, *(1,) * (self.B.dim() - 2))
        return AdapterLayer(A.reshape(rank, *self.A.shape[1:]), shaped, float(rank), self.kind)

    def to(self, *args: object, **kwargs: object) -> AdapterLayer:
        """The same with factors on another device or of another type, as `torch.Tensor.to`."""
        A, B = (factor.detach().to(*args, **kwargs) for factor in (self.A, self.B))  # type: ignore[call-overload]
        return replace(self, A=A, B=B)

    @classmethod
    def of_matrices(
        cls, left: Tensor, right: Tensor, shape: tuple[int, ...], alpha: float, kind: str
    ) -> AdapterLayer:
        """The inverse of `matrices`: factors of the change of a weight of this shape."""
        rank = right.shape[0]
        left = left * (rank / alpha)
        if kind in ("transposed", "embedding"):
            return cls(left.t().contiguous(), right.t().contiguous(), alpha, kind)
        if kind == "linear":
            return cls(right, left, alpha, kind)
        ones = (1,) * (len(shape) - 2)
        return cls(right.reshape(rank, *shape[1:]), left.reshape(-1, rank, *ones), alpha, kind)


def as_in(layer: AdapterLayer, module: nn.Module) -> AdapterLayer:
    """``layer`` with the layout of this module.

    PEFT's files have one flag, ``fan_in_fan_out``, for all layers of an adapter, and PEFT itself
    asks the module. So does everything here that has the module at hand.
    """
    if layer.kind not in ("linear", "transposed"):
        return layer
    if is_conv1d(module):
        return replace(layer, kind="transposed")
    return replace(layer, kind="linear") if isinstance(module, nn.Linear) else layer


def kind_of_layer(module: nn.Module) -> str | None:
    """Which kind of factors PEFT has for this module; None if it has none."""
    if is_conv1d(module):
        return "transposed"
    if isinstance(module, nn.Embedding):
        return "embedding"
    if isinstance(module, CONVOLUTIONS):
        return "convolution"
    return "linear" if isinstance(module, nn.Linear) else None


def norm(left: Tensor, right: Tensor) -> float:
    """Frobenius norm of left right, from r x r products in float64."""
    left, right = left.double(), right.double()
    square = ((left.t() @ left) * (right @ right.t())).sum().item()
    return math.sqrt(max(square, 0.0))


def widest(*tensors: Tensor) -> torch.dtype:
    """The type to compute in: that of all tensors together, and at least float32."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype

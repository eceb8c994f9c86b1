"""The stages of a network as maps whose norms can be bounded, one class per kind.

Each stage F (weights W, or an activation) has two methods:

- ``factor(p, shape)``: a number c with ||F(x) - F(y)||_p <= c ||x - y||_p for p = 1, 2, inf;
- ``absolute(u)``: a linear map with entries >= 0 that dominates: |F(x) - F(y)| <= absolute(|x - y|)
  entry by entry. Composed over the network it gives the path norm, and bounds that do not change
  when neurons are rescaled.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weightloom.bounds.spectral import Factor, conv_symbol_norm, spectral_norm
from weightloom.errors import ConfigError
from weightloom.networks.activations import Activation

__all__ = [
    "Conv",
    "Dense",
    "Elementwise",
    "MaxPool",
    "Nonnegative",
    "Reach",
    "Reshape",
    "Scale",
    "Stage",
    "times",
]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Reach:
    """How large a value can be, over all inputs that are allowed; infinite if not known."""

    norm: float = math.inf
    """of each row (along the last axis), in the 2-norm"""
    peak: float = math.inf
    """of each entry"""


@dataclass(frozen=True)
class Stage(ABC):
    """One stage of a chain; ``module`` computes it, ``name`` is its dotted name."""

    name: str
    module: nn.Module

    @property
    def entrywise(self) -> bool:
        """Whether there is a linear map that dominates it: `absolute`."""
        return True

    def shape_after(self, shape: Shape) -> Shape:
        """The shape of the output, without the batch."""
        out = self.absolute(torch.zeros(1, *shape, dtype=torch.float64))
        return tuple(out.shape[1:])

    def reach(self, given: Reach, shape: Shape | None) -> Reach:
        """How large the output can be for inputs of this reach."""
        return Reach()

    def placed(self, given: Reach, shape: Shape | None) -> Stage:
        """The stage for inputs of this reach; its constant may depend on it."""
        return self

    @abstractmethod
    def factor(self, p: str, shape: Shape | None) -> Factor:
        """A Lipschitz constant from the p-norm to the p-norm, for inputs of this shape."""

    @abstractmethod
    def absolute(self, u: Tensor) -> Tensor:
        """|W| u for u >= 0; for an activation, its Lipschitz constant times u."""

    def absolute_transposed(self, v: Tensor, shape: Shape) -> Tensor:
        """The transpose of `absolute` (a linear map), v [1, *output] to [1, *shape]."""
        u = torch.zeros(1, *shape, dtype=torch.float64, requires_grad=True)
        with torch.enable_grad():
            out = self.absolute(u)
        return torch.autograd.grad(out, u, v.reshape(out.shape))[0]

    def _sums(self, p: str, shape: Shape) -> float:
        """Largest row sum (inf) or column sum (1) of the dominating matrix."""
        with torch.no_grad():
            out = self.absolute(torch.ones(1, *shape, dtype=torch.float64))
        if p == "inf":
            return float(out.max())
        return float(self.absolute_transposed(torch.ones_like(out), shape).max())


@dataclass(frozen=True)
class Dense(Stage):
    """`nn.Linear`. Norm 1: largest column sum of |W|; inf: row sum; 2: singular value."""

    module: nn.Linear

    def factor(self, p: str, shape: Shape | None) -> Factor:
        weight = self.module.weight.detach()
        if p == "2":
            return spectral_norm(weight)
        return Factor(float(weight.abs().sum(int(p == "inf"), dtype=torch.float64).max()), True)

    def reach(self, given: Reach, shape: Shape | None) -> Reach:
        weight = self.module.weight.detach().double()
        bias = weight.new_zeros(len(weight))
        if self.module.bias is not None:
            bias = self.module.bias.detach().double()
        norm = times(self.factor("2", shape).value, given.norm) + float(bias.norm())
        rows = torch.linalg.vector_norm(weight, dim=1)
        peak = float((rows.where(rows == 0, rows * given.norm) + bias.abs()).max())
        return Reach(norm, min(norm, peak))

    def absolute(self, u: Tensor) -> Tensor:
        return F.linear(u, self.module.weight.detach().abs().double())

    def absolute_transposed(self, v: Tensor, shape: Shape) -> Tensor:
        return v @ self.module.weight.detach().abs().double()


@dataclass(frozen=True)
class Conv(Stage):
    """A convolution with zero padding, as one linear map on whole images.

    With the input's shape the 1 and inf norms are exact. Without it they are those of an infinite
    image, which bound those of every finite one. The 2-norm is bounded by the symbol (see
    `conv_symbol_norm`) and by sqrt(||W||_1 ||W||_inf), whichever is smaller.
    """

    module: nn.Conv1d | nn.Conv2d | nn.Conv3d

    def factor(self, p: str, shape: Shape | None) -> Factor:
        if p != "2":
            if shape is None:
                return Factor(self._infinite_image(p), False, "for images of any size")
            return Factor(self._sums(p, shape), True)
        sums = [self.factor(q, shape).value for q in ("1", "inf")]
        product = Factor(math.sqrt(sums[0] * sums[1]), False, "sqrt of 1-norm times inf-norm")
        c = self.module
        symbol = conv_symbol_norm(c.weight.detach(), c.stride, c.dilation, c.groups)
        return symbol if symbol is not None and symbol.value < product.value else product

    def absolute(self, u: Tensor) -> Tensor:
        c = self.module
        weight = c.weight.detach().abs().double()
        return c._conv_forward(u, weight, None)

    def _infinite_image(self, p: str) -> float:
        """The 1 or inf norm on an infinite image."""
        c = self.module
        weight = c.weight.detach().abs().double()
        if p == "inf":
            return float(weight.flatten(1).sum(1).max())
        # An input pixel meets only the taps t with dilation * t = position (modulo the stride).
        weight = weight.reshape(c.groups, -1, *weight.shape[1:]).sum(1)  # over output channels
        for axis, (stride, step) in enumerate(zip(c.stride, c.dilation, strict=True)):
            taps = weight.movedim(2 + axis, 0)
            phase = torch.arange(len(taps)) * step % stride
            sums = torch.zeros(stride, *taps.shape[1:], dtype=taps.dtype).index_add(0, phase, taps)
            weight = sums.movedim(0, 2 + axis)
        return float(weight.max())


@dataclass(frozen=True)
class Scale(Stage):
    """BatchNorm in eval mode: every channel times gamma / sqrt(running variance + eps)."""

    scale: Tensor

    def factor(self, p: str, shape: Shape | None) -> Factor:
        return Factor(float(self.scale.abs().max()), True)

    def absolute(self, u: Tensor) -> Tensor:
        return u * self.scale.abs().reshape(-1, *[1] * (u.dim() - 2))


@dataclass(frozen=True)
class Elementwise(Stage):
    """An activation, entry by entry."""

    activation: Activation

    def factor(self, p: str, shape: Shape | None) -> Factor:
        note = "slope measured on a grid, not proven" if self.activation.probed else ""
        return Factor(self.activation.lipschitz, not self.activation.probed, note)

    def reach(self, given: Reach, shape: Shape | None) -> Reach:
        steepest, zero = self.activation.lipschitz, abs(self.activation.at_zero)
        peak = min(zero + times(steepest, given.peak), self.activation.bound)
        root = math.inf if shape is None else math.sqrt(shape[-1])
        norm = times(zero, root) + times(steepest, given.norm)
        return Reach(min(norm, times(peak, root)), min(norm, peak))

    def absolute(self, u: Tensor) -> Tensor:
        return u * self.activation.lipschitz


@dataclass(frozen=True)
class Reshape(Stage):
    """Flatten, Dropout (as in eval mode), Identity: entries keep their values."""

    def factor(self, p: str, shape: Shape | None) -> Factor:
        return Factor(1.0, True)

    def reach(self, given: Reach, shape: Shape | None) -> Reach:
        moved = isinstance(self.module, nn.Flatten | nn.Unflatten)
        return Reach(math.inf, given.peak) if moved else given

    def absolute(self, u: Tensor) -> Tensor:
        flat = isinstance(self.module, nn.Flatten | nn.Unflatten)
        return self.module(u) if flat else u


@dataclass(frozen=True)
class Nonnegative(Stage):
    """Average pooling: a linear map whose entries are not negative."""

    def factor(self, p: str, shape: Shape | None) -> Factor:
        if shape is None:
            raise needs_shape(self.name, self.module)
        if p == "2":
            product = self._sums("1", shape) * self._sums("inf", shape)
            return Factor(math.sqrt(product), False, "sqrt of 1-norm times inf-norm")
        return Factor(self._sums(p, shape), True)

    def absolute(self, u: Tensor) -> Tensor:
        return self.module(u)


@dataclass(frozen=True)
class MaxPool(Stage):
    """Max pooling. |max a - max b| <= max |a - b|: 1 in the inf norm.

    In the 1-norm an entry counts once for every window that contains it: at most
    prod ceil(kernel / stride) windows, and the square root of that in the 2-norm. `absolute`
    replaces the maximum over a window by the sum, which is linear and larger.
    """

    kernel: Shape
    stride: Shape
    padding: Shape

    def factor(self, p: str, shape: Shape | None) -> Factor:
        windows = math.prod(-(-k // s) for k, s in zip(self.kernel, self.stride, strict=True))
        return Factor({"1": float(windows), "2": math.sqrt(windows), "inf": 1.0}[p], windows == 1)

    def absolute(self, u: Tensor) -> Tensor:
        channels = u.shape[1]
        window = torch.ones(channels, 1, *self.kernel, dtype=u.dtype)
        conv = (F.conv1d, F.conv2d, F.conv3d)[len(self.kernel) - 1]
        return conv(u, window, None, self.stride, self.padding, 1, channels)


def times(a: float, b: float) -> float:
    """a b for a, b >= 0, with zero times infinity = 0."""
    return 0.0 if a == 0 or b == 0 else a * b


def needs_shape(name: str, module: nn.Module) -> ConfigError:
    """The error for a layer whose norms depend on the size of its input."""
    return ConfigError(
        f"the norms of layer '{name}' ({type(module).__name__}) depend on the size of its input, "
        f"which is not known; pass input_shape=(channels, height, width), or (tokens, size) for "
        f"sequences, without the batch"
    )

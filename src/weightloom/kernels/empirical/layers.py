"""Tangent kernels of networks of linear layers, from what enters and what leaves each layer.

The gradient of a row's output with respect to a weight matrix is the outer product d a^T of the
layer's input a and of the gradient d at the layer's output. So its inner product with another
row's is (a . a') (d . d'), and Jacobians, which are as large as the network for each row, are never
formed. Position by position where a layer is applied to several (tokens, repeated calls).
Parameters outside linear layers (of norms, convolutions) are few as a rule: for these Jacobians are
formed, and added.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.kernels.empirical.rows import Parameters

__all__ = ["Kept", "Layer", "products"]


@dataclass(frozen=True)
class Layer:
    """One layer seen from some rows; scales are 0 where the parameter is not trained."""

    weight_scale: float
    bias_scale: float
    inputs: Tensor  # [n, t, in], t positions that share the layer
    gradients: Tensor  # [n, c, t, out], of each output with respect to the layer's output

    @property
    def numbers(self) -> int:
        """Held for each row."""
        return (self.inputs.numel() + self.gradients.numel()) // len(self.inputs)

    @property
    def forward(self) -> int:
        """Operations of the layer's own call, for one row."""
        return 2 * self.inputs.shape[1] * self.inputs.shape[2] * self.gradients.shape[-1]

    @property
    def outer(self) -> bool:
        """Whether t^2 pairs of positions cost more than forming the gradient of the weights."""
        t, a = self.inputs.shape[1:]
        b = self.gradients.shape[-1]
        return t * t * (a + b) > a * b + t * (a + b)

    @property
    def flops(self) -> int:
        """Of one pair of rows."""
        c, t, b = self.gradients.shape[1:]
        a = self.inputs.shape[-1]
        bias = 2 * c * c * b if t > 1 and self.bias_scale else 0
        if self.weight_scale and self.outer:
            return 2 * c * c * a * b + bias
        return 2 * t * t * (a + c * c * b) + bias

    def pair(self, other: Layer) -> Tensor:
        """This layer's part of the kernel, [n, m, c, c]."""
        if self.inputs.shape[1] == 1 == other.inputs.shape[1]:
            inner = self.weight_scale**2 * (self.inputs[:, 0] @ other.inputs[:, 0].T)
            inner = inner + self.bias_scale**2
            return inner[:, :, None, None] * products(self.gradients, other.gradients)
        kernel = products(self.gradients.sum(2), other.gradients.sum(2)) * self.bias_scale**2
        if not self.weight_scale:
            return kernel
        if self.outer:
            return kernel + self.weight_scale**2 * products(self._formed(), other._formed())
        # [n, t, m, s] and [n, c, t, m, d, s]: positions against positions.
        inner = torch.einsum("nta,msa->ntms", self.inputs, other.inputs)
        outer = torch.einsum("nctb,mdsb->nctmds", self.gradients, other.gradients)
        return kernel + self.weight_scale**2 * torch.einsum("ntms,nctmds->nmcd", inner, outer)

    def _formed(self) -> Tensor:
        return torch.einsum("nctb,nta->ncba", self.gradients, self.inputs)


@dataclass(frozen=True)
class Kept:
    """What has to be kept of some rows."""

    layers: list[Layer]
    rest: Parameters  # Jacobian with respect to what is in no linear layer, [n, c, *shape]

    @property
    def numbers(self) -> int:
        """Held for each row."""
        rest = sum(value[0].numel() for value in self.rest.values())
        return sum(layer.numbers for layer in self.layers) + rest

    @property
    def flops(self) -> int:
        """Of one pair of rows."""
        c = self.layers[0].gradients.shape[1]
        rest = sum(2 * c * value[0].numel() for value in self.rest.values())
        return sum(layer.flops for layer in self.layers) + rest


def products(left: Tensor, right: Tensor) -> Tensor:
    """Inner products over all but rows and outputs: [n, c, *], [m, c, *] to [n, m, c, c]."""
    (n, c), (m, d) = left.shape[:2], right.shape[:2]
    return (left.reshape(n * c, -1) @ right.reshape(m * d, -1).T).view(n, c, m, d).transpose(1, 2)

"""Finite networks with these kernels as limits: a tower, and a hypernetwork of two towers.

NTK parametrisation, as in "On Infinite-Width Hypernetworks", Eqs. 2 and 3, with biases:

    y^l = sigma_w W^l q^{l-1} / sqrt(n_{l-1}) + sigma_b b^l,    q^l = gain s(y^l),    W, b ~ N(0, 1)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weightloom.errors import KernelError, ShapeError

if TYPE_CHECKING:
    from weightloom.kernels.features import FourierFeatures
    from weightloom.kernels.tower import Tower

__all__ = ["FiniteHypernetwork", "FiniteTower", "NTKLinear"]


class NTKLinear(nn.Linear):
    """A linear layer with standard normal weights, scaled in the forward pass.

    Returns ``weight_scale W x + bias_scale b`` with weight_scale = sigma_w / sqrt(inputs) and
    bias_scale = sigma_b. There is no bias when sigma_b is 0.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        sigma_w: float = 1.0,
        sigma_b: float = 0.0,
        *,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        # nn.Linear would first sample weights of its own: a second pass over a large head, and
        # from the global generator. On "meta" it only stores the shapes.
        super().__init__(inputs, outputs, bias=sigma_b != 0, device="meta", dtype=dtype)
        self.weight_scale = sigma_w / math.sqrt(inputs)
        self.bias_scale = sigma_b
        self.to_empty(device="cpu")
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.normal_(generator=generator)

    def forward(self, input: Tensor) -> Tensor:
        # The input is scaled, not the weight: a head has more weights than inputs.
        output = F.linear(input * self.weight_scale, self.weight)
        return output if self.bias is None else output + self.bias_scale * self.bias


class FiniteTower(nn.Module):
    """A fully connected network of finite width whose limit is ``tower``.

    ``sizes`` are [inputs, n_1, ..., outputs], one more than ``tower.depth``. Call it with x
    [n, inputs]; it returns [n, outputs]. Weights are sampled with ``generator``, or with a new one
    from ``seed``.
    """

    def __init__(
        self,
        tower: Tower,
        sizes: Sequence[int],
        *,
        seed: int = 0,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        _check_sizes("sizes", sizes, tower.depth + 1, "[inputs, hidden widths, outputs]")
        generator = _generator(seed, generator)
        self.activation = tower.nonlinearity
        self.gain = _number(tower.gain)
        sigma_w, sigma_b = _number(tower.sigma_w), _number(tower.sigma_b)
        self.layers = nn.ModuleList(
            NTKLinear(a, b, sigma_w, sigma_b, generator=generator, dtype=dtype)
            for a, b in pairwise(sizes)
        )

    def forward(self, x: Tensor) -> Tensor:
        *hidden, last = self.layers
        for layer in hidden:
            x = self.gain * self.activation(layer(x))
        return last(x)


class FiniteHypernetwork(nn.Module):
    """h(x, z) = g(z; f(x)) of finite widths; its limit is ``HyperKernel(f, g, features=features)``.

    ``sizes_f`` are [dx, n_1, ..., n_{L-1}]: f's last layer, the head, writes all weights and biases
    of g, so its size N_g is not asked for. ``sizes_g`` are [dz, m_1, ..., outputs]; with
    ``features`` dz is their count. Only f is trained: g's weights are its outputs, scaled by g's
    own sigma_w / sqrt(m_{l-1}) and sigma_b. Call it with x [n, dx], z [n, *] paired row by row; it
    returns [n, outputs]. For each row g has weights of its own, n N_g numbers in all.
    """

    def __init__(
        self,
        f: Tower,
        g: Tower,
        sizes_f: Sequence[int],
        sizes_g: Sequence[int],
        features: FourierFeatures | None = None,
        *,
        seed: int = 0,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        _check_sizes("sizes_f", sizes_f, f.depth, "[dx, hidden widths] without the head")
        _check_sizes("sizes_g", sizes_g, g.depth + 1, "[dz, hidden widths, outputs]")
        _check_features(features, sizes_g[0])
        self.features = features
        self.activation = g.nonlinearity
        self.gain, self.sigma_w, self.sigma_b = map(_number, (g.gain, g.sigma_w, g.sigma_b))
        self.shapes = [(b, a) for a, b in pairwise(sizes_g)]
        biases = [b if self.sigma_b else 0 for b, _ in self.shapes]
        self.pieces = [b * a for b, a in self.shapes] + biases
        sizes = [*sizes_f, sum(self.pieces)]
        self.f = FiniteTower(f, sizes, seed=seed, generator=generator, dtype=dtype)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        if len(x) != len(z):
            raise ShapeError(
                f"x has {len(x)} rows but z has {len(z)}; they are paired row by row: repeat the "
                f"condition for each of its points"
            )
        q = z if self.features is None else self.features.transform(z)
        last = len(self.shapes) - 1
        for layer, (weight, bias) in enumerate(self.weights(x)):
            q = torch.einsum("nba,na->nb", weight, q * (self.sigma_w / math.sqrt(q.shape[-1])))
            if bias is not None:
                q = q + self.sigma_b * bias
            if layer < last:
                q = self.gain * self.activation(q)
        return q

    def weights(self, x: Tensor) -> list[tuple[Tensor, Tensor | None]]:
        """The output of f for each row of x: weights [n, m_l, m_{l-1}] and biases of each layer."""
        pieces = self.f(x).split(self.pieces, dim=-1)
        depth = len(self.shapes)
        weights = [p.unflatten(-1, s) for p, s in zip(pieces[:depth], self.shapes, strict=True)]
        biases = [p if self.sigma_b else None for p in pieces[depth:]]
        return list(zip(weights, biases, strict=True))


def _check_sizes(name: str, sizes: Sequence[int], wanted: int, what: str) -> None:
    if len(sizes) != wanted:
        raise ShapeError(
            f"{name} has {len(sizes)} entries, {list(sizes)}; this depth needs {wanted}: {what}"
        )
    if min(sizes) < 1:
        raise ShapeError(f"{name} is {list(sizes)}; every width must be at least 1")


def _check_features(features: FourierFeatures | None, inputs: int) -> None:
    if features is None:
        return
    if features.count is None:
        raise KernelError(
            "features have count=None, which is their infinite limit; a finite network needs "
            "FourierFeatures(count=...)"
        )
    if features.count != inputs:
        raise ShapeError(
            f"features give {features.count} numbers but sizes_g starts with {inputs}; with "
            f"features the first entry of sizes_g is their count"
        )


def _generator(seed: int, generator: torch.Generator | None) -> torch.Generator:
    return generator if generator is not None else torch.Generator().manual_seed(seed)


def _number(value: float | Tensor) -> float:
    """The current value of a tower's option; later changes do not affect the finite network."""
    return float(value.detach()) if isinstance(value, Tensor) else float(value)

"""Read a network as stages: affine layers, then an activation that is affine between kinks."""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weightloom.construct.layers import SparseLinear
from weightloom.errors import ConfigError, ShapeError, UnsupportedModuleError
from weightloom.networks.activations import Pieces, lookup
from weightloom.networks.layers import (
    ADAPTIVE_AVERAGE_POOLS,
    AFFINE,
    AVERAGE_POOLS,
    BATCH_NORMS,
    DROPOUTS,
    kind_of,
)
from weightloom.networks.straight import FunctionLayer, chain

__all__ = ["AffineStage", "PiecewiseAffine", "read"]

# Layers that are affine maps in any mode.
_ALWAYS_AFFINE = (
    *AFFINE, SparseLinear, *AVERAGE_POOLS, *ADAPTIVE_AVERAGE_POOLS, nn.Flatten, nn.Unflatten,
    nn.Identity, nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d,
)  # fmt: skip
# Layers that are affine in eval mode only, beside BatchNorm.
_DROPOUTS = (*DROPOUTS, nn.AlphaDropout)
_KNOWN = (*_ALWAYS_AFFINE, *BATCH_NORMS, *_DROPOUTS)


@dataclass(frozen=True)
class PiecewiseAffine:
    """slopes[b] * z + offsets[b] on the b-th interval between ``kinks`` (ascending)."""

    kinks: Tensor  # [k]
    slopes: Tensor  # [k + 1]
    offsets: Tensor  # [k + 1]

    @property
    def jumps(self) -> bool:
        """Whether the two sides of some kink differ."""
        left = self.slopes[:-1] * self.kinks + self.offsets[:-1]
        right = self.slopes[1:] * self.kinks + self.offsets[1:]
        return bool((left != right).any())

    @property
    def is_relu(self) -> bool:
        return [*self.kinks.tolist(), *self.slopes.tolist()] == [0, 0, 1] and not self.offsets.any()

    def branch(self, z: Tensor) -> Tensor:
        return torch.bucketize(z, self.kinks)

    def __call__(self, z: Tensor) -> Tensor:
        if self.is_relu:
            return z.clamp(min=0.0)
        branch = self.branch(z)
        return self.slopes[branch] * z + self.offsets[branch]


@dataclass(frozen=True)
class AffineStage:
    """z = affine(v), then the activation (None: no activation). All in double precision."""

    affine: nn.Sequential
    activation: PiecewiseAffine | None
    reach: Tensor
    """[units], sum_j |A_ij|: |z_i| <= reach_i max|v| + shift_i"""
    shift: Tensor
    """[units], |b_i|"""
    terms: int
    """number of products summed for one unit"""
    widest: int
    """numbers in the largest intermediate tensor"""
    shape: torch.Size
    """of one input"""

    def preactivations(self, values: Tensor, infinite: Tensor) -> Tensor:
        """z [rows, units]; rows at infinity hold directions, to which no constant is added."""
        z = self.affine(values).flatten(1)
        if bool(infinite.any()):
            zero = self.affine(torch.zeros_like(values[:1])).flatten(1)
            z[infinite] -= zero
        return z

    def rounding(self, scale: Tensor) -> Tensor:
        """Bound on the rounding error of z, [rows, units]; scale [rows] = max|v|.

        A sum of n products is off by at most n * u * sum|products| (u the unit roundoff); two more
        for adding the constant and for the interpolation that gave v.
        """
        unit = (self.terms + 2) * torch.finfo(torch.float64).eps / 2
        return torch.addcmul(unit * self.shift, unit * scale[:, None], self.reach)


def read(network: nn.Module, shape: torch.Size) -> list[AffineStage]:
    """The stages of ``network`` for inputs of ``shape``; the last one has no activation."""
    stages: list[AffineStage] = []
    affine: list[nn.Module] = []
    inputs = torch.zeros(1, *shape, dtype=torch.float64)
    for name, layer in chain(network, _is_layer):
        activation = _activation(layer)
        if activation is None:
            affine.append(_double_copy(name, layer))
            continue
        stages.append(_stage(affine, activation, inputs))
        inputs = _pass(stages[-1].affine, inputs)
        affine = []
    stages.append(_stage(affine, None, inputs))
    return stages


def _is_layer(module: nn.Module) -> bool:
    return kind_of(module, _KNOWN) is not None or hasattr(module, "kinks")


def _double_copy(name: str, layer: nn.Module) -> nn.Module:
    """A copy in double precision on the CPU, or an error that names the layer."""
    kind = layer.title if isinstance(layer, FunctionLayer) else type(layer).__name__
    where = f"layer {name} ({kind})" if name else kind
    if not isinstance(layer, _KNOWN):
        raise UnsupportedModuleError(
            f"{where} is not known to be affine or affine between kinks; affine pieces are known "
            f"for a chain of Linear, SparseLinear, Conv, AvgPool, BatchNorm (eval), "
            f"Dropout (eval), Flatten, ReLU, LeakyReLU, ReLU6, Hardtanh, Threshold, other "
            f"activations that the table has pieces for, and those with an attribute kinks"
        )
    if isinstance(layer, _DROPOUTS):
        if layer.training:
            raise UnsupportedModuleError(
                f"{where} is in training mode, where its output is random; call network.eval()"
            )
        return nn.Identity()
    if isinstance(layer, BATCH_NORMS) and (layer.training or layer.running_mean is None):
        raise UnsupportedModuleError(
            f"{where} uses the statistics of its batch, so that its output is no function of one "
            f"input; call network.eval(), and keep track_running_stats=True"
        )
    for key, value in [*layer.named_parameters(), *layer.named_buffers()]:
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise ConfigError(f"{key} of {where} holds NaN or infinity; finite weights are wanted")
    return copy.deepcopy(layer).to(device="cpu", dtype=torch.float64)


def _pass(layer: nn.Module, inputs: Tensor) -> Tensor:
    try:
        return layer(inputs)
    except RuntimeError as error:
        raise ShapeError(
            f"inputs of shape {list(inputs.shape[1:])} do not fit {layer}: {error}; low and high "
            f"need the shape of one input (without a batch dimension)"
        ) from error


def _stage(
    layers: list[nn.Module], activation: PiecewiseAffine | None, inputs: Tensor
) -> AffineStage:
    """A stage, with the bounds on |z| that rounding depends on: the same in absolute values."""
    at, widest, terms = inputs, inputs.numel(), 0
    reach, shift = torch.ones_like(inputs), torch.zeros_like(inputs)
    for layer in layers:
        at = _pass(layer, at)
        absolute = _absolute(layer)
        reach = absolute(reach) - absolute(torch.zeros_like(reach))
        shift = absolute(shift)
        widest, terms = max(widest, at.numel()), terms + _terms(layer)
    affine = nn.Sequential(*layers)
    limits = reach.flatten(), shift.flatten()
    return AffineStage(affine, activation, *limits, terms, widest, inputs.shape[1:])


def _absolute(layer: nn.Module) -> nn.Module:
    """The layer with |weights| and |bias|."""
    absolute = copy.deepcopy(layer)
    for parameter in absolute.parameters():
        parameter.abs_()
    mean = getattr(absolute, "running_mean", None)
    if isinstance(mean, Tensor):
        mean.copy_(-mean.abs())  # BatchNorm subtracts it
    return absolute


def _terms(layer: nn.Module) -> int:
    """Number of products summed for one output of the layer."""
    if isinstance(layer, SparseLinear):
        rows = torch.bincount(layer.index[0]) if layer.index.numel() else torch.zeros(1)
        return int(rows.max())
    weight = getattr(layer, "weight", None)
    if isinstance(layer, BATCH_NORMS):
        return 3
    if isinstance(weight, Tensor):
        return math.prod(weight.shape[1:])
    kernel = getattr(layer, "kernel_size", 1)
    return math.prod(kernel) if isinstance(kernel, tuple) else int(kernel) ** 3


def _activation(layer: nn.Module) -> PiecewiseAffine | None:
    """The activation's kinks, slopes and offsets; None for other layers."""
    kinks = getattr(layer, "kinks", None)
    if kinks is not None:
        return _as_double(_probed(layer, [float(kink) for kink in kinks]))
    if isinstance(layer, FunctionLayer):
        known = lookup(layer.function, layer.plain)
    else:
        known = lookup(layer)
    return None if known is None or known.pieces is None else _as_double(known.pieces)


def _as_double(pieces: Pieces) -> PiecewiseAffine:
    numbers = (pieces.kinks, pieces.slopes, pieces.offsets)
    return PiecewiseAffine(*(torch.tensor(part, dtype=torch.float64) for part in numbers))


def _probed(layer: nn.Module, kinks: list[float]) -> Pieces:
    """The pieces of an activation that names its kinks, from three points between neighbours."""
    ends = [kinks[0] - 4.0, *kinks, kinks[-1] + 4.0]
    slopes, offsets = [], []
    for a, b in itertools.pairwise(ends):
        x = torch.tensor([[a + (b - a) / 4], [(a + b) / 2], [b - (b - a) / 4]], dtype=torch.float64)
        y = copy.deepcopy(layer).to(torch.float64)(x).flatten()
        slope = float((y[2] - y[0]) / (x[2] - x[0]))
        if abs(float(y[1] - (y[0] + y[2]) / 2)) > 1e-12 * (1 + float(y.abs().max())):
            raise UnsupportedModuleError(
                f"{type(layer).__name__} is not affine between {a:g} and {b:g}, though its kinks "
                f"are {kinks}; name every kink"
            )
        slopes.append(slope)
        offsets.append(float(y[1] - slope * x[1]))
    return Pieces(tuple(kinks), tuple(slopes), tuple(offsets))

"""A network as stages: affine layers, then one activation that is affine between its kinks."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weightloom.construct.layers import SparseLinear
from weightloom.errors import ConfigError, ShapeError, UnsupportedModuleError

__all__ = ["Activation", "Stage", "read"]

# Layers that are affine maps of their input as they are.
AFFINE = (
    nn.Linear, SparseLinear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.AvgPool1d, nn.AvgPool2d,
    nn.AvgPool3d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.Flatten,
    nn.Unflatten, nn.Identity, nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d,
)  # fmt: skip
# And those that are in eval mode only.
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


@dataclass(frozen=True)
class Activation:
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
class Stage:
    """z = affine(v), then the activation (None: nothing). All in double precision."""

    affine: nn.Sequential
    activation: Activation | None
    reach: Tensor
    """[units], sum_j |A_ij|: |z_i| <= reach_i max|v| + shift_i"""
    shift: Tensor
    """[units], |b_i|"""
    terms: int
    """how many products are summed for one unit"""
    widest: int
    """numbers in the largest tensor on the way"""
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
        """What rounding in this stage can change in z, [rows, units]; scale [rows] = max|v|.

        A sum of n products is off by at most n * u * sum|products| (u the unit roundoff); two more
        for adding the constant and for the interpolation that v came from.
        """
        unit = (self.terms + 2) * torch.finfo(torch.float64).eps / 2
        return torch.addcmul(unit * self.shift, unit * scale[:, None], self.reach)


def read(network: nn.Module, shape: torch.Size) -> list[Stage]:
    """The stages of ``network`` for inputs of ``shape``; the last one has no activation."""
    stages: list[Stage] = []
    affine: list[nn.Module] = []
    inputs = torch.zeros(1, *shape, dtype=torch.float64)
    for name, layer in _leaves(network, ""):
        found = _activation(name, layer)
        if found is None:
            affine.append(_copied(name, layer))
            continue
        stages.append(_stage(affine, found, inputs))
        inputs = _pass(stages[-1].affine, inputs)
        affine = []
    stages.append(_stage(affine, None, inputs))
    return stages


def _leaves(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    if isinstance(module, nn.Sequential):
        # Not named_children, which leaves out a module that stands in two places.
        for key, child in module._modules.items():
            if child is not None:
                yield from _leaves(child, f"{name}.{key}" if name else key)
    else:
        yield name, module


def _copied(name: str, layer: nn.Module) -> nn.Module:
    """A copy in double precision on the CPU, or an error that names the layer."""
    kind = type(layer).__name__
    where = f"layer {name} ({kind})" if name else kind
    if not isinstance(layer, (*AFFINE, *NORMS, *DROPOUTS)):
        raise UnsupportedModuleError(
            f"{where} is not known to be affine or affine between kinks; affine pieces are known "
            f"for an nn.Sequential of Linear, SparseLinear, Conv, AvgPool, BatchNorm (eval), "
            f"Dropout (eval), Flatten, ReLU, LeakyReLU, ReLU6, Hardtanh, Threshold, and "
            f"activations with an attribute kinks"
        )
    if isinstance(layer, DROPOUTS):
        if layer.training:
            raise UnsupportedModuleError(
                f"{where} is in training mode, where its output is random; call network.eval()"
            )
        return nn.Identity()
    if isinstance(layer, NORMS) and (layer.training or layer.running_mean is None):
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


def _stage(layers: list[nn.Module], activation: Activation | None, inputs: Tensor) -> Stage:
    """With the sizes that rounding errors depend on: everything once more in absolute values."""
    at, widest, terms = inputs, inputs.numel(), 0
    reach, shift = torch.ones_like(inputs), torch.zeros_like(inputs)
    for layer in layers:
        at = _pass(layer, at)
        size = _absolute(layer)
        reach = size(reach) - size(torch.zeros_like(reach))
        shift = size(shift)
        widest, terms = max(widest, at.numel()), terms + _terms(layer)
    made = nn.Sequential(*layers)
    sizes = reach.flatten(), shift.flatten()
    return Stage(made, activation, *sizes, terms, widest, inputs.shape[1:])


def _absolute(layer: nn.Module) -> nn.Module:
    """The layer with |weights| and |bias|."""
    made = copy.deepcopy(layer)
    for parameter in made.parameters():
        parameter.abs_()
    mean = getattr(made, "running_mean", None)
    if isinstance(mean, Tensor):
        mean.copy_(-mean.abs())  # BatchNorm subtracts it
    return made


def _terms(layer: nn.Module) -> int:
    if isinstance(layer, SparseLinear):
        rows = torch.bincount(layer.index[0]) if layer.index.numel() else torch.zeros(1)
        return int(rows.max())
    weight = getattr(layer, "weight", None)
    if isinstance(layer, NORMS):
        return 3
    if isinstance(weight, Tensor):
        return math.prod(weight.shape[1:])
    kernel = getattr(layer, "kernel_size", 1)
    return math.prod(kernel) if isinstance(kernel, tuple) else int(kernel) ** 3


def _activation(name: str, layer: nn.Module) -> Activation | None:
    """kinks, slopes and offsets; None for other layers."""
    kinks = getattr(layer, "kinks", None)
    if kinks is not None:
        return _probed(layer, [float(kink) for kink in kinks])
    if isinstance(layer, nn.ReLU6 | nn.Hardtanh):
        low, high = float(layer.min_val), float(layer.max_val)
        return _table([low, high], [0, 1, 0], [low, 0, high])
    if isinstance(layer, nn.ReLU):
        return _table([0], [0, 1], [0, 0])
    if isinstance(layer, nn.LeakyReLU):
        return _table([0], [layer.negative_slope, 1], [0, 0])
    if isinstance(layer, nn.Threshold):
        return _table([layer.threshold], [0, 1], [layer.value, 0])
    return None


def _table(kinks: list[float], slopes: list[float], offsets: list[float]) -> Activation:
    made = (torch.tensor(numbers, dtype=torch.float64) for numbers in (kinks, slopes, offsets))
    return Activation(*made)


def _probed(layer: nn.Module, kinks: list[float]) -> Activation:
    """Any activation that names its kinks: between them, two points tell the line."""
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
    return _table(kinks, slopes, offsets)

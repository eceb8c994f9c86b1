"""Reading a network as a chain of steps whose norms are known.

`nn.Sequential` (nested too) is read layer by layer; any other module is traced with torch.fx and
must turn out to be one chain, each step fed by the one before. Branches (residual sums, attention)
and layers that are not Lipschitz or not known get an error that names them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from weightloom.bounds.activations import Activation, activation_of
from weightloom.bounds.stages import (
    Conv,
    Dense,
    Elementwise,
    MaxPool,
    Nonnegative,
    Reshape,
    Scale,
    Shape,
    Stage,
    needs_shape,
)
from weightloom.bounds.trace import Called, trace
from weightloom.errors import (
    ConfigError,
    NonFiniteWeightsError,
    ShapeError,
    UnsupportedModuleError,
)

__all__ = ["Chain", "double_copy", "read_chain"]

_CONV = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_MAX = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
_AVERAGE = (
    *(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
)
_SAME = (
    nn.Identity,
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.Flatten,
    nn.Unflatten,
)


@dataclass(frozen=True)
class Chain:
    """A network as steps in order; ``shapes[i]`` is what step i is given (None: not known)."""

    stages: tuple[Stage, ...]
    shapes: tuple[Shape | None, ...]

    @cached_property
    def affine(self) -> tuple[Dense | Conv, ...]:
        return tuple(s for s in self.stages if isinstance(s, Dense | Conv))

    @cached_property
    def activations(self) -> tuple[Activation, ...]:
        return tuple(s.activation for s in self.stages if isinstance(s, Elementwise))

    @property
    def dense(self) -> bool:
        """Whether the weights are matrices with an activation between, as in 000 and 002."""
        plain = all(isinstance(s, Dense | Elementwise | Reshape) for s in self.stages)
        return plain and bool(self.affine)

    @property
    def widths(self) -> tuple[int, ...]:
        """d_0, ..., d_(L+1): units (channels) in front of, between and behind the affine steps."""
        shapes = [layer.module.weight.shape for layer in self.affine]
        groups = getattr(self.affine[0].module, "groups", 1)
        return (shapes[0][1] * groups, *(shape[0] for shape in shapes))

    def known_shapes(self) -> tuple[Shape, ...]:
        """The shapes, or an error that asks for ``input_shape``."""
        known = tuple(shape for shape in self.shapes if shape is not None)
        if len(known) < len(self.shapes):
            convs = [s for s in self.stages if not isinstance(s, Dense | Elementwise | Reshape)]
            culprit = convs[0] if convs else self.stages[0]
            raise needs_shape(culprit.name, culprit.module)
        return known


def read_chain(net: nn.Module, input_shape: Sequence[int] | None = None) -> Chain:
    """The steps of ``net``; ``input_shape`` (without the batch) is needed by convolutions only."""
    stages = tuple(_read(net, ""))
    if not any(isinstance(s, Dense | Conv) for s in stages):
        raise UnsupportedModuleError(
            f"{type(net).__name__} holds no Linear or Conv layer; bounds need at least one"
        )
    _require_finite(stages)
    if input_shape is None:
        # Flatten and Dropout in front of a Linear take vectors as they are.
        first = next((s for s in stages if not _takes_vectors(s)), None)
        input_shape = (first.module.in_features,) if isinstance(first, Dense) else None
    if input_shape is None:
        return Chain(stages, (None,) * len(stages))
    return Chain(stages, tuple(_shapes(stages, tuple(input_shape))))


def _takes_vectors(stage: Stage) -> bool:
    if isinstance(stage.module, nn.Flatten):
        return stage.module.start_dim == 1
    return isinstance(stage, Elementwise | Reshape) and not isinstance(stage.module, nn.Unflatten)


def _read(module: nn.Module, name: str) -> Iterator[Stage]:
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        # Not named_children(), which leaves out a layer that is used a second time.
        for key, child in module._modules.items():
            if child is None:
                continue
            yield from _read(child, f"{name}.{key}" if name else key)
        return
    known = _known(module, name or type(module).__name__)
    if known is not None:
        yield known
    elif any(True for _ in module.children()):
        for label, part in trace(module, name):
            yield from _read(part, label)
    else:
        yield _activation(module, name or type(module).__name__)


def _known(module: nn.Module, name: str) -> Stage | None:
    if isinstance(module, nn.Linear):
        return Dense(name, module)
    if isinstance(module, _CONV):
        return _conv(module, name)
    if isinstance(module, _NORM):
        return _batch_norm(module, name)
    if isinstance(module, _MAX):
        return _max_pool(module, name)
    if isinstance(module, _AVERAGE):
        return Nonnegative(name, module)
    if isinstance(module, nn.Flatten) and module.start_dim == 0:
        raise UnsupportedModuleError(
            f"layer '{name}' (Flatten) joins the rows of a batch; use start_dim=1 or more"
        )
    if isinstance(module, _SAME):
        return Reshape(name, module)
    return None


def _activation(module: nn.Module, name: str) -> Stage:
    if isinstance(module, Called):
        return Elementwise(name, module, activation_of(name, module.function, module.plain))
    return Elementwise(name, module, activation_of(name, module))


def _conv(module: nn.Conv1d | nn.Conv2d | nn.Conv3d, name: str) -> Stage:
    if module.padding_mode != "zeros":
        raise UnsupportedModuleError(
            f"layer '{name}' ({type(module).__name__}) pads with {module.padding_mode!r}; its "
            f"norms are only known for padding_mode='zeros'"
        )
    return Conv(name, module)


def _batch_norm(module: nn.Module, name: str) -> Stage:
    variance = module.running_var
    if module.training or variance is None:
        raise UnsupportedModuleError(
            f"layer '{name}' ({type(module).__name__}) uses the statistics of each batch, so the "
            f"network is not one function of its input; call .eval() first (and keep running "
            f"statistics)"
        )
    variance = torch.as_tensor(variance)
    eps = float(module.eps)  # type: ignore[arg-type]
    scale = (variance.double() + eps).rsqrt()
    if module.weight is not None:
        scale = scale * torch.as_tensor(module.weight).detach().double()
    return Scale(name, module, scale)


def _max_pool(module: nn.MaxPool1d | nn.MaxPool2d | nn.MaxPool3d, name: str) -> Stage:
    dims = 1 + _MAX.index(type(module))

    def each(value: int | Sequence[int]) -> Shape:
        return (value,) * dims if isinstance(value, int) else tuple(value)

    if module.ceil_mode or module.return_indices or set(each(module.dilation)) != {1}:
        raise UnsupportedModuleError(
            f"layer '{name}' ({type(module).__name__}) has ceil_mode, dilation or return_indices; "
            f"its norms are only known without them"
        )
    stride = module.kernel_size if module.stride is None else module.stride
    return MaxPool(name, module, each(module.kernel_size), each(stride), each(module.padding))


def _require_finite(stages: Sequence[Stage]) -> None:
    for stage in stages:
        for key, value in stage.module.named_parameters():
            if not bool(torch.isfinite(value).all()):
                raise NonFiniteWeightsError(
                    f"'{stage.name}.{key}' holds NaN or infinity; no bound can be computed"
                )


@torch.no_grad()
def _shapes(stages: Sequence[Stage], shape: Shape) -> Iterator[Shape]:
    if not shape or any(not isinstance(size, int) or size < 1 for size in shape):
        raise ConfigError(
            f"input_shape={shape} was given; wanted sizes of at least 1, without the batch"
        )
    x = torch.zeros(1, *shape, dtype=torch.float64)
    for stage in stages:
        yield tuple(x.shape[1:])
        try:
            x = stage.absolute(x)
        except (RuntimeError, ValueError) as error:
            raise ShapeError(
                f"layer '{stage.name}' ({type(stage.module).__name__}) cannot take an input of "
                f"shape {tuple(x.shape[1:])}, which input_shape={shape} leads to: {error}"
            ) from None


def double_copy(net: nn.Module) -> nn.Module:
    """A copy in double precision and eval mode, without gradients, to search on."""
    made = copy.deepcopy(net).double().eval().requires_grad_(False)
    for module in made.modules():
        if getattr(module, "inplace", False):  # would write into the points of the search
            module.inplace = False  # type: ignore[assignment]
    return made

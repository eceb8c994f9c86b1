"""Read a network as a chain of stages whose norms are known.

An `nn.Sequential` (nested or not) is read layer by layer. Any other module is traced and must be
one chain, each stage fed by the one before. Branches (residual sums, attention) and layers that are
unknown or not Lipschitz raise an error that names them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from weightloom.bounds.blocks.kinds import NormStage, Product, Sum, placed, reads_tokens
from weightloom.bounds.blocks.reading import read_stages, rms_epsilon
from weightloom.bounds.recognition import KNOWN, stage_of
from weightloom.bounds.stages import (
    Conv,
    Dense,
    Elementwise,
    Reach,
    Reshape,
    Shape,
    Stage,
    needs_shape,
)
from weightloom.errors import ConfigError, ShapeError, UnsupportedModuleError
from weightloom.networks.activations import Activation
from weightloom.networks.finiteness import require_finite, require_real
from weightloom.networks.layers import kind_of
from weightloom.networks.straight import chain

__all__ = ["Chain", "double_copy", "read_chain"]


@dataclass(frozen=True)
class Chain:
    """A network as stages in order; ``shapes[i]`` is the input shape of stage i (None: unknown)."""

    stages: tuple[Stage, ...]
    shapes: tuple[Shape | None, ...]

    @cached_property
    def affine(self) -> tuple[Dense | Conv, ...]:
        return tuple(s for s in self.stages if isinstance(s, Dense | Conv))

    @cached_property
    def activations(self) -> tuple[Activation, ...]:
        return tuple(s.activation for s in self.stages if isinstance(s, Elementwise))

    @property
    def size(self) -> int:
        """Weights and biases of the affine stages."""
        return sum(p.numel() for layer in self.affine for p in layer.module.parameters())

    @property
    def entrywise(self) -> bool:
        """Whether there is one linear map that dominates the network."""
        return all(stage.entrywise for stage in self.stages)

    @property
    def dense(self) -> bool:
        """Whether it is fully connected: matrices with activations in between, nothing else."""
        plain = all(isinstance(s, Dense | Elementwise | Reshape) for s in self.stages)
        return plain and bool(self.affine)

    @property
    def widths(self) -> tuple[int, ...]:
        """d_0, ..., d_(L+1): units (channels) before, between and after the affine stages."""
        shapes = [layer.module.weight.shape for layer in self.affine]
        groups = getattr(self.affine[0].module, "groups", 1)
        return (shapes[0][1] * groups, *(shape[0] for shape in shapes))

    @property
    def permutable_widths(self) -> tuple[int, ...]:
        """`widths`, with 1 for hidden layers next to a grouped convolution.

        The channels of such a layer cannot be permuted freely, so none of their permutations count.
        """
        groups = [getattr(layer.module, "groups", 1) for layer in self.affine]
        hidden = [
            width if before == after == 1 else 1
            for width, before, after in zip(self.widths[1:-1], groups[:-1], groups[1:], strict=True)
        ]
        return (self.widths[0], *hidden, self.widths[-1])

    @property
    def sign_symmetric(self) -> list[bool]:
        """For each hidden layer, whether signs of neurons can be flipped (tanh, sigmoid, sin)."""
        symmetric: list[bool] = []
        for stage in self.stages:
            if isinstance(stage, Dense | Conv):
                symmetric.append(False)
            elif isinstance(stage, Elementwise) and symmetric:
                symmetric[-1] = stage.activation.signs
        return symmetric[:-1]

    def known_shapes(self) -> tuple[Shape, ...]:
        """The shapes, or an error that asks for ``input_shape``."""
        known = tuple(shape for shape in self.shapes if shape is not None)
        if len(known) < len(self.shapes):
            unshaped = [s for s in self.stages if not isinstance(s, Dense | Elementwise | Reshape)]
            first = unshaped[0] if unshaped else self.stages[0]
            raise needs_shape(first.name, first.module)
        return known


def read_chain(
    net: nn.Module,
    input_shape: Sequence[int] | None = None,
    *,
    blocks: bool = False,
    radius: float | None = None,
) -> Chain:
    """The stages of ``net``; only convolutions and attention need ``input_shape``.

    ``blocks`` also reads residual sums, products, normalisation and attention. ``radius`` bounds
    the 2-norm of each row (token) of the input, which products and attention need.
    """
    require_finite(net)
    require_real(net)
    _require_no_hooks(net)
    stages = tuple(read_stages(net) if blocks else _read(net))
    if not blocks and not any(isinstance(s, Dense | Conv) for s in stages):
        raise UnsupportedModuleError(
            f"{type(net).__name__} holds no Linear or Conv layer; bounds need at least one"
        )
    if input_shape is None:
        input_shape = _vectors(stages)
    if radius is not None and not 0 <= radius < math.inf:
        raise ConfigError(f"radius={radius} was given; wanted a finite length >= 0, or None")
    shape = None if input_shape is None else tuple(input_shape)
    shapes: tuple[Shape | None, ...] = (None,) * len(stages)
    if shape is not None:
        shapes = tuple(_shapes(stages, shape))
    if blocks:
        length = math.inf if radius is None else float(radius)
        stages, _ = placed(stages, Reach(length, length), shape)
    return Chain(stages, shapes)


def _vectors(stages: Sequence[Stage]) -> Shape | None:
    """The shape of one input if the first layer reads vectors."""
    # Flatten and Dropout before a Linear leave vectors unchanged.
    first = next((s for s in stages if not _takes_vectors(s)), None)
    if reads_tokens(stages):
        return None
    if isinstance(first, Sum | Product):
        inner = (_vectors(branch) for branch in first.branches)
        return next((shape for shape in inner if shape is not None), None)
    if isinstance(first, NormStage):
        return (first.size,)
    return (first.module.in_features,) if isinstance(first, Dense) else None


def _require_no_hooks(net: nn.Module) -> None:
    for name, module in net.named_modules():
        where = f"layer '{name or 'the network'}' ({type(module).__name__})"
        if module._forward_hooks or module._forward_pre_hooks:
            raise UnsupportedModuleError(
                f"{where} has forward hooks, which may change what it computes; remove them before "
                f"asking for bounds"
            )
        # Neither a container's children nor its class tell what such a forward computes.
        if "forward" in vars(module) and next(module.children(), None) is not None:
            raise UnsupportedModuleError(
                f"{where} has a forward that was replaced, so its layers do not tell what it "
                f"computes; put the code into a class"
            )


def _takes_vectors(stage: Stage) -> bool:
    if isinstance(stage.module, nn.Flatten):
        return stage.module.start_dim == 1
    return isinstance(stage, Elementwise | Reshape) and not isinstance(stage.module, nn.Unflatten)


def _read(net: nn.Module) -> Iterator[Stage]:
    for name, layer in chain(net, lambda module: kind_of(module, KNOWN) is not None):
        yield stage_of(layer, name or type(layer).__name__)


@torch.no_grad()
def _shapes(stages: Sequence[Stage], shape: Shape) -> Iterator[Shape]:
    if not shape or any(not isinstance(size, int) or size < 1 for size in shape):
        raise ConfigError(
            f"input_shape={shape} was given; wanted sizes of at least 1, without the batch"
        )
    given = shape
    for stage in stages:
        yield shape
        try:
            shape = stage.shape_after(shape)
        except (RuntimeError, ValueError) as error:
            raise ShapeError(
                f"layer '{stage.name}' ({type(stage.module).__name__}) cannot take an input of "
                f"shape {shape}, which input_shape={given} leads to: {error}"
            ) from None


def double_copy(net: nn.Module) -> nn.Module:
    """A copy in double precision and eval mode, without gradients."""
    twin = copy.deepcopy(net)
    for module in twin.modules():
        if isinstance(module, nn.RMSNorm) and module.eps is None:
            # It takes the epsilon of its input's dtype, which is another function after a cast.
            module.eps = rms_epsilon(module)
    twin = twin.double().eval().requires_grad_(False)
    for module in twin.modules():
        if getattr(module, "inplace", False):  # would overwrite the search points
            module.inplace = False  # type: ignore[assignment]
    return twin

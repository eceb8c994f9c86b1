"""From what a head wrote for one condition to an adapter."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from weightloom.errors import (
    HeadError,
    NonFiniteWeightsError,
    ShapeError,
    UnsupportedModuleError,
)
from weightloom.hyper.adapters.adapter import Adapter
from weightloom.hyper.adapters.factors import AdapterLayer, kind_of_layer
from weightloom.hyper.heads import Head
from weightloom.hyper.rows import Factored, Generated
from weightloom.hyper.rows.functional import with_aliases
from weightloom.networks import WeightSpec

__all__ = ["adapter_of", "check_writes_changes", "layer_of"]


def check_writes_changes(head: Head, spec: WeightSpec) -> None:
    """Raise unless the head writes a change of every tensor, and not the tensor itself."""
    whole = [name for name in spec if name not in head.bases()]
    if whole:
        raise HeadError(
            f"a {type(head).__name__} writes the whole of {whole[0]!r}, and an adapter is a change "
            f"of given weights; build the HyperNetwork with AdapterHead(rank) or DeltaHead(rank)"
        )


def adapter_of(
    spec: WeightSpec,
    primary: nn.Module,
    generated: Mapping[str, Generated],
    alpha: float | None = None,
) -> Adapter:
    """The adapter of one condition, from the changes ``{parameter name: Factored}`` of its layers.

    ``alpha`` is written to the adapter (default: the rank); the change does not depend on it. A
    tied weight changes in all layers that use it.
    """
    layers = {}
    for name, value in with_aliases(spec, generated).items():
        layer, kind = layer_of(primary, spec, name)
        layers[layer] = _layer(name, value, kind, alpha)
    return Adapter(layers)


def _layer(name: str, value: Generated, kind: str, alpha: float | None) -> AdapterLayer:
    if not isinstance(value, Factored) or value.offset is not None:
        raise HeadError(
            f"{name!r} {list(value.shape)} is written in full, not as two thin factors, so it is "
            f"no part of an adapter; leave it out of generate= (an adapter head factors matrices "
            f"that are larger than their factors), or use materialize"
        )
    if value.left.shape[0] != 1:
        raise ShapeError(
            f"condition has {value.left.shape[0]} rows, but an adapter belongs to one condition; "
            f"call adapter(condition[i]) for each i"
        )
    left, right = value.left[0].detach().clone(), value.right[0].detach().clone()
    if not (left.isfinite().all() and right.isfinite().all()):
        raise NonFiniteWeightsError(
            f"the change of {name!r} holds values that are NaN or infinite; training has diverged "
            f"or the condition is not finite. Lower the learning rate or clip gradients"
        )
    scaled = float(right.shape[0]) if alpha is None else alpha
    return AdapterLayer.of_matrices(left, right, value.shape, scaled, kind)


def layer_of(primary: nn.Module, spec: WeightSpec, name: str) -> tuple[str, str]:
    """The layer that owns this parameter, and its kind; raises where PEFT has none."""
    owner, _, leaf = name.rpartition(".")
    if name in spec.opaque:  # a quantised linear layer
        return owner, "linear"
    module = primary.get_submodule(owner)
    kind = kind_of_layer(module)
    reason = f"a {type(module).__name__}" if kind is None else _obstacle(module)
    if leaf != "weight":
        reason = f"the {leaf!r} of a {type(module).__name__}"
    if kind is None or reason:
        raise UnsupportedModuleError(
            f"{name!r} is {reason}, and a LoRA adapter as PEFT defines it changes the weights of "
            f"Linear, Conv1D, Embedding and plain convolution layers; leave it out of generate=, "
            f"or use materialize"
        )
    return owner, kind


def _obstacle(module: nn.Module) -> str:
    """Why W + B A and what PEFT computes would differ for this layer; "" if they do not."""
    what = f"the weight of a {type(module).__name__}"
    if isinstance(module, nn.Embedding) and module.max_norm is not None:
        return f"{what} with max_norm"
    if not isinstance(module, nn.modules.conv._ConvNd):
        return ""
    # PEFT's first factor is a convolution of its own, made without these three.
    if module.groups != 1:
        return f"{what} with groups={module.groups}"
    if any(step != 1 for step in module.dilation):
        return f"{what} with dilation={module.dilation}"
    return "" if module.padding_mode == "zeros" else f"{what} with {module.padding_mode} padding"

"""Weights apart from their module: taken out, put back, or given to a single call.

`strip` takes the generated parameters out of a network, `fill` puts weights in for good, and `call`
runs the network with weights that it does not keep: `torch.func.functional_call` with checks.
`modes_restored` leaves no trace of training and evaluation mode either.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from weightloom.errors import UnsupportedModuleError
from weightloom.networks.specs import WeightSpec

__all__ = [
    "Shared",
    "call",
    "call_with_state",
    "distinct",
    "fill",
    "forget_weights",
    "modes_restored",
    "shared",
    "strip",
    "unshare",
    "with_aliases",
]

V = TypeVar("V")


def strip(primary: nn.Module, spec: WeightSpec) -> nn.Module:
    """A copy of ``primary`` in which every generated parameter is None.

    So the hypernetwork's `parameters()` and `state_dict()` hold only what is learned.
    """
    names = [*spec, *spec.aliases]
    scripted = tuple(
        f"{name}." if name else ""
        for name, module in primary.named_modules()
        if isinstance(module, torch.jit.ScriptModule)
    )
    for name in names:
        if name.startswith(scripted):
            raise UnsupportedModuleError(
                f"parameter {name!r} belongs to a scripted module, whose weights PyTorch cannot "
                f"replace; pass the module as it was before torch.jit.script, or leave it out of "
                f"generate="
            )
    template = copy.deepcopy(primary)
    for name in names:
        _owner(template, name)._parameters[name.rpartition(".")[2]] = None
    return template


def fill(template: nn.Module, spec: WeightSpec, weights: Mapping[str, Tensor]) -> nn.Module:
    """An ordinary network: a copy of ``template`` that owns these weights. Tied ones stay tied."""
    network = copy.deepcopy(template)
    parameters = {name: nn.Parameter(weights[name].detach().clone()) for name in spec}
    for name, parameter in with_aliases(spec, parameters).items():
        _owner(network, name)._parameters[name.rpartition(".")[2]] = parameter
    for part in network.modules():
        if isinstance(part, nn.RNNBase):
            part._init_flat_weights()
    return network


def _owner(module: nn.Module, name: str) -> nn.Module:
    return module.get_submodule(name.rpartition(".")[0])


def with_aliases(spec: WeightSpec, weights: Mapping[str, V]) -> Mapping[str, V]:
    """``weights`` with every name of tied parameters, mapped to the tensor they share."""
    if not spec.aliases:
        return weights
    return {**weights, **{alias: weights[name] for alias, name in spec.aliases.items()}}


def call(
    module: nn.Module,
    spec: WeightSpec,
    weights: Mapping[str, Tensor],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """``module(*args, **kwargs)`` with the tensors of ``spec`` replaced by ``weights``."""
    spec.check(weights)
    state = distinct(module, with_aliases(spec, weights))
    return call_with_state(module, state, args, dict(kwargs or {}))


def distinct(module: nn.Module, state: Mapping[str, V]) -> dict[str, V]:
    """``state`` with one name for each parameter, also where a submodule has several names.

    `functional_call` would restore such a parameter twice, the second time to the wrong tensor.
    """
    first_names: dict[tuple[int, str], str] = {}
    for name in state:
        owner, _, leaf = name.rpartition(".")
        first_names.setdefault((id(module.get_submodule(owner)), leaf), name)
    return {name: state[name] for name in first_names.values()}


def call_with_state(
    module: nn.Module, state: dict[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`functional_call` that leaves no weights behind in recurrent layers."""
    if not state:  # nothing to replace; in scripted modules nothing can be replaced
        return module(*args, **kwargs)
    forget_weights(module)
    try:
        return functional_call(module, state, args, kwargs)
    finally:
        forget_weights(module)


def forget_weights(module: nn.Module) -> None:
    """Remove generated weights from the recurrent layers inside ``module``.

    A recurrent layer keeps a second list of its parameters. After `functional_call` that list still
    holds the generated tensors, with their graph. An empty tensor in place of each missing
    parameter frees them, and makes the layer notice the next replacement.
    """
    for part in module.modules():
        if isinstance(part, nn.RNNBase) and None in part._parameters.values():
            own = [getattr(part, name, None) for name in part._flat_weights_names]
            part._flat_weights = [torch.empty(0) if weight is None else weight for weight in own]
            part._flat_weight_refs = [weakref.ref(w) for w in part._flat_weights]  # type: ignore[arg-type]


@dataclass(frozen=True)
class Shared:
    """An argument that all conditions share; see `shared`."""

    value: Tensor


def shared(value: Tensor) -> Shared:
    """Mark an extra tensor argument as shared by all conditions: it is not split into rows.

    >>> hyper(x, condition, mask=shared(mask))  # doctest: +SKIP
    """
    return Shared(value)


def unshare(leaf: Any) -> Any:
    """The tensor inside a `Shared`; anything else as it is."""
    return leaf.value if isinstance(leaf, Shared) else leaf


@contextmanager
def modes_restored(*models: nn.Module) -> Iterator[None]:
    """Afterwards every module is in training or evaluation mode as it was before."""
    modes = {module: module.training for model in models for module in model.modules()}
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training

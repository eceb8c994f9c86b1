"""Weights apart from their module: taken out, put back, or given to a single call.

`strip` takes the generated parameters out of a network, `fill` puts weights in for good, and `call`
runs the network with weights that it does not keep: `torch.func.functional_call` with checks.
`modes_restored` leaves no trace of training and evaluation mode either.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._pytree import tree_leaves, tree_map

from weightloom.errors import UnsupportedModuleError
from weightloom.hyper.rows.modes import refuse_reentrant
from weightloom.hyper.rows.shells import call_shell
from weightloom.networks.specs import WeightSpec

__all__ = [
    "Shared",
    "call",
    "call_with_state",
    "check_places",
    "distinct",
    "fill",
    "forget_weights",
    "given_values",
    "modes_restored",
    "shared",
    "strip",
    "unshare",
    "unshared",
    "with_aliases",
]

V = TypeVar("V")


def strip(
    primary: nn.Module,
    spec: WeightSpec,
    bases: Mapping[str, bool] | None = None,
    freeze_rest: bool = False,
) -> nn.Module:
    """A copy of ``primary`` for a hypernetwork, which writes the tensors of ``spec``.

    Generated parameters are None in it, so that `parameters()` and `state_dict()` of the
    hypernetwork hold only what is learned. Where the head writes a change (``bases``: name ->
    whether it is trained), the given value stays. Frozen tensors are shared with the given network,
    not copied: a large base costs no memory twice.
    """
    bases = bases or {}
    _refuse_scripted(primary, [*spec, *spec.aliases])
    if isinstance(primary, torch._dynamo.OptimizedModule):
        raise UnsupportedModuleError(
            "the primary is a compiled module, whose weights cannot be replaced; pass the module "
            "as it was before torch.compile, and compile the HyperNetwork or a bound network"
        )
    memo: dict[int, Any] = {}
    for name, parameter in primary.named_parameters():
        if name in bases:
            if not bases[name]:
                memo[id(parameter)] = _frozen(parameter)
        elif name in spec and name not in spec.opaque:
            memo[id(parameter)] = None
        elif freeze_rest or not parameter.requires_grad:
            memo[id(parameter)] = _frozen(parameter)
    for module in primary.modules():
        if not isinstance(module, _NormBase) and _is_frozen(module, memo):
            memo |= {id(b): b for b in module._buffers.values() if b is not None}
    return copy.deepcopy(primary, memo)


def given_values(primary: nn.Module, spec: WeightSpec) -> dict[str, Tensor]:
    """The primary's own tensors, by name; zeros that take no memory for those it does not show."""
    parameters = dict(primary.named_parameters())
    values = {name: parameters[name].detach() for name in spec if name not in spec.opaque}
    for name in spec.opaque:
        device = next(iter(_owner(primary, name).buffers()), torch.empty(0)).device
        values[name] = torch.zeros((), device=device).expand(spec.shapes[name])
    return {name: values[name] for name in spec}


def _refuse_scripted(primary: nn.Module, names: list[str]) -> None:
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


def _frozen(parameter: nn.Parameter) -> Tensor:
    """A parameter that is not learned and shares the memory of the given one."""
    if type(parameter) is not nn.Parameter and not parameter.requires_grad:
        return parameter  # quantised types carry state of their own
    return nn.Parameter(parameter.detach(), requires_grad=False)


def _is_frozen(module: nn.Module, memo: Mapping[int, Any]) -> bool:
    """Whether nothing in this module is learned: then its buffers are part of a fixed network."""
    return all(p is None or id(p) in memo for p in module._parameters.values())


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
    buffers: dict[str, Tensor] | None = None,
) -> Any:
    """``module(*args, **kwargs)`` with the tensors of ``spec`` replaced by ``weights``.

    ``buffers`` are replaced, too, and afterwards hold what the call left there.
    """
    spec.check(weights)
    state = distinct(module, with_aliases(spec, weights))
    if not torch.compiler.is_compiling():
        refuse_reentrant(state.values())
    return call_with_state(module, state, args, dict(kwargs or {}), buffers)


def distinct(module: nn.Module, state: Mapping[str, V]) -> dict[str, V]:
    """``state`` with one name for each parameter, also where a submodule has several names.

    `functional_call` would restore such a parameter twice, the second time to the wrong tensor.
    """
    first_names: dict[tuple[int, str], str] = {}
    for name in state:
        owner, leaf = _place_of(module, name)
        first_names.setdefault((id(owner), leaf), name)
    return {name: state[name] for name in first_names.values()}


def check_places(module: nn.Module, names: Iterable[str]) -> None:
    """Refuse a module that has lost a parameter which is generated."""
    for name in names:
        _place_of(module, name)


def _place_of(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The module that owns a parameter, and the parameter's name there."""
    path, _, leaf = name.rpartition(".")
    owner: nn.Module | None = module
    for part in path.split(".") if path else ():
        owner = None if owner is None else owner._modules.get(part)
    if owner is None or leaf not in owner._parameters:
        lost = f"there is no module {path!r}"
        if owner is not None:
            lost = f"{path!r}, {type(owner).__name__}, has no parameter {leaf!r}"
        raise UnsupportedModuleError(
            f"the hypernetwork writes {name!r}, but in the primary as it is now {lost}; build the "
            f"HyperNetwork anew for a primary with other parameters"
        )
    return owner, leaf


def call_with_state(
    module: nn.Module,
    state: dict[str, Tensor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    buffers: dict[str, Tensor] | None = None,
    prepare: Callable[[nn.Module], None] | None = None,
) -> Any:
    """``module(*args, **kwargs)`` with other tensors in place of its own; module is not touched.

    ``buffers`` are replaced, too, and afterwards hold what the call left there. ``prepare`` may
    change the copy that is called.
    """
    # torch.export without the compiler runs Python as it is: a shell is right there, too.
    if not torch.compiler.is_dynamo_compiling():
        return call_shell(module, state, args, kwargs, buffers, prepare)
    if not state and not buffers:  # in scripted modules nothing can be replaced
        return module(*args, **kwargs)
    # The compiler traces functional_call once and swaps nothing when its graph runs.
    every = {**state, **(buffers or {})}
    output = functional_call(module, every, args, kwargs)
    if buffers:
        buffers.update({name: every[name] for name in buffers})
    return output


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

    value: Any


def shared(value: Any) -> Shared:
    """Mark an argument as shared by all conditions: a tensor that is not split into rows.

    Or an object that the primary only reads.

    >>> hyper(x, condition, mask=shared(mask))  # doctest: +SKIP
    """
    return Shared(value)


def unshare(leaf: Any) -> Any:
    """What is inside a `Shared`; anything else as it is."""
    return leaf.value if isinstance(leaf, Shared) else leaf


_FLAT = frozenset({Tensor, nn.Parameter, bool, int, float, str, type(None)})


def unshared(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of one call for all rows, without `Shared`.

    Lists and dictionaries are the given ones unless there is a `Shared` among the arguments: what a
    module puts into them, its caller finds there.
    """
    # A call that decodes one token is short: what cannot hold a `Shared` is not walked through.
    deep = [value for value in (*args, *kwargs.values()) if type(value) not in _FLAT]
    if not deep or not any(isinstance(leaf, Shared) for leaf in tree_leaves(deep)):
        return args, kwargs
    plain: tuple[tuple[Any, ...], dict[str, Any]] = tree_map(unshare, (args, kwargs))
    return plain


@contextmanager
def modes_restored(*models: nn.Module) -> Iterator[None]:
    """Afterwards every module is in training or evaluation mode as it was before."""
    modes = {module: module.training for model in models for module in model.modules()}
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training

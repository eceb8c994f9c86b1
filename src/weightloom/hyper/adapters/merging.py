"""A network with an adapter merged into its weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from weightloom.errors import CheckpointError, ShapeError, UnsupportedModuleError
from weightloom.hyper.adapters.factors import AdapterLayer, as_in, widest

__all__ = ["merge"]

_SHOWN = 4


@torch.no_grad()
def merge(base: nn.Module, layers: Mapping[str, AdapterLayer]) -> nn.Module:
    """A copy of ``base`` with the layers' changes added; all other parameters are shared.

    A layer gets a weight of its own. If it was tied to another layer, that one keeps the old
    weight, unless it is in ``layers`` too and changes equally: then both stay tied.
    """
    _check_names(base, layers)
    changed = {name: _changed(base, name, layer) for name, layer in layers.items()}
    merged = copy.deepcopy(base, {id(p): p for p in base.parameters()})
    replacements: dict[int, nn.Parameter] = {}
    for name, weight in changed.items():
        module = merged.get_submodule(name)
        old = module.get_parameter("weight")
        new = replacements.get(id(old))
        if new is None or not torch.equal(new, weight):
            new = nn.Parameter(weight, requires_grad=old.requires_grad)
        replacements.setdefault(id(old), new)
        module.weight = new
    return merged


def _check_names(base: nn.Module, layers: Mapping[str, AdapterLayer]) -> None:
    known = {name for name, _ in base.named_modules(remove_duplicate=False)}
    missing = [name for name in layers if name not in known]
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise CheckpointError(
            f"the adapter changes layers that {type(base).__name__} does not have: "
            f"{', '.join(map(repr, missing[:_SHOWN]))}{more}. Pass the base for which it was "
            f"written (the same class: a model with a head has other names than one without)"
        )


def _changed(base: nn.Module, name: str, layer: AdapterLayer) -> Tensor:
    module = base.get_submodule(name)
    weight = module._parameters.get("weight")
    if weight is None or not weight.is_floating_point() or weight.dtype.itemsize < 2:
        what = f"stored as {weight.dtype}" if weight is not None else "not an ordinary parameter"
        raise UnsupportedModuleError(
            f"the weight of layer {name!r} ({type(module).__name__}) is {what}, so a change cannot "
            f"be added to it; merge into the base before it was quantised or parametrised, or keep "
            f"the adapter apart"
        )
    layer = as_in(layer, module)
    if tuple(weight.shape) != layer.shape:
        raise ShapeError(
            f"the change of layer {name!r} has shape {layer.shape}, but its weight has shape "
            f"{tuple(weight.shape)}; pass the base for which the adapter was written"
        )
    dtype = widest(weight, layer.A, layer.B)
    change = layer.to(weight.device, dtype).change()
    return (weight.to(dtype) + change).to(weight.dtype)

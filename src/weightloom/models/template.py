"""A primary without its generated parameters, and the way back to an ordinary network."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from weightloom.errors import UnsupportedModuleError
from weightloom.weights import WeightSpec, with_aliases

__all__ = ["fill", "strip"]


def strip(primary: nn.Module, spec: WeightSpec) -> nn.Module:
    """A copy of ``primary`` in which every generated parameter is None.

    So the hypernetwork's `parameters()` and `state_dict()` hold only what is really learned.
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

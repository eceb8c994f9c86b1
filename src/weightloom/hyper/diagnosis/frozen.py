"""Parts that should be fixed and move, or should move and are fixed.

Three cases: running statistics of a frozen part that follow the data, parameters that require a
gradient but that the optimiser does not have, and groups of the optimiser that are frozen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from weightloom.hyper.encoders import is_frozen
from weightloom.hyper.hypernetwork import HyperNetwork

__all__ = ["frozen_groups", "missing_parameters", "moved_statistics", "statistics_of"]


def statistics_of(hyper: HyperNetwork) -> dict[str, Tensor]:
    """Copies of the buffers that belong to frozen modules, by name."""
    return {name: buffer.clone() for name, buffer in _frozen_buffers(hyper)}


def moved_statistics(hyper: HyperNetwork, before: Mapping[str, Tensor]) -> list[str]:
    """Frozen modules whose buffers are not what they were ``before``."""
    moved = [
        name.rpartition(".")[0]
        for name, buffer in _frozen_buffers(hyper)
        if not torch.equal(buffer, before[name])
    ]
    return list(dict.fromkeys(moved))


def missing_parameters(hyper: HyperNetwork, optimiser: Optimizer) -> list[str]:
    """Names of parameters that require a gradient and are in no group of the optimiser."""
    held = {id(p) for group in optimiser.param_groups for p in group["params"]}
    return [name for name, p in hyper.named_parameters() if p.requires_grad and id(p) not in held]


def frozen_groups(hyper: HyperNetwork, optimiser: Optimizer) -> list[str]:
    """One parameter's name for each group of which every parameter is frozen.

    Frozen parameters beside others are usual, since Adam(hyper.parameters()) has them all. A group
    of its own says that somebody wants to train them.
    """
    names = {id(p): name for name, p in hyper.named_parameters()}
    groups: Iterable[list[Tensor]] = (group["params"] for group in optimiser.param_groups)
    return [
        names.get(id(params[0]), "?")
        for params in groups
        if params and not any(p.requires_grad for p in params)
    ]


def _frozen_buffers(hyper: HyperNetwork) -> list[tuple[str, Tensor]]:
    """Buffers whose module is frozen; one without parameters goes with the module around it.

    What the head writes is not frozen, though its base in the primary is.
    """
    written = {f"primary.{name}".rpartition(".")[0] for name in hyper.spec}
    modules: dict[str, nn.Module] = dict(hyper.named_modules())

    def is_fixed(name: str) -> bool:
        while name and not any(True for _ in modules[name].parameters()):
            name = name.rpartition(".")[0]
        return bool(name) and name not in written and is_frozen(modules[name])

    return [
        (name, buffer)
        for name, buffer in hyper.named_buffers()
        if is_fixed(name.rpartition(".")[0])
    ]

"""An optimiser for a copy of the model, and which parts of the copy it moves.

Users pass an instance over the model's parameters, a callable that maps parameters to an optimiser,
or a pair such as ("adam", 1e-3).

Parts may be fixed and move, or be meant to move and are fixed: running statistics of a frozen part
that follow the data, parameters that require a gradient but that the optimiser does not have, and
groups of the optimiser that are frozen.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from weightloom.errors import ShapeError
from weightloom.hyper.encoders import is_frozen
from weightloom.hyper.hypernetwork import HyperNetwork

__all__ = [
    "OptimiserChoice",
    "describe",
    "for_copy",
    "for_parameters",
    "frozen_groups",
    "missing_parameters",
    "moved_statistics",
    "statistics_of",
]

OptimiserChoice = Optimizer | Callable[[list[Tensor]], Optimizer] | tuple[str, float]


def for_copy(
    choice: OptimiserChoice, model: nn.Module, head: nn.Module
) -> tuple[nn.Module, Optimizer]:
    """A copy of ``model`` and the optimiser over the copy's parameters, with its state.

    Both are copied with one memo: that ties the copied optimiser to the copied parameters. Frozen
    parameters are shared, so a large base takes no memory twice. They are new objects without a
    gradient, which an optimiser skips.
    """
    memo: dict[int, Any] = {id(p): _shared(p) for p in model.parameters() if not p.requires_grad}
    twin = copy.deepcopy(model, memo)
    for parameter in twin.parameters():
        parameter.grad = None
    if not isinstance(choice, Optimizer):
        return twin, for_parameters(choice, [p for p in twin.parameters() if p.requires_grad], head)
    held = {id(p) for group in choice.param_groups for p in group["params"]}
    if not any(id(p) in held for p in model.parameters()):
        raise ShapeError(
            "the optimiser holds none of this model's parameters; make it from hyper.parameters() "
            "after the last change of the model"
        )
    return twin, copy.deepcopy(choice, memo)


def for_parameters(
    choice: OptimiserChoice, parameters: Sequence[Tensor], head: nn.Module
) -> Optimizer:
    """An optimiser of the same kind and settings over other parameters, without any state.

    Of an instance with several groups, the settings are those of the group that has the head.
    """
    listed = list(parameters)
    if isinstance(choice, Optimizer):
        return _renewed(choice, listed, head)
    optimiser = _by_name(*choice)(listed) if isinstance(choice, tuple) else choice(listed)
    if not isinstance(optimiser, Optimizer):
        raise ShapeError(
            f"optimiser= returned {type(optimiser).__name__}; it must return a "
            f"torch.optim.Optimizer"
        )
    return optimiser


def describe(optimiser: Optimizer) -> str:
    rates = sorted({float(group["lr"]) for group in optimiser.param_groups if "lr" in group})
    name = type(optimiser).__name__
    return f"{name}, learning rate {', '.join(f'{rate:.3g}' for rate in rates)}" if rates else name


def _renewed(choice: Optimizer, parameters: list[Tensor], head: nn.Module) -> Optimizer:
    wanted = {id(parameter) for parameter in head.parameters()}
    groups = choice.param_groups
    chosen = next((g for g in groups if any(id(p) in wanted for p in g["params"])), groups[0])
    # copy.copy keeps whatever a class of the user's own has; only parameters and state are new.
    renewed = copy.copy(choice)
    renewed.state = defaultdict(dict)
    renewed.param_groups = [{**chosen, "params": parameters}]
    return renewed


def _by_name(name: str, rate: float) -> Callable[[list[Tensor]], Optimizer]:
    kinds = {
        key.lower(): kind
        for key, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, Optimizer) and kind is not Optimizer
    }
    kind = kinds.get(str(name).lower())
    if kind is None:
        raise ShapeError(
            f"optimiser=({name!r}, {rate}) is unknown; choose one of {', '.join(sorted(kinds))}, "
            f"or pass an optimiser"
        )
    return lambda parameters: kind(parameters, lr=rate)  # type: ignore[call-arg]


def _shared(parameter: nn.Parameter) -> Tensor:
    if type(parameter) is not nn.Parameter:
        return parameter  # quantised types carry state of their own
    return nn.Parameter(parameter.detach(), requires_grad=False)


# -- parts that are fixed ------------------------------------------------------------------------


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

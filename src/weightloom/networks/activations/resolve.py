"""From a module, a function or a name to its record."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from weightloom.errors import UnsupportedModuleError
from weightloom.networks.activations.probes import (
    elementwise_problem,
    evaluator,
    probe_kind,
    probe_lipschitz,
)
from weightloom.networks.activations.record import Activation, Scalar
from weightloom.networks.activations.table import TABLE

__all__ = ["classify", "lookup", "measure", "module_of", "named_modules"]


def lookup(activation: nn.Module | Scalar | str, plain: bool = True) -> Activation | None:
    """The record of an activation in the table, adapted to a module's settings; None if unknown.

    ``activation`` is a module, one of torch's functions or methods, or the name of one. A subclass
    counts if it keeps `forward`; a module with hooks or a replaced ``forward`` does not.
    ``plain=False`` says that a function was called with options; the table has records of functions
    without options only.

    >>> lookup(nn.LeakyReLU(2.0)).lipschitz, lookup(torch.tanh).kind, lookup(lambda t: t**3)
    (2.0, <Kind.SIGN: 'sign'>, None)
    """
    if isinstance(activation, str):
        return _by_name(activation)
    if isinstance(activation, nn.Module):
        return _by_module(activation)
    if not plain or not _from_torch(activation):
        return None
    return _by_name(_title(activation))


def classify(activation: nn.Module | Scalar, name: str = "") -> Activation:
    """The record of an activation; if it is not in the table, its kind is probed.

    ``name`` is the name of an unknown activation. A function that is not elementwise raises
    `UnsupportedModuleError`.

    >>> classify(nn.ReLU()).kind, classify(torch.tanh).kind, classify(nn.LeakyReLU(0.1)).kind
    (<Kind.SCALE: 'scale'>, <Kind.SIGN: 'sign'>, <Kind.SCALE: 'scale'>)
    """
    known = lookup(activation)
    if known is not None:
        return known
    name = name or _own_name(activation)
    kind, constant = probe_kind(activation, name)
    return Activation(name, activation, kind=kind, constant=constant, probed=True)


def measure(name: str, activation: nn.Module | Scalar, plain: bool = True) -> Activation:
    """The record with a Lipschitz constant, which is probed if it is not in the table.

    ``name`` is the layer's name, for errors. An activation without a Lipschitz constant raises
    `UnsupportedModuleError`.

    >>> measure("1", nn.Sigmoid()).lipschitz
    0.25
    """
    known = lookup(activation, plain)
    if known is None:
        known = _measured(name, activation)
    elif math.isnan(known.lipschitz):  # a row that leaves it out
        known = replace(known, lipschitz=_measured(name, activation).lipschitz, probed=True)
    if math.isinf(known.lipschitz):
        problem = "it has no Lipschitz constant on the line (jumps or growth)"
        raise _refuse(name, activation, problem)
    return known


def named_modules() -> dict[str, Callable[[], nn.Module]]:
    """The activations that can be built from their name alone: those whose module has defaults."""
    return {
        row.name: row.modules[0]
        for row in TABLE.values()
        if row.modules and row.modules[0] is not nn.Threshold
    }


def module_of(function: Scalar | str, *rest: Any, **options: Any) -> nn.Module | None:
    """The module that computes torch's function or method with these options; None if none does.

    >>> module_of(torch.nn.functional.leaky_relu, 0.2)
    LeakyReLU(negative_slope=0.2)
    """
    row = lookup(function)
    if row is None or not row.modules or row.modules[0] is nn.PReLU:  # its slopes are a tensor
        return None
    try:
        return row.modules[0](*rest, **options)
    except TypeError:  # options that the module does not have
        return None


def _measured(name: str, activation: Scalar) -> Activation:
    problem = elementwise_problem(activation)
    if problem is not None:
        raise _refuse(name, activation, problem)
    try:
        lipschitz = probe_lipschitz(activation)
    except Exception as error:
        problem = f"it cannot be applied to single numbers ({error})"
        raise _refuse(name, activation, problem) from None
    kind, constant = probe_kind(activation, name)
    at_zero = float(evaluator(activation)(torch.zeros(1, dtype=torch.float64)))
    return Activation(
        _own_name(activation), activation, kind=kind, constant=constant, lipschitz=lipschitz,
        at_zero=at_zero, probed=True,
    )  # fmt: skip


def _by_name(name: str) -> Activation | None:
    if name in TABLE:
        return TABLE[name]
    return next((row for row in TABLE.values() if name in row.aliases), None)


def _by_module(module: nn.Module) -> Activation | None:
    # A replaced forward or a hook may compute anything; the row of the class says nothing then.
    if "forward" in vars(module) or module._forward_hooks or module._forward_pre_hooks:
        return None
    kind = type(module)
    for base in kind.__mro__:
        for row in TABLE.values():
            if base in row.modules and kind.forward is base.forward:
                return _adapted(row, module)
    return None


def _adapted(row: Activation, module: nn.Module) -> Activation:
    """The record of a module with its settings."""
    if row.settings is None:
        return row
    name = f"{type(module).__name__.lower()}({module.extra_repr()})"
    facts = {"name": name, "function": module, **row.settings(module)}
    if "kind" not in facts:
        facts["kind"], facts["constant"] = probe_kind(module)
    return replace(row, **facts)


def _own_name(activation: object) -> str:
    """A name for an activation that is not in the table: torch's own in lower case."""
    if isinstance(activation, nn.Module):
        name, settings = type(activation).__name__, activation.extra_repr()
        if type(activation).__module__.startswith("torch.nn."):
            name = name.lower()
        # With the settings: two slopes are two activations.
        return f"{name}({settings})" if settings else name
    if _from_torch(activation):
        return _title(activation)
    return f"{getattr(activation, '__module__', '')}.{_title(activation)}"


def _from_torch(function: object) -> bool:
    """Whether a function is torch's own; a ``relu`` from elsewhere can be any function."""
    module = str(getattr(function, "__module__", None) or "torch")  # built-ins of torch have none
    return module.partition(".")[0] in ("torch", "_operator", "math")


def _title(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _refuse(name: str, function: object, why: str) -> UnsupportedModuleError:
    return UnsupportedModuleError(
        f"layer '{name}' ({_title(function)}) was taken for an activation, but {why}; bounds "
        f"are known for chains of Linear, Conv, BatchNorm (eval), pooling, Flatten and "
        f"elementwise activations"
    )

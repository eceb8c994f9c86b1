"""Which members can be trained together: same architecture, same shapes, supported by vmap."""

from __future__ import annotations

import copy
import types
import warnings
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from weightloom.errors import SlowPathWarning
from weightloom.hyper.rows.any_module import VMAP_REFUSALS
from weightloom.training.batches import Batches
from weightloom.training.choices import Objective
from weightloom.training.members import Member, label
from weightloom.training.stack import Single, Stacked, own_tensors

__all__ = ["difference", "partition", "shapes"]

# Attributes that are compared elsewhere; then those of HyperNetwork that do not affect what it
# computes; then recurrent layers' lists of their own parameters.
_IGNORED = frozenset({"_parameters", "_buffers", "_modules", "training"})
_IGNORED |= {"initialisation", "initial_features", "_rowwise"}
_IGNORED |= {"_flat_weights", "_flat_weight_refs"}

# Bytes in one stacked tensor. A larger block is allocated for every gradient and freed after every
# step (glibc, 32 MB), and touching fresh memory takes half as long as computing its contents. Large
# models gain little from stacking anyway.
LARGEST = 2**25

_IDENTITY: Any = object.__eq__


def partition(
    members: Sequence[Member], objective: Objective, batch_size: int, dtype: torch.dtype | None
) -> list[list[int]]:
    """Members by number, grouped: those of one group are trained at once, groups in turn.

    ``dtype``: what parameters will be cast to, if they will be.
    """
    groups: list[list[int]] = []
    for number, member in enumerate(members):
        for group in groups:
            first = members[group[0]]
            if shapes(first) == shapes(member):
                differs = difference(first.model, member.model)
                if differs is None:
                    group.append(number)
                    break
                _warn(
                    member,
                    number,
                    f"its model differs from that of {label(first, group[0])} in {differs}",
                )
        else:
            groups.append([number])
    feasible: list[list[int]] = []
    for group in groups:
        reason = None
        if len(group) > 1:
            pair = [members[number] for number in group[:2]]
            reason = _refusal(pair, objective, batch_size, dtype)
        if reason is None:
            feasible += _cut(group, members[group[0]].model)
        else:
            _warn(members[group[0]], group[0], reason)
            feasible += [[number] for number in group]
    return feasible


def _cut(group: list[int], model: nn.Module) -> list[list[int]]:
    """The group in equal parts, each small enough that none of its tensors is above `LARGEST`."""
    most = max(p.numel() * p.element_size() for p in model.parameters())
    parts = -(-len(group) // max(1, LARGEST // most))
    bounds = [len(group) * i // parts for i in range(parts + 1)]
    return [group[low:high] for low, high in pairwise(bounds)]


def shapes(member: Member) -> tuple[Any, ...]:
    """Type, shapes and dtypes of model and data: members of a group agree in these."""
    tensors = own_tensors(member.model).items()
    wanted = {name for name, p in member.model.named_parameters() if p.requires_grad}
    model = tuple((n, tuple(t.shape), t.dtype, n in wanted) for n, t in tensors)
    splits = {"train": member.train, **member.held_out}
    data = tuple(
        (name, len(split), *((tuple(c.shape[1:]), c.dtype) for c in split.columns))
        for name, split in splits.items()
    )
    return type(member.model), model, data, member.augment is None


def difference(a: nn.Module, b: nn.Module) -> str | None:
    """The first attribute that makes two modules compute differently; None if there is none."""
    ours, theirs = dict(a.named_modules()), dict(b.named_modules())
    if ours.keys() != theirs.keys():
        return "the names of its modules"
    for name, module in ours.items():
        other = theirs[name]
        if type(module) is not type(other):
            return f"{name}: {type(module).__name__} and {type(other).__name__}"
        prefix = f"{name}." if name else ""
        for attribute in sorted(vars(module).keys() | vars(other).keys()):
            if attribute in _IGNORED:
                continue
            pair = vars(module).get(attribute), vars(other).get(attribute)
            if not _same(*pair):
                return f"{prefix}{attribute}" + _plain_values(*pair)
    return None


def _same(a: Any, b: Any, depth: int = 0) -> bool:
    """Whether two attributes are equal; unknown objects only if they are identical."""
    if a is b:
        return True
    if type(a) is not type(b) or depth > 6:
        return False
    if isinstance(a, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(_same(a[key], b[key], depth + 1) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(_same(x, y, depth + 1) for x, y in zip(a, b, strict=True))
    if is_dataclass(a):
        return all(_same(getattr(a, f.name), getattr(b, f.name), depth + 1) for f in fields(a))
    if isinstance(a, nn.Module):  # held where PyTorch does not see it
        return difference(a, b) is None and _same(own_tensors(a), own_tensors(b), depth + 1)
    if isinstance(a, types.FunctionType | types.MethodType | torch.Generator):
        return False
    if type(a).__eq__ is not _IDENTITY:
        return (a == b) is True
    return hasattr(a, "__dict__") and _same(vars(a), vars(b), depth + 1)


def _plain_values(a: Any, b: Any) -> str:
    plain = (bool, int, float, str, type(None))
    return f" ({a!r} and {b!r})" if isinstance(a, plain) and isinstance(b, plain) else ""


def _refusal(
    pair: Sequence[Member], objective: Objective, batch_size: int, dtype: torch.dtype | None
) -> str | None:
    """Try one step, forward and backward, of two members; why it cannot be done, or None."""
    for name, module in pair[0].model.named_modules():
        if isinstance(module, nn.RNNBase):
            where = f" {name!r}" if name else ""
            return f"{type(module).__name__}{where} has no batched form in PyTorch"
    batch = Batches(pair, batch_size).take(0)
    stack = Stacked.of([member.model for member in pair], objective).to(dtype=dtype)
    stack.mode(train=True)
    try:
        stack(batch.columns, batch.shared, 1.0).sum().backward()
    except VMAP_REFUSALS as error:
        alone = Batches(pair[:1], batch_size).take(0)
        Single(copy.deepcopy(pair[0].model), objective).to(dtype=dtype)(
            alone.columns, alone.shared, 1.0
        )  # if the data are wrong, this raises the plain error
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        return f"torch.vmap refused it ({reason[0][:160]})"
    return None


def _warn(member: Member, number: int, reason: str) -> None:
    warnings.warn(
        f"{label(member, number)} ({type(member.model).__name__}) is trained on its own, one "
        f"after the other, instead of at once with the rest: {reason}. The results are the same",
        SlowPathWarning,
        stacklevel=4,
    )

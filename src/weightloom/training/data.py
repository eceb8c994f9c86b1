"""What is trained on what: splits and members."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from weightloom.errors import TrainingError

__all__ = ["Augment", "Member", "Split", "check_members", "label"]

Augment = Callable[[tuple[Tensor, ...], Tensor, torch.Generator], tuple[tuple[Tensor, ...], Tensor]]
"""(inputs, target, generator) of one batch -> the inputs and the target to train on instead"""


@dataclass
class Split:
    """One data set, all in memory: the model is called as ``model(*inputs)``.

    Members whose tensors are the same objects share them; nothing is copied for each.
    """

    inputs: tuple[Tensor, ...]  # each [n, ...]
    target: Tensor  # [n, ...]

    def __len__(self) -> int:
        return len(self.target)

    @property
    def columns(self) -> tuple[Tensor, ...]:
        """The inputs, then the target."""
        return (*self.inputs, self.target)


@dataclass
class Member:
    """One run: a model with its own data, seed and learning rate.

    ``augment`` may change every training batch; it gets a generator that is seeded anew from
    (seed, step), and draws from nothing else, so that a resumed run sees what it would have seen.
    """

    model: nn.Module
    train: Split
    held_out: Mapping[str, Split] = field(default_factory=dict)
    seed: int = 0
    learning_rate: float | None = None
    name: str = ""
    augment: Augment | None = None


def check_members(members: Sequence[Member], needs_validation: bool) -> None:
    """Raise one error with everything that is wrong with these members."""
    problems = [] if members else ["there are no members to train"]
    owners: dict[int, str] = {}
    for number, member in enumerate(members):
        who = label(member, number)
        splits = [("train", member.train), *member.held_out.items()]
        if "train" in member.held_out:
            problems.append(f"{who}: no held-out set may be called 'train'")
        for name, split in splits:
            problems += [f"{who}, {name}: {text}" for text in _split_problems(split)]
        if needs_validation and "validation" not in member.held_out:
            problems.append(
                f"{who}: patience looks at held_out['validation'], which is not there; add it, or "
                f"leave patience out"
            )
        rate = member.learning_rate
        if rate is not None and not 0.0 < rate < float("inf"):
            problems.append(f"{who}: learning_rate={rate!r} must be positive and finite")
        if not any(p.requires_grad for p in member.model.parameters()):
            problems.append(f"{who}: the model has no parameter that requires a gradient")
        mine = {id(p) for p in member.model.parameters()}
        other = next((owners[p] for p in mine if p in owners), None)
        if other is not None:
            problems.append(
                f"{who} and {other} share parameters; every member needs a model of its own "
                f"(copy.deepcopy)"
            )
        owners.update(dict.fromkeys(mine, who))
    if problems:
        raise TrainingError("these members cannot be trained: " + "; ".join(problems))


def label(member: Member, number: int) -> str:
    """How messages call a member."""
    return repr(member.name) if member.name else f"member {number}"


def _split_problems(split: Split) -> list[str]:
    if not isinstance(split.inputs, tuple) or not split.inputs:
        return [f"inputs must be a tuple of tensors, not {type(split.inputs).__name__}"]
    if any(column.dim() == 0 for column in split.columns):
        return ["every tensor needs a leading dimension, one row for each sample"]
    lengths = [len(column) for column in split.columns]
    if len(set(lengths)) > 1:
        return [f"inputs have {lengths[:-1]} rows and the target {lengths[-1]}; give each as many"]
    return [] if lengths[0] else ["there are no samples"]

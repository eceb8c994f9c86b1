"""What is trained on what, and what comes of it.

A `Member` is a model with its data, a `TrainingRecord` is its state during training, a `Report` the
result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from weightloom.errors import TrainingError

__all__ = [
    "Augment",
    "Curves",
    "Member",
    "Report",
    "Split",
    "TrainingRecord",
    "check_members",
    "label",
]

Augment = Callable[[tuple[Tensor, ...], Tensor, torch.Generator], tuple[tuple[Tensor, ...], Tensor]]
"""(inputs, target, generator) of one batch -> the inputs and the target to train on instead"""


@dataclass
class Split:
    """One data set, all in memory: the model is called as ``model(*inputs)``.

    Members may share tensors: the same object is not copied for each.
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

    ``augment`` may change every training batch. It gets a generator seeded from (seed, step) and
    must use no other randomness, so that a resumed run sees the same batches.
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
    _check_kinds(members)
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
        parameters = {id(p) for p in member.model.parameters()}
        other = next((owners[p] for p in parameters if p in owners), None)
        if other is not None:
            problems.append(
                f"{who} and {other} share parameters; every member needs a model of its own "
                f"(copy.deepcopy)"
            )
        owners.update(dict.fromkeys(parameters, who))
    if problems:
        raise TrainingError("these members cannot be trained: " + "; ".join(problems))


_MEMBER = "Member(model, Split((x, condition), target))"


def _check_kinds(members: Any) -> None:
    """Raise if these are not members at all: everything else looks at their fields."""
    if isinstance(members, Member):
        raise TrainingError("members is a single Member; pass a list: train([member], settings)")
    if not isinstance(members, Sequence) or isinstance(members, str):
        raise TrainingError(
            f"members is {_kind(members)}; pass a list of members: train([{_MEMBER}], settings), "
            f"or call fit(model, (x, condition, target))"
        )
    problems = []
    for number, member in enumerate(members):
        if not isinstance(member, Member):
            problems.append(f"member {number} is {_kind(member)}; make it with {_MEMBER}")
            continue
        who = label(member, number)
        if not isinstance(member.model, nn.Module):
            problems.append(f"{who}: model is {_kind(member.model)}, not an nn.Module")
        if not isinstance(member.held_out, Mapping):
            problems.append(
                f"{who}: held_out is {_kind(member.held_out)}; pass a dict such as "
                f"{{'validation': Split((x, condition), target)}}"
            )
            continue
        for name, split in [("train", member.train), *member.held_out.items()]:
            if not isinstance(split, Split):
                problems.append(
                    f"{who}, {name}: it is {_kind(split)}; pass Split((x, condition), target)"
                )
    if problems:
        raise TrainingError("these members cannot be trained: " + "; ".join(problems))


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOaeio' else 'a'} {name}"


def label(member: Member, number: int) -> str:
    """The name of a member in messages."""
    return repr(member.name) if member.name else f"member {number}"


def _split_problems(split: Split) -> list[str]:
    if not isinstance(split.inputs, tuple) or not split.inputs:
        return [f"inputs must be a tuple of tensors, not {type(split.inputs).__name__}"]
    strange = next((c for c in split.columns if not isinstance(c, Tensor)), None)
    if strange is not None:
        return [f"it holds {_kind(strange)}, not a tensor; pass torch.as_tensor(...) of it"]
    if any(column.dim() == 0 for column in split.columns):
        return ["every tensor needs a leading dimension, one row for each sample"]
    lengths = [len(column) for column in split.columns]
    if len(set(lengths)) > 1:
        return [f"inputs have {lengths[:-1]} rows and the target {lengths[-1]}; give each as many"]
    return [] if lengths[0] else ["there are no samples"]


Curves = dict[str, tuple[list[int], list[float]]]
"""name -> (steps made by then, values)"""


@dataclass
class Report:
    """The result of training one member.

    ``curves`` has "train" (mean loss since the last evaluation) and one curve for each held-out
    set; ``final`` has the last value of each, or nan after divergence.
    """

    status: str  # "done" | "plateau" | "diverged" | "interrupted"
    message: str
    steps: int
    seconds: float  # of training steps, this member's share
    curves: Curves
    final: dict[str, float]


@dataclass
class TrainingRecord:
    """One member's state of training; all of it goes into checkpoints."""

    status: str = "running"
    message: str = ""
    steps: int = 0
    seconds: float = 0.0
    curves: Curves = field(default_factory=dict)
    best: float = math.inf
    waited: int = 0
    """evaluations since the best value"""

    def note(self, step: int, values: Mapping[str, float]) -> None:
        """Append one evaluation to the curves."""
        for name, value in values.items():
            steps, curve = self.curves.setdefault(name, ([], []))
            steps.append(step)
            curve.append(value)

    def has_stalled(self, value: float, patience: int, min_improvement: float) -> bool:
        """Add one validation value; returns whether to stop."""
        if value < self.best * (1.0 - min_improvement):  # never true of nan
            self.best = value
            self.waited = 0
        else:
            self.waited += 1
        return self.waited >= patience

    def report(self) -> Report:
        status = "interrupted" if self.status == "running" else self.status
        final = {name: values[-1] for name, (_, values) in self.curves.items() if values}
        if status == "diverged":
            final = dict.fromkeys(final, math.nan)
        curves = {name: (list(steps), list(curve)) for name, (steps, curve) in self.curves.items()}
        return Report(status, self.message, self.steps, self.seconds, curves, final)

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> TrainingRecord:
        curves = {name: (list(s), list(v)) for name, (s, v) in plain["curves"].items()}
        return cls(**{**plain, "curves": curves})

"""`train`: many members at once, with a progress bar; it can be stopped and resumed at any time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from weightloom.errors import TrainingError
from weightloom.hyper.rows.functional import modes_restored
from weightloom.training import checkpoint as files
from weightloom.training.choices import OBJECTIVES
from weightloom.training.divergence import unguarded
from weightloom.training.engine import TrainingEngine
from weightloom.training.members import Member, Report, TrainingRecord, check_members, label
from weightloom.training.partition import partition
from weightloom.training.place import make_fabric, own_random_state, placed, true_dtype
from weightloom.training.settings import Settings
from weightloom.training.stack import own_tensors
from weightloom.training.terminal import Interrupts, ProgressBar

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["OnEvaluation", "train"]


OnEvaluation = Callable[[int, list[dict[str, float]]], None]


"""(steps made, the new values of each member's curves; empty for members not in training)"""


# Saving takes at most this share of the time, unless `checkpoint_every` is 0.
SAVING = 0.1


def train(
    members: Sequence[Member],
    settings: Settings,
    *,
    checkpoint: Path | None = None,
    progress: bool | str = False,
    on_evaluation: OnEvaluation | None = None,
) -> list[Report]:
    """Train each member's model in place; returns one report for each.

    Members of one architecture and the same shapes are trained at once, as one batched
    computation, equal to separate runs up to rounding (except for dropout, which samples its noise
    for all of them together). Members that cannot be batched are trained one after the other, with
    a `SlowPathWarning`. The result depends only on the members and settings, not on the global
    random state.

    A member whose loss or gradient is not finite stops, and its report says where; the others go
    on. Ctrl-C ends training, not the program: models keep the steps they have made, and reports say
    "interrupted". With ``checkpoint``, calling again with the same members resumes from there, bit
    for bit as if there had been no interruption; also after a crash or SIGKILL.

    >>> from weightloom import mlp
    >>> from weightloom.training import Member, Settings, Split
    >>> data = Split((torch.randn(64, 3),), torch.randn(64, 1))
    >>> members = [Member(mlp([3, 8, 1]), data, {"validation": data}, seed=s) for s in range(4)]
    >>> [report.status for report in train(members, Settings(epochs=2, batch_size=16))]
    ['done', 'done', 'done', 'done']
    """
    if not isinstance(settings, Settings):
        raise TrainingError(
            f"settings is a {type(settings).__name__}; pass Settings(epochs=..., batch_size=...)"
        )
    check_members(members, settings.patience is not None)
    fabric = make_fabric(settings)
    ready = placed(list(members), fabric, settings)
    models = [member.model for member in members]
    path = None if checkpoint is None else Path(checkpoint)
    with (
        own_random_state(fabric.device),
        modes_restored(*models),
        unguarded(models),
        Interrupts() as interrupts,
    ):
        session = _TrainingSession(
            ready, settings, fabric, path, progress, on_evaluation, interrupts
        )
        return session.run()


@dataclass
class _TrainingSession:
    """One call of `train`: the groups in turn, and the checkpoint."""

    members: list[Member]
    settings: Settings
    fabric: Fabric
    path: Path | None
    progress: bool | str
    on_evaluation: OnEvaluation | None
    interrupts: Interrupts
    records: list[TrainingRecord] = field(default_factory=list)
    groups: list[list[int]] = field(default_factory=list)
    at: int = 0

    def run(self) -> list[Report]:
        saved = self._resume()
        self.saved, self.pause = time.monotonic(), self.settings.checkpoint_every
        rows = [len(self.members[group[0]].train) for group in self.groups]
        lengths = [self.settings.epochs * -(-n // min(n, self.settings.batch_size)) for n in rows]
        done = sum(lengths[: self.at]) + (saved.about["engine"]["step"] if saved else 0)
        quiet = self.fabric.global_rank > 0
        self.bar = ProgressBar(False if quiet else self.progress, sum(lengths), done)
        try:
            while self.at < len(self.groups) and not self.interrupts.pressed:
                self._train_group(saved)
                saved = None
        finally:
            self.bar.close()
        self.fabric.barrier()
        return [record.report() for record in self.records]

    def _resume(self) -> files.Snapshot | None:
        """Start from the beginning, or from the checkpoint."""
        self.belongs = files.describe(self.members, self.settings)
        labels = [label(member, number) for number, member in enumerate(self.members)]
        saved = None if self.path is None else files.read(self.path, self.belongs, labels)
        if saved is None:
            self.records = [TrainingRecord() for _ in self.members]
            objective = OBJECTIVES[self.settings.objective]
            self.groups = partition(
                self.members, objective, self.settings.batch_size, true_dtype(self.settings)
            )
            return None
        self.records = [TrainingRecord.of(plain) for plain in saved.about["records"]]
        self.groups, self.at = saved.about["groups"], saved.about["at"]
        for number, member in enumerate(self.members):
            if self.records[number].status != "running":
                _fill(member.model, saved.tensors, f"weights/{number}/")
        return saved if saved.about["engine"] is not None else None

    def _train_group(self, saved: files.Snapshot | None) -> None:
        numbers = self.groups[self.at]
        active = None if saved is None else saved.about["engine"]["active"]
        engine = TrainingEngine(
            self.members, numbers, self.records, self.settings, self.fabric, active
        )
        if saved is not None:
            engine.load(saved.tensors, saved.about["engine"])
        try:
            self._steps(engine)
            if not engine.active or engine.step == engine.steps:
                self.bar.skip(engine.steps - engine.step)
                engine.finish("done")
            self._save(engine)
            self.at += not engine.active
        except KeyboardInterrupt:  # by a model, or under a handler that is not ours
            if self.interrupts.count > 1:
                raise
            self.interrupts.count += 1
            if engine.consistent:
                self._save(engine)
        finally:
            engine.finish(None)

    def _steps(self, engine: TrainingEngine) -> None:
        while engine.active and engine.step < engine.steps:
            before = engine.step
            engine.advance()
            if engine.step > before:
                self.bar.step(engine.status_text)
                if engine.active and engine.due:
                    self._notify(engine.step, engine.evaluate())
            if self._pressed():
                return
            if self._save_is_due():
                self._save(engine)

    def _notify(self, step: int, noted: dict[int, dict[str, float]]) -> None:
        """Call the caller's ``on_evaluation``."""
        if self.on_evaluation is None or self.fabric.global_rank > 0:
            return
        try:
            self.on_evaluation(step, [noted.get(n, {}) for n in range(len(self.members))])
        except KeyboardInterrupt:  # counts as Ctrl-C, so that the other processes stop too
            if self.interrupts.count > 1:
                raise
            self.interrupts.count += 1

    def _pressed(self) -> bool:
        """Whether Ctrl-C was pressed, here or in another process: all stop after the same step."""
        if self.fabric.world_size > 1:
            flag = torch.tensor(float(self.interrupts.count), device=self.fabric.device)
            if float(self.fabric.all_reduce(flag, reduce_op="sum")) > 0:  # type: ignore[arg-type]
                self.interrupts.count = max(1, self.interrupts.count)
        return self.interrupts.pressed

    # -- saving ----------------------------------------------------------------------------------

    def _save_is_due(self) -> bool:
        return self.path is not None and time.monotonic() - self.saved >= self.pause

    def _save(self, engine: TrainingEngine) -> None:
        if self.path is None or self.fabric.global_rank > 0:
            return
        started = time.monotonic()
        engine.settle()
        tensors: dict[str, Tensor] = {}
        if engine.active:
            tensors.update(engine.tensors())
        for number, record in enumerate(self.records):
            if record.status != "running":
                own = own_tensors(self.members[number].model)
                tensors.update({f"weights/{number}/{name}": own[name] for name in own})
        about: dict[str, Any] = {
            "groups": self.groups,
            "at": self.at + (not engine.active),  # a finished group is not started again
            "engine": engine.plain() if engine.active else None,
            "records": [record.plain() for record in self.records],
        }
        files.write(self.path, files.Snapshot(tensors, about), self.belongs)
        self.saved = time.monotonic()
        every = self.settings.checkpoint_every
        self.pause = max(every, (self.saved - started) / SAVING) if every > 0 else 0.0


@torch.no_grad()
def _fill(model: nn.Module, tensors: dict[str, Tensor], prefix: str) -> None:
    for name, tensor in own_tensors(model).items():
        tensor.copy_(tensors[prefix + name])

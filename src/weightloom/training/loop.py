"""`train`: many members at once, stopped and picked up at any moment."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from weightloom.training import checkpoint as files
from weightloom.training.data import Member, check_members
from weightloom.training.divergence import unguarded
from weightloom.training.engine import Engine
from weightloom.training.objectives import OBJECTIVES
from weightloom.training.place import make_fabric, own_random_state, placed, true_dtype
from weightloom.training.plan import partition
from weightloom.training.progress import Bar
from weightloom.training.report import Record, Report
from weightloom.training.settings import Settings
from weightloom.training.stack import own_tensors

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["OnEvaluation", "train"]

OnEvaluation = Callable[[int, list[dict[str, float]]], None]
"""(steps made, the new values of each member's curves: none for who is not being trained)"""

# Saving may take no more than this share of the time, whatever `checkpoint_every` says (but 0).
SAVING = 0.1


def train(
    members: Sequence[Member],
    settings: Settings,
    *,
    checkpoint: Path | None = None,
    progress: bool | str = False,
    on_evaluation: OnEvaluation | None = None,
) -> list[Report]:
    """Train each member's model; what happened to each.

    Members of one architecture and the same shapes are trained at once, as one batched
    computation, equal to separate runs within rounding (but for the noise of dropout, which is
    drawn for all of them together). What cannot be batched is trained one after the other, with a
    `SlowPathWarning`. The result depends on the members and settings alone, not on the random
    state around it.

    A member whose loss or gradient is no longer finite stops and says where; the others go on.
    Ctrl-C ends training, not the program: models keep the steps they have made, and reports say
    "interrupted". With ``checkpoint``, calling again with the same members goes on from there, to
    the last bit as if nothing had happened; so it does after a crash, or SIGKILL.

    >>> from weightloom import mlp
    >>> from weightloom.training import Member, Settings, Split
    >>> data = Split((torch.randn(64, 3),), torch.randn(64, 1))
    >>> members = [Member(mlp([3, 8, 1]), data, {"validation": data}, seed=s) for s in range(4)]
    >>> [report.status for report in train(members, Settings(epochs=2, batch_size=16))]
    ['done', 'done', 'done', 'done']
    """
    check_members(members, settings.patience is not None)
    fabric = make_fabric(settings)
    ready = placed(list(members), fabric, settings)
    models = [member.model for member in members]
    path = None if checkpoint is None else Path(checkpoint)
    with own_random_state(fabric.device), _kept(models), _Interrupts() as interrupts:
        session = _Session(ready, settings, fabric, path, progress, on_evaluation, interrupts)
        return session.run()


@dataclass
class _Session:
    """One call of `train`: the groups in turn, and the file that remembers them."""

    members: list[Member]
    settings: Settings
    fabric: Fabric
    path: Path | None
    progress: bool | str
    on_evaluation: OnEvaluation | None
    interrupts: _Interrupts
    records: list[Record] = field(default_factory=list)
    groups: list[list[int]] = field(default_factory=list)
    at: int = 0

    def run(self) -> list[Report]:
        saved = self._recall()
        self.saved, self.pause = time.monotonic(), self.settings.checkpoint_every
        rows = [len(self.members[group[0]].train) for group in self.groups]
        lengths = [self.settings.epochs * -(-n // min(n, self.settings.batch_size)) for n in rows]
        done = sum(lengths[: self.at]) + (saved.about["engine"]["step"] if saved else 0)
        quiet = self.fabric.global_rank > 0
        self.bar = Bar(False if quiet else self.progress, sum(lengths), done)
        try:
            while self.at < len(self.groups) and not self.interrupts.pressed:
                self._train_group(saved)
                saved = None
        finally:
            self.bar.close()
        self.fabric.barrier()
        return [record.report() for record in self.records]

    def _recall(self) -> files.Snapshot | None:
        """Begin, or begin where the checkpoint ends."""
        self.belongs = files.describe(self.members, self.settings)
        saved = None if self.path is None else files.read(self.path, self.belongs, self.members)
        if saved is None:
            self.records = [Record() for _ in self.members]
            objective = OBJECTIVES[self.settings.objective]
            self.groups = partition(
                self.members, objective, self.settings.batch_size, true_dtype(self.settings)
            )
            return None
        self.records = [Record.of(plain) for plain in saved.about["records"]]
        self.groups, self.at = saved.about["groups"], saved.about["at"]
        for number, member in enumerate(self.members):
            if self.records[number].status != "running":
                _fill(member.model, saved.tensors, f"weights/{number}/")
        return saved if saved.about["engine"] is not None else None

    def _train_group(self, saved: files.Snapshot | None) -> None:
        numbers = self.groups[self.at]
        active = None if saved is None else saved.about["engine"]["active"]
        engine = Engine(self.members, numbers, self.records, self.settings, self.fabric, active)
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
            if engine.whole:
                self._save(engine)
        finally:
            engine.finish(None)

    def _steps(self, engine: Engine) -> None:
        while engine.active and engine.step < engine.steps:
            before = engine.step
            engine.advance()
            if engine.step > before:
                self.bar.step(engine.shown)
                if engine.active and engine.due:
                    self._tell(engine.step, engine.evaluate())
            if self._pressed():
                return
            if self._save_is_due():
                self._save(engine)

    def _tell(self, step: int, noted: dict[int, dict[str, float]]) -> None:
        if self.on_evaluation is None or self.fabric.global_rank > 0:
            return
        try:
            self.on_evaluation(step, [noted.get(n, {}) for n in range(len(self.members))])
        except KeyboardInterrupt:  # counts as Ctrl-C: the other processes have to hear of it
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

    def _save(self, engine: Engine) -> None:
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
            "at": self.at + (not engine.active),  # a group that is done is not begun again
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


@contextmanager
def _kept(models: Sequence[nn.Module]) -> Iterator[None]:
    """Models are in the mode they were in afterwards, and look at their weights as before."""
    modes = {module: module.training for model in models for module in model.modules()}
    try:
        with unguarded(models):
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


class _Interrupts:
    """Ctrl-C once: remember it, so that training stops between two steps. Twice: at once."""

    def __init__(self) -> None:
        self.count = 0
        self._before: Any = None

    @property
    def pressed(self) -> bool:
        return self.count > 0

    def __enter__(self) -> _Interrupts:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._press)
        return self

    def _press(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 1:
            raise KeyboardInterrupt

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

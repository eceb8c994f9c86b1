"""Training one group of members: steps, evaluation, members that leave, state for checkpoints."""

from __future__ import annotations

import time
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from weightloom.training.batches import Batches, mixed
from weightloom.training.choices import OBJECTIVES, make_schedule
from weightloom.training.divergence import finite_rows, locate
from weightloom.training.members import Member, Split, TrainingRecord
from weightloom.training.settings import Settings
from weightloom.training.stack import Group, Single, Stacked
from weightloom.training.update import State, Update, first_bad_tensor

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["TrainingEngine"]


class Leaving(NamedTuple):
    """Why a member stops, and how many good steps it made."""

    status: str
    message: str
    steps: int


def _diverged(step: int, what: str) -> Leaving:
    return Leaving("diverged", f"step {step}: {what}", step - 1)


class TrainingEngine:
    """Trains the members ``numbers`` at once. Its fields hold all state between two steps.

    A member that diverges or reaches a plateau leaves the stack, so no time is spent on it.
    """

    def __init__(
        self,
        members: Sequence[Member],
        numbers: Sequence[int],
        records: Sequence[TrainingRecord],
        settings: Settings,
        fabric: Fabric,
        active: Sequence[int] | None = None,
    ) -> None:
        self.members = members
        self.records = records
        self.settings = settings
        self.fabric = fabric
        self.active = list(numbers if active is None else active)
        self.consistent = True
        """False in the middle of a step, when the state must not be saved"""
        self.step = 0
        self.counted = 0
        self.totals = torch.zeros(len(self.active), dtype=torch.float64, device=fabric.device)
        self._last = torch.zeros_like(self.totals)
        self._spent = 0.0
        objective = OBJECTIVES[settings.objective]
        models = [members[number].model for number in self.active]
        # By the original number of members: the last one of a stack stays a stack of one.
        self.group: Single | Stacked
        if len(numbers) == 1:
            self.group = Single(models[0], objective)
        else:
            self.group = Stacked.of(models, objective)
        part = (fabric.global_rank, fabric.world_size)
        self.batches = Batches(
            [members[number] for number in self.active], settings.batch_size, part
        )
        self.steps = settings.epochs * self.batches.per_epoch
        self.rate = make_schedule(
            settings.schedule, settings.schedule_options, self.steps, self.batches.per_epoch
        )
        self._set_up(None)

    def _set_up(self, state: State | None) -> None:
        default = self.settings.learning_rate
        rates = [self.members[number].learning_rate or default for number in self.active]
        self.update = Update(self.group, rates, self.settings, self.fabric, state)

    # -- one step --------------------------------------------------------------------------------

    def advance(self) -> None:
        """Make one step with all members; those whose numbers are not finite leave."""
        started = time.perf_counter()
        batch = self.batches.take(self.step)
        self._seed()
        losses = self.update.module(batch.columns, batch.shared, batch.share)
        values = self._over_processes(self.group.losses.double())
        lost = self._lost_by_loss(values)
        self.consistent = False
        if len(lost) < len(self.active):
            self.update.zero_grad()
            # DDP takes the mean over processes; each has its part of the sum.
            self.fabric.backward(losses.sum() * self.fabric.world_size)
            lost |= self._lost_by_gradient(lost)
        if len(lost) < len(self.active):
            self.update.step(self.rate(self.step))
            self.totals += values
            self._last = values
            self.counted += 1
            self.step += 1
        self._spent += time.perf_counter() - started
        self._leave(lost)
        self.consistent = True

    def _seed(self) -> None:
        """Noise (dropout) depends on the members and the step only: no random state to store."""
        seeds = [member.seed for member in self.batches.members]
        seed = mixed("noise", *seeds, self.step, self.fabric.global_rank)
        if self.fabric.device.type == "cpu":
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)

    def _over_processes(self, values: Tensor) -> Tensor:
        if self.fabric.world_size == 1:
            return values
        reduced: Tensor = self.fabric.all_reduce(values, reduce_op="sum")  # type: ignore[assignment]
        return reduced

    # -- leaving ---------------------------------------------------------------------------------

    def _lost_by_loss(self, values: Tensor) -> dict[int, Leaving]:
        """Positions of members whose loss is not finite, with the message for each."""
        if bool(torch.isfinite(values).all()):
            return {}
        bad = [i for i, good in enumerate(torch.isfinite(values).tolist()) if not good]
        return {i: self._explain(i) for i in bad}

    def _lost_by_gradient(self, already: Container[int]) -> dict[int, Leaving]:
        """Positions of members whose gradient norm is not finite; only checked when clipping."""
        bad = {i: name for i, name in self.update.clip().items() if i not in already}
        for i in bad:
            self._give_back(i)
        return {
            i: _diverged(
                self.step + 1,
                f"the gradient of {name!r} is not finite"
                if name
                else "the gradient's norm overflows",
            )
            for i, name in bad.items()
        }

    def _explain(self, i: int) -> Leaving:
        name = first_bad_tensor(dict(self.group.named()), i)
        self._give_back(i)
        if name is not None and self.step == 0:
            return _diverged(1, f"{name!r} was not finite before it")
        if name is not None:
            return _diverged(
                self.step,
                f"the gradient of {name!r} was not finite, or too large for the step that was made "
                f"with it",
            )
        model = self.members[self.active[i]].model
        inputs, target = self.batches.alone(self.step, i)
        where = locate(model, inputs, target)
        before = f" (loss at the step before: {self._last[i].item():.3g})" if self.counted else ""
        return _diverged(self.step + 1, f"{where}{before}")

    def _give_back(self, i: int) -> None:
        self.group.give_back(i, self.members[self.active[i]].model)

    def _leave(self, lost: dict[int, Leaving]) -> None:
        """Members at these positions stop; the others go on."""
        if not lost:
            return
        self.settle()
        for i, leaving in lost.items():
            record = self.records[self.active[i]]
            record.status, record.message, record.steps = leaving
            if record.status != "diverged":  # a diverged member already got its last good weights
                self._give_back(i)
        keep = [i for i in range(len(self.active)) if i not in lost]
        self.active = [self.active[i] for i in keep]
        if not keep or not isinstance(self.group, Stacked):
            return
        rows = torch.tensor(keep, device=self.fabric.device)
        self.group = self.group.select(rows)
        state = self.update.select(self.group, rows)
        self.totals, self._last = self.totals[rows], self._last[rows]
        self.batches = self.batches.select(keep)
        self._set_up(state)

    def settle(self) -> None:
        """Add the time since the last call to the records of the active members."""
        for number in self.active:
            self.records[number].seconds += self._spent / len(self.active)
            self.records[number].steps = self.step
        self._spent = 0.0

    def finish(self, status: str | None) -> None:
        """Copy the weights to the models of the active members; ``status`` None: not finished."""
        self.settle()
        for i, number in enumerate(self.active):
            self._give_back(i)
            if status is not None:
                self.records[number].status = status
        if status is not None:
            self.active = []

    # -- evaluation ------------------------------------------------------------------------------

    @property
    def due(self) -> bool:
        """Whether it is time to evaluate."""
        every = self.settings.evaluate_every or self.batches.per_epoch
        return self.step % every == 0 or self.step == self.steps

    def evaluate(self) -> dict[int, dict[str, float]]:
        """Add a value to each curve; returns the values by member. Members may leave."""
        self.settle()
        self.consistent = False
        lost = self._parameters_not_finite()
        held_out = _evaluate(
            self.group,
            [member.held_out for member in self.batches.members],
            self.settings.batch_size,
            self.fabric,
        )
        train = (self.totals / max(1, self.counted)).tolist()
        self.totals.zero_()
        self.counted = 0
        noted = {}
        for i, number in enumerate(self.active):
            values = {"train": train[i], **{name: v[i] for name, v in held_out.items()}}
            self.records[number].note(self.step, values)
            noted[number] = values
            if i not in lost and self._stalled(self.records[number], values):
                lost[i] = Leaving("plateau", self._plateau_message(), self.step)
        self._leave(lost)
        self.consistent = True
        return noted

    def _stalled(self, record: TrainingRecord, values: dict[str, float]) -> bool:
        if self.settings.patience is None:
            return False
        value = values["validation"]
        over = record.has_stalled(value, self.settings.patience, self.settings.min_improvement)
        return over and self.step < self.steps

    def _plateau_message(self) -> str:
        return (
            f"step {self.step}: the validation value has not improved by "
            f"{self.settings.min_improvement:.2g} of itself in {self.settings.patience} evaluations"
        )

    def _parameters_not_finite(self) -> dict[int, Leaving]:
        named = dict(self.group.named())
        good = finite_rows([named[name] for name in self.group.names]).tolist()
        bad = {i: first_bad_tensor(named, i) for i, fine in enumerate(good) if not fine}
        for i in bad:
            self._give_back(i)
        return {
            i: _diverged(self.step, f"the parameter {name!r} is not finite after it")
            for i, name in bad.items()
        }

    def status_text(self) -> str:
        """The text behind the progress bar."""
        if not self.active:
            return ""
        loss = f"loss {self._last.mean().item():.4g}"
        return loss if len(self.active) == 1 else f"{loss}, {len(self.active)} at once"

    # -- checkpoints -----------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """All tensors that the next step depends on; see `plain` for the rest."""
        state = {f"group/{name}": tensor for name, tensor in self.group.named()}
        state |= {f"optimiser/{name}": tensor for name, tensor in self.update.tensors().items()}
        return {**state, "totals": self.totals, "last": self._last}

    def plain(self) -> dict[str, Any]:
        """The plain values that the next step depends on."""
        return {"active": self.active, "step": self.step, "counted": self.counted}

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor], plain: dict[str, Any]) -> None:
        """Restore the state that `tensors` and `plain` returned."""
        self.step, self.counted = plain["step"], plain["counted"]
        self.totals.copy_(tensors["totals"])
        self._last.copy_(tensors["last"])
        for name, tensor in self.group.named():
            tensor.copy_(tensors[f"group/{name}"])
        prefix = "optimiser/"
        self.update.load(
            {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        )


# -- the objective on held-out data --------------------------------------------------------------

# Numbers in the inputs of one piece: enough to hide the overhead of a call, few enough for caches.
PIECE = 2**21


@torch.no_grad()
def _evaluate(
    group: Group, held_out: Sequence[Mapping[str, Split]], batch_size: int, fabric: Fabric
) -> dict[str, list[float]]:
    """The mean over all samples of each held-out set, for each member."""
    group.mode(train=False)
    try:
        return {
            name: _mean(group, [sets[name] for sets in held_out], batch_size, fabric)
            for name in held_out[0]
        }
    finally:
        group.mode(train=True)


def _mean(group: Group, splits: list[Split], batch_size: int, fabric: Fabric) -> list[float]:
    """Of the objective over one held-out set; in pieces, which bounds the memory."""
    total = torch.zeros(group.members, dtype=torch.float64, device=fabric.device)
    samples = len(splits[0])
    columns = list(zip(*(split.columns for split in splits), strict=True))
    shared = [
        not isinstance(group, Stacked) or all(t is column[0] for t in column) for column in columns
    ]
    rows = _rows(splits[0], group.members, batch_size)
    for number, low in enumerate(range(0, samples, rows)):
        if number % fabric.world_size != fabric.global_rank:
            continue
        piece = [
            _cut(column, low, low + rows, common)
            for column, common in zip(columns, shared, strict=True)
        ]
        with fabric.autocast():
            total += group.samples(piece, shared).sum(1, dtype=torch.float64)
    if fabric.world_size > 1:
        total = fabric.all_reduce(total, reduce_op="sum")  # type: ignore[assignment]
    return (total / samples).tolist()


def _cut(column: tuple[Tensor, ...], low: int, high: int, common: bool) -> Tensor:
    if common:
        return column[0][low:high]
    return torch.stack([tensor[low:high] for tensor in column])


def _rows(split: Split, members: int, batch_size: int) -> int:
    """At least the batch size: without gradients a batch takes less memory than in training."""
    width = sum(column[0].numel() for column in split.columns)
    return max(batch_size, min(1024, PIECE // max(1, members * width)))

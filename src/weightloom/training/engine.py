"""Training one group of members, step by step."""

from __future__ import annotations

import time
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from weightloom.training.batches import Batches, mixed
from weightloom.training.data import Member
from weightloom.training.divergence import finite_rows, locate
from weightloom.training.evaluation import evaluate
from weightloom.training.objectives import OBJECTIVES
from weightloom.training.optimisers import make_schedule
from weightloom.training.report import Record
from weightloom.training.settings import Settings
from weightloom.training.stack import Single, Stacked
from weightloom.training.update import State, Update, first_bad_tensor

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Engine"]


class Leaving(NamedTuple):
    """Why a member stops, and how many good steps it has made."""

    status: str
    message: str
    steps: int


def _diverged(step: int, what: str) -> Leaving:
    return Leaving("diverged", f"step {step}: {what}", step - 1)


class Engine:
    """Trains the members ``numbers`` at once. All state between two steps is in its fields.

    A member that has diverged or come to a plateau leaves the stack, so no time is spent on it.
    """

    def __init__(
        self,
        members: Sequence[Member],
        numbers: Sequence[int],
        records: Sequence[Record],
        settings: Settings,
        fabric: Fabric,
        active: Sequence[int] | None = None,
    ) -> None:
        self.members = members
        self.records = records
        self.settings = settings
        self.fabric = fabric
        self.active = list(numbers if active is None else active)
        self.whole = True
        """False while a step is half done: then there is nothing worth saving"""
        self.step = 0
        self.counted = 0
        self.totals = torch.zeros(len(self.active), dtype=torch.float64, device=fabric.device)
        self._last = torch.zeros_like(self.totals)
        self._spent = 0.0
        objective = OBJECTIVES[settings.objective]
        models = [members[number].model for number in self.active]
        # By how many it began with: one that is left of a stack stays a stack of one.
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
        """Make one step with everybody, and let those go whose numbers are no longer finite."""
        started = time.perf_counter()
        batch = self.batches.take(self.step)
        self._seed()
        losses = self.update.module(batch.columns, batch.shared, batch.share)
        values = self._over_processes(self.group.losses.double())
        lost = self._lost_by_loss(values)
        self.whole = False
        if len(lost) < len(self.active):
            self.update.forget()
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
        self.whole = True

    def _seed(self) -> None:
        """Noise (dropout) depends on who is trained and on the step: nothing else to remember."""
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
        """Positions of members whose loss is not finite, with what is to be said about it."""
        if bool(torch.isfinite(values).all()):
            return {}
        bad = [i for i, good in enumerate(torch.isfinite(values).tolist()) if not good]
        return {i: self._explain(i) for i in bad}

    def _lost_by_gradient(self, already: Container[int]) -> dict[int, Leaving]:
        """Positions of members with no finite norm to clip to. Who sets none is seen later."""
        found = {i: name for i, name in self.update.clip().items() if i not in already}
        for i in found:
            self._give_back(i)
        return {
            i: _diverged(
                self.step + 1,
                f"the gradient of {name!r} is not finite"
                if name
                else "the gradient's norm overflows",
            )
            for i, name in found.items()
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
            if record.status != "diverged":  # who diverged was given back what there was before
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
        """Share the time spent since last asked among those who were trained."""
        for number in self.active:
            self.records[number].seconds += self._spent / len(self.active)
            self.records[number].steps = self.step
        self._spent = 0.0

    def finish(self, status: str | None) -> None:
        """Give everybody who is left what was learned; ``status`` None: not finished yet."""
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
        """Put a value for each curve into the records; returned by member. May let members go."""
        self.settle()
        self.whole = False
        lost = self._parameters_not_finite()
        held_out = evaluate(
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
                lost[i] = Leaving("plateau", self._patience_is_over(), self.step)
        self._leave(lost)
        self.whole = True
        return noted

    def _stalled(self, record: Record, values: dict[str, float]) -> bool:
        if self.settings.patience is None:
            return False
        value = values["validation"]
        over = record.has_stalled(value, self.settings.patience, self.settings.min_improvement)
        return over and self.step < self.steps

    def _patience_is_over(self) -> str:
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

    def shown(self) -> str:
        """What stands behind the progress bar."""
        if not self.active:
            return ""
        loss = f"loss {self._last.mean().item():.4g}"
        return loss if len(self.active) == 1 else f"{loss}, {len(self.active)} at once"

    # -- checkpoints -----------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """All tensors that the next step depends on."""
        found = {f"group/{name}": tensor for name, tensor in self.group.named()}
        found |= {f"optimiser/{name}": tensor for name, tensor in self.update.tensors().items()}
        return {**found, "totals": self.totals, "last": self._last}

    def plain(self) -> dict[str, Any]:
        """All else that it depends on."""
        return {"active": self.active, "step": self.step, "counted": self.counted}

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor], plain: dict[str, Any]) -> None:
        """Be as the engine was that returned these."""
        self.step, self.counted = plain["step"], plain["counted"]
        self.totals.copy_(tensors["totals"])
        self._last.copy_(tensors["last"])
        for name, tensor in self.group.named():
            tensor.copy_(tensors[f"group/{name}"])
        prefix = "optimiser/"
        self.update.load(
            {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        )

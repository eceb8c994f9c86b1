"""A contender that is built, checked against the reference, and ready to be timed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from contenders import Contender
from torch import Tensor, nn
from tqdm import tqdm
from workloads import Data, Reference, Start, Workload

__all__ = ["Entry", "prepare"]

TOLERANCE = 2e-3  # of the reference's scale: single precision through 12,544 terms, with room


@dataclass
class Entry:
    contender: Contender
    model: nn.Module
    optimizer: torch.optim.Optimizer
    data: Data
    checked: str  # what was verified, in words

    def forward(self) -> Tensor:
        with torch.no_grad():
            return self.model(self.data.x, self.data.condition)

    def step(self) -> None:
        """Forward, mean squared error, backward, SGD. Gradients are dropped first, as is usual."""
        self.optimizer.zero_grad(set_to_none=True)
        output = self.model(self.data.x, self.data.condition)
        F.mse_loss(output, self.data.target).backward()
        self.optimizer.step()

    def action(self, kind: str) -> Callable[[], object]:
        return {"forward": self.forward, "step": self.step}[kind]

    def rest(self) -> None:
        """Give gradients back, so that waiting contenders hold no memory but their parameters."""
        self.optimizer.zero_grad(set_to_none=True)


def prepare(
    contenders: Iterable[Contender], workload: Workload, start: Start, answer: Reference
) -> tuple[list[Entry], dict[str, str]]:
    """Build and verify every contender; return the correct ones, {label: reason} for the rest."""
    data = workload.data()
    entries: list[Entry] = []
    failed: dict[str, str] = {}
    bar = tqdm(list(contenders), desc=f"({workload.key}) build, compile, verify", leave=False)
    for contender in bar:
        bar.set_postfix_str(contender.label[-40:])
        try:
            entries.append(_prepare(contender, workload, start, data, answer))
        except Exception as error:  # one contender's failure is a result, not the end of the run
            text = str(error).strip().splitlines() or [""]
            failed[contender.label] = f"{type(error).__name__}: {text[0][:200]}"
    return entries, failed


def _prepare(
    contender: Contender, workload: Workload, start: Start, data: Data, answer: Reference
) -> Entry:
    model = contender.make(workload, start)
    optimizer = torch.optim.SGD(model.parameters(), lr=workload.learning_rate)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if trained != start.parameters:
        raise ValueError(f"trains {trained:,} parameters where {start.parameters:,} are wanted")
    entry = Entry(contender, model, optimizer, data, "")
    scale = float(answer.before.std())
    before = _error(entry.forward(), answer.before, scale, "outputs")
    for _ in range(answer.steps):
        entry.step()
    # The change is compared on its own scale: a wrong gradient cannot hide behind the outputs.
    change = answer.after - answer.before
    moved = entry.forward() - answer.before
    after = _error(moved, change, float(change.std()), f"change after {answer.steps} steps", 20)
    entry.rest()
    entry.checked = f"same start; outputs to {before:.0e}, change by training to {after:.0e}"
    return entry


def _error(seen: Tensor, wanted: Tensor, scale: float, what: str, slack: float = 1.0) -> float:
    if seen.shape != wanted.shape:
        raise ValueError(f"output shape {tuple(seen.shape)}, wanted {tuple(wanted.shape)}")
    error = float((seen.double() - wanted).abs().max()) / scale
    if not error < TOLERANCE * slack:
        raise ValueError(f"{what} differ from the plain loop by {error:.1e} of their scale")
    return error

"""What `wl.diagnose` says about the tasks: healthy runs should get no warning."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

import weightloom as wl
from start_suite.base import Problem
from start_suite.contenders import CONTENDERS

__all__ = ["STAGES", "Checkup", "check", "render"]

STAGES = (0, 20)
"""training steps before the diagnosis: none, and a few"""


@dataclass(frozen=True)
class Checkup:
    """One diagnosis of one model."""

    task: str
    contender: str
    rate: float
    trained: int
    """steps before"""
    warnings: tuple[str, ...]


def check(name: str, problem: Problem, contender: str, rate: float = 1e-3) -> list[Checkup]:
    """Adam at ``rate``: a diagnosis of the start, and one after a few steps of training."""
    torch.manual_seed(0)
    model = CONTENDERS[contender](problem)
    if not isinstance(model, wl.HyperNetwork):
        return []
    generator = torch.Generator().manual_seed(0)
    optimiser = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=rate)
    results, done = [], 0
    for stage in STAGES:
        for _ in range(stage - done):
            loss = problem.loss(model, generator)
            if not math.isfinite(loss.item()):
                break
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        done = stage
        batch = problem.batch(generator)
        diagnosis = wl.diagnose(
            model,
            batch.x,
            batch.condition,
            target=batch.target,
            loss=batch.loss,
            optimiser=optimiser,
        )
        results.append(Checkup(name, contender, rate, stage, tuple(diagnosis.warnings)))
    return results


def render(checkups: list[Checkup]) -> str:
    """A line for each warning, and the count."""
    lines = []
    for checkup in checkups:
        run = f"{checkup.task} {checkup.contender} adam {checkup.rate:g}"
        title = f"{run}, after {checkup.trained} steps"
        lines += [f"{title}: {text}" for text in checkup.warnings] or [f"{title}: no warnings"]
    warned = sum(bool(checkup.warnings) for checkup in checkups)
    return "\n".join([*lines, f"{warned} of {len(checkups)} diagnoses have warnings"])

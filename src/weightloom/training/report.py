"""What happened to one member, while it happens (`Record`) and afterwards (`Report`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Curves", "Record", "Report"]

Curves = dict[str, tuple[list[int], list[float]]]
"""name -> (steps made by then, values)"""


@dataclass
class Report:
    """What happened to one member.

    ``curves`` has "train" (mean loss since the evaluation before) and one curve for each held-out
    set; ``final`` has the last value of each, or nan after divergence.
    """

    status: str  # "done" | "plateau" | "diverged" | "interrupted"
    message: str
    steps: int
    seconds: float  # of training steps, this member's share
    curves: Curves
    final: dict[str, float]


@dataclass
class Record:
    """One member's report in the making; all of it goes into checkpoints."""

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
        """Take the validation value of one more evaluation; whether it is time to stop."""
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
    def of(cls, plain: Mapping[str, Any]) -> Record:
        curves = {name: (list(s), list(v)) for name, (s, v) in plain["curves"].items()}
        return cls(**{**plain, "curves": curves})

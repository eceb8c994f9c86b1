"""What came of tuning, as records and as a table to read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Trial", "TuneReport"]


@dataclass(frozen=True)
class Trial:
    """One candidate and what came of it."""

    parameters: dict[str, Any]
    value: float  # of the objective; NaN if it failed
    standard_error: float = 0.0
    failure: str | None = None
    refined: bool = False


@dataclass(frozen=True)
class TuneReport:
    """All candidates that were tried, the best, and what became of refining; str() is a table."""

    objective: str
    trials: tuple[Trial, ...]
    best: Trial
    note: str

    def __str__(self) -> str:
        names = list(self.trials[0].parameters)
        head = [*(name.removeprefix("kernel__") for name in names), self.objective, ""]
        table = [head, *(self._row(trial, names) for trial in self.trials)]
        widths = [max(len(row[k]) for row in table) for k in range(len(head))]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(row[:-1], widths, strict=False))
            + f"  {row[-1]}"
            for row in table
        ]
        return "\n".join([*(line.rstrip() for line in lines), self.note])

    def _row(self, trial: Trial, names: list[str]) -> list[str]:
        remarks = [
            "best" if trial is self.best else "",
            "refined" if trial.refined else "",
            trial.failure or "",
        ]
        error = f" ± {trial.standard_error:.1g}" if trial.standard_error else ""
        return [
            *(_shown(trial.parameters[name]) for name in names),
            f"{trial.value:.6g}{error}",
            ", ".join(remark for remark in remarks if remark),
        ]


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

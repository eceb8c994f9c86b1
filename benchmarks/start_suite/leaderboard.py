"""The leaderboard of other models: each at its best rate, mean and interval over seeds."""

from __future__ import annotations

import math
import statistics

from scipy.stats import t as student

from start_suite.report import Errors, mean
from start_suite.rivals import MATCHES
from weightloom.tables import aligned

__all__ = ["interval", "leaderboard"]


def leaderboard(tasks: dict[str, Errors], about: dict[str, str]) -> str:
    lines = [
        "Held-out errors of hypernetworks and other models with the same encoder, at the best of "
        "their Adam rates; mean and 95% interval over seeds.",
        "learned: as many learned parameters as the full hypernetwork. points: as many "
        "multiply-adds for one point. ceiling: one network for each condition, trained on it.",
    ]
    for task in [name for name in about if name in tasks]:
        lines += ["", f"{task}: {about[task]}", *table(tasks[task])]
    return "\n".join(lines)


def table(errors: Errors) -> list[str]:
    names = list(dict.fromkeys(name.partition("@")[0] for name in errors))
    rows = [["", *(f"equal {match}" for match in MATCHES), "rates"]]
    for name in names:
        keys = [key for match in MATCHES if (key := key_of(name, match, errors))]
        best = {key: best_rate(errors[key]) for key in keys}
        cells = [interval(errors[key][best[key]]) for key in keys]
        cells += ["."] * (len(MATCHES) - len(cells))
        rows.append([name, *cells, " ".join(f"{best[key][1]:g}" for key in keys)])
    return aligned(rows, "lr", rule=True)


def key_of(name: str, match: str, errors: Errors) -> str | None:
    """The full hypernetwork is its own equal; the ceiling has no size to match."""
    known = (key for key in (f"{name}@{match}", f"{name}@learned", name) if key in errors)
    return next(known, None)


def best_rate(by_rate: dict[tuple[str, float], list[float]]) -> tuple[str, float]:
    return min(by_rate, key=lambda rate: mean(by_rate[rate]))


def interval(errors: list[float]) -> str:
    """Mean and half the width of Student's 95% interval."""
    centre = mean(errors)
    if len(errors) < 2 or not math.isfinite(centre):
        return f"{centre:.4f}"
    half = student.ppf(0.975, len(errors) - 1) * statistics.stdev(errors) / len(errors) ** 0.5
    return f"{centre:.4f} +- {half:.4f}"

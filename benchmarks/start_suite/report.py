"""The table: held-out errors by rate, and whether the default meets its goal on each task."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from start_suite.contenders import OPTIONAL, OURS, REFERENCES
from start_suite.runs import RATES, Result
from weightloom.tables import aligned

__all__ = ["Errors", "Verdict", "collect", "render", "verdict"]

NEAR = 1.1  # within 10 percent
SOLVED = 1e-3  # errors of a thousandth of guessing are equally good
ENOUGH = 3  # Adam rates, of five, at which the default is near the best
FIRST = 1e-3  # the rate that one would try first
GOAL = (
    f"Goal on each task: the default is within 10% of the best error of all contenders at {ENOUGH} "
    f"of {len(RATES['adam'])} Adam rates, among them {FIRST:g}; and no contender's best is more "
    f"than 10% better than the default's best. Errors below {SOLVED:g} count as {SOLVED:g}."
)

Errors = dict[str, dict[tuple[str, float], list[float]]]
"""contender -> (optimiser, rate) -> the errors of all seeds"""


@dataclass(frozen=True)
class Verdict:
    met: bool
    text: str


def collect(results: Iterable[Result]) -> dict[str, Errors]:
    tasks: dict[str, Errors] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for result in results:
        if result.error is not None:
            job = result.job
            tasks[job.task][job.contender][job.optimiser, job.rate].append(result.error)
    return tasks


def mean(errors: list[float]) -> float:
    return sum(errors) / len(errors) if errors else math.nan


def means(errors: Errors, contender: str) -> dict[tuple[str, float], float]:
    return {rate: mean(each) for rate, each in errors.get(contender, {}).items()}


def verdict(errors: Errors) -> Verdict:
    """Whether the default meets the goal on this task, and by how much not."""
    ours = means(errors, OURS)
    if not any(optimiser == "adam" for optimiser, _ in ours):
        return Verdict(False, f"undecided: {OURS} was not run")
    others = {
        name: min(means(errors, name).values())
        for name in errors
        if name not in (OURS, *REFERENCES, *OPTIONAL)
    }
    best = max(SOLVED, min([*ours.values(), *others.values()]))
    near = [rate for (kind, rate), e in ours.items() if kind == "adam" and e <= NEAR * best]
    at_first = ours.get(("adam", FIRST), math.inf)
    problems = []
    if FIRST not in near:
        problems.append(f"at Adam {FIRST:g} {at_first / best:.2f} times the best")
    if len(near) < ENOUGH:
        problems.append(f"near the best at {len(near)} rates only")
    for name, theirs in others.items():
        if min(ours.values()) > NEAR * max(SOLVED, theirs):
            problems.append(f"{name} is better: {theirs:.4f} against {min(ours.values()):.4f}")
    rates = ", ".join(f"{rate:g}" for rate in sorted(near)) or "none"
    return Verdict(not problems, "; ".join(problems) or f"near the best at {rates}")


def render(tasks: dict[str, Errors], about: dict[str, str]) -> str:
    lines = [GOAL]
    verdicts = {}
    for name in [name for name in about if name in tasks]:
        verdicts[name] = verdict(tasks[name])
        lines += ["", f"{name}: {about[name]}", *table(tasks[name])]
        lines.append(f"goal {'met' if verdicts[name].met else 'NOT MET'}: {verdicts[name].text}")
    met = sum(v.met for v in verdicts.values())
    lines += ["", f"Goal met on {met} of {len(verdicts)} tasks."]
    lines += [f"  not met: {name} ({v.text})" for name, v in verdicts.items() if not v.met]
    return "\n".join(lines)


def table(errors: Errors) -> list[str]:
    """Contenders by rates; * is the best of all, + within 10% of it."""
    columns = [(optimiser, rate) for optimiser, rates in RATES.items() for rate in rates]
    known = {name: means(errors, name) for name in errors}
    best = min(e for name in known if name not in REFERENCES for e in known[name].values())
    rows = [["", *(f"{optimiser} {rate:g}" for optimiser, rate in columns), "best"]]
    for name, by_rate in known.items():
        cells = [cell(by_rate.get(column), best) for column in columns]
        rows.append([name, *cells, cell(min(by_rate.values()), best)])
    return aligned(rows, "lr", rule=True)


def cell(error: float | None, best: float) -> str:
    if error is None:
        return ". "
    if math.isinf(error):
        return "diverged "
    mark = "*" if error == best else "+" if error <= NEAR * max(SOLVED, best) else " "
    return (f"{error:.4f}" if error < 100 else f"{error:.1e}") + mark

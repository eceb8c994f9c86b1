"""How long it will take: relative costs of runs, times what a unit of cost took on this machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from weightloom.lab.experiment import Experiment, outdated, wanted
from weightloom.lab.provenance import cpu_name
from weightloom.lab.runs import Result, Run
from weightloom.lab.store import Store

__all__ = ["Estimate", "duration", "estimate", "seconds_per_cost"]


@dataclass(frozen=True)
class Estimate:
    """What is stored of an experiment at a scale, and what the rest will take."""

    name: str
    wanted: int
    stored: int
    failed: int
    #: Of the runs that are not stored, in seconds, one after the other.
    seconds: float
    #: How many stored runs of this machine the time was measured on; 0: the experiment's guess.
    measured_on: int

    @property
    def missing(self) -> int:
        return self.wanted - self.stored


def estimate(
    experiment: Experiment, scale: str, store: Store | None, data_dir: Path | None = None
) -> Estimate:
    """What of ``experiment`` is in ``store`` (None: nothing), and how long the rest will take."""
    runs = wanted(experiment, scale)
    names = dict.fromkeys(run.experiment for run in runs)
    # Also results that are not wanted at this scale: they tell how fast this machine is.
    results = [] if store is None else [r for name in names for r in store.results(name)]
    stored = {
        result.run
        for result in results
        if not result.outcome.failed and not outdated(experiment, result, data_dir)
    } & set(runs)
    failed = {result.run for result in results if result.outcome.failed} & set(runs)
    rate, measured_on = seconds_per_cost(experiment, results)
    return Estimate(
        experiment.name,
        wanted=len(runs),
        stored=len(stored),
        failed=len(failed),
        seconds=rate * sum(experiment.cost(run) for run in runs if run not in stored),
        measured_on=measured_on,
    )


def seconds_per_cost(experiment: Experiment, results: Iterable[Result]) -> tuple[float, int]:
    """Seconds for a unit of cost on this machine's processor, and how many results say so."""
    seconds = cost = 0.0
    count = 0
    for result in results:
        if result.outcome.failed or result.provenance.get("cpu") != cpu_name():
            continue
        unit = _cost(experiment, result.run)
        if unit > 0:
            seconds, cost, count = seconds + result.outcome.seconds, cost + unit, count + 1
    return (seconds / cost, count) if count else (experiment.seconds_per_cost, 0)


def duration(seconds: float) -> str:
    """A time in words, to the precision an estimate has.

    >>> duration(0.2), duration(50), duration(600), duration(9000), duration(400_000)
    ('1 s', '50 s', '10 min', '2.5 h', '4.6 days')
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"


def _cost(experiment: Experiment, run: Run) -> float:
    try:
        return experiment.cost(run)
    except (KeyError, TypeError, ValueError):
        return 0.0  # of an earlier version of the experiment, with other words in its configuration

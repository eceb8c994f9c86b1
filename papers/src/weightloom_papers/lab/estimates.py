"""How long experiments take: an estimate before, a progress bar during the runs.

The estimate is the relative cost of the runs, times the time per unit of cost on this machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from weightloom_papers.lab.experiment import Experiment, outdated, wanted
from weightloom_papers.lab.provenance import cpu_name
from weightloom_papers.lab.runs import Result, Run
from weightloom_papers.lab.store import Store

__all__ = ["CostEstimate", "Progress", "duration", "estimate", "seconds_per_cost"]


@dataclass(frozen=True)
class CostEstimate:
    """How many runs of an experiment are stored, and how long the rest will take."""

    name: str
    wanted: int
    stored: int
    failed: int
    #: Time of the missing runs, one after the other.
    seconds: float
    #: Number of stored runs of this machine behind the estimate; 0: the experiment's own guess.
    measured_on: int

    @property
    def missing(self) -> int:
        return self.wanted - self.stored


def estimate(
    experiment: Experiment,
    scale: str,
    store: Store | None,
    data_dir: Path | None = None,
    runs: Sequence[Run] | None = None,
) -> CostEstimate:
    """How much of ``experiment`` is in ``store`` (None: nothing), and how long the rest will take.

    ``runs``: the result of `wanted`, if the caller has it.
    """
    runs = wanted(experiment, scale) if runs is None else runs
    names = dict.fromkeys(run.experiment for run in runs)
    # Results of other scales too: they show how fast this machine is.
    results = [] if store is None else [r for name in names for r in store.results(name)]
    stored = {
        result.run
        for result in results
        if not result.outcome.failed and not outdated(experiment, result, data_dir)
    } & set(runs)
    failed = {result.run for result in results if result.outcome.failed} & set(runs)
    rate, measured_on = seconds_per_cost(experiment, results)
    return CostEstimate(
        experiment.name,
        wanted=len(runs),
        stored=len(stored),
        failed=len(failed),
        seconds=rate * sum(experiment.cost(run) for run in runs if run not in stored),
        measured_on=measured_on,
    )


def seconds_per_cost(experiment: Experiment, results: Iterable[Result]) -> tuple[float, int]:
    """Seconds per unit of cost on this processor, and the number of results behind it."""
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
    """A time in words, with the precision of an estimate.

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
        return 0.0  # from an earlier version of the experiment, with other settings


_FORMAT = "{desc} {percentage:3.0f}%|{bar}| {elapsed}, {remaining} left"


class Progress:
    """A progress bar over all runs on standard error, if ``show``; messages appear above it."""

    def __init__(
        self, cost: float, runs: int, *, show: bool, say: Callable[[str], None] | None
    ) -> None:
        from tqdm import tqdm

        self._tqdm = tqdm
        self._say = say
        self._runs, self._done = runs, 0
        self._waiting = ""
        self._bar = tqdm(
            total=max(cost, 1e-9),
            desc=self._text(),
            bar_format=_FORMAT,
            disable=not (show and runs),
            smoothing=0,  # mean rate: groups are few and long
            leave=True,
            file=sys.stderr,
        )

    def advance(self, cost: float) -> None:
        self._done += 1
        self._waiting = ""
        self._bar.set_description_str(self._text(), refresh=False)
        self._bar.update(min(cost, self._bar.total - self._bar.n) if self._bar.total else 0)

    def tick(self) -> None:
        """Update the elapsed time on a terminal."""
        if sys.stderr.isatty():
            self._bar.refresh()

    def waiting(self, text: str) -> None:
        """Print once why there is nothing to do at the moment."""
        if self._waiting != text:
            self._waiting = text
            self.say(f"waiting: {text}")

    def say(self, text: str) -> None:
        if self._say is not None:
            with self._tqdm.external_write_mode(file=sys.stderr):
                self._say(text)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()

    def _text(self) -> str:
        return f"{self._done} of {self._runs} runs"

"""Running the experiments whose results are missing in the store.

Only the process that calls `run_experiments` writes to the store; its workers do not. It can be
killed at any moment: finished runs are stored, unfinished ones have their folder, and the next call
continues. Several such processes may share a store; they share the work too.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from weightloom_papers.lab.engines import Died, Ended, Event, Job, JobEngine
from weightloom_papers.lab.engines.base import failures
from weightloom_papers.lab.estimates import Progress
from weightloom_papers.lab.experiment import Experiment, Workspace, outdated, wanted
from weightloom_papers.lab.provenance import provenance
from weightloom_papers.lab.runs import Result, Run
from weightloom_papers.lab.store import Store
from weightloom_papers.lab.work import WorkClaim, WorkFolder

__all__ = ["Summary", "run_experiments"]

#: A run that has killed so many workers is given up.
MOST_DEATHS = 3
_POLL = 0.5  # seconds between looks at what other processes do


@dataclass
class Summary:
    """What `run_experiments` has done."""

    wanted: int = 0
    #: In the store before.
    stored: int = 0
    #: Number of runs with each status, of those done now.
    statuses: Counter[str] = field(default_factory=Counter)
    failed: list[Result] = field(default_factory=list)
    interrupted: bool = False
    seconds: float = 0.0


def run_experiments(
    experiments: Sequence[Experiment],
    scale: str,
    store: Store,
    engine: JobEngine,
    *,
    progress: bool = False,
    data_dir: Path | None = None,
    runs: Mapping[str, Sequence[Run]] | None = None,
    tensorboard: Path | None = None,
    on_result: Callable[[Result], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> Summary:
    """Run what ``store`` lacks of ``experiments`` at ``scale``, and store each outcome at once.

    An exception in a group is stored as failed; the other groups continue. Ctrl-C returns early
    with ``interrupted``. The engine stays open, except after Ctrl-C or an error of the store.

    ``runs``: the result of `wanted` for each experiment, by name, if the caller has it.
    """
    if runs is None:
        runs = {experiment.name: wanted(experiment, scale) for experiment in experiments}
    plan = _RunPlan(experiments, runs, store, data_dir)
    common = Workspace(
        progress=progress and engine.visible,
        threads=engine.threads,
        data_dir=data_dir,
        tensorboard=tensorboard,
    )
    started = time.perf_counter()
    with Progress(plan.missing_cost(), plan.missing(), show=progress, say=say) as bar:
        if plan.outdated:
            bar.say(
                f"{plan.outdated} stored runs were made without the paper's data, which are "
                "available now: they are run again"
            )
        session = _RunSession(plan, store, engine, common, bar, on_result)
        try:
            session.work()
        except KeyboardInterrupt:
            session.summary.interrupted = True
            session.collect_rest()
        finally:
            session.abandon()
    session.summary.seconds = time.perf_counter() - started
    return session.summary


class _RunPlan:
    """All requested runs, the experiments they belong to, and the runs this process gave up."""

    def __init__(
        self,
        experiments: Sequence[Experiment],
        runs: Mapping[str, Sequence[Run]],
        store: Store,
        data_dir: Path | None,
    ) -> None:
        self.runs: dict[str, Run] = {}
        self.owner: dict[str, Experiment] = {}
        self.group: dict[str, tuple[str, str]] = {}
        for experiment in experiments:
            for run in runs[experiment.name]:
                if run.key not in self.runs:  # two figures may share runs
                    self.runs[run.key] = run
                    self.owner[run.key] = experiment
                    self.group[run.key] = (experiment.name, experiment.group(run))
        stored = {r.run.key: r for r in store.of(self.runs.values()) if not r.outcome.failed}
        old = {key for key, r in stored.items() if outdated(self.owner[key], r, data_dir)}
        self.outdated = len(old)
        usable = stored.keys() - old
        # Rows that are unreadable or outdated: `finished` lists them, but they must be run again.
        self.unusable = (store.finished() & set(self.runs)) - usable
        self.stored_before = len(usable)
        self._at_start = [run for key, run in self.runs.items() if key not in usable]
        self.given_up: set[str] = set()

    def missing(self) -> int:
        return len(self._at_start)

    def missing_cost(self) -> float:
        return sum(map(self.cost, self._at_start))

    def cost(self, run: Run) -> float:
        """The estimated seconds, because units of cost differ between experiments."""
        experiment = self.owner[run.key]
        return experiment.seconds_per_cost * experiment.cost(run)

    def open(self, finished: set[str]) -> list[str]:
        """Keys of runs that are neither stored nor given up, in order."""
        done = finished | self.given_up
        return [key for key in self.runs if key not in done]

    def choose(
        self, left: list[tuple[str, ...]], busy: set[str], finished: set[str]
    ) -> Sequence[str]:
        """The next job: one that another process left, or the next part of the next group."""
        available = {key: None for key in self.open(finished) if key not in busy}
        for keys in left:
            if available.keys() >= set(keys) and len({self.group[key] for key in keys}) == 1:
                return keys
        if not available:
            return ()
        first = next(iter(available))
        group = [key for key in available if self.group[key] == self.group[first]]
        # Parts of equal size: 17 runs with a limit of 16 are split into 9 and 8, not 16 and 1.
        parts = math.ceil(len(group) / max(1, self.owner[group[0]].size_limit()))
        return group[: math.ceil(len(group) / parts)]


class _RunSession:
    """One call of `run_experiments`."""

    def __init__(
        self,
        plan: _RunPlan,
        store: Store,
        engine: JobEngine,
        common: Workspace,
        bar: Progress,
        on_result: Callable[[Result], None] | None,
    ) -> None:
        self.plan, self.store, self.engine, self.bar = plan, store, engine, bar
        self.common, self.on_result = common, on_result
        self.summary = Summary(wanted=len(plan.runs), stored=plan.stored_before)
        self.work_folder = WorkFolder(store.path.parent / "work" / store.path.name)
        self.claims: dict[Job, tuple[WorkClaim, dict[Run, None]]] = {}
        self.deaths: Counter[str] = Counter()

    def work(self) -> None:
        while True:
            while self.engine.free and self._submit_next():
                pass
            if self.claims:
                for job, event in self.engine.collect(_POLL):
                    self._handle(job, event)
                self.bar.tick()
            elif self.plan.open(self._finished()):
                self._wait_for_others()
            else:
                return

    def collect_rest(self) -> None:
        """Store what workers have returned and was not yet collected."""
        for job, event in self.engine.drain():
            if isinstance(event, Result | Ended):
                self._handle(job, event)

    def abandon(self) -> None:
        """Leave unfinished jobs, with their folders, to the next process."""
        if self.claims:
            self.engine.close()
        for claim, _ in self.claims.values():
            self.work_folder.release(claim, keep=True)
        self.claims.clear()

    def _submit_next(self) -> bool:
        claim = self.work_folder.take(self._finished, self.plan.choose)
        if claim is None:
            return False
        runs = tuple(self.plan.runs[key] for key in claim.keys)
        workspace = replace(self.common, folder=claim.folder)
        job = Job(self.plan.owner[runs[0].key], runs, workspace)
        self.claims[job] = (claim, dict.fromkeys(runs))
        self.engine.submit(job)
        return True

    def _finished(self) -> set[str]:
        return self.store.finished() - self.plan.unusable

    def _handle(self, job: Job, event: Event) -> None:
        claim, still_open = self.claims[job]
        if isinstance(event, Result):
            del still_open[event.run]
            self._keep(job, event)
            return
        if isinstance(event, Died):
            self._retry(job, event, still_open)
        del self.claims[job]
        if isinstance(event, Ended) and self.plan.given_up.isdisjoint(claim.keys):
            self.work_folder.release(claim, keep=False)
        elif isinstance(event, Ended):
            self.work_folder.fail(claim)
        else:
            self.work_folder.release(claim, keep=True)

    def _keep(self, job: Job, result: Result) -> None:
        self.store.add(result)
        self.plan.unusable.discard(result.run.key)
        self.summary.statuses[result.outcome.status] += 1
        if result.outcome.failed:
            self.plan.given_up.add(result.run.key)
            self.summary.failed.append(result)
            if len([r for r in self.summary.failed if r.run in job.runs]) == 1:
                self.bar.say(_failure_text(job, result))
        self.bar.advance(self.plan.cost(result.run))
        if self.on_result is not None:
            self.on_result(result)

    def _retry(self, job: Job, event: Died, still_open: Mapping[Run, None]) -> None:
        """A worker died: its open runs are tried again, at most `MOST_DEATHS` times in all."""
        self.deaths.update(run.key for run in still_open)
        hopeless = {run: None for run in still_open if self.deaths[run.key] >= MOST_DEATHS}
        self.bar.say(f"{job.experiment.name}: {event.reason}; {len(still_open)} runs are open")
        text = f"{event.reason}, {MOST_DEATHS} times over; out of memory?"
        for result in failures(hopeless, text, provenance(self.engine.threads), 0.0):
            self._keep(job, result)

    def _wait_for_others(self) -> None:
        self.bar.waiting("another process does the remaining runs")
        time.sleep(_POLL)


def _failure_text(job: Job, result: Result) -> str:
    last = result.outcome.message.splitlines() or [""]
    return (
        f"{job.experiment.name}: a group of {len(job.runs)} failed and will be repeated next "
        f"time: {last[-1]}"
    )

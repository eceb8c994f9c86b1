"""What an experiment is: one figure or table, the runs behind it, and how they are done and drawn.

To add one, subclass `Experiment`, name it in ``weightloom/experiments/__init__.py``, and it can be
listed, run on any engine, stopped, resumed, stored, drawn and exported.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from weightloom.errors import ConfigError
from weightloom.lab.runs import Outcome, Result, Run
from weightloom.lab.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "SCALES", "STAND_IN", "Experiment", "Outcome", "Result", "Run", "Table", "Workspace",
    "outdated", "wanted",
]  # fmt: skip

#: seconds; minutes to an hour on two cores; the paper's own numbers.
SCALES = ("smoke", "laptop", "paper")
#: In a result's provenance: whether other data stood in for the paper's.
STAND_IN = "stand_in"


@dataclass(frozen=True)
class Workspace:
    """What an execution may use besides its runs; nothing here may change a result."""

    #: Made before `execute`, the same after a restart, removed once all its outcomes are stored.
    #: A place for checkpoints. None: keep nothing.
    folder: Path | None = None
    progress: bool = False
    #: CPU threads for this execution; torch is already set to it.
    threads: int = 1
    data_dir: Path | None = None
    #: Where curves are logged while training. Finished curves are written there by the lab.
    tensorboard: Path | None = None


class Experiment(ABC):
    """One figure or table. Must be picklable: workers receive a copy of it."""

    name: ClassVar[str]
    title: ClassVar[str]
    #: What the paper says, in one or two sentences; goes into captions.
    claim: ClassVar[str]
    #: Where it says so: "000, Figure 3 (a)".
    paper: ClassVar[str]
    #: Seconds for one unit of `cost`, on a common two-core machine: the estimate of time until
    #: finished runs on this machine give a better one.
    seconds_per_cost: ClassVar[float] = 1.0
    #: Metrics shown first in listings; empty: all.
    main_metrics: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def runs(self, scale: str) -> list[Run]:
        """All runs of this experiment at "smoke", "laptop" or "paper" scale, each once."""

    @abstractmethod
    def execute(self, runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
        """Do ``runs`` (all of one group) and yield each outcome as soon as it is known.

        May be called again with the same runs and the same folder after the process was killed.
        An exception fails the runs that were not yet yielded; the other groups go on.
        """

    @abstractmethod
    def figures(self, results: Sequence[Result]) -> Mapping[str, Figure]:
        """Figures by the ending of their file name ("" or "-slopes"), from results alone.

        ``results`` may be fewer than were asked for, and some may have diverged; none has failed.
        Called inside the house style; the claim and how many runs there are go into the caption
        by themselves (`lab.drawing`).
        """

    @abstractmethod
    def table(self, results: Sequence[Result]) -> Table:
        """The numbers behind the figures."""

    def group(self, run: Run) -> str:
        """Runs with the same group can be executed at once; by default each is alone."""
        return run.key

    def size_limit(self) -> int:
        """Most runs that one call of `execute` gets."""
        return 16

    def cost(self, run: Run) -> float:
        """How long ``run`` takes compared to others of this experiment."""
        return 1.0

    def stand_in(self, run: Run, data_dir: Path | None) -> bool:
        """Whether ``run`` would now have to use other data than the paper's, which are missing.

        A result that was made from a stand-in is replaced once the real data are there; never the
        other way round.
        """
        return False


def wanted(experiment: Experiment, scale: str) -> list[Run]:
    """The runs of ``experiment`` at ``scale``, with both checked."""
    if scale not in SCALES:
        raise ConfigError(f"scale is {scale!r}; wanted one of {', '.join(SCALES)}")
    runs = experiment.runs(scale)
    if not runs:
        raise ConfigError(f"experiment {experiment.name!r} has no runs at scale {scale!r}")
    if len(set(runs)) < len(runs):
        twice = next(run for i, run in enumerate(runs) if run in runs[:i])
        raise ConfigError(
            f"experiment {experiment.name!r} asks for the same run twice at scale {scale!r}: "
            f"seed {twice.seed}, {dict(twice.config)}. Give repetitions seeds of their own"
        )
    return runs


def outdated(experiment: Experiment, result: Result, data_dir: Path | None) -> bool:
    """Whether ``result`` was made from a stand-in for data that can be had now."""
    made_from_it = bool(result.provenance.get(STAND_IN))
    return made_from_it and not experiment.stand_in(result.run, data_dir)

"""What an experiment is: one figure or table, its runs, and how they are executed and drawn.

To add one, subclass `Experiment` and register it in ``weightloom_papers/experiments.py``. It can
then be listed, run on any engine, stopped, resumed, stored, drawn and exported.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from weightloom.errors import ConfigError
from weightloom.training import Member, Report, Settings, train
from weightloom_papers.lab.runs import Outcome, Result, Run
from weightloom_papers.lab.tables import ResultTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    # an experiment
    "Experiment", "SCALES", "Workspace", "train_members",
    # its runs and results
    "wanted", "outdated", "STAND_IN", "Run", "Outcome", "Result", "ResultTable",
]  # fmt: skip

#: Seconds; minutes to an hour on two cores; the paper's own sizes.
SCALES = ("smoke", "laptop", "paper")

#: In a result's provenance: whether other data were used instead of the paper's.
STAND_IN = "stand_in"


@dataclass(frozen=True)
class Workspace:
    """What an execution may use besides its runs. Nothing of it may change a result."""

    #: For checkpoints: created before `execute`, the same after a restart, removed once all
    #: outcomes are stored. None: keep no checkpoints.
    folder: Path | None = None
    progress: bool = False
    #: CPU threads for this execution; torch is already set to it.
    threads: int = 1
    data_dir: Path | None = None
    #: Where curves are logged during training. The lab writes finished curves there.
    tensorboard: Path | None = None


class Experiment(ABC):
    """One figure or table. Must be picklable: workers receive a copy of it."""

    name: ClassVar[str]
    title: ClassVar[str]
    #: The paper's claim in one or two sentences, for captions.
    claim: ClassVar[str]
    #: Where the paper makes it: "modularity, Figure 3 (a)".
    paper: ClassVar[str]
    #: Seconds per unit of `cost` on a common two-core machine. Used for estimates until finished
    #: runs on this machine give a better value.
    seconds_per_cost: ClassVar[float] = 1.0
    #: Metrics shown first in listings; empty: all.
    main_metrics: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def runs(self, scale: str) -> list[Run]:
        """All runs of this experiment at "smoke", "laptop" or "paper" scale, each once."""

    @abstractmethod
    def execute(self, runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
        """Execute ``runs`` (all of one group) and yield each outcome as soon as it is known.

        May be called again with the same runs and the same folder after the process was killed.
        An exception fails the runs without an outcome; other groups continue.
        """

    @abstractmethod
    def figures(self, results: Sequence[Result]) -> Mapping[str, Figure]:
        """Figures by the ending of their file name ("" or "-slopes"), from results alone.

        ``results`` may be incomplete, and some may have diverged; none has failed. The lab sets
        the style, and adds the claim and the number of runs to the captions (`lab.figures`).
        """

    @abstractmethod
    def table(self, results: Sequence[Result]) -> ResultTable:
        """The numbers of the figures."""

    def group(self, run: Run) -> str:
        """Runs with the same group can be executed together; by default each run is a group."""
        return run.key

    def size_limit(self) -> int:
        """The largest number of runs in one call of `execute`."""
        return 16

    def cost(self, run: Run) -> float:
        """How long ``run`` takes compared to others of this experiment."""
        return 1.0

    def stand_in(self, run: Run, data_dir: Path | None) -> bool:
        """Whether ``run`` would now use other data, because the paper's are missing.

        A result from such stand-in data is replaced once the real data are available, never the
        other way round.
        """
        return False


def wanted(experiment: Experiment, scale: str) -> list[Run]:
    """The runs of ``experiment`` at ``scale``; both are checked."""
    if scale not in SCALES:
        raise ConfigError(f"scale is {scale!r}; wanted one of {', '.join(SCALES)}")
    runs = experiment.runs(scale)
    if not runs:
        raise ConfigError(f"experiment {experiment.name!r} has no runs at scale {scale!r}")
    if len(set(runs)) < len(runs):
        twice = next(run for i, run in enumerate(runs) if run in runs[:i])
        raise ConfigError(
            f"experiment {experiment.name!r} asks for the same run twice at scale {scale!r}: "
            f"seed {twice.seed}, {dict(twice.config)}. Give each repetition its own seed"
        )
    return runs


def outdated(experiment: Experiment, result: Result, data_dir: Path | None) -> bool:
    """Whether ``result`` used stand-in data although the real data are available now."""
    used_stand_in = bool(result.provenance.get(STAND_IN))
    return used_stand_in and not experiment.stand_in(result.run, data_dir)


def train_members(
    members: Sequence[Member], settings: Settings, workspace: Workspace, label: str
) -> list[Report]:
    """`weightloom.training.train` with a checkpoint in the workspace; ``label`` names the bar.

    Raises KeyboardInterrupt after Ctrl-C, because an unfinished training is no outcome.
    """
    checkpoint = None if workspace.folder is None else workspace.folder / "training"
    progress: bool | str = label if workspace.progress else False
    reports = train(members, settings, checkpoint=checkpoint, progress=progress)
    if any(report.status == "interrupted" for report in reports):
        raise KeyboardInterrupt
    return reports

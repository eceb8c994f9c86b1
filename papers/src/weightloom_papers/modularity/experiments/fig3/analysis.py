"""Numbers from results: which runs can be compared, means over repetitions, the table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weightloom.data import TARGET_INITS, TARGETS
from weightloom_papers.lab import Result, ResultTable
from weightloom_papers.lab.runs import digest_of
from weightloom_papers.lab.tables import Cell
from weightloom_papers.modularity.experiments.fig3.models import MODEL_INITS, MODELS

__all__ = [
    "INIT_NAMES",
    "SWEPT",
    "RepetitionSummary",
    "after_epoch",
    "by",
    "comparable",
    "epochs_of",
    "left_out",
    "ratio",
    "spread",
    "summarise",
    "sweep_table",
    "usable",
]

INIT_NAMES = {"he_uniform": "He uniform", "pytorch": "PyTorch default"}

# Values of a configuration that are not sorted alphabetically.
_ORDER = {
    word: place
    for words in (TARGETS, TARGET_INITS, MODELS, MODEL_INITS, ("sgd", "adam"))
    for place, word in enumerate(words)
}

#: What a panel of Figure 3 varies. Runs shown in one figure must agree in everything else.
SWEPT = frozenset({"model", "depth", "width", "target_init"})


@dataclass(frozen=True)
class RepetitionSummary:
    """Repetitions of one configuration; mean and deviation are of runs that did not diverge."""

    values: tuple[float, ...]
    diverged: int

    @property
    def runs(self) -> int:
        return len(self.values) + self.diverged

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values) if self.values else math.nan

    @property
    def deviation(self) -> float:
        """Standard deviation over repetitions; NaN for fewer than two."""
        return statistics.stdev(self.values) if len(self.values) > 1 else math.nan


def summarise(values: Iterable[float]) -> RepetitionSummary:
    """Count values that are not finite as diverged.

    >>> summarise([1.0, 3.0, math.nan])
    RepetitionSummary(values=(1.0, 3.0), diverged=1)
    """
    values = list(values)
    finite = tuple(value for value in values if math.isfinite(value))
    return RepetitionSummary(finite, len(values) - len(finite))


def usable(results: Iterable[Result]) -> list[Result]:
    """Results without failed runs: an exception says nothing about a model, divergence does."""
    return [result for result in results if result.outcome.status != "failed"]


def comparable(results: Iterable[Result], varied: Collection[str] = SWEPT) -> list[Result]:
    """The results of one protocol, where a store holds several (smoke and laptop, for example).

    Configurations of one protocol are equal but for ``varied``. The largest problem is kept
    (dimension, training pairs, epochs); of equal ones the protocol with the most results.
    """
    protocols: dict[str, list[Result]] = {}
    for result in usable(results):
        fixed = {k: v for k, v in result.run.config.items() if k not in varied}
        protocols.setdefault(digest_of(fixed), []).append(result)

    def rank(group: list[Result]) -> tuple[int, int, int, int]:
        config = group[0].run.config
        return config["d"], config["train_pairs"], config["epochs"], len(group)

    return max(protocols.values(), key=rank, default=[])


def by(results: Iterable[Result], *names: str) -> dict[tuple[Any, ...], list[Result]]:
    """Results grouped by these parts of their configuration, in the paper's order."""
    groups: dict[tuple[Any, ...], list[Result]] = {}
    for result in results:
        groups.setdefault(tuple(result.run.config[name] for name in names), []).append(result)
    order = sorted(groups, key=lambda key: tuple(_ORDER.get(part, part) for part in key))
    return {key: groups[key] for key in order}


def epochs_of(results: Sequence[Result]) -> int:
    """The last epoch that any run has reached."""
    reached = [_epochs(r)[-1] for r in results if r.outcome.curves.get("test", ([], []))[0]]
    return round(max(reached, default=0))


def after_epoch(result: Result, epoch: int) -> float:
    """Test MSE after ``epoch`` epochs (0: before training); NaN if the run diverged before."""
    if epoch == 0:
        return result.outcome.metrics.get("initial_test_mse", math.nan)
    pairs = zip(_epochs(result), result.outcome.curves.get("test", ([], []))[1], strict=True)
    return next((value for at, value in pairs if math.isclose(at, epoch)), math.nan)


def ratio(result: Result, mse: float) -> float:
    """MSE over the variance of this run's target; predicting the mean gives 1."""
    return mse / result.outcome.metrics["target_variance"]


def _epochs(result: Result) -> list[float]:
    config = result.run.config
    per_epoch = config["train_pairs"] / config["batch_size"]
    return [step / per_epoch for step in result.outcome.curves.get("test", ([], []))[0]]


def sweep_table(
    results: Sequence[Result], sweep: str, title: str, notes: Sequence[str] = ()
) -> ResultTable:
    """One row for each target initialisation, model and point of the sweep."""
    columns = [
        "target init",
        "model",
        sweep,
        "runs",
        "diverged",
        "test MSE",
        "+-",
        "MSE/variance",
        "+- ",
        "after 1 epoch",
        "untrained",
        "target variance",
        "N_g or N_q",
    ]
    kept = comparable(results)
    rows = [
        [init, model, point, *_numbers(group)]
        for (init, point, model), group in by(kept, "target_init", sweep, "model").items()
    ]
    explained = [
        "MSE/variance, after 1 epoch and untrained: test MSE over the variance of the run's own "
        "target; 1.0 predicts the mean.",
        "+- is the standard deviation over repetitions; means are those of the runs that did not "
        "diverge.",
    ]
    return ResultTable(columns, rows, title, [*explained, *left_out(results, kept), *notes])


def left_out(results: Sequence[Result], kept: Sequence[Result]) -> list[str]:
    """Sentences about the results that a table or figure does not show."""
    notes = []
    failed = len(results) - len(usable(results))
    other = len(results) - failed - len(kept)
    if other:
        notes.append(f"{other} results of a smaller or another protocol are not shown.")
    if failed:
        notes.append(f"{failed} runs failed with an exception and are not shown.")
    return notes


def _numbers(group: Sequence[Result]) -> list[Cell]:
    metrics: list[Mapping[str, float]] = [result.outcome.metrics for result in group]
    raw = summarise(each["test_mse"] for each in metrics)
    scaled = summarise(each["test_mse_over_variance"] for each in metrics)
    first = summarise(ratio(result, after_epoch(result, 1)) for result in group)
    before = summarise(each["initial_test_mse_over_variance"] for each in metrics)
    variance = summarise(each["target_variance"] for each in metrics)
    return [
        raw.runs,
        raw.diverged,
        *spread(raw),
        *spread(scaled),
        spread(first)[0],
        spread(before)[0],
        variance.mean,
        round(metrics[0]["primary_parameters"]),
    ]


def spread(summary: RepetitionSummary) -> tuple[float | None, float | None]:
    """Mean and deviation as cells of a table; empty where not finite."""
    mean, deviation = summary.mean, summary.deviation
    return (
        mean if math.isfinite(mean) else None,
        deviation if math.isfinite(deviation) else None,
    )

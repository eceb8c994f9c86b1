"""Means, slopes, the table and the verdicts of ``scale``."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from weightloom_papers.infinite_width.experiments.images import TASKS, of_one_set, set_name
from weightloom_papers.infinite_width.experiments.scale.experiment import LEVELS
from weightloom_papers.lab import Result, ResultTable
from weightloom_papers.lab.statistics import Mean, Slope, fit_slope, mean_of
from weightloom_papers.lab.tables import Cell
from weightloom_papers.lab.verdicts import (
    FAILS,
    HOLDS,
    NO_DATA,
    UNCLEAR,
    Verdict,
    slope_text,
    worst_of,
)

__all__ = ["TaskSize", "inside", "scale_table", "sizes", "slope_of", "verdicts"]

#: Intervals are calibrated if their coverage differs from the level by at most this.
_CLOSE = 0.05


@dataclass(frozen=True)
class TaskSize:
    """One task with ``images`` training images: means over repetitions."""

    task: str
    images: int
    count: int
    metrics: dict[str, float]
    standard_error: float  # of the error; NaN for a single repetition


def sizes(results: Sequence[Result]) -> list[TaskSize]:
    """Means by task, then by the number of images."""
    every = []
    for task in TASKS:
        here = [result for result in of_one_set(results) if result.run.config["task"] == task]
        for images in sorted({int(result.run.config["images"]) for result in here}):
            cell = [r.outcome.metrics for r in here if r.run.config["images"] == images]
            names = set.intersection(*(set(each) for each in cell))
            means = {name: statistics.fmean(each[name] for each in cell) for name in sorted(names)}
            errors = [each["mse"] for each in cell]
            spread = math.nan
            if len(errors) > 1:
                spread = statistics.stdev(errors) / math.sqrt(len(errors))
            every.append(TaskSize(task, images, len(cell), means, spread))
    return every


def slope_of(
    results: Sequence[Result], metric: str, task: str = "", least: int = 0
) -> Slope | None:
    """The power of the number of images that a metric follows; each task and seed has a level."""
    here = [
        (
            result.run.config["images"],
            result.outcome.metrics[metric],
            result.run.config["task"],
            result.run.seed,
        )
        for result in of_one_set(results)
        if task in ("", result.run.config["task"])
        and result.run.config["images"] >= least
        and result.outcome.metrics.get(metric, 0) > 0  # NaN is not
    ]
    x = [math.log10(images) for images, _, _, _ in here]
    y = [math.log10(value) for _, value, _, _ in here]
    return fit_slope(x, y, [(which, seed) for _, _, which, seed in here])


def inside(results: Sequence[Result], level: float, scaled: bool) -> Mean | None:
    """Mean coverage over all sizes, tasks and repetitions."""
    name = f"{'scaled_' if scaled else ''}inside_{round(100 * level)}"
    return mean_of([result.outcome.metrics[name] for result in of_one_set(results)])


def _calibrated(means: Sequence[tuple[float, Mean | None]]) -> str:
    if any(mean is None for _, mean in means):
        return NO_DATA
    gaps = [abs(mean.value - level) for level, mean in means if mean is not None]
    return HOLDS if max(gaps) <= _CLOSE else FAILS


def verdicts(results: Sequence[Result]) -> list[Verdict]:
    """Verdicts on the error, on the size of the solved system, and on the calibration."""
    every = of_one_set(results)
    slopes = {task: slope_of(results, "mse", task) for task in TASKS}
    largest = max((result.outcome.metrics["equations"] for result in every), default=0.0)
    words = [_falls(slope) for slope in slopes.values()]
    result = [
        Verdict(
            "the error falls with the number of images",
            worst_of(words, (NO_DATA, FAILS, UNCLEAR)),
            ", ".join(f"{task} {slope_text(slope)}" for task, slope in slopes.items()),
        ),
        Verdict(
            "all the data can be solved at once where the paper averages systems of 20,000",
            NO_DATA if not every else HOLDS if largest > 20_000 else FAILS,
            f"largest system {largest:,.0f} equations",
        ),
    ]
    for scaled, what in ((False, "as it is"), (True, "with the prior's scale fitted")):
        means = [(level, inside(results, level, scaled)) for level in LEVELS]
        shares = ", ".join(f"{level:.0%}: {m.value:.1%}" for level, m in means if m is not None)
        claim = f"the posterior's intervals cover what they say, {what}"
        result.append(Verdict(claim, _calibrated(means), shares or "nothing measured"))
    return result


def _falls(slope: Slope | None) -> str:
    if slope is None:
        return NO_DATA
    if math.isnan(slope.margin) or abs(slope.value) <= slope.margin:
        return UNCLEAR
    return HOLDS if slope.value < 0 else FAILS


def scale_table(results: Sequence[Result], title: str) -> ResultTable:
    """One row for each task and size; slopes and verdicts below."""
    rows: list[list[Cell]] = []
    for size in sizes(results):
        m = size.metrics
        hidden = m.get("mse_hidden")
        rows.append(
            [
                size.task, size.images, int(m["equations"]), size.count, m["seconds_fit"],
                None if math.isnan(m["peak_bytes"]) else m["peak_bytes"] / 1e9, m["mse"],
                None if math.isnan(size.standard_error) else size.standard_error, hidden,
                m["mean_image"], *(m[f"inside_{round(100 * level)}"] for level in LEVELS),
                *(m[f"scaled_inside_{round(100 * level)}"] for level in LEVELS), m["growth"],
                m["relative_ink"], m["relative_paper"],
            ]
        )  # fmt: skip
    columns = [
        "task", "images", "equations", "runs", "fit s", "fit GB", "MSE", "s.e.", "hidden half",
        "mean image", *(f"in {level:.0%}" for level in LEVELS),
        *(f"scaled in {level:.0%}" for level in LEVELS), "scale",
        "ink", "paper",
    ]  # fmt: skip
    notes = [
        f"Images: {set_name(of_one_set(results))}. NNGP on every pixel of a torus. In 50%: share "
        "of test pixels inside the posterior's central interval, noise included; scaled: with the "
        "prior's variance multiplied by its most likely value, the column scale. Ink, paper: root "
        "mean square of error over deviation at pixels with ink and without; the prior expects 1.",
        f"time of a fit against images: {slope_text(slope_of(results, 'seconds_fit', least=200))} "
        "from 200 on",
        *(verdict.text() for verdict in verdicts(results)),
    ]
    return ResultTable(columns, rows, title=title, notes=notes)

"""From results to rows, slopes and verdicts: the numbers behind ``scale``."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from weightloom.experiments.infinite_width.protocol import TASKS
from weightloom.experiments.infinite_width.scale import LEVELS
from weightloom.experiments.infinite_width.table1_numbers import set_name
from weightloom.experiments.verdicts import Verdict, slope_text
from weightloom.lab import Result, Table
from weightloom.lab.intervals import Mean, Slope, fit_slope, mean_of
from weightloom.lab.table import Cell

__all__ = ["Size", "good", "inside", "scale_table", "sizes", "slope_of", "verdicts"]

#: How far coverage may be from its level and still be called calibrated.
_CLOSE = 0.05


@dataclass(frozen=True)
class Size:
    """One task with so many images: means over repetitions."""

    task: str
    images: int
    count: int
    metrics: dict[str, float]
    standard_error: float  # of the error; NaN for a single repetition


def good(results: Sequence[Result]) -> list[Result]:
    """Finished results; MNIST's where a store has those of the small digits too."""
    done = [one for one in results if one.outcome.status == "done"]
    side = max((one.outcome.metrics["side"] for one in done), default=0.0)
    return [one for one in done if one.outcome.metrics["side"] == side]


def sizes(results: Sequence[Result]) -> list[Size]:
    """By task, then by the number of images."""
    found = []
    for task in TASKS:
        here = [one for one in good(results) if one.run.config["task"] == task]
        for images in sorted({int(one.run.config["images"]) for one in here}):
            cell = [one.outcome.metrics for one in here if one.run.config["images"] == images]
            names = set.intersection(*(set(each) for each in cell))
            means = {name: statistics.fmean(each[name] for each in cell) for name in sorted(names)}
            errors = [each["mse"] for each in cell]
            spread = math.nan
            if len(errors) > 1:
                spread = statistics.stdev(errors) / math.sqrt(len(errors))
            found.append(Size(task, images, len(cell), means, spread))
    return found


def slope_of(
    results: Sequence[Result], metric: str, task: str = "", least: int = 0
) -> Slope | None:
    """The power of the number of images that a metric follows, each task and seed at its level."""
    here = [
        (
            one.run.config["images"],
            one.outcome.metrics[metric],
            one.run.config["task"],
            one.run.seed,
        )
        for one in good(results)
        if task in ("", one.run.config["task"])
        and one.run.config["images"] >= least
        and one.outcome.metrics.get(metric, 0) > 0  # NaN is not
    ]
    x = [math.log10(images) for images, _, _, _ in here]
    y = [math.log10(value) for _, value, _, _ in here]
    return fit_slope(x, y, [(which, seed) for _, _, which, seed in here])


def inside(results: Sequence[Result], level: float, scaled: bool) -> Mean | None:
    """Coverage over all sizes, tasks and repetitions."""
    name = f"{'scaled_' if scaled else ''}inside_{round(100 * level)}"
    return mean_of([one.outcome.metrics[name] for one in good(results)])


def _calibrated(means: Sequence[tuple[float, Mean | None]]) -> str:
    if any(mean is None for _, mean in means):
        return "no data"
    gaps = [abs(mean.value - level) for level, mean in means if mean is not None]
    return "holds" if max(gaps) <= _CLOSE else "fails"


def verdicts(results: Sequence[Result]) -> list[Verdict]:
    """More images help; the posterior is, or is not, calibrated; the whole system was solved."""
    every = good(results)
    slopes = {task: slope_of(results, "mse", task) for task in TASKS}
    largest = max((one.outcome.metrics["equations"] for one in every), default=0.0)
    words = [_falls(slope) for slope in slopes.values()]
    found = [
        Verdict(
            "the error falls with the number of images",
            next((w for w in ("no data", "fails", "unclear") if w in words), "holds"),
            ", ".join(f"{task} {slope_text(slope)}" for task, slope in slopes.items()),
        ),
        Verdict(
            "all the data can be solved at once where the paper averages systems of 20,000",
            "no data" if not every else "holds" if largest > 20_000 else "fails",
            f"largest system {largest:,.0f} equations",
        ),
    ]
    for scaled, what in ((False, "as it is"), (True, "with the prior's scale fitted")):
        means = [(level, inside(results, level, scaled)) for level in LEVELS]
        said = ", ".join(f"{level:.0%}: {m.value:.1%}" for level, m in means if m is not None)
        claim = f"the posterior's intervals cover what they say, {what}"
        found.append(Verdict(claim, _calibrated(means), said or "nothing measured"))
    return found


def _falls(slope: Slope | None) -> str:
    if slope is None:
        return "no data"
    if math.isnan(slope.margin) or abs(slope.value) <= slope.margin:
        return "unclear"
    return "holds" if slope.value < 0 else "fails"


def scale_table(results: Sequence[Result], title: str) -> Table:
    """One row for each task and size; slopes and verdicts below."""
    rows: list[list[Cell]] = []
    for one in sizes(results):
        m = one.metrics
        hidden = m.get("mse_hidden")
        rows.append(
            [
                one.task, one.images, int(m["equations"]), one.count, m["seconds_fit"],
                None if math.isnan(m["peak_bytes"]) else m["peak_bytes"] / 1e9, m["mse"],
                None if math.isnan(one.standard_error) else one.standard_error, hidden,
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
        f"Images: {set_name(good(results))}. NNGP on every pixel of a torus. In 50%: share of test "
        "pixels inside the posterior's central interval, noise included; scaled: with the prior's "
        "variance multiplied by its most likely value, the column scale. Ink, paper: root mean "
        "square of error over deviation at pixels with ink and without; the prior expects 1.",
        f"time of a fit against images: {slope_text(slope_of(results, 'seconds_fit', least=200))} "
        "from 200 on",
        *(one.text() for one in verdicts(results)),
    ]
    return Table(columns, rows, title=title, notes=notes)

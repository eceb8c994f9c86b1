"""Accuracies and losses over width, and verdicts on training with the learning rate sqrt(n)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weightloom_papers.infinite_width.experiments.fig5.experiment import CLASSES, SETTINGS, Setting
from weightloom_papers.infinite_width.experiments.rotations.analysis import (
    by,
    difference,
    judge,
    value_of,
)
from weightloom_papers.lab import Result, ResultTable
from weightloom_papers.lab.statistics import Mean, mean_of
from weightloom_papers.lab.verdicts import FAILS, HOLDS, NO_DATA, Verdict

__all__ = ["SETTING_NAMES", "USABLE", "in_setting", "wide_table", "wide_verdicts"]

SETTING_NAMES: dict[Setting, str] = {
    ("ntk", "cross_entropy", 1): "NTK, cross-entropy",
    ("ntk", "mse", 1): "NTK, squared error (mean over outputs)",
    ("ntk", "mse", CLASSES): "NTK, squared error (sum over outputs)",
    ("standard", "cross_entropy", 1): "standard, cross-entropy",
}
#: A network with a higher accuracy counts as trained.
USABLE = 0.5


def in_setting(results: Sequence[Result], setting: Setting) -> list[Result]:
    """The results of one of `SETTINGS`."""
    return [
        result
        for result in results
        if setting
        == (
            result.run.config["parametrisation"],
            result.run.config["objective"],
            result.run.config.get("rate_factor", 1),
        )
    ]


def wide_verdicts(results: Sequence[Result]) -> list[Verdict]:
    """For every setting: can all widths be trained, and is the widest better than the narrowest?"""
    verdicts = []
    for setting in SETTINGS:
        name = SETTING_NAMES[setting]
        widths = by(in_setting(results, setting), "width")
        ends = {width: _mean(group) for (width,), group in widths.items()}
        accuracies = ", ".join(f"{end.text()} at {width:,}" for width, end in ends.items())
        word = _trained(list(ends.values()))
        verdicts.append(Verdict(f"{name}: every width can be trained", word, accuracies))
        if len(widths) < 2:
            verdicts.append(Verdict(f"{name}: accuracy improves with width", NO_DATA, "one width"))
            continue
        (first, narrow), *_, (last, wide) = widths.items()
        gap = difference(wide, narrow, "accuracy")
        text = gap.text() if gap is not None else "no common seed"
        verdicts.append(
            Verdict(
                f"{name}: accuracy improves with width",
                judge(gap),
                f"{last[0]:,} over {first[0]:,}: {text}",
            )
        )
    return verdicts


def _mean(group: Sequence[Result]) -> Mean:
    mean = mean_of([value_of(result, "accuracy") for result in group])
    return mean if mean is not None else Mean(math.nan, math.nan, 0)


def _trained(ends: Sequence[Mean]) -> str:
    if not ends:
        return NO_DATA
    return HOLDS if all(end.value > USABLE for end in ends) else FAILS


def wide_table(results: Sequence[Result], title: str) -> ResultTable:
    """One row for each setting and width; the verdicts below."""
    rows = []
    for setting in SETTINGS:
        for (width,), group in by(in_setting(results, setting), "width").items():
            end = _mean(group)
            losses = [result.outcome.metrics["test_loss"] for result in group]
            loss = mean_of([value for value in losses if math.isfinite(value)])
            metrics = group[0].outcome.metrics
            rows.append(
                (
                    SETTING_NAMES[setting],
                    width,
                    metrics["learning_rate"],
                    end.value,
                    None if math.isnan(end.margin) else end.margin,
                    loss.value if loss is not None else None,
                    len(group),
                    sum(result.outcome.status == "diverged" for result in group),
                    "yes" if metrics["digits"] > 0 else "no",
                )
            )
    columns = ("setting", "width", "rate", "accuracy", "± 95%", "test loss", "seeds", "diverged",
               "digits instead")  # fmt: skip
    return ResultTable(
        columns, rows, title, ["", *(verdict.text() for verdict in wide_verdicts(results))]
    )

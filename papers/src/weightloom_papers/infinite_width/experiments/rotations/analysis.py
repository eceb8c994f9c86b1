"""Accuracies from stored results, and verdicts on the paper's two claims.

A wider g is compared with a narrower one seed by seed: both were trained on the same pairs in the
same order. "Clearly" means outside a 95 percent interval (Student) over seeds. Diverged runs have
no accuracy; they count with the accuracy of always predicting the most frequent class.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from weightloom_papers.lab import Result, ResultTable
from weightloom_papers.lab.statistics import Mean, mean_of
from weightloom_papers.lab.verdicts import FAILS, HOLDS, NO_DATA, UNCLEAR, Verdict

__all__ = [
    "SET_NAMES",
    "SLIGHT",
    "accuracy_table",
    "by",
    "difference",
    "epoch_verdicts",
    "rate_verdicts",
    "setting_name",
    "value_of",
]

SET_NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
#: A difference of accuracy below this is ignored.
SLIGHT = 0.01
#: A network has learned something if its accuracy exceeds chance by this.
LEARNED = 0.03

Key = tuple[Any, ...]


def by(results: Iterable[Result], *names: str) -> dict[Key, list[Result]]:
    """Results by the values of these entries of their configuration, sorted."""
    groups: defaultdict[Key, list[Result]] = defaultdict(list)
    for result in results:
        groups[tuple(result.run.config[name] for name in names)].append(result)
    return dict(sorted(groups.items()))


def setting_name(images: str, init: str, results: Sequence[Result]) -> str:
    """For example "MNIST, default initialisation"; names the digits if they replaced a set."""
    digits = any(result.outcome.metrics.get("digits", 0.0) > 0 for result in results)
    name = SET_NAMES.get(images, images)
    return f"{f'digits (no {name})' if digits else name}, {init} initialisation"


def value_of(result: Result, metric: str) -> float:
    """An accuracy; that of the most frequent class if the run diverged."""
    value = result.outcome.metrics.get(metric, math.nan)
    return value if math.isfinite(value) else result.outcome.metrics["chance"]


def difference(better: Sequence[Result], worse: Sequence[Result], metric: str) -> Mean | None:
    """Mean over seeds of ``better`` minus ``worse``."""
    others = {result.run.seed: value_of(result, metric) for result in worse}
    return mean_of(
        [
            value_of(result, metric) - others[result.run.seed]
            for result in better
            if result.run.seed in others
        ]
    )


def judge(gap: Mean | None) -> str:
    """Whether a gap is clearly above 0; it fails if it is clearly below `SLIGHT`."""
    if gap is None:
        return NO_DATA
    if math.isnan(gap.margin):
        return UNCLEAR
    if gap.value - gap.margin > 0:
        return HOLDS
    return FAILS if gap.value + gap.margin < SLIGHT else UNCLEAR


def overall(words: Sequence[str]) -> str:
    """The verdict over several cases: one clear failure makes the claim fail."""
    known = [word for word in words if word != NO_DATA]
    if not known:
        return NO_DATA
    if FAILS in known:
        return FAILS
    return HOLDS if all(word == HOLDS for word in known) else UNCLEAR


def epoch_verdicts(results: Sequence[Result]) -> list[Verdict]:
    """For every set and initialisation: do wider, and shallower, networks train faster?"""
    verdicts = []
    for (images, init), group in by(results, "images", "init").items():
        name = setting_name(images, init, group)
        verdicts += [
            _ends(group, f"{name}: a wider g trains faster", "depth", "width", "mean_accuracy", 1),
            _ends(
                group, f"{name}: a shallower g trains faster", "width", "depth", "mean_accuracy", -1
            ),
        ]
    return verdicts


def rate_verdicts(results: Sequence[Result]) -> list[Verdict]:
    """For every set and initialisation: the claims at each rate at which something is learned."""
    verdicts = []
    for (images, init), group in by(results, "images", "init").items():
        name = setting_name(images, init, group)
        rates = by(group, "learning_rate")
        learning = {rate: each for (rate,), each in rates.items() if _learned(each)}
        for claim, fixed, moved, sign in (
            ("a wider g ends higher", "depth", "width", 1),
            ("a deeper g ends lower", "width", "depth", -1),
        ):
            cases = {
                rate: _ends(each, "", fixed, moved, "accuracy", sign)
                for rate, each in learning.items()
            }
            evidence = "; ".join(f"rate {rate:g}: {case.evidence}" for rate, case in cases.items())
            verdicts.append(
                Verdict(
                    f"{name}: {claim} at every rate at which networks learn",
                    overall([case.verdict for case in cases.values()]),
                    evidence or "nothing was learned at any rate",
                )
            )
    return verdicts


def _learned(results: Sequence[Result]) -> bool:
    """Whether networks of some width and depth exceed chance by `LEARNED` on average."""
    means = [
        mean_of([value_of(r, "accuracy") - r.outcome.metrics["chance"] for r in each])
        for each in by(results, "width", "depth").values()
    ]
    return any(mean is not None and mean.value > LEARNED for mean in means)


def _ends(
    results: Sequence[Result], claim: str, fixed: str, moved: str, metric: str, sign: int
) -> Verdict:
    """The largest of ``moved`` against the smallest at each ``fixed``; reversed for sign -1."""
    words, texts = [], []
    for (at,), group in by(results, fixed).items():
        points = list(by(group, moved).items())
        if len(points) < 2:
            continue
        (better, first), (worse, second) = points[-1], points[0]
        if sign < 0:
            (better, first), (worse, second) = (worse, second), (better, first)
        gap = difference(first, second, metric)
        # Where nothing has been learned, nothing can be compared.
        words.append(judge(gap) if _learned(group) else UNCLEAR)
        text = gap.text() if gap is not None else "no common seed"
        idle = "" if _learned(group) else ", nothing learned"
        texts.append(f"{fixed} {at}, {moved} {better[0]} over {worse[0]}: {text}{idle}")
    return Verdict(claim, overall(words), "; ".join(texts) or f"no two values of {moved}")


def accuracy_table(
    results: Sequence[Result], title: str, verdicts: Sequence[Verdict]
) -> ResultTable:
    """One row for each network; the verdicts below."""
    names = ("images", "init", "depth", "width", "learning_rate")
    rows = []
    for key, group in by(results, *names).items():
        end = mean_of([value_of(result, "accuracy") for result in group])
        mean = mean_of([value_of(result, "mean_accuracy") for result in group])
        if end is None or mean is None:
            continue
        metrics: Mapping[str, float] = group[0].outcome.metrics
        rows.append(
            (
                *key,
                end.value,
                _plain(end.margin),
                mean.value,
                metrics["chance"],
                int(metrics["generated"]),
                len(group),
                sum(result.outcome.status == "diverged" for result in group),
                "yes" if metrics["digits"] > 0 else "no",
            )
        )
    columns = (*names, "accuracy", "± 95%", "mean over epochs", "commonest class",
               "generated weights", "seeds", "diverged", "digits instead")  # fmt: skip
    notes = ["", *(verdict.text() for verdict in verdicts)]
    return ResultTable(columns, rows, title, notes)


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else value

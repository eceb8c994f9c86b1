"""Accuracies from stored results, and what they say about the paper's two claims.

A wider g is compared with a narrower one seed by seed: both saw the same pairs in the same order.
"Clearly" means outside a 95 percent interval (Student) over seeds. Runs that diverged have no
accuracy; they count as knowing nothing (the accuracy of the commonest class).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from weightloom.experiments.verdicts import Verdict
from weightloom.lab import Result, Table
from weightloom.lab.intervals import Mean, mean_of

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
#: A difference of accuracy below this is none.
SLIGHT = 0.01
#: Accuracy above the commonest class from which on something has been learned.
LEARNED = 0.03

Key = tuple[Any, ...]


def by(results: Iterable[Result], *names: str) -> dict[Key, list[Result]]:
    """Results by the values of these entries of their configuration, sorted."""
    found: defaultdict[Key, list[Result]] = defaultdict(list)
    for result in results:
        found[tuple(result.run.config[name] for name in names)].append(result)
    return dict(sorted(found.items()))


def setting_name(images: str, init: str, results: Sequence[Result]) -> str:
    """ "MNIST, default initialisation", with the digits named if they stood in."""
    digits = any(result.outcome.metrics.get("digits", 0.0) > 0 for result in results)
    name = SET_NAMES.get(images, images)
    return f"{f'digits (no {name})' if digits else name}, {init} initialisation"


def value_of(result: Result, metric: str) -> float:
    """An accuracy; that of knowing nothing if the run diverged."""
    value = result.outcome.metrics.get(metric, math.nan)
    return value if math.isfinite(value) else result.outcome.metrics["chance"]


def difference(better: Sequence[Result], worse: Sequence[Result], metric: str) -> Mean | None:
    """How much higher the first are, seed by seed."""
    others = {result.run.seed: value_of(result, metric) for result in worse}
    return mean_of(
        [
            value_of(result, metric) - others[result.run.seed]
            for result in better
            if result.run.seed in others
        ]
    )


def judge(gap: Mean | None) -> str:
    """Whether there clearly is a gap."""
    if gap is None:
        return "no data"
    if math.isnan(gap.margin):
        return "unclear"
    if gap.value - gap.margin > 0:
        return "holds"
    return "fails" if gap.value + gap.margin < SLIGHT else "unclear"


def overall(words: Sequence[str]) -> str:
    """Of several places where a claim was judged: one clear failure is a failure."""
    known = [word for word in words if word != "no data"]
    if not known:
        return "no data"
    if "fails" in known:
        return "fails"
    return "holds" if all(word == "holds" for word in known) else "unclear"


def epoch_verdicts(results: Sequence[Result]) -> list[Verdict]:
    """For every set and initialisation: wider, and shallower, by the mean accuracy over epochs."""
    found = []
    for (images, init), group in by(results, "images", "init").items():
        name = setting_name(images, init, group)
        found += [
            _ends(group, f"{name}: a wider g trains faster", "depth", "width", "mean_accuracy", 1),
            _ends(
                group, f"{name}: a shallower g trains faster", "width", "depth", "mean_accuracy", -1
            ),
        ]
    return found


def rate_verdicts(results: Sequence[Result]) -> list[Verdict]:
    """For every set and initialisation: at each rate that teaches anything."""
    found = []
    for (images, init), group in by(results, "images", "init").items():
        name = setting_name(images, init, group)
        rates = by(group, "learning_rate")
        learning = {rate: each for (rate,), each in rates.items() if _learned(each)}
        words, said = [], []
        for rate, each in learning.items():
            one = _ends(each, "", "depth", "width", "accuracy", 1)
            words.append(one.verdict)
            said.append(f"rate {rate:g}: {one.evidence}")
        none = "nothing was learned at any rate"
        found.append(
            Verdict(
                f"{name}: a wider g ends higher at every rate that teaches anything",
                overall(words),
                "; ".join(said) or none,
            )
        )
        deep = [_ends(each, "", "width", "depth", "accuracy", -1) for each in learning.values()]
        found.append(
            Verdict(
                f"{name}: a deeper g ends lower at every rate that teaches anything",
                overall([one.verdict for one in deep]),
                "; ".join(
                    f"rate {rate:g}: {one.evidence}"
                    for rate, one in zip(learning, deep, strict=True)
                )
                or none,
            )
        )
    return found


def _learned(results: Sequence[Result]) -> bool:
    """Whether networks of some width and depth are above the commonest class, on average."""
    means = [
        mean_of([value_of(r, "accuracy") - r.outcome.metrics["chance"] for r in each])
        for each in by(results, "width", "depth").values()
    ]
    return any(mean is not None and mean.value > LEARNED for mean in means)


def _ends(
    results: Sequence[Result], claim: str, fixed: str, moved: str, metric: str, sign: int
) -> Verdict:
    """The largest of ``moved`` against the smallest (sign -1: the other way), at each ``fixed``."""
    words, said = [], []
    for (at,), group in by(results, fixed).items():
        points = list(by(group, moved).items())
        if len(points) < 2:
            continue
        (better, first), (worse, second) = points[-1], points[0]
        if sign < 0:
            (better, first), (worse, second) = (worse, second), (better, first)
        gap = difference(first, second, metric)
        # Where nobody has learned anything, nobody learns faster.
        words.append(judge(gap) if _learned(group) else "unclear")
        text = gap.text() if gap is not None else "no common seed"
        idle = "" if _learned(group) else ", nothing learned"
        said.append(f"{fixed} {at}, {moved} {better[0]} over {worse[0]}: {text}{idle}")
    return Verdict(claim, overall(words), "; ".join(said) or f"no two values of {moved}")


def accuracy_table(results: Sequence[Result], title: str, verdicts: Sequence[Verdict]) -> Table:
    """One row for each network; below it, what becomes of the claims."""
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
    return Table(columns, rows, title, notes)


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else value

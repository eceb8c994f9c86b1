"""Which conclusions of Section 6 hold: verdicts with evidence for each claim and setting.

Errors are compared as logarithms and in pairs: both models of a repetition had the same target and
the same data. "Clearly" means outside a 95 percent confidence interval. A claim "holds" or "fails"
only if it does so clearly; otherwise it is "unclear", as it often is with few repetitions.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from weightloom_papers.lab import Result, ResultTable
from weightloom_papers.lab.runs import digest_of
from weightloom_papers.lab.statistics import MeanDifference, change, differences
from weightloom_papers.lab.tables import Cell
from weightloom_papers.lab.verdicts import FAILS, HOLDS, NO_DATA, UNCLEAR
from weightloom_papers.modularity.experiments.fig3.analysis import (
    SWEPT,
    by,
    comparable,
    left_out,
    spread,
    summarise,
)
from weightloom_papers.modularity.experiments.fig3.models import EMBEDDING, HYPER

__all__ = [
    "CLAIMS",
    "Finding",
    "LITTLE",
    "beats",
    "conclusions",
    "findings",
    "hardly_improves",
    "improves",
    "learned",
    "robust_table",
    "select_rates",
]


#: An improvement below this share of the error is "slight" or "not significant".
LITTLE = 0.10

# {point of the sweep: {seed: log(MSE / variance)}}; NaN where the run diverged.
Errors = Mapping[int, Mapping[int, float]]


def beats(hyper: Errors, embedding: Errors) -> tuple[str, str]:
    """Claim 1: at each depth of 3 or more, the hypernetwork's error is clearly lower."""
    depths = [depth for depth in hyper if depth >= 3 and depth in embedding]
    if not depths:
        return NO_DATA, "no common depth of 3 or more"
    pairs = {
        depth: [
            embedding[depth][seed] - value
            for seed, value in hyper[depth].items()
            if not math.isnan(value) and not math.isnan(embedding[depth].get(seed, math.nan))
        ]
        for depth in depths
    }
    estimates = differences(pairs)
    texts, wins, losses = [], 0, 0
    for depth in depths:
        text, won = _compare(estimates.get(depth), hyper[depth], embedding[depth])
        texts.append(f"depth {depth}: {text}")
        wins, losses = wins + (won > 0), losses + (won < 0)
    verdict = FAILS if losses else HOLDS if wins == len(depths) else UNCLEAR
    return verdict, "; ".join(texts)


def _compare(
    gap: MeanDifference | None, hyper: Mapping[int, float], embedding: Mapping[int, float]
) -> tuple[str, int]:
    """The comparison at one depth in words; 1: the hypernetwork is clearly better, -1: worse."""
    count, rivals = _diverged(hyper), _diverged(embedding)
    diverged = (
        f"diverged: hypernetwork {count} of {len(hyper)}, embedding {rivals} of {len(embedding)}"
    )
    if _lost(hyper) or _lost(embedding):
        return diverged, _lost(embedding) - _lost(hyper)
    if gap is None:
        return "no common repetition", 0
    word = "lower" if gap.mean > 0 else "higher"
    # exp(-gap): the hypernetwork's error as a share of the embedding method's.
    text = f"{abs(1 - math.exp(-gap.mean)):.0%} {word} ({_errors_text(gap)})"
    if count or rivals:
        text += f", {diverged}"
    return text, 1 if gap.low > 0 else -1 if gap.high < 0 else 0


def _sweep(errors: Errors) -> tuple[MeanDifference | None, str, bool]:
    """Change from the first to the last point that has not diverged, as an estimate and in words.

    The last value says whether a later point than the first diverged.
    """
    clean = [point for point, seeds in errors.items() if not _lost(seeds)]
    notes = "".join(
        f"; {point}: {_diverged(seeds)} of {len(seeds)} diverged"
        for point, seeds in errors.items()
        if _diverged(seeds)
    )
    finite = [{s for s, v in errors[point].items() if not math.isnan(v)} for point in clean]
    common = set.intersection(*finite) if finite else set()
    broken = any(point > clean[0] for point in errors if point not in clean) if clean else False
    if len(clean) < 2 or not common:
        return None, f"fewer than two points to compare{notes}", broken
    estimate = change([[errors[point][seed] for seed in sorted(common)] for point in clean])
    gain = 1 - math.exp(-estimate.mean)
    text = (
        f"from {clean[0]} to {clean[-1]} the error {'falls' if gain >= 0 else 'grows'} by "
        f"{abs(gain):.0%} ({_errors_text(estimate)})"
    )
    return estimate, text + notes, broken


def improves(errors: Errors, sweep: str) -> tuple[str, str]:
    """Claim 2: clearly lower at the last point than at the first, without divergence between."""
    if len(errors) < 2:
        return NO_DATA, f"fewer than two points of {sweep}"
    estimate, text, broken = _sweep(errors)
    if broken:
        return FAILS, text
    if estimate is None:
        return UNCLEAR, text
    if estimate.low > 0:
        return HOLDS, text
    # Not clearly better: the claim fails if the largest improvement in the interval is slight.
    return (FAILS if estimate.high < -math.log(1 - LITTLE) else UNCLEAR), text


def hardly_improves(errors: Errors, sweep: str) -> tuple[str, str]:
    """Claims 3 and 4: any improvement from the first to the last point is below `LITTLE`."""
    if len(errors) < 2:
        return NO_DATA, f"fewer than two points of {sweep}"
    estimate, text, _ = _sweep(errors)
    if estimate is None:
        return UNCLEAR, text
    slight = -math.log(1 - LITTLE)
    return (HOLDS if estimate.high < slight else FAILS if estimate.low > slight else UNCLEAR), text


def learned(points: Sequence[Mapping[int, float]]) -> tuple[str, str]:
    """Whether the best point is clearly below 1.0; the claim fails if even the best is not."""
    clean = [
        [value for value in seeds.values() if not math.isnan(value)]
        for seeds in points
        if not _lost(seeds)
    ]
    if not points:
        return NO_DATA, "no runs"
    if not clean:
        return FAILS, "diverged everywhere"
    # Not pooled over points: the difficulty of a repetition's target affects all of them.
    best = min(clean, key=statistics.fmean)
    estimate = differences({0: best})[0]
    text = f"best {math.exp(estimate.mean):.3f} of the target's variance"
    if estimate.mean >= 0:
        return FAILS, text
    return (HOLDS if estimate.high < 0 else UNCLEAR), text


def _diverged(seeds: Mapping[int, float]) -> int:
    return sum(1 for value in seeds.values() if math.isnan(value))


def _lost(seeds: Mapping[int, float]) -> bool:
    """Whether at least half of the repetitions diverged. Fewer are reported and left out."""
    return 2 * _diverged(seeds) >= len(seeds)


def _errors_text(estimate: MeanDifference) -> str:
    return f"{estimate.errors:+.1f} s.e." if estimate.freedom else "one repetition"


SELECTED = "selected_test_mse_over_variance"
SETTING = ("family", "target_init", "model_init", "optimiser")
VARIED = SWEPT | {*SETTING, "target_hidden", "learning_rate"}

COLUMNS = (
    "model",
    "depth",
    "width",
    "runs",
    "diverged",
    "learning rates",
    "at limit",
    "test MSE",
    "+-",
    "MSE/variance",
    "+- ",
)

CLAIMS = {
    "1": "hypernetwork beats embedding at depth >= 3",
    "2": "hypernetwork improves with the depth of f",
    "3": "embedding does not improve with the depth of e",
    "4e": "embedding width helps the embedding method little",
    "4h": "feature width helps the hypernetwork little",
    "learned h": "the hypernetwork has learned anything (below 1.0)",
    "learned e": "the embedding method has learned anything (below 1.0)",
}


@dataclass(frozen=True)
class Finding:
    """One claim in one setting: "holds", "fails", "unclear" or "no data", and why."""

    setting: tuple[str, ...]  # family, target_init, model_init, optimiser
    claim: str  # a key of `CLAIMS`
    verdict: str
    evidence: str


def select_rates(results: Iterable[Result]) -> list[Result]:
    """One result for each configuration and seed: the learning rate with the best validation error.

    The test error is not used. A configuration that diverged at every rate is kept as diverged.
    """
    groups: dict[str, list[Result]] = {}
    for result in results:
        rest = {k: v for k, v in result.run.config.items() if k != "learning_rate"}
        key = digest_of([result.run.experiment, rest, result.run.seed])
        groups.setdefault(key, []).append(result)
    return [min(group, key=_validation) for group in groups.values()]


def _validation(result: Result) -> float:
    value = result.outcome.metrics.get("best_validation_mse", math.nan)
    return value if math.isfinite(value) else math.inf


def findings(results: Sequence[Result], metric: str = SELECTED) -> list[Finding]:
    """Every claim in every setting that occurs in ``results``.

    A setting is a target family and initialisation, a model initialisation, and an optimiser.
    """
    verdicts = []
    for setting, group in by(select_rates(comparable(results, VARIED)), *SETTING).items():
        for claim, (verdict, evidence) in _judge(group, metric).items():
            verdicts.append(Finding(setting, claim, verdict, evidence))
    return verdicts


def conclusions(results: Sequence[Result], metric: str = SELECTED) -> ResultTable:
    """`findings` as a table."""
    rows = [[*f.setting, CLAIMS[f.claim], f.verdict, f.evidence] for f in findings(results, metric)]
    return ResultTable(
        ["target", "target init", "model init", "optimiser", "claim", "verdict", "evidence"],
        rows,
        "Which of the paper's conclusions survive",
        [
            "Learning rates were chosen by validation error. holds, fails: outside a 95 percent "
            "confidence interval over repetitions, pair by pair; s.e.: standard errors.",
            f"'little' and 'does not improve': by less than {LITTLE:.0%}. 1.0 predicts the mean.",
        ],
    )


def robust_table(results: Sequence[Result], title: str) -> ResultTable:
    """One row for each setting, model, depth and width: errors at the chosen learning rates."""
    kept = comparable(results, VARIED)
    rows: list[list[Cell]] = []
    for key, group in by(select_rates(kept), *SETTING, "model", "depth", "width").items():
        metrics = [result.outcome.metrics for result in group]
        raw = summarise(each["selected_test_mse"] for each in metrics)
        scaled = summarise(each[SELECTED] for each in metrics)
        rates = sorted({result.run.config["learning_rate"] for result in group})
        capped = sum(1 for result in group if result.outcome.status == "done")
        chosen = ", ".join(f"{rate:g}" for rate in rates)
        rows.append([*key, raw.runs, raw.diverged, chosen, capped, *spread(raw), *spread(scaled)])
    return ResultTable(
        [*SETTING, *COLUMNS],
        rows,
        title,
        [
            "Learning rate and epoch by validation error; diverged: at every learning rate; at "
            "limit: still improving when the epochs ran out. 1.0 predicts the mean.",
            *left_out(results, kept),
        ],
    )


def _judge(group: Sequence[Result], metric: str) -> dict[str, tuple[str, str]]:
    points = {model: _errors(group, model, metric) for model in (HYPER, EMBEDDING)}
    # The sweep over depth has features as wide as the layers; the one over width has depth 3.
    unit = group[0].run.config["hidden"]
    depth = {m: {d: e for (d, w), e in points[m].items() if w == unit} for m in points}
    width = {m: {w: e for (d, w), e in points[m].items() if d == 3} for m in points}
    return {
        "1": beats(depth[HYPER], depth[EMBEDDING]),
        "2": improves(depth[HYPER], "depth"),
        "3": hardly_improves(depth[EMBEDDING], "depth"),
        "4e": hardly_improves(width[EMBEDDING], "width"),
        "4h": hardly_improves(width[HYPER], "width"),
        "learned h": learned(list(points[HYPER].values())),
        "learned e": learned(list(points[EMBEDDING].values())),
    }


def _errors(
    group: Sequence[Result], model: str, metric: str
) -> dict[tuple[int, int], dict[int, float]]:
    """{(depth, width): {seed: log(MSE / variance), NaN where it diverged}}."""
    errors: dict[tuple[int, int], dict[int, float]] = {}
    for (depth, width, name), results in by(group, "depth", "width", "model").items():
        for result in results if name == model else ():
            value = result.outcome.metrics.get(metric, math.nan)
            log = math.log(value) if math.isfinite(value) and value > 0 else math.nan
            errors.setdefault((depth, width), {})[result.run.seed] = log
    return errors

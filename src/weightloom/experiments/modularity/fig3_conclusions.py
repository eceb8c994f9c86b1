"""Which of Section 6's conclusions hold on which results, as a table."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from weightloom.experiments.modularity.fig3_claims import (
    LITTLE,
    beats,
    hardly_improves,
    improves,
    learned,
)
from weightloom.experiments.modularity.fig3_models import EMBEDDING, HYPER
from weightloom.experiments.modularity.fig3_numbers import (
    SWEPT,
    by,
    comparable,
    left_out,
    spread,
    summarise,
)
from weightloom.lab import Result, Table
from weightloom.lab.table import Cell

__all__ = [
    "CLAIMS",
    "Finding",
    "conclusions",
    "findings",
    "robust_table",
    "select_rates",
]

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

    The test error has no say in it. A configuration whose rates all diverged stays, as diverged.
    """
    found: dict[str, list[Result]] = {}
    for result in results:
        rest = {k: v for k, v in result.run.config.items() if k != "learning_rate"}
        key = json.dumps([result.run.experiment, rest, result.run.seed], sort_keys=True)
        found.setdefault(key, []).append(result)
    return [min(group, key=_validation) for group in found.values()]


def _validation(result: Result) -> float:
    value = result.outcome.metrics.get("best_validation_mse", math.nan)
    return value if math.isfinite(value) else math.inf


def findings(results: Sequence[Result], metric: str = SELECTED) -> list[Finding]:
    """Every claim in every setting (target family and initialisation, model initialisation,
    optimiser) that occurs in ``results``."""
    found = []
    for setting, group in by(select_rates(comparable(results, VARIED)), *SETTING).items():
        for claim, (verdict, evidence) in _judge(group, metric).items():
            found.append(Finding(setting, claim, verdict, evidence))
    return found


def conclusions(results: Sequence[Result], metric: str = SELECTED) -> Table:
    """`findings` as a table."""
    rows = [[*f.setting, CLAIMS[f.claim], f.verdict, f.evidence] for f in findings(results, metric)]
    return Table(
        ["target", "target init", "model init", "optimiser", "claim", "verdict", "evidence"],
        rows,
        "Which of the paper's conclusions survive",
        [
            "Learning rates were chosen by validation error. holds, fails: outside a 95 percent "
            "confidence interval over repetitions, pair by pair; s.e.: standard errors.",
            f"'little' and 'does not improve': by less than {LITTLE:.0%}. 1.0 predicts the mean.",
        ],
    )


def robust_table(results: Sequence[Result], title: str) -> Table:
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
    return Table(
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
    # The sweep over depth has features as wide as all layers, the one over width three layers.
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
    found: dict[tuple[int, int], dict[int, float]] = {}
    for (depth, width, name), results in by(group, "depth", "width", "model").items():
        for result in results if name == model else ():
            value = result.outcome.metrics.get(metric, math.nan)
            log = math.log(value) if math.isfinite(value) and value > 0 else math.nan
            found.setdefault((depth, width), {})[result.run.seed] = log
    return found

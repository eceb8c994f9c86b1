"""Figure 3 over the choices that the paper leaves open, each model at its best learning rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

from weightloom.data import TARGET_INITS, TARGETS
from weightloom_papers.lab import Result, ResultTable, Run
from weightloom_papers.lab.runs import digest_of
from weightloom_papers.modularity.experiments.fig3.conclusions import conclusions, robust_table
from weightloom_papers.modularity.experiments.fig3.experiment import WIDTH_DEPTH, Section6
from weightloom_papers.modularity.experiments.fig3.models import (
    EMBEDDING,
    HYPER,
    MODEL_INITS,
    MODELS,
    SIZES,
    base_config,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Fig3Robust"]


@dataclass(frozen=True)
class Effort:
    """What is run at one scale."""

    families: tuple[str, ...]
    depths: tuple[int, ...]
    widths: Mapping[str, tuple[int, ...]]  # of three-layer f or e, in units of `hidden`
    rates: Mapping[str, tuple[float, ...]]
    seeds: int
    epochs: int  # at most
    patience: int


SMOKE = Effort(
    ("network",),
    (2, 3),
    {HYPER: (), EMBEDDING: (1, 2)},
    {"sgd": (0.01, 0.1), "adam": (0.003, 0.03)},
    seeds=2,
    epochs=3,
    patience=2,
)
# Rates from trial runs at depth 4, one repetition, three to six epochs: the best were 0.03 (SGD,
# default initialisation), 0.003 (SGD, hypernetwork with hyperfan_in, which diverges at 0.01 within
# ten steps) and 0.003 to 0.01 (Adam).
LAPTOP = Effort(
    ("network",),
    (2, 4, 8),
    # A wide hypernetwork costs as much as all the rest: only at scale "paper".
    {HYPER: (), EMBEDDING: (1, 4, 8)},
    {"sgd": (0.003, 0.01, 0.03), "adam": (0.001, 0.003, 0.01)},
    seeds=2,
    epochs=6,
    patience=2,
)
PAPER = Effort(
    tuple(TARGETS),
    tuple(range(2, 10)),
    {HYPER: (1, 2, 4, 8), EMBEDDING: tuple(range(1, 9))},  # the widest cost most of the time
    {
        "sgd": (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1),
        "adam": (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03),
    },
    seeds=10,
    epochs=50,
    patience=5,
)
EFFORTS = {"smoke": SMOKE, "laptop": LAPTOP, "paper": PAPER}


class Fig3Robust(Section6):
    """{He, PyTorch} targets x {default, hyperfan_in} models x {SGD, Adam} x learning rates.

    Training stops when the validation error stops falling; learning rate and epoch are chosen by
    that error. Each learning rate is a run of its own, so the choice is made from stored results.
    """

    name = "modularity/fig3-robust"
    title = "Which conclusions of Figure 3 survive the choices it leaves open"
    claim = (
        "From three layers on the hypernetwork beats the embedding method and improves with the "
        "depth of f; the depth of e and the width of the embedding hardly help."
    )
    paper = "modularity, Section 6"
    main_metrics: ClassVar[tuple[str, ...]] = (
        "selected_test_mse",
        "selected_test_mse_over_variance",
        "best_validation_mse",
        "target_variance",
    )

    def runs(self, scale: str) -> list[Run]:
        effort = EFFORTS[scale]
        return [
            Run(self.name, {**config, "learning_rate": rate}, seed)
            for config in self._configs(scale, effort)
            for seed in range(effort.seeds)
            for rate in effort.rates[config["optimiser"]]
        ]

    def _configs(self, scale: str, effort: Effort) -> list[dict[str, Any]]:
        configs = []
        for family, init, start, optimiser in product(
            effort.families, TARGET_INITS, MODEL_INITS, effort.rates
        ):
            base = base_config(SIZES[scale], family, effort.epochs)
            base.update(
                target_init=init, model_init=start, optimiser=optimiser, patience=effort.patience
            )
            for model in MODELS:
                for depth, width in _points(effort, model, base["hidden"]):
                    configs.append({**base, "model": model, "depth": depth, "width": width})
        return configs

    def group(self, run: Run) -> str:
        """All learning rates of one repetition: they share their data."""
        rest = {k: v for k, v in run.config.items() if k != "learning_rate"}
        return digest_of([rest, run.seed])

    def size_limit(self) -> int:
        return max(len(rates) for effort in EFFORTS.values() for rates in effort.rates.values())

    def cost(self, run: Run) -> float:
        """Scaled by the usual share of epochs before a plateau or divergence."""
        config = run.config
        fast = config["model"] == HYPER and config["model_init"] == "hyperfan_in"
        if fast and config["optimiser"] == "sgd" and config["learning_rate"] >= 0.01:
            return 0.05 * super().cost(run)  # diverges
        return (0.6 if config["optimiser"] == "adam" else 0.8) * super().cost(run)

    def figures(self, results: Sequence[Result]) -> Mapping[str, Figure]:
        from weightloom_papers.modularity.experiments.fig3_robust.figure import (
            draw_conclusions,
            draw_settings,
        )

        return {"": draw_settings(self, results), "-conclusions": draw_conclusions(self, results)}

    def table(self, results: Sequence[Result]) -> ResultTable:
        """The numbers, and below them the verdicts on the paper's conclusions."""
        numbers = robust_table(results, self.title)
        verdicts = conclusions(results).text().splitlines()
        return replace(numbers, notes=[*numbers.notes, "", *verdicts])


def _points(effort: Effort, model: str, unit: int) -> list[tuple[int, int]]:
    """(depth, width) of both sweeps, each once."""
    points = [(depth, unit) for depth in effort.depths]
    points += [(WIDTH_DEPTH, unit * i) for i in effort.widths[model]]
    return list(dict.fromkeys(points))

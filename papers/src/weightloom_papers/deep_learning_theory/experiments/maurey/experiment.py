"""The 1/k law of Maurey sampling: networks of k neurons sampled from an infinitely wide one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weightloom.construct.shallow import (
    CosineForm,
    GaussianSpectrum,
    InfiniteNetwork,
    NeuronMeasure,
    ThresholdForm,
    sampling_law,
)
from weightloom.errors import ConfigError
from weightloom_papers.deep_learning_theory.near_init.shallow import Shallow
from weightloom_papers.lab import Experiment, Outcome, Result, ResultTable, Run, Workspace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["TARGETS", "THRESHOLDS", "MaureyCase", "Maurey", "make_case", "measure"]

#: Widths, trials for each run, and repetitions, by scale. No width is a square: at x = 1 the error
#: of a sine of k^2 neurons can equal the bound, and rounding would decide the comparison.
SCALE: dict[str, tuple[Sequence[int], int, int]] = {
    "smoke": ((5, 20, 80, 320), 20, 2),
    "laptop": (tuple(5 * 2**i for i in range(9)), 200, 5),
    "paper": (tuple(5 * 2**i for i in range(12)), 1000, 10),
}
POINTS = 129  # of the grid on [0, 1], and random ones in five dimensions
FEW = 32  # random points in the plane, where exact values are integrals over frequencies


@dataclass(frozen=True)
class MaureyCase:
    """What is sampled, and the points (equally likely) that P consists of."""

    form: InfiniteNetwork | NeuronMeasure
    points: Tensor
    function: Callable[[Tensor], Tensor]
    """what the form equals, computed independently"""


def _grid() -> Tensor:
    return torch.linspace(0, 1, POINTS, dtype=torch.float64)[:, None]


def _sine(points: Tensor) -> MaureyCase:
    turn = 2 * math.pi
    form = ThresholdForm(lambda b: turn * (turn * b[:, 0]).cos())
    return MaureyCase(form, points, lambda x: (turn * x[:, 0]).sin())


def _step(seed: int) -> MaureyCase:
    def slope(b: Tensor) -> Tensor:
        return 20 * (1 - (20 * (b[:, 0] - 0.5)).tanh() ** 2)

    form = ThresholdForm(slope, offset=math.tanh(-10))
    return MaureyCase(form, _grid(), lambda x: (20 * (x[:, 0] - 0.5)).tanh())


def _bell(seed: int) -> MaureyCase:
    spectrum = GaussianSpectrum(2, 0.5, height=1.0)
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(FEW, 2, dtype=torch.float64, generator=generator)
    return MaureyCase(CosineForm(spectrum), points, spectrum.function)


def _network(seed: int) -> MaureyCase:
    network = Shallow.sample(1000, 5, "relu", seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)
    points = torch.randn(POINTS, 5, dtype=torch.float64, generator=generator)
    return MaureyCase(NeuronMeasure(network.network()), points, network)


#: Name -> (label, case by seed). Thresholds, cosines and ReLUs; functions and a network.
TARGETS: dict[str, tuple[str, Callable[[int], MaureyCase]]] = {
    "sine": ("sin 2πx, P uniform", lambda seed: _sine(_grid())),
    "sine at 1": ("sin 2πx, P at x = 1", lambda seed: _sine(_grid()[-1:])),
    "step": ("tanh 20(x − 1/2), P uniform", _step),
    "bell": ("exp(−2|x|²), cosines, d = 2", _bell),
    "network": ("1,000 random ReLUs, d = 5", _network),
}

#: The targets that Example 2.18 (1) is about.
THRESHOLDS = ("sine", "sine at 1", "step")


def make_case(target: str, seed: int) -> MaureyCase:
    """The measure that a run's networks are sampled from."""
    if target not in TARGETS:
        raise ConfigError(
            f"target {target!r} is unknown to the experiment maurey; there are: "
            f"{', '.join(TARGETS)}"
        )
    return TARGETS[target][1](seed)


def measure(config: Mapping[str, Any], seed: int, case: MaureyCase | None = None) -> Outcome:
    """Sample ``trials`` networks of ``width`` neurons; errors are squared, in L2(P).

    ``error`` is the mean error, ``expected`` its exact expectation, ``bound`` E|V|^2 / k
    (Lemma 2.17), ``above_bound`` the share of single samples above it. For thresholds and cosines
    also ``printed``, mass^2 / k (Example 2.18), and ``above_printed``, for the same samples.
    """
    started = time.perf_counter()
    case = make_case(config["target"], seed) if case is None else case
    form, points, width, trials = case.form, case.points, config["width"], config["trials"]

    def law(tight: bool) -> Any:
        generator = torch.Generator().manual_seed(_stream(config, seed))
        (row,) = sampling_law(
            form,
            [width],
            points,
            trials=trials,
            generator=generator,
            target=case.function,
            tight=tight,
        )
        return row

    row = law(tight=True)
    metrics = {
        "error": row.error,
        "standard_error": row.standard_error,
        "bound": row.bound,
        "above_bound": row.above,
        "expected": form.expected_error(width, points),
    }
    if isinstance(form, InfiniteNetwork):
        loose = law(tight=False)
        metrics |= {"printed": loose.bound, "above_printed": loose.above}
    return Outcome("done", metrics, seconds=time.perf_counter() - started)


def _stream(config: Mapping[str, Any], seed: int) -> int:
    """A seed for the generator that differs between targets, widths and seeds."""
    return (seed * 10 + list(TARGETS).index(config["target"])) * 1_000_003 + int(config["width"])


class Maurey(Experiment):
    """Mean squared errors of sampled networks against their width, beside Maurey's bound."""

    name = "deep-learning-theory/maurey"
    title = "Networks sampled from an infinitely wide one"
    claim = (
        "The mean squared error of k sampled neurons is at most E|V|^2 / k in expectation "
        "(Lemma 2.16, 2.17); Example 2.18 (1) states |mu|_1^2 / k for a sample."
    )
    paper = "deep-learning-theory, Section 2.4"
    main_metrics = ("error", "bound", "expected", "above_printed", "above_bound")
    seconds_per_cost = 0.7

    def runs(self, scale: str) -> list[Run]:
        widths, trials, seeds = SCALE[scale]
        return [
            Run(self.name, {"target": target, "width": width, "trials": trials}, seed)
            for target in TARGETS
            for seed in range(seeds)
            for width in widths
        ]

    def group(self, run: Run) -> str:
        return f"{run.config['target']}-{run.seed}"

    def cost(self, run: Run) -> float:
        """In units of 100 networks with 1,000 neurons."""
        return 0.05 + float(run.config["trials"]) * (0.15 + run.config["width"] / 1000) / 100

    def execute(self, runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
        case = make_case(runs[0].config["target"], runs[0].seed)  # of the whole group
        for run in runs:
            yield run, measure(run.config, run.seed, case)

    def figures(self, results: Sequence[Result]) -> Mapping[str, Figure]:
        from weightloom_papers.deep_learning_theory.experiments.maurey.figure import draw_maurey

        return draw_maurey(results)

    def table(self, results: Sequence[Result]) -> ResultTable:
        from weightloom_papers.deep_learning_theory.experiments.maurey.analysis import maurey_table

        return maurey_table(results, self.title)

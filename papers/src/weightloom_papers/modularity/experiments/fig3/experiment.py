"""Figure 3 of "On the Modularity of Hypernetworks": depth (a-c) and embedding width (d-f)."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from weightloom.data import TARGET_INITS
from weightloom.errors import ConfigError
from weightloom.hyper import count_parameters
from weightloom.training import Member, Report, Split
from weightloom_papers.lab import Experiment, Outcome, Result, ResultTable, Run, Workspace
from weightloom_papers.lab.experiment import train_members
from weightloom_papers.lab.runs import digest_of
from weightloom_papers.modularity.experiments.fig3.analysis import comparable, sweep_table
from weightloom_papers.modularity.experiments.fig3.conclusions import CLAIMS, findings
from weightloom_papers.modularity.experiments.fig3.models import (
    HYPER,
    MODELS,
    OPEN_CHOICES,
    SIZES,
    base_config,
    build,
    role_seed,
    settings,
    splits,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "WIDTH_DEPTH",
    "Fig3",
    "Fig3a",
    "Fig3b",
    "Fig3c",
    "Fig3d",
    "Fig3e",
    "Fig3f",
    "Section6",
    "outcome_of",
]

WIDTH_DEPTH = 3  # f and e are "networks with three layers" in (d-f)
SETUP_SECONDS = 0.1  # of each run, whatever its size


class Section6(Experiment):
    """Trains hypernetworks or embedding networks on random targets, a group of runs at a time.

    Runs of a group differ only in seed or learning rate, and are trained as one stack.
    """

    main_metrics: ClassVar[tuple[str, ...]] = (
        "test_mse",
        "test_mse_over_variance",
        "target_variance",
    )

    def size_limit(self) -> int:
        """A repetition holds 30,000 x 2000 numbers and a test set: up to 360 MB."""
        return 8

    def cost(self, run: Run) -> float:
        """Approximate seconds on two cores; for a hypernetwork they grow with the features."""
        config = run.config
        size = config["d"] * config["batch_size"] / 200_000
        if config["model"] == HYPER:
            step = 0.003 + 0.0055 * size * config["width"] / 100
        else:
            step = 0.0015 + 0.001 * size + 0.0002 * config["depth"]
        if config["optimiser"] != "sgd":
            step *= 1.4
        return (
            SETUP_SECONDS + step * config["epochs"] * config["train_pairs"] / config["batch_size"]
        )

    def execute(self, runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
        started = time.perf_counter()
        config = runs[0].config
        data = {run.seed: splits(config, run.seed) for run in runs}
        members = [_member(run, data[run.seed]) for run in runs]
        before = [_mse(member.model, member.held_out["test"]) for member in members]
        setup = (time.perf_counter() - started) / len(runs)
        reports = train_members(members, settings(config), workspace, _group_label(runs))
        for run, member, start, report in zip(runs, members, before, reports, strict=True):
            yield run, outcome_of(member, start, report, setup)


def outcome_of(member: Member, before: float, report: Report, setup: float = 0.0) -> Outcome:
    """The metrics of one trained member; NaN where it diverged.

    ``before`` is its test error before training, ``setup`` the seconds spent before training.
    ``test_mse`` is taken at the end, as in the paper. ``selected_test_mse`` is the test error at
    the evaluation with the lowest validation error, as early stopping would give.
    """
    variance = member.held_out["test"].target.double().var(correction=0).item()
    sizes = count_parameters(member.model)
    selected, at = _selected(report)
    metrics = {
        "test_mse": report.final.get("test", math.nan),
        "selected_test_mse": selected,
        "validation_mse": report.final.get("validation", math.nan),
        "best_validation_mse": math.nan,
        "train_mse": report.final.get("train", math.nan),
        "initial_test_mse": before,
        "target_variance": variance,
        "steps": report.steps,
        "selected_step": at,
        "primary_parameters": sizes["primary"],
        "trainable_parameters": sizes["trainable"],
    }
    if report.status != "diverged":
        metrics["best_validation_mse"] = min(report.curves["validation"][1])
    for name in ("test_mse", "selected_test_mse", "initial_test_mse"):
        metrics[f"{name}_over_variance"] = metrics[name] / variance
    return Outcome(report.status, metrics, report.curves, report.message, setup + report.seconds)


def _selected(report: Report) -> tuple[float, float]:
    """Test error and step where the validation error was lowest; NaN if it diverged."""
    if report.status == "diverged":
        return math.nan, math.nan
    steps, validation = report.curves["validation"]
    best = min(range(len(validation)), key=validation.__getitem__)
    return report.curves["test"][1][best], steps[best]


def _member(run: Run, data: Mapping[str, Split]) -> Member:
    return Member(
        model=build(run.config, role_seed(run.seed, "model")),
        train=data["train"],
        held_out={"validation": data["validation"], "test": data["test"]},
        seed=role_seed(run.seed, "batches"),
        learning_rate=run.config["learning_rate"],
        name=f"{run.config['model']} seed {run.seed} rate {run.config['learning_rate']:g}",
    )


@torch.no_grad()
def _mse(model: nn.Module, split: Split) -> float:
    """Mean squared error, computed a thousand rows at a time."""
    model.eval()
    total = 0.0
    for *inputs, y in zip(*(t.split(1000) for t in (*split.inputs, split.target)), strict=True):
        total += (model(*inputs) - y).double().square().sum().item()
    model.train()
    return total / split.target.numel()


def _group_label(runs: Sequence[Run]) -> str:
    config: Mapping[str, Any] = runs[0].config
    return (
        f"{runs[0].experiment} {config['model']} depth {config['depth']} width {config['width']} "
        f"({config['target_init']} target, x{len(runs)})"
    )


class Fig3(Section6):
    """One panel of the figure: a target family, and a sweep over depth or width.

    Both target initialisations are run unless one is given: He uniform, as printed, and PyTorch's
    default, which gives the errors of the printed figure. Every other open choice can be set:
    ``Fig3a(optimiser="adam", learning_rate=1e-3, epochs=50)``.
    """

    family: ClassVar[str]
    sweep: ClassVar[str]  # "depth" or "width"

    def __init__(self, **choices: Any) -> None:
        unknown = sorted(set(choices) - set(OPEN_CHOICES))
        if unknown:
            raise ConfigError(
                f"{self.name} was given {', '.join(unknown)}; what can be chosen is "
                f"{', '.join(OPEN_CHOICES)}"
            )
        self.choices = choices

    def runs(self, scale: str) -> list[Run]:
        inits = [self.choices["target_init"]] if "target_init" in self.choices else TARGET_INITS
        epochs, seeds = self._effort(scale)
        base = {**base_config(SIZES[scale], self.family, epochs), **self.choices}
        return [
            Run(self.name, {**base, "target_init": init, "model": model, **point}, seed)
            for init in inits
            for point in self._points(scale, base["hidden"])
            for model in MODELS
            for seed in range(seeds)
        ]

    def _points(self, scale: str, unit: int) -> list[dict[str, int]]:
        """Configurations of the sweep: the paper's, or two of its points for "smoke"."""
        if self.sweep == "depth":
            return [{"depth": depth} for depth in ((2, 4) if scale == "smoke" else range(2, 10))]
        steps = (1, 2) if scale == "smoke" else range(1, 9)
        return [{"depth": WIDTH_DEPTH, "width": unit * i} for i in steps]

    def _effort(self, scale: str) -> tuple[int, int]:
        """Epochs and repetitions. The paper has 100 repetitions and does not give the epochs."""
        laptop = (6, 3) if self.sweep == "depth" else (3, 3)
        return {"smoke": (3, 2), "laptop": laptop, "paper": (30, 100)}[scale]

    def group(self, run: Run) -> str:
        return digest_of(run.config)

    def figures(self, results: Sequence[Result]) -> Mapping[str, Figure]:
        from weightloom_papers.modularity.experiments.fig3.figure import draw_epochs, draw_sweep

        return {"": draw_sweep(self, results), "-epochs": draw_epochs(self, results)}

    def table(self, results: Sequence[Result]) -> ResultTable:
        """The numbers, and below them the verdicts on the paper's claims."""
        claims = ("1", "2", "3") if self.sweep == "depth" else ("4e", "4h")
        verdicts = [
            f"{finding.setting[1]}: {CLAIMS[finding.claim]}: {finding.verdict}; {finding.evidence}"
            for finding in findings(comparable(results), "test_mse_over_variance")
            if finding.claim in (*claims, "learned h", "learned e")
        ]
        return sweep_table(results, self.sweep, self.title, ["", *verdicts])


_DEPTH_CLAIM = (
    "From three layers on the hypernetwork has the lower test error; it improves as f gets "
    "deeper, the embedding method does not as e does."
)
_WIDTH_CLAIM = (
    "A wider embedding improves both models only slightly, and the errors stay worse and less "
    "stable than those of hypernetworks with a deeper f."
)


class Fig3a(Fig3):
    name, family, sweep = "modularity/fig3a", "network", "depth"
    title = "Depth of f and e; the target is a random network of (x, I)"
    claim, paper = _DEPTH_CLAIM, "modularity, Figure 3 (a)"


class Fig3b(Fig3):
    name, family, sweep = "modularity/fig3b", "product", "depth"
    title = "Depth of f and e; the target is h(x * I)"
    claim, paper = _DEPTH_CLAIM, "modularity, Figure 3 (b)"


class Fig3c(Fig3):
    name, family, sweep = "modularity/fig3c", "inner_product", "depth"
    title = "Depth of f and e; the target is <x, h(I)>"
    claim, paper = _DEPTH_CLAIM, "modularity, Figure 3 (c)"


class Fig3d(Fig3):
    name, family, sweep = "modularity/fig3d", "network", "width"
    title = "Width of the embedding; the target is a random network of (x, I)"
    claim, paper = _WIDTH_CLAIM, "modularity, Figure 3 (d)"


class Fig3e(Fig3):
    name, family, sweep = "modularity/fig3e", "product", "width"
    title = "Width of the embedding; the target is h(x * I)"
    claim, paper = _WIDTH_CLAIM, "modularity, Figure 3 (e)"


class Fig3f(Fig3):
    name, family, sweep = "modularity/fig3f", "inner_product", "width"
    title = "Width of the embedding; the target is <x, h(I)>"
    claim, paper = _WIDTH_CLAIM, "modularity, Figure 3 (f)"

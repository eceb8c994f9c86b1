"""Figure 3 of "On the Modularity of Hypernetworks": depth (a-c) and embedding width (d-f)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from weightloom.data import TARGET_INITS
from weightloom.errors import ConfigError
from weightloom.experiments.modularity.fig3_conclusions import CLAIMS, findings
from weightloom.experiments.modularity.fig3_execute import Section6
from weightloom.experiments.modularity.fig3_models import MODELS
from weightloom.experiments.modularity.fig3_numbers import comparable, sweep_table
from weightloom.experiments.modularity.fig3_protocol import OPEN_CHOICES, SIZES, base_config
from weightloom.experiments.modularity.fig3_robust import Fig3Robust
from weightloom.lab import Result, Run, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Fig3", "Fig3Robust", "Fig3a", "Fig3b", "Fig3c", "Fig3d", "Fig3e", "Fig3f"]

WIDTH_DEPTH = 3  # f and e are "networks with three layers" in (d-f)


class Fig3(Section6):
    """One panel of the figure: a target family and what is varied.

    Both target initialisations are run unless one is asked for: He uniform, as printed, and
    PyTorch's default, which gives the errors of the printed figure. Every other open choice can be
    set: ``Fig3a(optimiser="adam", learning_rate=1e-3, epochs=50)``.
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
        """What is varied: the paper's sweep, or its two ends."""
        if self.sweep == "depth":
            return [{"depth": depth} for depth in ((2, 4) if scale == "smoke" else range(2, 10))]
        steps = (1, 2) if scale == "smoke" else range(1, 9)
        return [{"depth": WIDTH_DEPTH, "width": unit * i} for i in steps]

    def _effort(self, scale: str) -> tuple[int, int]:
        """Epochs and repetitions. The paper does not say how many epochs; 100 repetitions."""
        laptop = (6, 3) if self.sweep == "depth" else (3, 3)
        return {"smoke": (3, 2), "laptop": laptop, "paper": (30, 100)}[scale]

    def group(self, run: Run) -> str:
        text = json.dumps(dict(run.config), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def figures(self, results: Sequence[Result]) -> Mapping[str, Figure]:
        from weightloom.experiments.modularity.fig3_draw import draw_epochs, draw_sweep

        return {"": draw_sweep(self, results), "-epochs": draw_epochs(self, results)}

    def table(self, results: Sequence[Result]) -> Table:
        """The numbers, and below them what becomes of the paper's claims."""
        claims = ("1", "2", "3") if self.sweep == "depth" else ("4e", "4h")
        said = [
            f"{finding.setting[1]}: {CLAIMS[finding.claim]}: {finding.verdict}; {finding.evidence}"
            for finding in findings(comparable(results), "test_mse_over_variance")
            if finding.claim in (*claims, "learned h", "learned e")
        ]
        return sweep_table(results, self.sweep, self.title, ["", *said])


_DEPTH_CLAIM = (
    "From three layers on the hypernetwork has the lower test error; it improves as f gets "
    "deeper, the embedding method does not as e does."
)
_WIDTH_CLAIM = (
    "A wider embedding improves both models only slightly, and the errors stay worse and less "
    "stable than those of hypernetworks with a deeper f."
)


class Fig3a(Fig3):
    name, family, sweep = "fig3a", "network", "depth"
    title = "Depth of f and e; the target is a random network of (x, I)"
    claim, paper = _DEPTH_CLAIM, "000, Figure 3 (a)"


class Fig3b(Fig3):
    name, family, sweep = "fig3b", "product", "depth"
    title = "Depth of f and e; the target is h(x * I)"
    claim, paper = _DEPTH_CLAIM, "000, Figure 3 (b)"


class Fig3c(Fig3):
    name, family, sweep = "fig3c", "inner_product", "depth"
    title = "Depth of f and e; the target is <x, h(I)>"
    claim, paper = _DEPTH_CLAIM, "000, Figure 3 (c)"


class Fig3d(Fig3):
    name, family, sweep = "fig3d", "network", "width"
    title = "Width of the embedding; the target is a random network of (x, I)"
    claim, paper = _WIDTH_CLAIM, "000, Figure 3 (d)"


class Fig3e(Fig3):
    name, family, sweep = "fig3e", "product", "width"
    title = "Width of the embedding; the target is h(x * I)"
    claim, paper = _WIDTH_CLAIM, "000, Figure 3 (e)"


class Fig3f(Fig3):
    name, family, sweep = "fig3f", "inner_product", "width"
    title = "Width of the embedding; the target is <x, h(I)>"
    claim, paper = _WIDTH_CLAIM, "000, Figure 3 (f)"

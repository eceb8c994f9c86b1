"""Figure 5: shallow networks of growing width n, trained with the learning rate sqrt(n)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weightloom.data import has_images
from weightloom.experiments.infinite_width.fig5_train import SETTINGS, train_shallow
from weightloom.lab import Experiment, Outcome, Result, Run, Table, Workspace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["SCALE", "WideShallow"]

SCALE: dict[str, dict[str, Any]] = {
    "smoke": {"widths": (50, 400), "train_images": 500, "test_images": 300, "epochs": 1,
              "seeds": 2},
    "laptop": {"widths": (100, 1_000, 4_000), "train_images": 10_000, "test_images": 5_000,
               "epochs": 3, "seeds": 3},
    # The paper says neither how long, nor how often.
    "paper": {"widths": (100, 1_000, 10_000, 250_000), "train_images": 60_000,
              "test_images": 10_000, "epochs": 10, "seeds": 5},
}  # fmt: skip
#: Parameters of one stack, at most.
MOST = 40_000_000


class WideShallow(Experiment):
    """Four settings: the paper's claim does not hold in all of them."""

    name = "fig5"
    title = "Wide shallow networks with the learning rate sqrt(n)"
    claim = (
        "Networks of width n can be trained with the very large learning rate sqrt(n), and "
        "accuracy and loss improve as the width grows."
    )
    paper = "001, Figure 5"
    main_metrics = ("accuracy", "test_loss", "train_loss")

    def runs(self, scale: str) -> list[Run]:
        plan = SCALE[scale]
        common: dict[str, Any] = {
            name: plan[name] for name in ("train_images", "test_images", "epochs")
        }
        common |= {"batch_size": 100, "images": "mnist", "pixels": "standardised"}
        runs = []
        for form, objective, factor in SETTINGS:
            config = {**common, "parametrisation": form, "objective": objective}
            config |= {"rate_factor": factor} if factor != 1 else {}
            runs += [
                Run(self.name, {**config, "width": width}, seed)
                for width in plan["widths"]
                for seed in range(plan["seeds"])
            ]
        return runs

    def group(self, run: Run) -> str:
        """Equal but for the seed, and together not too large."""
        config = run.config
        at_once = max(1, MOST // (800 * config["width"]))
        return (
            f"{config['parametrisation']}-{config['objective']}-{config.get('rate_factor', 1)}-"
            f"{config['width']}-"
            f"{config['train_images']}-{config['epochs']}-{run.seed // at_once}"
        )

    def cost(self, run: Run) -> float:
        """Seconds on two cores, roughly; in the standard parametrisation it may end early."""
        config = run.config
        rows = config["epochs"] * config["train_images"]
        parameters = 794.0 * config["width"]
        steps = rows / config["batch_size"]
        return 0.2 + 6.0 * parameters * rows / 8e10 + steps * (0.001 + 20.0 * parameters / 1.5e10)

    def execute(self, runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
        yield from train_shallow(runs, workspace, self.name)

    def stand_in(self, run: Run, data_dir: Path | None) -> bool:
        """Whether digits stand for MNIST."""
        return not has_images(run.config["images"], data_dir)

    def figures(self, results: Sequence[Result]) -> Mapping[str, Figure]:
        from weightloom.experiments.infinite_width.fig5_draw import draw_wide

        return draw_wide(results)

    def table(self, results: Sequence[Result]) -> Table:
        from weightloom.experiments.infinite_width.fig5_numbers import wide_table

        return wide_table(results, self.title)

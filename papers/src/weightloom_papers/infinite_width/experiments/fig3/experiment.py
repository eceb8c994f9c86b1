"""Figure 3: inpainted images, and the standard deviation of the posterior for each.

With every training pixel known, on a torus, the posterior's deviation does not depend on the
position. It is one number for each image, which says how much the image differs from the training
images. It does not distinguish the half that f sees from the hidden half.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from weightloom.data import ImageSet
from weightloom_papers.infinite_width.experiments.images import (
    OnDigits,
    coordinates,
    on_every_pixel,
    sample_images,
    seen_by,
    set_name,
    train_hypernetwork,
)
from weightloom_papers.infinite_width.experiments.table1.experiment import feature_scale
from weightloom_papers.lab import Outcome, Result, ResultTable, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ROWS", "InfiniteFig3", "measure"]

#: Rows of the figure: name of the curve -> label.
ROWS = {
    "truth": "truth",
    "seen": "what f saw",
    "hypernetwork": "hypernetwork",
    "hyperkernel": "hyperkernel",
    "nngp": "NNGP",
    "deviation": "its deviation",
}
#: Training images, test images shown, training steps.
_PLANS = {"smoke": (12, 4, 4), "laptop": (500, 10, 300), "paper": (2000, 12, 4000)}


def measure(config: Mapping[str, Any], seed: int, data: ImageSet) -> Outcome:
    """Reconstructions of the first test images: a curve for each row of the figure.

    ``inside_95``: the share of hidden pixels within the 95 percent interval of the posterior,
    noise included.
    """
    started = time.perf_counter()
    sample = sample_images(data, "inpainting", config["images"], config["shown"], seed)
    settings = {**config, "scale": feature_scale(sample.side), "subsets": 0}
    network = train_hypernetwork(sample, settings, seed)
    seen = seen_by(sample, sample.test, normalise=True)
    places = coordinates(sample.side).double()
    hyperkernel, _ = on_every_pixel(sample, "ntk")
    prior, chosen = on_every_pixel(sample, "nngp")
    mean, deviation = prior.predict((seen.double(), places), return_std=True)
    rows = {
        "truth": sample.test,
        "seen": sample.test * ~sample.hidden,
        "hypernetwork": network.predict(seen),
        "hyperkernel": hyperkernel.predict((seen.double(), places)),
        "nngp": mean,
        "deviation": deviation,
    }
    metrics = {"side": float(sample.side)}
    for name in ("hypernetwork", "hyperkernel", "nngp"):
        errors = (rows[name].to(sample.test) - sample.test).square()
        metrics[name] = float(errors.mean())
        metrics[f"{name}_hidden"] = float(errors[:, sample.hidden].mean())
    spread = (deviation.square() + chosen["chosen_ridge"]).sqrt()
    inside = (mean - sample.test).abs() < 1.959964 * spread
    metrics["inside_95"] = float(inside[:, sample.hidden].double().mean())
    curves = {name: _curve(values) for name, values in rows.items()}
    return Outcome("done", metrics, curves, seconds=time.perf_counter() - started)


def _curve(values: Tensor) -> tuple[list[int], list[float]]:
    flat = values.flatten().tolist()
    return list(range(len(flat))), [round(value, 4) for value in flat]


class InfiniteFig3(OnDigits):
    """One run; its curves hold the images."""

    name = "infinite-width/fig3"
    title = "Inpainted images"
    claim = "From the upper half of an image both methods complete the rest (Figure 3)."
    paper = "infinite-width, Figure 3"
    main_metrics = ("hypernetwork_hidden", "hyperkernel_hidden", "nngp_hidden", "inside_95")
    seconds_per_cost = 15.0

    def runs(self, scale: str) -> list[Run]:
        images, shown, steps = _PLANS[scale]
        config = {"images": images, "shown": shown, "steps": steps, "rates": [3e-3, 1e-2]}
        return [Run(self.name, config, 0)]

    def cost(self, run: Run) -> float:
        return float(run.config["steps"]) / 300 + (float(run.config["images"]) / 500) ** 2.5

    def measure_run(self, run: Run, data: ImageSet) -> Outcome:
        return measure(run.config, run.seed, data)

    def figures(self, results: Sequence[Result]) -> Mapping[str, Figure]:
        from weightloom_papers.infinite_width.experiments.fig3.figure import draw_fig3

        return draw_fig3(results, ROWS)

    def table(self, results: Sequence[Result]) -> ResultTable:
        rows: list[list[str | float | None]] = []
        for result in results:
            metrics = result.outcome.metrics
            for name in ("hypernetwork", "hyperkernel", "nngp"):
                inside = metrics["inside_95"] if name == "nngp" else None
                rows.append([ROWS[name], metrics[name], metrics[f"{name}_hidden"], inside])
        shown = sum(int(result.run.config["shown"]) for result in results)
        notes = [
            f"{set_name(results)}: {shown} test images, of which f saw the upper half. A picture, "
            "not a measurement: table1 has more images and repetitions. Inside: the share of "
            "hidden pixels within the posterior's 95 percent interval."
        ]
        columns = ["method", "MSE", "hidden half", "inside 95 %"]
        return ResultTable(columns, rows, title=self.title, notes=notes)

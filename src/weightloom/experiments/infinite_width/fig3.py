"""Figure 3: inpainted images, and how sure the prior is of each.

On a torus of which every training pixel was seen the posterior's deviation does not depend on the
place: it says how unlike the training images an image is, one number for each, and nothing of the
difference between the half that f saw and the half that it did not see.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from weightloom.data import ImageSet
from weightloom.experiments.infinite_width.on_digits import OnDigits
from weightloom.experiments.infinite_width.protocol import (
    coordinates,
    draw_images,
    on_every_pixel,
    seen_by,
)
from weightloom.experiments.infinite_width.table1 import feature_scale
from weightloom.experiments.infinite_width.table1_net import train_hypernetwork
from weightloom.experiments.infinite_width.table1_numbers import set_name
from weightloom.lab import Outcome, Result, Run, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ROWS", "InfiniteFig3", "measure"]

#: Rows of the picture: name of the curve -> label.
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
    """Reconstructions of the first test images, a curve for each row of the picture.

    ``inside_95``: the share of hidden pixels within the 95 percent interval of the posterior,
    noise included.
    """
    started = time.perf_counter()
    draw = draw_images(data, "inpainting", config["images"], config["shown"], seed)
    settings = {**config, "scale": feature_scale(draw.side), "subsets": 0}
    network = train_hypernetwork(draw, settings, seed)
    seen = seen_by(draw, draw.test, normalise=True)
    places = coordinates(draw.side).double()
    hyperkernel, _ = on_every_pixel(draw, "ntk")
    prior, chosen = on_every_pixel(draw, "nngp")
    mean, deviation = prior.predict((seen.double(), places), return_std=True)
    rows = {
        "truth": draw.test,
        "seen": draw.test * ~draw.hidden,
        "hypernetwork": network.predict(seen),
        "hyperkernel": hyperkernel.predict((seen.double(), places)),
        "nngp": mean,
        "deviation": deviation,
    }
    metrics = {"side": float(draw.side)}
    for name in ("hypernetwork", "hyperkernel", "nngp"):
        errors = (rows[name].to(draw.test) - draw.test).square()
        metrics[name] = float(errors.mean())
        metrics[f"{name}_hidden"] = float(errors[:, draw.hidden].mean())
    spread = (deviation.square() + chosen["chosen_ridge"]).sqrt()
    inside = (mean - draw.test).abs() < 1.959964 * spread
    metrics["inside_95"] = float(inside[:, draw.hidden].double().mean())
    curves = {name: _curve(values) for name, values in rows.items()}
    return Outcome("done", metrics, curves, seconds=time.perf_counter() - started)


def _curve(values: Tensor) -> tuple[list[int], list[float]]:
    flat = values.flatten().tolist()
    return list(range(len(flat))), [round(value, 4) for value in flat]


class InfiniteFig3(OnDigits):
    """One run; the picture is in its curves."""

    name = "fig3"
    title = "Inpainted images"
    claim = "From the upper half of an image both methods complete the rest (Figure 3)."
    paper = "001, Figure 3"
    main_metrics = ("hypernetwork_hidden", "hyperkernel_hidden", "nngp_hidden", "inside_95")
    seconds_per_cost = 15.0

    def runs(self, scale: str) -> list[Run]:
        images, shown, steps = _PLANS[scale]
        config = {"images": images, "shown": shown, "steps": steps, "rates": [3e-3, 1e-2]}
        return [Run(self.name, config, 0)]

    def cost(self, run: Run) -> float:
        return float(run.config["steps"]) / 300 + (float(run.config["images"]) / 500) ** 2.5

    def measured(self, run: Run, data: ImageSet) -> Outcome:
        return measure(run.config, run.seed, data)

    def figures(self, results: Sequence[Result]) -> Mapping[str, Figure]:
        from weightloom.experiments.infinite_width.table1_draw import draw_picture

        return draw_picture(results, ROWS)

    def table(self, results: Sequence[Result]) -> Table:
        rows: list[list[str | float | None]] = []
        for one in results:
            for name in ("hypernetwork", "hyperkernel", "nngp"):
                found = one.outcome.metrics
                inside = found["inside_95"] if name == "nngp" else None
                rows.append([ROWS[name], found[name], found[f"{name}_hidden"], inside])
        shown = sum(int(one.run.config["shown"]) for one in results)
        notes = [
            f"{set_name(results)}: {shown} test images, of which f saw the upper half. A picture, "
            "not a measurement: table1 has more images and repetitions. Inside: the share of "
            "hidden pixels within the posterior's 95 percent interval."
        ]
        columns = ["method", "MSE", "hidden half", "inside 95 %"]
        return Table(columns, rows, title=self.title, notes=notes)

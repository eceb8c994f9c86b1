"""Regression on every pixel of more and more images: time, memory, error and calibration."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weightloom.data import ImageSet
from weightloom_papers.infinite_width.experiments.images import (
    TASKS,
    OnDigits,
    every_pixel,
    sample_images,
    scores,
    seen_by,
    tuned,
)
from weightloom_papers.lab import Outcome, Result, ResultTable, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["LEVELS", "ScaleExperiment", "coverage", "measure", "relative_errors"]

#: Probabilities of the intervals whose coverage is measured.
LEVELS = (0.5, 0.8, 0.95)
#: Brightness above which a pixel is ink.
_INK = 0.02
#: Repetitions for each number of training images, and test images.
_PLANS: dict[str, tuple[dict[int, int], int]] = {
    "smoke": ({10: 1, 20: 1, 40: 1}, 10),
    "laptop": ({50: 3, 100: 3, 200: 3, 500: 2, 1000: 1}, 50),
    "paper": (dict.fromkeys((50, 100, 200, 500, 1000, 2000), 10), 200),
}


def coverage(residual: Tensor, deviation: Tensor) -> dict[str, float]:
    """The share of residuals inside central Gaussian intervals of each level."""
    normal = torch.distributions.Normal(0.0, 1.0)
    shares = {}
    for level in LEVELS:
        width = float(normal.icdf(torch.tensor((1 + level) / 2)))
        inside = residual.abs() <= width * deviation
        shares[f"inside_{round(100 * level)}"] = float(inside.double().mean())
    return shares


def relative_errors(residual: Tensor, deviation: Tensor, truth: Tensor) -> dict[str, float]:
    """Root mean squares of residual / deviation at pixels with ink, and at blank pixels.

    Both are 1 for data sampled from the prior, which expects ink everywhere.
    """
    squares = (residual / deviation).square()
    ink = truth > _INK
    return {
        "relative_ink": float(squares[ink].mean().sqrt()),
        "relative_paper": float(squares[~ink].mean().sqrt()),
    }


def measure(config: Mapping[str, Any], seed: int, data: ImageSet) -> Outcome:
    """Fit the NNGP to every pixel of ``images`` images, predict test images with deviations.

    ``seconds_fit`` and ``peak_bytes`` belong to the fit alone, after scale and ridge were chosen.
    ``peak_bytes`` is the additional memory of the process, where the system reports it.

    The posterior is evaluated twice: as it is, and with the scale of the prior set to its most
    likely value ("scaled_"). If K + r I becomes c (K + r I), the mean does not change and the
    deviations grow by sqrt(c); the likelihood is largest for c = y . (K + r I)^-1 y / count.
    """
    sample = sample_images(data, config["task"], config["images"], config["tests"], seed)
    model, chosen = tuned(sample, "nngp")
    (seen, places), values = every_pixel(sample)
    known = _reset_peak()
    before = _peak()
    started = time.perf_counter()
    model.fit((seen, places), values)
    fitted = time.perf_counter() - started
    peak = _peak() - before if known else math.nan
    query = (seen_by(sample, sample.test, normalise=True).double(), places)
    mean, deviation = model.predict(query, return_std=True)
    ridge = chosen["chosen_ridge"]
    # (K + r I)^-1 y = (y - K (K + r I)^-1 y) / r, and the fitted values are predictions.
    alpha = (values - model.predict((seen, places))) / ridge
    growth = float((values * alpha).sum()) / values.numel()
    noisy = (deviation.square() + ridge).sqrt()
    residual = mean - sample.test
    metrics = {
        **scores(mean, sample),
        **chosen,
        **coverage(residual, noisy),
        **{f"scaled_{k}": v for k, v in coverage(residual, noisy * math.sqrt(growth)).items()},
        **relative_errors(residual, noisy, sample.test),
        "growth": growth,
        "deviation": float(noisy.square().mean().sqrt()),
        "equations": float(values.numel()),
        "seconds_fit": fitted,
        "peak_bytes": peak,
    }
    return Outcome("done", metrics, seconds=time.perf_counter() - started)


def _reset_peak() -> bool:
    """Reset the peak memory of this process; False where the system cannot (not Linux)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _peak() -> float:
    """Peak memory of this process since the reset, in bytes; NaN where unknown."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return math.nan
    kilobytes = [line.split()[1] for line in lines if line.startswith("VmHWM")]
    return 1024.0 * float(kilobytes[0]) if kilobytes else math.nan


class ScaleExperiment(OnDigits):
    """Time, memory, error and calibration against the number of images, on every pixel."""

    name = "infinite-width/scale"
    title = "Every pixel of a thousand images"
    claim = (
        "The kernel matrix of all the data is too large to compute, so subsets of it are averaged "
        "(A.2). Structure makes all of it solvable."
    )
    paper = "infinite-width, Section 5.3 and A.2"
    main_metrics = ("mse", "seconds_fit", "peak_bytes", "inside_95", "scaled_inside_95")
    seconds_per_cost = 1.0

    def runs(self, scale: str) -> list[Run]:
        counts, tests = _PLANS[scale]
        return [
            Run(self.name, {"task": task, "images": images, "tests": tests}, seed)
            for images, repeats in counts.items()
            for seed in range(repeats)
            for task in TASKS
        ]

    def cost(self, run: Run) -> float:
        """In seconds on one core."""
        return 1.0 + 2 * (float(run.config["images"]) / 300) ** 2

    def measure_run(self, run: Run, data: ImageSet) -> Outcome:
        return measure(run.config, run.seed, data)

    def figures(self, results: Sequence[Result]) -> Mapping[str, Figure]:
        from weightloom_papers.infinite_width.experiments.scale.figure import draw_scale

        return draw_scale(results)

    def table(self, results: Sequence[Result]) -> ResultTable:
        from weightloom_papers.infinite_width.experiments.scale.analysis import scale_table

        return scale_table(results, self.title)

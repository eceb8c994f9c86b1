"""Table 1: 50 to 500 images as functions, by kernels and by a trained hypernetwork."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weightloom.data import ImageSet
from weightloom.errors import ConfigError
from weightloom_papers.infinite_width.experiments.images import (
    TASKS,
    OnDigits,
    coordinates,
    on_every_pixel,
    on_random_pixels,
    sample_images,
    scores,
    seen_by,
    train_hypernetwork,
)
from weightloom_papers.lab import Outcome, Result, ResultTable, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["COUNTS", "METHODS", "Table1", "measure"]

#: Name -> label. "20": the paper's protocol, twenty random pixels at a time; else every pixel.
METHODS = {
    "HK20": "hyperkernel, 20 pixels",
    "NNGP20": "NNGP, 20 pixels",
    "HN20": "hypernetwork, 20 pixels",
    "HK": "hyperkernel, every pixel",
    "NNGP": "NNGP, every pixel",
    "HN": "hypernetwork, every pixel",
}
COUNTS = (50, 100, 200, 500)

#: Variations of the paper's protocol at one size, to see what the errors depend on.
VARIATIONS: dict[str, dict[str, Any]] = {
    "as in the table": {},
    "coarser features": {"scale": 0.5},
    "finer features": {"scale": 2.0},
    "images of one length": {"normalise": True},
    "the same pixels for all": {"pixels": "same"},
    "ridge 0.01": {"ridge": 0.01},
}

#: By scale: for each number of images, the draws of pixels that are averaged ("counts") and the
#: repetitions of the kernels; repetitions of hypernetworks; (images, draws, repetitions) of the
#: variations; test images; training steps.
_PLANS: dict[str, dict[str, Any]] = {
    "smoke": {
        "counts": {10: 2}, "kernels": {10: 1}, "networks": 1, "vary": None, "tests": 5, "steps": 4,
    },
    "laptop": {
        "counts": dict.fromkeys(COUNTS, 10),
        "kernels": {50: 20, 100: 20, 200: 20, 500: 10}, "networks": 10,
        "vary": (100, 3, 2), "tests": 60, "steps": 300,
    },
    "paper": {
        "counts": dict.fromkeys(COUNTS, 10), "kernels": dict.fromkeys(COUNTS, 20),
        "networks": 20, "vary": (100, 10, 20), "tests": 500, "steps": 2000,
    },
}  # fmt: skip
_RATES = (3e-3, 1e-2)


def _run(method: str, task: str, images: int, plan: Mapping[str, Any], seed: int) -> Run:
    config: dict[str, Any] = {
        "method": method, "task": task, "images": images, "tests": plan["tests"], "vary": None,
    }  # fmt: skip
    if method in ("HK20", "NNGP20"):
        config |= {
            "kind": _kind(method), "subsets": plan["counts"][images], "scale": 1.0, "ridge": 1e-3,
            "normalise": False, "pixels": "random", "test_pixels": 100,
        }  # fmt: skip
    elif method in ("HN20", "HN"):
        subsets = plan["counts"][images] if method == "HN20" else 0
        config |= {"subsets": subsets, "scale": 1.0, "steps": plan["steps"], "rates": list(_RATES)}
    return Run("infinite-width/table1", config, seed)


def _kind(method: str) -> str:
    return "nngp" if method.startswith("NNGP") else "ntk"


def _varied(plan: Mapping[str, Any]) -> list[Run]:
    if plan["vary"] is None:
        return []
    images, subsets, repeats = plan["vary"]
    runs = []
    for name, changes in VARIATIONS.items():
        for method, task in itertools.product(("HK20", "NNGP20"), TASKS):
            for seed in range(repeats):
                base = dict(_run(method, task, images, plan, seed).config)
                base |= {"vary": name, "subsets": subsets, **changes}
                runs.append(Run("infinite-width/table1", base, seed))
    return runs


def feature_scale(side: int) -> float:
    """The scale of the random features, for an image of side 1.

    10 was best for MNIST (2.8 pixels). Relative to the image, strokes of the small digits are
    wider, and in pixels they are narrower: 5, that is 1.6 pixels.
    """
    return 10.0 if side >= 28 else 5.0


def measure(config: Mapping[str, Any], seed: int, data: ImageSet) -> Outcome:
    """One method on one sample of images: ``mse`` on test images, and the baselines."""
    started = time.perf_counter()
    method = config["method"]
    if method not in METHODS:
        raise ConfigError(f"method is {method!r}; wanted one of {', '.join(METHODS)}")
    sample = sample_images(data, config["task"], config["images"], config["tests"], seed)
    curves = {}
    if method in ("HK20", "NNGP20"):
        scaled = {**config, "scale": config["scale"] * feature_scale(sample.side)}
        metrics, history = on_random_pixels(sample, scaled, seed)
        metrics["mse_single"] = history[0]
        curves["mse"] = (list(range(1, len(history) + 1)), history)
    elif method in ("HN20", "HN"):
        scaled = {**config, "scale": config["scale"] * feature_scale(sample.side)}
        metrics = train_hypernetwork(sample, scaled, seed).metrics
    else:
        model, chosen = on_every_pixel(sample, _kind(method))
        seen = seen_by(sample, sample.test, normalise=True).double()
        metrics = {
            **scores(model.predict((seen, coordinates(sample.side).double())), sample),
            **chosen,
        }
    status = "done" if math.isfinite(metrics["mse"]) else "diverged"
    return Outcome(status, metrics, curves, seconds=time.perf_counter() - started)


class Table1(OnDigits):
    """Test errors of six methods on two tasks against the number of training images."""

    name = "infinite-width/table1"
    title = "Image representation and inpainting"
    claim = (
        "With little data the kernels outperform a trained hypernetwork on both tasks, and the "
        "NNGP consistently outperforms the rest (Table 1)."
    )
    paper = "infinite-width, Table 1"
    main_metrics = ("mse", "mse_hidden", "mse_single", "mean_image", "mean_pixel")
    seconds_per_cost = 1.0

    def runs(self, scale: str) -> list[Run]:
        plan = _PLANS[scale]
        runs = [
            _run(method, task, images, plan, seed)
            for images in plan["counts"]
            for method in METHODS
            for seed in range(
                plan["networks"] if method.startswith("HN") else plan["kernels"][images]
            )
            for task in TASKS
        ]
        return runs + _varied(plan)

    def cost(self, run: Run) -> float:
        """In seconds on one core."""
        method, n = run.config["method"], float(run.config["images"])
        if method in ("HK20", "NNGP20"):
            return float(run.config["subsets"]) * (0.1 + n / 400 + (n / 300) ** 3)
        if method in ("HN20", "HN"):
            return float(run.config["steps"]) / 35
        return 0.3 + (n / 250) ** 2

    def measure_run(self, run: Run, data: ImageSet) -> Outcome:
        return measure(run.config, run.seed, data)

    def figures(self, results: Sequence[Result]) -> Mapping[str, Figure]:
        from weightloom_papers.infinite_width.experiments.table1.figure import draw_table1

        return draw_table1(results)

    def table(self, results: Sequence[Result]) -> ResultTable:
        from weightloom_papers.infinite_width.experiments.table1.analysis import table1_table

        return table1_table(results, self.title)

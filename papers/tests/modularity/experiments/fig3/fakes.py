"""Made-up results, as input for figures, tables and conclusions."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from typing import Any

from weightloom_papers.lab import Outcome, Result, Run

VARIANCE = {"he_uniform": 2.8, "pytorch": 0.0057}

# (configuration, seed) -> MSE over variance at the end; NaN: diverged
Law = Callable[[dict[str, Any], int], float]


def fake(run: Run, final: float, validation: float | None = None, start: float = 0.0) -> Result:
    """A result whose test error falls (or rises) from ``start`` to ``final``, over variance."""
    config = dict(run.config)
    spread = random.Random(run.seed).uniform(0.8, 1.2)
    variance = VARIANCE[config["target_init"]] * spread
    epochs, each = config["epochs"], config["train_pairs"] // config["batch_size"]
    start = start or 3.0 * (final if math.isfinite(final) else 2.0)
    lost = not math.isfinite(final)
    ratios = [start * 3.0] if lost else [
        final + (start - final) * math.exp(-2.0 * (e + 1)) for e in range(epochs - 1)
    ] + [final]  # fmt: skip
    steps = [each * (e + 1) for e in range(len(ratios))]
    curve = (steps, [variance * value for value in ratios])
    end = math.nan if lost else variance * final
    chosen = end if validation is None else variance * validation
    metrics = {
        "test_mse": end,
        "selected_test_mse": end,
        "validation_mse": chosen,
        "best_validation_mse": math.nan if lost else chosen,
        "train_mse": end,
        "initial_test_mse": variance * start,
        "target_variance": variance,
        "steps": steps[-1],
        "selected_step": steps[-1],
        "primary_parameters": 10_021,
        "trainable_parameters": 1_000_000,
    }
    for name in ("test_mse", "selected_test_mse", "initial_test_mse"):
        metrics[f"{name}_over_variance"] = metrics[name] / variance
    status = "diverged" if lost else "done" if config["patience"] is None else "plateau"
    return Result(run, Outcome(status, metrics, {"test": curve, "validation": curve}))


def fakes(runs: Iterable[Run], law: Law, noise: float = 0.02) -> list[Result]:
    """One result for each run: ``law`` times e^(noise), with reproducible noise."""
    results = []
    for run in runs:
        factor = math.exp(random.Random(run.key).gauss(0.0, noise))
        results.append(fake(run, law(dict(run.config), run.seed) * factor))
    return results


def paper_like(config: dict[str, Any], seed: int) -> float:
    """Errors that follow the paper's claims about depth, on the scale of our measurements."""
    depth = config["depth"]
    if config["model"] == "embedding":
        return 4.0 if config["target_init"] == "pytorch" else 1.3
    if config["target_init"] == "he_uniform" and (depth == 2 or (depth == 3 and seed == 0)):
        return math.nan
    return {2: 8.0, 3: 3.5}.get(depth, 1.2 + 2.0 / depth)

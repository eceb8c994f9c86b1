"""What the figure, the table and the claims of ``square-error`` read off the results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weightloom.experiments.depth.verdicts import finished
from weightloom.lab import Result

__all__ = ["KINDS", "STARTS", "Trained", "best_rates", "built"]

KINDS = {"shallow": "shallow", "narrow": "narrow deep", "three": "three-layer"}
STARTS = {"default": "PyTorch's start", "spread": "spread start", "built": "start near the built"}

# (kind, start, i) -> seed -> result
Trained = Mapping[tuple[str, str, int], Mapping[int, Result]]


def built(results: Sequence[Result], network: str, best: str) -> list[tuple[int, dict[str, float]]]:
    """(size, metrics) of built networks, by size."""
    found = [
        (int(one.run.config["size"]), one.outcome.metrics)
        for one in finished(results, "built")
        if (one.run.config["network"], one.run.config["best"]) == (network, best)
    ]
    return sorted(found, key=lambda pair: pair[0])


def best_rates(results: Sequence[Result]) -> dict[tuple[str, str, int], dict[int, Result]]:
    """{(kind, start, i): {seed: result}}: of each seed the learning rate of the least L2 error."""
    found: dict[tuple[str, str, int], dict[int, Result]] = {}
    for one in finished(results, "trained"):
        c = one.run.config
        seeds = found.setdefault((c["kind"], c["start"], c["i"]), {})
        error = one.outcome.metrics["l2"]
        if math.isnan(error):
            continue
        old = seeds.get(one.run.seed)
        if old is None or error < old.outcome.metrics["l2"]:
            seeds[one.run.seed] = one
    return found

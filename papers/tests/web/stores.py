"""A store as people have it: a real experiment, runs that went wrong, names nobody knows."""

from __future__ import annotations

import math

from weightloom_papers.experiments import all_experiments
from weightloom_papers.lab import Outcome, Result, Run, Store, Workspace

#: Text that would run if it were ever taken for markup.
HOSTILE = "</script><img src=x onerror=\"document.title='owned'\">"
EXPERIMENT = "depth-separation/legendre-tails"


def fill(path):
    """All runs of a small experiment at smoke scale, and four more; the results."""
    experiment = all_experiments()[EXPERIMENT]
    provenance = {"commit": "0123456789abcdef", "dirty": True, "torch": "2.0"}
    results = [
        Result(run, outcome, {**provenance, "started": f"2026-01-01T00:00:0{i}+00:00"}, _when(i))
        for i, (run, outcome) in enumerate(
            experiment.execute(experiment.runs("smoke"), Workspace())
        )
    ]
    curve = ([0, 1, 2, 3], [1.0, 0.5, math.nan, 0.25])
    extra = [
        (Run(EXPERIMENT, {"part": "tails", "d": 99}, 0), Outcome("failed", {}, message=HOSTILE)),
        (
            Run("unheard-of", {"model": HOSTILE, "depth": 2}, 1),
            Outcome("done", {"mse": 0.25}, {"train": curve}, seconds=2.5),
        ),
        (
            Run("unheard-of", {"model": "plain", "depth": 3}, 1),
            Outcome("diverged", {"mse": math.nan}, {"train": curve}, seconds=1.5),
        ),
    ]
    results += [
        Result(run, outcome, provenance, _when(50 + i)) for i, (run, outcome) in enumerate(extra)
    ]
    with Store(path) as store:
        for result in results:
            store.add(result)
    return results


def _when(second):
    return f"2026-01-01T00:01:{second:02d}.000+00:00"

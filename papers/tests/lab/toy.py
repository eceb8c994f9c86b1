"""A toy experiment that can be slow, fail, die and be counted; no training."""

from __future__ import annotations

import hashlib
import math
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from weightloom_papers.lab import Experiment, Outcome, Result, ResultTable, Run, Workspace, drawing

SEEDS = {"smoke": 2, "laptop": 4, "paper": 6}


@dataclass
class Toy(Experiment):
    """Three depths, each a group; every execution of a run leaves a line in ``log``."""

    name: ClassVar[str] = "toy"
    title: ClassVar[str] = "a toy"
    claim: ClassVar[str] = "The paper says that toys are deep, and that deeper toys are better."
    paper: ClassVar[str] = "modularity, Figure 1"
    seconds_per_cost: ClassVar[float] = 0.5
    main_metrics: ClassVar[tuple[str, ...]] = ("mse",)

    log: Path | None = None
    delay: float = 0.0
    #: Depth whose group raises, after its first run.
    fail: int | None = None
    #: Depth whose second run ends the process with SIGKILL, if this file is not there yet.
    die: int | None = None
    died: Path | None = None
    limit: int = 16

    def runs(self, scale: str) -> list[Run]:
        return [
            Run(self.name, {"depth": depth, "model": "hyper", "scale": 1.0}, seed)
            for depth in (1, 2, 3)
            for seed in range(SEEDS[scale])
        ]

    def group(self, run: Run) -> str:
        return f"depth {run.config['depth']}"

    def size_limit(self) -> int:
        return self.limit

    def cost(self, run: Run) -> float:
        return float(run.config["depth"])

    def execute(self, runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
        for i, run in enumerate(runs):
            if run.config["depth"] == self.fail and i == 1:
                raise RuntimeError(f"the toy broke at depth {self.fail}")
            self._note(f"begin {run.key}")
            time.sleep(self.delay)
            if run.config["depth"] == self.die and i == 1:
                self._die_once()
            self._note(f"end {run.key}")
            yield run, outcome(run)

    def figures(self, results: Sequence[Result]) -> Mapping[str, Any]:
        figure, (axes,) = drawing.new_figure()
        for result in results:
            axes.plot(*result.outcome.curves["train"], label=f"{result.run.config['depth']}")
        axes.set_xlabel("step")
        drawing.caption(figure, self.claim)
        return {"": figure}

    def table(self, results: Sequence[Result]) -> ResultTable:
        rows = [[r.run.config["depth"], r.run.seed, r.outcome.metrics.get("mse")] for r in results]
        return ResultTable(["depth", "seed", "mse"], rows, title=self.title)

    def _note(self, text: str) -> None:
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(f"{text} {os.getpid()}\n")

    def _die_once(self) -> None:
        assert self.died is not None
        try:
            self.died.touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


class Quick(Toy):
    """Another experiment, with another name."""

    name: ClassVar[str] = "quick"
    title: ClassVar[str] = "a quick toy"


def outcome(run: Run) -> Outcome:
    """What a run must give, wherever it is done: numbers from a digest, NaN and infinity too."""
    digest = hashlib.sha256(run.key.encode()).digest()
    values = [byte / 7 for byte in digest[:5]]
    depth = int(run.config["depth"])
    special = {1: math.nan, 2: math.inf, 3: -0.0}[depth]
    return Outcome(
        "diverged" if depth == 1 else "done",
        {"mse": values[0] / depth, "special": special},
        {"train": (list(range(5)), values), "test": ([4], [special])},
        message="step 3, layer 'fc1'" if depth == 1 else "",
        seconds=0.25 * depth,
    )


def begun(log: Path) -> list[str]:
    """Keys of all executions of runs that have begun, in order."""
    return _keys(log, "begin")


def ended(log: Path) -> list[str]:
    return _keys(log, "end")


def _keys(log: Path, word: str) -> list[str]:
    lines = log.read_text().splitlines() if log.exists() else []
    return [line.split()[1] for line in lines if line.startswith(word)]

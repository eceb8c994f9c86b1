"""From the store to files: figures and their tables, without running anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from weightloom.errors import OutputError
from weightloom_papers.errors import StoreError
from weightloom_papers.lab import drawing
from weightloom_papers.lab.experiment import SCALES, Experiment, wanted
from weightloom_papers.lab.runs import Result, Run
from weightloom_papers.lab.store import Store
from weightloom_papers.lab.tables import ResultTable

__all__ = ["DEFAULT_FIGURES", "DrawnFigures", "draw", "stored_scale"]

DEFAULT_FIGURES = Path("weightloom-lab") / "figures"


@dataclass(frozen=True)
class DrawnFigures:
    """Drawn figures: the number of runs behind them, their table, their files."""

    experiment: str
    scale: str
    stored: int
    wanted: int
    table: ResultTable
    files: tuple[Path, ...]

    @property
    def note(self) -> str:
        """The number of runs behind the figure, in words."""
        if self.stored < self.wanted:
            return (
                f"Scale {self.scale}, unfinished: {self.stored} of {self.wanted} runs are stored, "
                "the rest is missing here."
            )
        return f"Scale {self.scale}, all {self.wanted} runs."


def draw(
    experiment: Experiment,
    store: Store,
    out: Path = DEFAULT_FIGURES,
    scale: str | None = None,
    runs: Sequence[Run] | None = None,
) -> DrawnFigures:
    """Draw ``experiment`` from ``store`` alone into the folder ``out``.

    Files of ``paper/name`` are named ``paper/name-SCALE``, so that no scale replaces another:
    .png and .svg for each figure, .txt and .csv for the table. Without ``scale``, the one with most
    results. ``runs``: the result of `wanted` at that scale, if the caller has it.
    """
    drawing.require_matplotlib()
    scale = scale or stored_scale(experiment, store)
    runs = wanted(experiment, scale) if runs is None else runs
    results = [result for result in store.of(runs) if not result.outcome.failed]
    if not results:
        others = len(store.results(experiment.name))
        hint = f" ({others} results of it have other settings: another scale or version)"
        raise StoreError(
            f"nothing of {experiment.name!r} is stored in {store.path} at scale {scale!r}"
            f"{hint if others else ''}; `weightloom reproduce {experiment.name} --scale {scale}` "
            "runs it"
        )
    table = experiment.table(results)
    drawn = DrawnFigures(experiment.name, scale, len(results), len(runs), table, ())
    try:
        stem = out / f"{experiment.name}-{scale}"
        stem.parent.mkdir(parents=True, exist_ok=True)
        files = _draw_figures(experiment, results, drawn.note, stem) + _write_table(
            experiment, drawn, stem
        )
    except OSError as error:
        raise OutputError(
            f"figures cannot be written into {out} ({error.strerror or error}); the results are "
            f"safe: `weightloom figures {experiment.name} --out DIR` draws them elsewhere"
        ) from error
    return replace(drawn, files=tuple(files))


def stored_scale(experiment: Experiment, store: Store) -> str:
    """The scale with most stored runs; among equals, the most complete one."""

    finished = store.finished()

    def stored(scale: str) -> tuple[int, float]:
        runs = wanted(experiment, scale)
        count = sum(run.key in finished for run in runs)
        return count, count / len(runs)

    return max(SCALES, key=stored)


def _draw_figures(
    experiment: Experiment, results: list[Result], note: str, stem: Path
) -> list[Path]:
    files: list[Path] = []
    with drawing.style():
        for ending, figure in experiment.figures(results).items():
            if not drawing.captioned(figure, experiment.claim):
                drawing.caption(figure, f"The paper ({experiment.paper}): {experiment.claim}")
            drawing.caption(figure, note)
            files += drawing.save(figure, stem.with_name(stem.name + ending))
    return files


def _write_table(experiment: Experiment, drawn: DrawnFigures, stem: Path) -> list[Path]:
    text, values = stem.with_name(stem.name + ".txt"), stem.with_name(stem.name + ".csv")
    claim = f"The paper ({experiment.paper}): {experiment.claim}"
    text.write_text(f"{drawn.table.text()}\n\n{claim}\n{drawn.note}\n", encoding="utf-8")
    values.write_text(drawn.table.csv(), encoding="utf-8")
    return [text, values]

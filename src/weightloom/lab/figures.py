"""From the store to files: figures and the table behind them, and nothing is computed again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from weightloom.errors import OutputError, StoreError
from weightloom.lab import drawing
from weightloom.lab.experiment import SCALES, Experiment, wanted
from weightloom.lab.runs import Result
from weightloom.lab.store import Store
from weightloom.lab.table import Table

__all__ = ["DEFAULT_FIGURES", "Drawing", "draw", "stored_scale"]

DEFAULT_FIGURES = Path("weightloom-lab") / "figures"


@dataclass(frozen=True)
class Drawing:
    """What was drawn, from how many of how many runs, into which files."""

    experiment: str
    scale: str
    stored: int
    wanted: int
    table: Table
    files: tuple[Path, ...]

    @property
    def note(self) -> str:
        """How much the figure rests on, in words."""
        if self.stored < self.wanted:
            return (
                f"Scale {self.scale}, unfinished: {self.stored} of {self.wanted} runs are stored, "
                "the rest is missing here."
            )
        return f"Scale {self.scale}, all {self.wanted} runs."


def draw(
    experiment: Experiment, store: Store, out: Path = DEFAULT_FIGURES, scale: str | None = None
) -> Drawing:
    """Draw ``experiment`` from ``store`` alone into the folder ``out``.

    Files are named ``NAME-SCALE``, so that a smoke run never replaces a figure that means
    something: .png and .svg for each figure, .txt and .csv for the table. Without ``scale``, the
    one with most results.
    """
    drawing.require_matplotlib()
    scale = scale or stored_scale(experiment, store)
    results = _results(experiment, scale, store)
    if not results:
        others = len(store.results(experiment.name))
        hint = f" ({others} results of it have other settings: another scale or version)"
        raise StoreError(
            f"nothing of {experiment.name!r} is stored in {store.path} at scale {scale!r}"
            f"{hint if others else ''}; `weightloom reproduce {experiment.name} --scale {scale}` "
            "makes it"
        )
    total = len(wanted(experiment, scale))
    table = experiment.table(results)
    made = Drawing(experiment.name, scale, len(results), total, table, ())
    try:
        out.mkdir(parents=True, exist_ok=True)
        stem = out / f"{experiment.name}-{scale}"
        files = _draw_figures(experiment, results, made.note, stem) + _write_table(
            experiment, made, stem
        )
    except OSError as error:
        raise OutputError(
            f"figures cannot be written into {out} ({error.strerror or error}); the results are "
            f"safe: `weightloom figures {experiment.name} --out DIR` draws them elsewhere"
        ) from error
    return Drawing(made.experiment, scale, made.stored, total, table, tuple(files))


def stored_scale(experiment: Experiment, store: Store) -> str:
    """The scale of which most is stored; of equals the one that is nearest to complete."""

    finished = store.finished()

    def stored(scale: str) -> tuple[int, float]:
        runs = wanted(experiment, scale)
        count = sum(run.key in finished for run in runs)
        return count, count / len(runs)

    return max(SCALES, key=stored)


def _results(experiment: Experiment, scale: str, store: Store) -> list[Result]:
    results = store.of(wanted(experiment, scale))
    return [result for result in results if not result.outcome.failed]


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


def _write_table(experiment: Experiment, made: Drawing, stem: Path) -> list[Path]:
    text, values = stem.with_name(stem.name + ".txt"), stem.with_name(stem.name + ".csv")
    claim = f"The paper ({experiment.paper}): {experiment.claim}"
    text.write_text(f"{made.table.text()}\n\n{claim}\n{made.note}\n", encoding="utf-8")
    values.write_text(made.table.csv(), encoding="utf-8")
    return [text, values]

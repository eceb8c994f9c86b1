"""The result of `diff`: one row per tensor, counts, a table, JSON, a figure."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weightloom.symmetry.differences.kinds import Change
from weightloom.symmetry.differences.sources import LazyTensor

__all__ = ["CheckpointDiff", "TensorDiff"]


@dataclass(frozen=True)
class TensorDiff:
    """One tensor of a, its partner in b, and how they differ."""

    name: str
    """in a; in b if a has no such tensor"""
    other_name: str | None
    """in b, if it is not the same"""
    kind: str
    """a key of `CRITERIA`"""
    text: str
    """the kind with its numbers, for people"""
    shapes: tuple[tuple[int, ...] | None, tuple[int, ...] | None] = (None, None)
    dtypes: tuple[str | None, str | None] = (None, None)
    matched_by: str = ""
    """"name", "prefix", "rule", "rows" (of a fused tensor), "content" or "neighbour\""""
    transposed: bool = False
    """a was transposed before it was compared: Conv1D against Linear"""
    buffer: bool = False
    """on one side only, and computed by the code of the network"""
    max_abs: float | None = None
    """largest |b - a|; None: nothing was subtracted"""
    relative: float | None = None
    """|b - a| / |a|, Frobenius norm"""
    cosine: float | None = None
    changed: int | None = None
    """entries with different numbers"""
    details: dict[str, Any] = field(default_factory=dict)
    """rank, factor, levels, ... by kind"""
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        first: LazyTensor | None,
        second: LazyTensor | None,
        matched_by: str,
        change: Change,
        *,
        transposed: bool = False,
        buffer: bool = False,
    ) -> TensorDiff:
        """The row of a pair; one of the two may be missing."""
        names = [None if t is None else t.name for t in (first, second)]
        text = change.text
        if transposed and change.kind != "transposed":
            text = f"transposed; {text}"
        distances: dict[str, Any] = {}
        if change.kind in ("identical", "transposed"):
            distances = {"max_abs": 0.0, "relative": 0.0, "changed": 0}
        elif change.measured is not None:
            measured = change.measured
            distances = {key: getattr(measured, key) for key in ("max_abs", "relative", "cosine")}
            distances["changed"] = measured.changed
        return cls(
            names[0] or names[1] or "",
            names[1] if names[0] is not None and names[1] != names[0] else None,
            change.kind,
            text,
            tuple(None if t is None else t.shape for t in (first, second)),  # type: ignore[arg-type]
            tuple(None if t is None else t.dtype_name for t in (first, second)),  # type: ignore[arg-type]
            matched_by,
            transposed,
            buffer,
            details=change.details,
            notes=change.notes,
            **distances,
        )

    @classmethod
    def lost(cls, name: str, text: str) -> TensorDiff:
        """A tensor of a shard that is missing."""
        return cls(name, None, "incomplete", text)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; infinities and NaN become None."""
        plain = {key: _plain(value) for key, value in vars(self).items()}
        return plain | {"details": {key: _plain(value) for key, value in self.details.items()}}


@dataclass(frozen=True)
class CheckpointDiff:
    """What differs between two checkpoints; ``str()`` is a table, most changed first."""

    labels: tuple[str, str]
    rows: tuple[TensorDiff, ...]
    incomplete: tuple[str, ...] = ()
    """files that are missing; their tensors were not compared, everything else was"""
    rules: tuple[str, ...] = ()
    """how tensors with different names were matched"""
    config: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """entries of config.json that differ"""
    notes: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """How many tensors there are of each kind."""
        return dict(Counter(row.kind for row in self.rows))

    @property
    def identical(self) -> bool:
        """Every tensor of both sides has a partner with the same bits, and no file is missing.

        It says nothing about the code that uses the tensors, nor about `config`.
        """
        return not self.incomplete and all(row.kind == "identical" for row in self.rows)

    @property
    def changed(self) -> tuple[TensorDiff, ...]:
        """The rows that are not identical, most changed first."""
        rows = [row for row in self.rows if row.kind != "identical"]
        return tuple(sorted(rows, key=_weight))

    @property
    def headline(self) -> str:
        """All of it in a sentence: "148 of 150 tensors identical, 2 low-rank changes (rank 8)"."""
        from weightloom.symmetry.differences.text import headline

        return headline(self)

    def __str__(self) -> str:
        from weightloom.symmetry.differences.text import as_text

        return as_text(self)

    def __bool__(self) -> bool:
        raise TypeError(
            "a CheckpointDiff is neither true nor false; use .identical, or .changed for the rows "
            "that differ"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: headline, counts and all rows."""
        return {
            "labels": list(self.labels),
            "headline": self.headline,
            "identical": self.identical,
            "counts": self.counts,
            "incomplete": list(self.incomplete),
            "rules": list(self.rules),
            "config": {key: [_plain(v) for v in values] for key, values in self.config.items()},
            "notes": list(self.notes),
            "tensors": [row.to_dict() for row in self.rows],
        }

    def plot(self, path: str | Path) -> list[Path]:
        """Write a figure of the change of each tensor, as ``path``.png and ``path``.svg."""
        from weightloom.symmetry.differences.figure import plot

        return plot(self, Path(path))


def _weight(row: TensorDiff) -> tuple[int, float]:
    """Sort key: what could not be compared, then by relative change, then harmless rows."""
    if row.kind in ("incomplete", "unreadable", "shape differs"):
        return 0, 0.0
    if row.relative is None:
        return (3 if row.buffer or row.kind == "tied" else 1), 0.0
    return 2, -math.inf if math.isnan(row.relative) else -row.relative


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value if value is None or isinstance(value, bool | int | str) else str(value)

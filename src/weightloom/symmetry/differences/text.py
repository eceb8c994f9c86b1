"""A `CheckpointDiff` as text: the headline, what to know, then a table."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence

from weightloom.symmetry.differences.result import CheckpointDiff, TensorDiff
from weightloom.tables import aligned

__all__ = ["as_text", "headline"]

MOST_ROWS = 20
_WIDTH = 98
_LONGEST_NAME = 46

#: One of a kind, several of it.
_PLURALS = {
    "equal": ("with equal values", "with equal values"),
    "cast": ("cast", "casts"),
    "scaled": ("scaled", "scaled"),
    "low-rank": ("low-rank change", "low-rank changes"),
    "sparse": ("sparse change", "sparse changes"),
    "rounding": ("within rounding", "within rounding"),
    "shape differs": ("of another shape", "of another shape"),
    "incomplete": ("not compared", "not compared"),
    "tied": ("tied", "tied"),
}


def headline(result: CheckpointDiff) -> str:
    rows = result.rows
    same = sum(row.kind == "identical" for row in rows)
    if same == len(rows):
        start = f"all {same} tensors identical" if same != 1 else "the only tensor is identical"
    else:
        start = f"{same} of {len(rows)} tensors identical"
    parts = [start, *_counted(row for row in rows if row.kind != "identical")]
    text = ", ".join(parts)
    return f"INCOMPLETE: {text}" if result.incomplete else text


def _counted(rows: Iterable[TensorDiff]) -> list[str]:
    """ "2 low-rank changes (rank 8)", most frequent kind first."""
    groups: dict[tuple[str, bool], list[TensorDiff]] = {}
    for row in rows:
        groups.setdefault((row.kind, row.buffer), []).append(row)
    ordered = sorted(groups.items(), key=lambda item: (item[0][1], -len(item[1])))
    return [_group(kind, buffer, members) for (kind, buffer), members in ordered]


def _group(kind: str, buffer: bool, rows: list[TensorDiff]) -> str:
    names = _PLURALS.get(kind, (kind, kind))
    text = f"{len(rows)} {names[len(rows) > 1]}"
    if buffer:
        return f"{text} (buffers)"
    about = _about(kind, rows)
    return f"{text} ({about})" if about else text


def _about(kind: str, rows: list[TensorDiff]) -> str:
    if kind == "low-rank":
        return f"rank {_span([row.details['rank'] for row in rows])}"
    if kind == "cast":
        return " and ".join(sorted({str(row.details["through"]) for row in rows}))
    if kind == "sparse":
        total = sum(row.details["entries"] for row in rows)
        return f"{total:,} {'entries' if total != 1 else 'entry'}"
    if kind == "quantised":
        return f"{_span([row.details['levels'] for row in rows])} levels"
    if kind == "scaled" and len({f"{row.details['factor']:.6g}" for row in rows}) == 1:
        return f"by {rows[0].details['factor']:.6g}"
    return ""


def _span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def as_text(result: CheckpointDiff) -> str:
    parts = [_filled(result.headline)]
    if result.incomplete:
        parts.append("\n".join(["missing files:", *map(_item, result.incomplete)]))
    if result.config:
        lines = [
            f"{key}: {first!r} and {second!r}" for key, (first, second) in result.config.items()
        ]
        parts.append("\n".join(["configurations differ:", *_cut(list(map(_item, lines)))]))
    if result.changed:
        parts.append(_table(result.changed))
    about = [*result.rules, *result.notes, *_row_notes(result)]
    if about:
        parts.append("\n".join(["how it was compared:", *_cut(list(map(_item, about)))]))
    return "\n\n".join(parts)


def _table(rows: Sequence[TensorDiff]) -> str:
    head = ["tensor", "shape", "max |b - a|", "relative", "cosine", "change"]
    shown = rows[:MOST_ROWS]
    cells = [head, *([_name(r), _shape(r), *_distances(r), _dtypes(r) + r.text] for r in shown)]
    lines = aligned(cells, "llrrrl", rule=True)
    if len(rows) > len(shown):
        rest = ", ".join(_counted(rows[MOST_ROWS:]))
        lines.append(f"and {len(rows) - len(shown)} more: {rest}")
    return "\n".join(lines)


def _name(row: TensorDiff) -> str:
    name = row.name if row.name.isprintable() else repr(row.name)
    if len(name) > _LONGEST_NAME:
        name = f"{name[:12]}...{name[15 - _LONGEST_NAME :]}"
    return name


def _shape(row: TensorDiff) -> str:
    shape = row.shapes[0] if row.shapes[0] is not None else row.shapes[1]
    return "" if shape is None else "x".join(map(str, shape)) or "scalar"


def _distances(row: TensorDiff) -> list[str]:
    values = ((row.max_abs, ".2e"), (row.relative, ".2e"), (row.cosine, ".4f"))
    return ["" if value is None else f"{value:{form}}" for value, form in values]


def _dtypes(row: TensorDiff) -> str:
    """The dtypes, if they differ and the text does not name them."""
    first, second = row.dtypes
    if first is None or second is None or first == second or row.kind == "cast":
        return ""
    return f"{first} to {second}; "


def _row_notes(result: CheckpointDiff) -> list[str]:
    notes = [f"{row.name}: {note}" for row in result.changed for note in row.notes]
    by_content = Counter(row.matched_by for row in result.rows)["content"]
    if not by_content:
        return notes
    pairs = [row for row in result.rows if row.matched_by == "content" and row.other_name]
    return [*notes, *(f"matched by content: {row.name} is {row.other_name}" for row in pairs)]


def _cut(lines: list[str], most: int = 12) -> list[str]:
    return lines if len(lines) <= most else [*lines[:most], f"  and {len(lines) - most} more"]


def _item(text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent="  - ", subsequent_indent="    ")


def _filled(text: str) -> str:
    return textwrap.fill(text, _WIDTH)

"""The results of a run as a file: plain JSON with what it was made with, never half written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from weightloom.errors import OutputError, StoreError
from weightloom.files import whole
from weightloom.lab import codec
from weightloom.verify.claim import Evidence
from weightloom.verify.run import Result

__all__ = ["Record", "load", "save", "write"]

FORMAT = 1


@dataclass
class Record:
    """What was asked for, what came of it so far, and with what it was computed."""

    size: str
    wanted: int
    made: str
    provenance: dict[str, Any]
    results: list[Result] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return len(self.results) == self.wanted

    @property
    def seconds(self) -> float:
        return sum(result.seconds for result in self.results)


def save(record: Record, path: Path) -> None:
    """Write ``record`` to ``path``; NaN and infinity become the strings "nan", "inf", "-inf"."""
    about = {"format": FORMAT, "complete": record.complete, **asdict(record)}
    about["claims"] = [_plain(result) for result in about.pop("results")]
    write(json.dumps(about, indent=1, ensure_ascii=False, allow_nan=False) + "\n", path)


def load(path: Path) -> Record:
    """What `save` has written, bit for bit."""
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        if about["format"] != FORMAT:
            raise StoreError(
                f"{path} has format {about['format']!r} and this weightloom reads {FORMAT}; "
                "make it again with `weightloom verify --json`"
            )
        results = [_result(row) for row in about["claims"]]
        return Record(about["size"], about["wanted"], about["made"], about["provenance"], results)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{path} cannot be read as results of `weightloom verify --json` "
            f"({type(error).__name__}: {error})"
        ) from error


def write(text: str, path: Path) -> None:
    """Put ``text`` into ``path``, all or nothing: what was there stays until the new is whole."""
    try:
        with whole(path) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written ({error.strerror or error}); choose another place"
        ) from error


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    for name in _EVIDENCE:
        if row[name] is not None:
            row[name] = {
                key: codec.number(value) if isinstance(value, float) else value
                for key, value in row[name].items()
            }
    return row


def _result(row: dict[str, Any]) -> Result:
    row = dict(row, items=tuple(row["items"]))
    for name in _EVIDENCE:
        if (seen := row[name]) is not None:
            row[name] = Evidence(float(seen["seen"]), float(seen["allowed"]), seen["at"])
    return Result(**row)


_EVIDENCE: Sequence[str] = ("printed_evidence", "corrected_evidence")

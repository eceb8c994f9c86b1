"""``weightloom inspect A B``: the differences first, then the verdict if there can be one."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from weightloom.errors import (
    CheckpointError,
    ConfigError,
    NonFiniteWeightsError,
    ShapeError,
    UnsupportedModuleError,
)

if TYPE_CHECKING:
    from weightloom.symmetry import CheckpointDiff

__all__ = ["compare"]

UNDECIDED = 3
#: What is raised if a network cannot be told from its file. Other errors are errors.
_UNKNOWN = (
    CheckpointError,
    ConfigError,
    NonFiniteWeightsError,
    ShapeError,
    UnsupportedModuleError,
)


def compare(
    arguments: argparse.Namespace,
    verdict: Callable[[argparse.Namespace, CheckpointDiff | None], int],
) -> int:
    """Print the differences, then call ``verdict``; the exit status is in the help."""
    from weightloom.symmetry import diff

    result = diff(arguments.first, arguments.second, base=arguments.base)
    if arguments.diff_only:
        print(_json(result) if arguments.json else result)
        return _status(result)
    if not arguments.json:
        print(f"{result}\n", flush=True)  # the verdict may take long
    try:
        return verdict(arguments, result)
    except _UNKNOWN as error:
        # What the user asked for in so many words is not undecided, it is wrong.
        if arguments.module or arguments.activation:
            raise
        reason = _reason(arguments, error)
        print(_json(result, reason) if arguments.json else _undecided(result, reason))
        return UNDECIDED


def _status(result: CheckpointDiff) -> int:
    if result.identical and not result.config:
        return 0
    rest = {row.kind for row in result.rows} <= {"identical", "incomplete"}
    return UNDECIDED if rest else 1


def _reason(arguments: argparse.Namespace, error: Exception) -> str:
    for path in (arguments.first, arguments.second):
        if path.is_dir():
            return (
                f"{str(path)!r} is a folder, and the verdict reads single .safetensors files; give "
                f"--verdict-only with the files, and --module for networks that are no plain chain"
            )
    return str(error)


def _undecided(result: CheckpointDiff, reason: str) -> str:
    lines = []
    if result.identical and not result.config:
        lines.append(
            "The tensors are the same, bit for bit. Code that uses them in the same way computes "
            "the same function; the files do not show whether it does."
        )
    head = f"UNDECIDED: the functions were not compared. {reason}"
    return "\n".join(textwrap.fill(text, 98) for text in (head, *lines))


def _json(result: CheckpointDiff, reason: str | None = None) -> str:
    about: dict[str, Any] = {"diff": result.to_dict(), "equivalence": None, "networks": []}
    if reason is not None:
        about["undecided"] = reason
    return json.dumps(about, indent=2, allow_nan=False)

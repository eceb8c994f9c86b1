"""``weightloom inspect A B``: the differences first, then the verdict if there can be one."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Callable
from pathlib import Path
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

SAME, UNDECIDED = 0, 3
#: What is raised if a network cannot be told from its file. Other errors are errors.
_UNKNOWN = (
    CheckpointError,
    ConfigError,
    NonFiniteWeightsError,
    ShapeError,
    UnsupportedModuleError,
)
#: Metadata that say how the tensors are used.
_CODE = ("activation", "activations", "class", "spec", "structure", "tied")
_IDENTICAL = (
    "all tensors are identical, bit for bit, under the same names: whatever code uses them "
    "computes the same function with both"
)


def compare(
    arguments: argparse.Namespace,
    verdict: Callable[[argparse.Namespace, CheckpointDiff | None], int],
) -> int:
    """Print the differences, then call ``verdict``; the exit status is in the help."""
    from weightloom.symmetry import diff

    def differences() -> CheckpointDiff:
        return diff(arguments.first, arguments.second, base=arguments.base)

    result = None if arguments.verdict_only else differences()
    if result is not None and arguments.diff_only:
        print(_json(result, {}) if arguments.json else result)
        return _status(result)
    if result is not None and not arguments.json:
        print(f"{result}\n", flush=True)  # the verdict may take long
    try:
        return verdict(arguments, result)
    except _UNKNOWN as error:
        # What the user asked for in so many words is not undecided, it is wrong.
        if arguments.module or arguments.activation:
            raise
        return _without_network(arguments, differences() if result is None else result, error)


def _without_network(
    arguments: argparse.Namespace, result: CheckpointDiff, error: Exception
) -> int:
    """The verdict of the tensors alone: identical ones need no architecture."""
    same = _is_copy(arguments, result)
    reason = _IDENTICAL if same else _reason(arguments, error)
    if arguments.json:
        shown = None if arguments.verdict_only else result
        print(_json(shown, _plain(same, reason)))
    else:
        head = f"SAME function: {reason}." if same else f"UNDECIDED: {reason}"
        print(textwrap.fill(head, 98))
    return SAME if same else UNDECIDED


def _is_copy(arguments: argparse.Namespace, result: CheckpointDiff) -> bool:
    """Whether both sides hold the same tensors under the same names, for the same code."""
    named = all(row.other_name is None and not row.transposed for row in result.rows)
    about = [_about(path) for path in (arguments.first, arguments.second)]
    return result.identical and named and not result.config and about[0] == about[1]


def _about(path: Path) -> dict[str, str]:
    """What the metadata of a single safetensors file say about the code."""
    if path.suffix != ".safetensors":
        return {}
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
    return {key: metadata[key] for key in _CODE if key in metadata}


def _status(result: CheckpointDiff) -> int:
    if result.identical and not result.config:
        return 0
    rest = {row.kind for row in result.rows} <= {"identical", "incomplete"}
    return UNDECIDED if rest else 1


def _reason(arguments: argparse.Namespace, error: Exception) -> str:
    for path in (arguments.first, arguments.second):
        if path.is_dir():
            return (
                f"the functions were not compared. {str(path)!r} is a folder, and the verdict "
                f"reads single .safetensors files; give --verdict-only with the files, and "
                f"--module for networks that are no plain chain"
            )
    return f"the functions were not compared. {error}"


def _plain(same: bool, reason: str) -> dict[str, Any]:
    answer = "same" if same else "undecided"
    headline = f"{'SAME function' if same else 'UNDECIDED'}: {reason}"
    about = {"answer": answer, "same": same or None, "headline": headline}
    return {"equivalence": about | {"missing": None if same else reason}}


def _json(result: CheckpointDiff | None, about: dict[str, Any]) -> str:
    diff = {} if result is None else {"diff": result.to_dict()}
    return json.dumps(
        diff | {"equivalence": None, "networks": []} | about, indent=2, allow_nan=False
    )

"""How docstrings become pages: examples as code, indented lists of arguments as lists."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?m)^>>> .*\n?(?:(?!\s*$).*\n?)*")
ARGUMENTS = re.compile(r"(?m)^(\S.*:)\n((?:    \w+: .*\n?(?:     +\S.*\n?)*)+)")


def fence(text: str) -> str:
    """The docstring with each run of ``>>>`` lines fenced."""
    return EXAMPLE.sub(lambda found: f"```pycon\n{found.group().rstrip()}\n```\n", text).rstrip()


def itemise(text: str) -> str:
    """The docstring with ``name: what it is`` lines, indented under a line that ends in a colon,
    as a list."""

    def listed(found: re.Match[str]) -> str:
        items = re.sub(r"(?m)^    (\w+): ", r"- `\1`: ", found[2].rstrip())
        return f"{found[1]}\n\n{items}\n"

    return ARGUMENTS.sub(listed, text).rstrip()


class Docstrings(griffe.Extension):
    """Prepares the docstring of every object that griffe reads."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fence(itemise(obj.docstring.value))

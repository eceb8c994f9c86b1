"""Docstrings as Markdown: examples as code, indented lists of arguments as lists."""

from __future__ import annotations

import re

EXAMPLE = re.compile(r"(?m)^>>> .*\n?(?:(?!\s*$).*\n?)*")
ARGUMENTS = re.compile(r"(?m)^(\S.*:)\n((?:    \w+: .*\n?(?:     +\S.*\n?)*)+)")


def fence(text: str) -> str:
    """The docstring with each run of ``>>>`` lines fenced."""
    return EXAMPLE.sub(lambda match: f"```pycon\n{match.group().rstrip()}\n```\n", text).rstrip()


def itemise(text: str) -> str:
    """The docstring with ``name: what it is`` lines, indented under a line that ends in a colon,
    as a list."""

    def listed(match: re.Match[str]) -> str:
        items = re.sub(r"(?m)^    (\w+): ", r"- `\1`: ", match[2].rstrip())
        return f"{match[1]}\n\n{items}\n"

    return ARGUMENTS.sub(listed, text).rstrip()

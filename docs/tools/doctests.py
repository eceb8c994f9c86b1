"""Examples in docstrings are shown as code: each run of ``>>>`` lines becomes a fenced block."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?m)^>>> .*\n?(?:(?!\s*$).*\n?)*")


def fence(text: str) -> str:
    """The docstring with its examples fenced.

    >>> print(fence("Says two.\\n\\n>>> 1 + 1\\n2"))
    Says two.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """
    return EXAMPLE.sub(lambda found: f"```pycon\n{found.group().rstrip()}\n```\n", text).rstrip()


class Doctests(griffe.Extension):
    """Fences the examples of every object that griffe reads."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fence(obj.docstring.value)

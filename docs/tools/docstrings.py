"""How docstrings become pages: a griffe extension, named in mkdocs.yml."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parent))
from markup import fence, itemise


class Docstrings(griffe.Extension):
    """Prepares the docstring of every object that griffe reads."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fence(itemise(obj.docstring.value))

"""The page's tabs: the library's own, and those of installed packages.

A tab NAME of the library is a module here with ``router(context)``, mounted at ``/api/NAME``, and a
script ``static/tabs/NAME.js`` with ``mount(section, tools)``.

A tab of another package is an entry point of the group ``weightloom.tabs``: a module with
``router(context)``, a ``TITLE``, and a folder ``STATIC`` that holds ``NAME.js``. The folder is
served as ``/static/tabs/NAME/``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from weightloom.plugins import offered

if TYPE_CHECKING:
    from fastapi import APIRouter

    from weightloom.web.context import Context

__all__ = ["GROUP", "LIBRARY", "Tab", "find_tabs"]

GROUP = "weightloom.tabs"

#: Names and titles, in the order of the page.
LIBRARY = {
    "draw": "Draw",
    "kernels": "Kernels",
    "sizes": "Which model?",
    "constructions": "Pieces and constructions",
    "compare": "Same network?",
}

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tab:
    """One tab: its requests, its script, and the folder of that script (None: the library's)."""

    name: str
    title: str
    router: Callable[[Context], APIRouter]
    static: Path | None = None

    @property
    def script(self) -> str:
        """The address of the tab's script."""
        folder = "" if self.static is None else f"{self.name}/"
        return f"/static/tabs/{folder}{self.name}.js"


def find_tabs() -> list[Tab]:
    """All tabs that can be shown here, the library's first."""
    own = [
        Tab(name, title, import_module(f"weightloom.web.tabs.{name}").router)
        for name, title in LIBRARY.items()
    ]
    others = [_load(name) for name in offered(GROUP) if name not in LIBRARY]
    return own + [tab for tab in others if tab is not None]


def _load(name: str) -> Tab | None:
    """A tab of another package; one that cannot be imported is logged and left out."""
    point = offered(GROUP)[name]
    try:
        module = point.load()
        return Tab(name, module.TITLE, module.router, module.STATIC)
    except (ImportError, AttributeError) as error:
        log.warning("the tab %s of %s is left out: %s", name, point.value, error)
        return None

"""What other installed packages add to weightloom, through entry points.

==========================  ======================================================================
``weightloom.commands``     a module for each subcommand of the command line, see `weightloom.cli`
``weightloom.tabs``         a module for each tab of the page, see `weightloom.web.tabs`
``weightloom.calibration``  a module with constants measured on networks, see `calibration`
==========================  ======================================================================

Entry points are listed without importing anything. Only the one that is used is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from weightloom.errors import MissingDependencyError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["PAPERS", "Calibration", "Calibrator", "calibration", "offered"]

#: The distribution that brings the papers' experiments, claims and results.
PAPERS = "weightloom-papers"


def offered(group: str) -> dict[str, EntryPoint]:
    """The entry points of ``group`` by name; nothing is imported."""
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=group)}


class Calibration(Protocol):
    """Constants for the rates of `weightloom.bounds.parameter_rates`, and where they come from."""

    @property
    def constants(self) -> Mapping[str, float]: ...

    def text(self) -> str: ...


class Calibrator(Protocol):
    """A module of the group ``weightloom.calibration``."""

    #: The command that fills a store of results.
    COMMAND: str

    def calibrate_from(
        self, store: Path, m1: int, m2: int, r: int, on_corrupt: Callable[[str], None]
    ) -> Calibration: ...


def calibration(otherwise: str) -> Calibrator:
    """The module that reads measured constants from a store of results.

    Raises MissingDependencyError if no installed package has one. The message names the package to
    install, and ``otherwise`` says how to go on without it.
    """
    points = offered("weightloom.calibration")
    if not points:
        raise MissingDependencyError(
            f"measured constants come with the package {PAPERS}: pip install {PAPERS}, "
            f"or {otherwise}"
        )
    module: Calibrator = next(iter(points.values())).load()
    return module

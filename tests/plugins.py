"""Packages that add to weightloom, made up for a test: as if they were installed, or not."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

__all__ = ["COMMAND", "alone", "install"]

#: The source of a command's module.
COMMAND = """
HELP = "say hello to somebody"
DESCRIPTION = "Say hello."
EPILOG = "examples: weightloom hello you"

def add_arguments(parser):
    parser.add_argument("name")

def run(arguments):
    print(f"hello {arguments.name}")
    return 3
"""


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """weightloom without any package that adds to it."""
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **wanted: ())


def install(folder: Path, entries: str, **modules: str) -> None:
    """A distribution in ``folder`` with these entry points and modules; put it on the path."""
    about = folder / "made_up-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: made-up\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(entries)
    for name, source in modules.items():
        (folder / f"{name}.py").write_text(source)

"""Run a module of this folder in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent


def run_module(
    module: str,
    *arguments: object,
    python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m module arguments``; ``environment`` is added to this process's variables."""
    variables = {**os.environ, "PYTHONPATH": str(FOLDER), **(environment or {})}
    command = [python, "-m", module, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=variables, check=False)

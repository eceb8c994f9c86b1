"""Provenance of a result: commit, versions and hardware, so that it can be traced later.

No host name and no path: a store may be published.
"""

from __future__ import annotations

import functools
import platform
import subprocess
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["cpu_name", "now", "provenance"]

_PACKAGE = Path(__file__).parent.parent


def provenance(threads: int) -> dict[str, Any]:
    """Commit and dirty flag (None where there is no source tree), versions, CPU and threads."""
    commit, dirty = _source_tree(_PACKAGE)
    return {
        "commit": commit,
        "dirty": dirty,
        "weightloom": _version("weightloom"),
        "torch": _version("torch"),
        "numpy": _version("numpy"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "threads": threads,
    }


def now() -> str:
    """The time as ISO text, in UTC, to the millisecond."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


@functools.cache
def cpu_name() -> str:
    """The name of the processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    except OSError:
        pass
    return platform.processor() or platform.machine() or "unknown"


@functools.cache
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@functools.cache
def _source_tree(folder: Path) -> tuple[str | None, bool | None]:
    """Commit of the tree that tracks ``folder``, and whether files in it differ from that commit.

    Git must track the files themselves: a package installed into the .venv of another repository
    is not part of that repository.
    """
    try:
        _git(folder, "ls-files", "--error-unmatch", "__init__.py")
        commit = _git(folder, "rev-parse", "HEAD").strip()
        return commit, bool(_git(folder, "status", "--porcelain", "--", ".").strip())
    except (OSError, subprocess.SubprocessError):
        return None, None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    return done.stdout

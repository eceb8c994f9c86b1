"""How much memory is free, and an early error when it is not enough."""

from __future__ import annotations

import os
import re

import numpy as np
import torch
from torch import Tensor

from weightloom.errors import ConfigError, MemoryLimitError

__all__ = ["available", "check", "empty", "parse", "readable"]

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def available() -> int:
    """Bytes that a process can still take without swapping, as estimated by the system."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:  # Systems without /proc: half of the physical memory is a careful guess.
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, ValueError, OSError):
        return 2**32


def parse(memory: int | float | str | None) -> int | None:
    """Bytes, from a number or from text.

    >>> parse("2 GB"), parse("512 MiB"), parse(1e6), parse(None)
    (2000000000, 536870912, 1000000, None)
    """
    if memory is None:
        return None
    if isinstance(memory, str):
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([kmgt]?i?)b?\s*", memory.lower())
        unit = (UNITS | BINARY).get(match[2]) if match else None
        if match is None or unit is None:
            raise ConfigError(f'memory {memory!r} cannot be read; write bytes or "2 GB"')
        memory = float(match[1]) * unit
    if not 0 < memory < 2**63:
        raise ConfigError(f'memory is {memory}; give a positive number of bytes or "2 GB"')
    return int(memory)


def readable(count: float) -> str:
    """
    >>> readable(3.2e9)
    '3.2 GB'
    """
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{int(count)} bytes"


def check(needed: int, what: str, advice: str, limit: int | None = None) -> None:
    """Raise `MemoryLimitError` if ``needed`` bytes exceed the limit, or what is free."""
    room = available() if limit is None else limit
    if needed > room:
        whose = "are free" if limit is None else "are allowed"
        raise MemoryLimitError(
            f"{what} needs {readable(needed)}, but {readable(room)} {whose}; {advice}"
        )


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An uninitialised tensor on the CPU.

    From numpy, which asks Linux for pages of 2 MB. torch gets pages of 4 KB, and handing out
    800,000 of them takes longer than filling the 3.2 GB of a matrix of 20,000 points.
    """
    kind = np.float32 if dtype == torch.float32 else np.float64
    return torch.from_numpy(np.empty(shape, dtype=kind))

"""A progress bar with rate and remaining time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

__all__ = ["Bar"]


class Bar:
    """Counts steps of training. Looks at the loss only when it draws itself."""

    def __init__(self, show: bool | str, total: int, done: int) -> None:
        self._bar: Any = None
        self._next = 0.0
        if show is False:
            return
        from tqdm import tqdm

        # A log file gets a line every few seconds instead of ten a second.
        self._pause = 0.1 if sys.stderr.isatty() else 10.0
        self._bar = tqdm(
            total=total,
            initial=done,
            desc=show if isinstance(show, str) else "training",
            unit="step",
            mininterval=self._pause,
            dynamic_ncols=True,
        )

    def step(self, shown: Callable[[], str]) -> None:
        """One more step is made; ``shown`` says what stands behind the bar."""
        if self._bar is None:
            return
        if time.monotonic() >= self._next:
            self._bar.set_postfix_str(shown(), refresh=False)
            self._next = time.monotonic() + self._pause
        self._bar.update()

    def skip(self, steps: int) -> None:
        """Steps that will not be made, because everybody has stopped."""
        if self._bar is not None and steps:
            self._bar.total -= steps

    def close(self, shown: str = "") -> None:
        if self._bar is not None:
            if shown:
                self._bar.set_postfix_str(shown, refresh=False)
            self._bar.refresh()
            self._bar.close()

"""What the person at the terminal sees and presses: a progress bar, and Ctrl-C."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["Interrupts", "ProgressBar"]


class ProgressBar:
    """A bar with rate and remaining time. It reads the loss only when it is redrawn."""

    def __init__(self, show: bool | str, total: int | None, done: int) -> None:
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

    def step(self, text: Callable[[], str]) -> None:
        """Count one step; ``text`` returns what is shown behind the bar."""
        if self._bar is None:
            return
        if time.monotonic() >= self._next:
            self._bar.set_postfix_str(text(), refresh=False)
            self._next = time.monotonic() + self._pause
        self._bar.update()

    def skip(self, steps: int) -> None:
        """Subtract steps that will not be made, because all members have stopped."""
        if self._bar is not None and steps and self._bar.total is not None:
            self._bar.total -= steps

    def close(self) -> None:
        if self._bar is not None:
            self._bar.refresh()
            self._bar.close()


class Interrupts:
    """Ctrl-C once: training stops after the current step. Twice: it stops immediately."""

    def __init__(self) -> None:
        self.count = 0
        self._before: Any = None

    @property
    def pressed(self) -> bool:
        return self.count > 0

    def __enter__(self) -> Interrupts:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._press)
        return self

    def _press(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 1:
            raise KeyboardInterrupt

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

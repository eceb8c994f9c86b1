"""One bar over everything, in units of cost, with the time that is left."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType

__all__ = ["Progress"]

_FORMAT = "{desc} {percentage:3.0f}%|{bar}| {elapsed}, {remaining} left"


class Progress:
    """A bar on standard error, if ``show``; messages go above it, or to ``say``."""

    def __init__(
        self, cost: float, runs: int, *, show: bool, say: Callable[[str], None] | None
    ) -> None:
        from tqdm import tqdm

        self._tqdm = tqdm
        self._say = say
        self._runs, self._done = runs, 0
        self._waiting = ""
        self._bar = tqdm(
            total=max(cost, 1e-9),
            desc=self._text(),
            bar_format=_FORMAT,
            disable=not (show and runs),
            smoothing=0,  # mean rate: groups are few and long
            leave=True,
            file=sys.stderr,
        )

    def advance(self, cost: float) -> None:
        self._done += 1
        self._waiting = ""
        self._bar.set_description_str(self._text(), refresh=False)
        self._bar.update(min(cost, self._bar.total - self._bar.n) if self._bar.total else 0)

    def tick(self) -> None:
        """Let the clock go on where somebody watches it."""
        if sys.stderr.isatty():
            self._bar.refresh()

    def waiting(self, text: str) -> None:
        """Say once that nothing can be done now, and why."""
        if self._waiting != text:
            self._waiting = text
            self.say(f"waiting: {text}")

    def say(self, text: str) -> None:
        if self._say is not None:
            with self._tqdm.external_write_mode(file=sys.stderr):
                self._say(text)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()

    def _text(self) -> str:
        return f"{self._done} of {self._runs} runs"

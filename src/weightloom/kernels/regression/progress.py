"""Progress bars on standard error, on request."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, TypeVar

__all__ = ["Iterations", "steps"]

T = TypeVar("T")


class Iterations:
    """The callback of an iterative solver: shows iteration and residual inside a ``with`` block.

    Outside it shows nothing, because solvers keep it for later solves.
    """

    def __init__(self, show: bool, text: str) -> None:
        self._show, self._text = show, text
        self._bar: Any = None

    def __call__(self, iteration: int, residual: float) -> None:
        if self._bar is not None:
            self._bar.n = iteration
            self._bar.set_postfix_str(f"residual {residual:.1e}")

    def __enter__(self) -> Iterations:
        if self._show:
            from tqdm import tqdm

            self._bar = tqdm(desc=self._text, unit=" iterations", file=sys.stderr)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def steps(items: Iterable[T], total: int, show: bool, text: str) -> Iterator[T]:
    """The items, with a bar that counts them."""
    if not show:
        yield from items
        return
    from tqdm import tqdm

    yield from tqdm(items, total=total, desc=text, file=sys.stderr)

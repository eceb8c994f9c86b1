"""*Results*: every run and figure in the store, and an export as one HTML file."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from fastapi.responses import Response
from pydantic import Field

from weightloom.errors import ConfigError, WeightloomError
from weightloom.web.context import Context
from weightloom.web.worker import RefusedError, WorkerError

__all__ = ["STATIC", "TITLE", "router"]

TITLE = "Results"
#: The tab's scripts and styles, which the page serves as /static/tabs/results/.
STATIC = Path(__file__).parent / "static"

#: Drawn figures that are cached, a few hundred kilobytes each.
KEPT = 16

Name = Annotated[str, Field(max_length=100)]
Scale = Annotated[Literal["smoke", "laptop", "paper"] | None, Query()]


def router(context: Context) -> APIRouter:
    routes = APIRouter()
    store = context.settings.store
    drawn: OrderedDict[tuple[Any, ...], dict[str, Any]] = OrderedDict()
    export = _Export(context)

    @routes.get("/runs")
    async def runs() -> dict[str, Any]:
        answer: dict[str, Any] = await context.run(_runs, store)
        return answer

    @routes.get("/scales")
    async def scales() -> dict[str, Any]:
        answer: dict[str, Any] = await context.run(_scales, store)
        return answer

    @routes.get("/run/{experiment:path}/{key}")
    async def run(experiment: Name, key: Name) -> dict[str, Any]:
        answer: dict[str, Any] = await context.run(_run, store, experiment, key)
        return answer

    @routes.get("/figures/{experiment:path}")
    async def figures(experiment: Name, scale: Scale = None) -> dict[str, Any]:
        key = (experiment, scale, _stamp(store))
        if key not in drawn:
            drawn[key] = await context.run(_figures, store, experiment, scale)
            while len(drawn) > KEPT:
                drawn.popitem(last=False)
        return drawn[key]

    @routes.post("/export")
    async def start() -> dict[str, Any]:
        now = _stamp(store)
        current = {key[0]: figures for key, figures in drawn.items() if key[1:] == (None, now)}
        export.start(current)
        return export.state()

    @routes.get("/export")
    async def state() -> dict[str, Any]:
        return export.state()

    @routes.get("/export/file")
    async def file() -> Response:
        if export.content is None:
            raise ConfigError("there is no exported page yet; start one first")
        headers = {"content-disposition": 'attachment; filename="weightloom-results.html"'}
        # Always a download: shown from here, it would be a page of this origin with its own policy.
        return Response(export.content, media_type="application/octet-stream", headers=headers)

    return routes


class _Export:
    """One export at a time, in the background worker, because it draws all figures."""

    def __init__(self, context: Context) -> None:
        self.content: bytes | None = None
        self._context = context
        self._task: asyncio.Task[None] | None = None
        self._progress: tuple[float, str] = (0.0, "")
        self._error: str | None = None

    def start(self, drawn: dict[str, dict[str, Any]]) -> None:
        if self._task is None or self._task.done():
            self.content, self._error = None, None
            self._progress = (0.0, "waiting for the worker")
            self._task = asyncio.create_task(self._work(drawn))

    def state(self) -> dict[str, Any]:
        fraction, text = self._progress
        return {
            "fraction": fraction,
            "text": text,
            "ready": self.content is not None,
            "error": self._error,
        }

    async def _work(self, drawn: dict[str, dict[str, Any]]) -> None:
        def note(progress: Any) -> None:
            self._progress = progress

        try:
            self.content = await self._context.background.run(
                _html, self._context.settings.store, drawn, report=note
            )
        except (WeightloomError, RefusedError) as error:
            self._error = str(error)
        except WorkerError:
            self._error = "an unexpected error on the server; its log has the details"


def _stamp(store: Path) -> tuple[Any, ...]:
    """Times and sizes of the store's file and its log: they change whenever the store does."""
    stamps = []
    for path in (store, store.with_name(f"{store.name}-wal")):
        try:
            state = path.stat()
        except OSError:
            stamps.append((0, 0))
        else:
            stamps.append((state.st_mtime_ns, state.st_size))
    return tuple(stamps)


# -- in the worker ---------------------------------------------------------------------------------


def _runs(store: Path) -> dict[str, Any]:
    from weightloom_papers.web.data import runs_of

    return runs_of(store)


def _scales(store: Path) -> dict[str, Any]:
    from weightloom_papers.web.data import scales_of

    return scales_of(store)


def _run(store: Path, experiment: str, key: str) -> dict[str, Any]:
    from weightloom_papers.web.data import run_of

    return run_of(store, experiment, key)


def _figures(store: Path, experiment: str, scale: str | None) -> dict[str, Any]:
    from weightloom_papers.web.data import figures_of

    return figures_of(store, experiment, scale)


def _html(store: Path, drawn: dict[str, dict[str, Any]], report: Any) -> bytes:
    from weightloom_papers.web.export import html_of

    return html_of(store, drawn=drawn, report=report)[0].encode()

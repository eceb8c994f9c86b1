"""The application: the page's files, and one router for each tab."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

import weightloom
from weightloom.errors import WeightloomError
from weightloom.web.context import STATIC, Context, PageSettings
from weightloom.web.guard import Guard
from weightloom.web.tabs import Tab, find_tabs
from weightloom.web.worker import RefusedError, WorkerError

__all__ = ["create_app"]

#: FastAPI can send traces if the environment says so; here nothing leaves the machine.
NO_TELEMETRY: Any = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "auto_configure": False,
}


def create_app(settings: PageSettings) -> FastAPI:
    """The page as an ASGI application; its workers run from start-up to shutdown."""
    context = Context(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        context.start()
        try:
            yield
        finally:
            context.close()

    # No generated documentation: its pages load scripts from other hosts.
    app = FastAPI(
        title="weightloom",
        version=weightloom.__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        telemetry=NO_TELEMETRY,
    )
    app.state.context = context
    tabs = find_tabs()
    for tab in tabs:
        _mount(app, tab, context)
    app.add_exception_handler(WeightloomError, _library_error)
    app.add_exception_handler(RefusedError, _refused)
    app.add_exception_handler(WorkerError, _failed)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_middleware(Guard, settings=settings)

    @app.get("/", include_in_schema=False)
    async def index() -> FileResponse:
        return FileResponse(STATIC / "index.html", media_type="text/html; charset=utf-8")

    @app.get("/api/about")
    async def about() -> dict[str, Any]:
        return {
            "version": weightloom.__version__,
            "tabs": [{"name": t.name, "title": t.title, "script": t.script} for t in tabs],
        }

    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    return app


def _mount(app: FastAPI, tab: Tab, context: Context) -> None:
    app.include_router(tab.router(context), prefix=f"/api/{tab.name}")
    if tab.static is not None:
        folder = StaticFiles(directory=tab.static)
        app.mount(f"/static/tabs/{tab.name}", folder, name=f"static-{tab.name}")


def _answer(status: int, text: str) -> JSONResponse:
    return JSONResponse({"error": text}, status_code=status)


async def _library_error(request: Request, error: Exception) -> JSONResponse:
    return _answer(422, str(error))


async def _refused(request: Request, error: Exception) -> JSONResponse:
    return _answer(getattr(error, "status", 503), str(error))


async def _failed(request: Request, error: Exception) -> JSONResponse:
    return _answer(500, "an unexpected error on the server; its log has the details")


async def _http(request: Request, error: Exception) -> JSONResponse:
    status = getattr(error, "status_code", 500)
    text = "there is nothing at this address" if status == 404 else getattr(error, "detail", "")
    return _answer(status, str(text))


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    """Which field was wrong and what was expected; the value that was sent is not repeated."""
    problems = error.errors() if isinstance(error, RequestValidationError) else []
    texts = [
        f"{'.'.join(str(part) for part in problem['loc'][1:]) or 'the request'}: {problem['msg']}"
        for problem in problems[:5]
    ]
    return _answer(422, "; ".join(texts) or "the request cannot be read")

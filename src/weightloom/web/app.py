"""The application: the page's files, and one router for each tab."""

from __future__ import annotations

import importlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

import weightloom
from weightloom.errors import WeightloomError
from weightloom.web.context import Context
from weightloom.web.guard import Guard
from weightloom.web.settings import Settings
from weightloom.web.tabs import TABS
from weightloom.web.worker import RefusedError, WorkerError

__all__ = ["create_app"]

STATIC = Path(__file__).parent / "static"
log = logging.getLogger(__name__)

#: FastAPI can send traces elsewhere if the environment says so; nothing leaves the machine here.
NO_TELEMETRY: Any = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "auto_configure": False,
}


def create_app(settings: Settings) -> FastAPI:
    """The page as an ASGI application; its workers live from its start-up to its shutdown."""
    context = Context(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        context.start()
        try:
            yield
        finally:
            context.close()

    # No generated documentation: its pages load scripts from elsewhere.
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
    for tab in TABS:
        module = importlib.import_module(f"weightloom.web.tabs.{tab}")
        app.include_router(module.router(context), prefix=f"/api/{tab}")
    app.add_exception_handler(WeightloomError, _told)
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
        return {"version": weightloom.__version__, "tabs": list(TABS)}

    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    return app


def _answer(status: int, text: str) -> JSONResponse:
    return JSONResponse({"error": text}, status_code=status)


async def _told(request: Request, error: Exception) -> JSONResponse:
    return _answer(422, str(error))


async def _refused(request: Request, error: Exception) -> JSONResponse:
    return _answer(getattr(error, "status", 503), str(error))


async def _failed(request: Request, error: Exception) -> JSONResponse:
    return _answer(500, "something went wrong here; the server's log says more")


async def _http(request: Request, error: Exception) -> JSONResponse:
    status = getattr(error, "status_code", 500)
    text = "there is nothing at this address" if status == 404 else getattr(error, "detail", "")
    return _answer(status, str(text))


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    """Which field was wrong, and what was wanted; what was sent is not repeated."""
    problems = error.errors() if isinstance(error, RequestValidationError) else []
    texts = [
        f"{'.'.join(str(part) for part in problem['loc'][1:]) or 'the request'}: {problem['msg']}"
        for problem in problems[:5]
    ]
    return _answer(422, "; ".join(texts) or "the request cannot be read")

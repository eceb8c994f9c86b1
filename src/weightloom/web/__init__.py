"""The local page of ``weightloom serve``: a FastAPI application and its static files.

The page computes nothing of its own: tabs call the library in a worker process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightloom.errors import MissingDependencyError
from weightloom.web.context import PageSettings

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["PageSettings", "create_app"]


def create_app(settings: PageSettings) -> FastAPI:
    """The page as an ASGI application; its workers run from start-up to shutdown."""
    try:
        from weightloom.web import app
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "starlette"):
            raise
        raise MissingDependencyError(
            "the page needs fastapi and uvicorn; install them with: pip install 'weightloom[web]'"
        ) from error
    return app.create_app(settings)

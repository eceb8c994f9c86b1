"""The local page: it reads models and the store, and computes nothing of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightloom.errors import MissingDependencyError
from weightloom.web.settings import Settings

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["Settings", "create_app"]


def create_app(settings: Settings) -> FastAPI:
    """The page as an ASGI application; its workers live from its start-up to its shutdown."""
    try:
        from weightloom.web import app
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "starlette"):
            raise
        raise MissingDependencyError(
            "the page needs fastapi and uvicorn; install them with: pip install 'weightloom[web]'"
        ) from error
    return app.create_app(settings)

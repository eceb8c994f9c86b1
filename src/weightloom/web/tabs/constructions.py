"""Pieces and constructions: networks written by hand, what they compute, and their certificates."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from weightloom.web.context import Context

__all__ = ["router"]


def router(context: Context) -> APIRouter:
    routes = APIRouter()

    @routes.get("/catalogue")
    async def catalogue() -> dict[str, Any]:
        return {"constructions": await context.run(_catalogue)}

    @routes.get("/view/{name}")
    async def view(name: str, request: Request) -> dict[str, Any]:
        answer: dict[str, Any] = await context.run(_view, name, dict(request.query_params))
        return answer

    @routes.get("/network/{name}")
    async def network(name: str, request: Request) -> Response:
        content = await context.run(_network, name, dict(request.query_params))
        # The name was found in the catalogue, so it is safe in a header.
        headers = {"content-disposition": f'attachment; filename="{name}.safetensors"'}
        return Response(content, media_type="application/octet-stream", headers=headers)

    return routes


# In the worker: the catalogue imports torch, which the server need not wait for.


def _catalogue() -> list[dict[str, Any]]:
    from weightloom.web.tabs.constructions_catalogue import described

    return described()


def _view(name: str, given: dict[str, Any]) -> dict[str, Any]:
    from weightloom.web.tabs.constructions_view import view

    return view(name, given)


def _network(name: str, given: dict[str, Any]) -> bytes:
    from weightloom.web.tabs.constructions_view import safetensors_of

    return safetensors_of(name, given)

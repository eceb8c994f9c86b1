"""*Pieces and constructions*: networks written by hand, what they compute, their certificates."""

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
        # The name is one of the catalogue's, so it is safe in a header.
        headers = {"content-disposition": f'attachment; filename="{name}.safetensors"'}
        return Response(content, media_type="application/octet-stream", headers=headers)

    return routes


# -- in the worker, because the catalogue imports torch --------------------------------------------


def _catalogue() -> list[dict[str, Any]]:
    from weightloom.web.tabs.constructions.catalogue import described

    return described()


def _view(name: str, given: dict[str, Any]) -> dict[str, Any]:
    from weightloom.web.tabs.constructions.view import view

    return view(name, given)


def _network(name: str, given: dict[str, Any]) -> bytes:
    from weightloom.web.tabs.constructions.view import safetensors_of

    return safetensors_of(name, given)

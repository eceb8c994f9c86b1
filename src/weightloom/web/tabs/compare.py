"""Same network?: what is in a saved network, and whether another is the same function.

Uploads are kept under random names and opened by the worker alone, as safetensors and nothing else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from weightloom.web.context import Context

__all__ = ["router"]

Key = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
Name = Annotated[str, Field(max_length=200)]
Activation = Annotated[str | None, Field(max_length=40)]


class Given(BaseModel):
    """An uploaded file, and what its owner calls it."""

    key: Key
    name: Name


class Question(BaseModel):
    files: Annotated[list[Given], Field(min_length=1, max_length=2)]
    activation: Activation = None


def router(context: Context) -> APIRouter:
    routes = APIRouter()

    def place(given: Given) -> tuple[Path, str]:
        shown = "".join(letter for letter in given.name if letter.isprintable())
        return context.uploads.path(given.key), shown or "the file"

    @routes.post("/upload")
    async def upload(request: Request) -> dict[str, str]:
        return {"key": await context.uploads.save(request)}

    @routes.post("/inspect")
    async def inspect(question: Question) -> dict[str, Any]:
        files = [place(given) for given in question.files]
        answer: dict[str, Any] = await context.run(_inspect, files, question.activation)
        return answer

    @routes.post("/bounds")
    async def bounds(question: Question) -> dict[str, Any]:
        file = place(question.files[0])
        answer: dict[str, Any] = await context.run(_bounds, file, question.activation)
        return answer

    @routes.get("/reduced/{key}")
    async def reduced(
        key: Key, name: Annotated[Name, Query()], activation: Annotated[Activation, Query()] = None
    ) -> Response:
        file = place(Given(key=key, name=name))
        return _file(await context.run(_reduced, file, activation), "reduced")

    @routes.get("/options")
    async def options() -> dict[str, Any]:
        return await context.run(_options) | {"limit": context.settings.upload_limit}

    @routes.get("/example/{kind}/{number}")
    async def example(kind: Name, number: int) -> Response:
        made = await context.run(_example, kind)
        return _file(made[0 if number == 1 else 1], f"example-{'a' if number == 1 else 'b'}")

    return routes


def _file(content: bytes, name: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}.safetensors"'}
    return Response(content, media_type="application/octet-stream", headers=headers)


# In the worker.


def _options() -> dict[str, Any]:
    from weightloom.symmetry.checkpoint import ACTIVATIONS
    from weightloom.web.tabs.compare_answer import EXAMPLES

    return {"activations": list(ACTIVATIONS), "examples": list(EXAMPLES.items())}


def _inspect(files: list[tuple[Path, str]], activation: str | None) -> dict[str, Any]:
    from weightloom.web.tabs.compare_answer import answer_for

    return answer_for(files, activation)


def _bounds(file: tuple[Path, str], activation: str | None) -> dict[str, Any]:
    from weightloom.web.tabs.compare_answer import bounds_of

    return bounds_of(file, activation)


def _reduced(file: tuple[Path, str], activation: str | None) -> bytes:
    from weightloom.web.tabs.compare_answer import reduced_file

    return reduced_file(file, activation)


def _example(kind: str) -> tuple[bytes, bytes]:
    from weightloom.errors import ConfigError
    from weightloom.web.tabs.compare_answer import EXAMPLES, example

    if kind not in EXAMPLES:
        raise ConfigError(f"there is no example {kind!r}; there are {', '.join(EXAMPLES)}")
    return example(kind)

"""*Same network?*: what is in a saved network, and whether another is the same function.

Uploads are kept under random names. Only the worker opens them, and only as safetensors.
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


class UploadedFile(BaseModel):
    """The key of an uploaded file, and its name on the reader's machine."""

    key: Key
    name: Name


class CompareRequest(BaseModel):
    """One file to inspect, or two to compare."""

    files: Annotated[list[UploadedFile], Field(min_length=1, max_length=2)]
    activation: Activation = None


def router(context: Context) -> APIRouter:
    routes = APIRouter()

    def place(file: UploadedFile) -> tuple[Path, str]:
        label = "".join(letter for letter in file.name if letter.isprintable())
        return context.uploads.path(file.key), label or "the file"

    @routes.post("/upload")
    async def upload(request: Request) -> dict[str, str]:
        return {"key": await context.uploads.save(request)}

    @routes.post("/inspect")
    async def inspect(asked: CompareRequest) -> dict[str, Any]:
        files = [place(file) for file in asked.files]
        answer: dict[str, Any] = await context.run(_inspect, files, asked.activation)
        return answer

    @routes.post("/bounds")
    async def bounds(asked: CompareRequest) -> dict[str, Any]:
        file = place(asked.files[0])
        answer: dict[str, Any] = await context.run(_bounds, file, asked.activation)
        return answer

    @routes.get("/reduced/{key}")
    async def reduced(
        key: Key, name: Annotated[Name, Query()], activation: Annotated[Activation, Query()] = None
    ) -> Response:
        file = place(UploadedFile(key=key, name=name))
        return _file(await context.run(_reduced, file, activation), "reduced")

    @routes.get("/options")
    async def options() -> dict[str, Any]:
        return await context.run(_options) | {"limit": context.settings.upload_limit}

    @routes.get("/example/{kind}/{number}")
    async def example(kind: Name, number: int) -> Response:
        networks = await context.run(_example, kind)
        return _file(networks[0 if number == 1 else 1], f"example-{'a' if number == 1 else 'b'}")

    return routes


def _file(content: bytes, name: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}.safetensors"'}
    return Response(content, media_type="application/octet-stream", headers=headers)


# -- in the worker ---------------------------------------------------------------------------------


def _options() -> dict[str, Any]:
    from weightloom.symmetry.files.architecture import assumable
    from weightloom.web.tabs.compare_answer import EXAMPLES

    return {"activations": list(assumable()), "examples": list(EXAMPLES.items())}


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

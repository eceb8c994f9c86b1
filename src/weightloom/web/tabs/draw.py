"""*Draw*: the reader draws half a digit; a hypernetwork and a kernel complete it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from weightloom.errors import WeightloomError
from weightloom.web.context import Context
from weightloom.web.worker import RefusedError, WorkerError

__all__ = ["router"]

Part = Literal["all", "top", "bottom", "left", "right"]
Pixel = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
FINEST = 8  # largest factor of pixels per side
FINEST_DEVIATION = 2  # the deviation is smooth, and its cost grows with the number of points


class Drawing(BaseModel):
    """An 8 x 8 image, row by row, and the part of it that f sees."""

    image: list[Pixel] = Field(min_length=64, max_length=64)
    part: Part


class CompletionRequest(Drawing):
    """The completed drawing with ``factor`` times as many pixels per side."""

    factor: int = Field(1, ge=1, le=FINEST)


class DownloadRequest(Drawing):
    """The generated network as a file."""

    format: Literal["safetensors", "onnx"]


class DrawTraining:
    """Trains the hypernetwork once, in the background, and reports the progress."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.epochs = context.settings.draw_epochs
        # The number before the epochs is the version of the recipe: raise it when that changes.
        self.path = context.settings.cache_dir / f"draw-1-{self.epochs}.safetensors"
        self._task: asyncio.Task[None] | None = None
        self._state: dict[str, Any] = {"state": "waiting", "share": 0.0, "error": None}

    def view(self) -> dict[str, Any]:
        """State, share done, and error on held-out digits, as the page shows them."""
        return self._state

    def begin(self) -> None:
        """Start training, unless it is running or done; a failed training is tried again."""
        if self._state["state"] in ("training", "ready"):
            return
        self._state = {"state": "training", "share": 0.0, "error": None}
        self._task = asyncio.create_task(self._train())

    async def _train(self) -> None:
        def report(content: tuple[float, float]) -> None:
            share, error = content
            self._state = {"state": "training", "share": share, "error": _finite(error)}

        try:
            error = await self._context.background.run(
                _prepare, self.path, self.epochs, report=report
            )
        except (WeightloomError, RefusedError) as problem:
            self._state = {"state": "failed", "share": 0.0, "error": None, "text": str(problem)}
        except (WorkerError, OSError):
            text = "training stopped with an error; the server's log has the details"
            self._state = {"state": "failed", "share": 0.0, "error": None, "text": text}
        else:
            self._state = {"state": "ready", "share": 1.0, "error": _finite(error)}


def router(context: Context) -> APIRouter:
    routes = APIRouter()
    training = DrawTraining(context)

    @routes.get("/state")
    async def state() -> dict[str, Any]:
        return training.view()

    @routes.post("/start")
    async def start() -> dict[str, Any]:
        training.begin()
        return training.view()

    @routes.get("/example")
    async def example(number: Annotated[int, Field(ge=0, le=10**6)] = 0) -> dict[str, Any]:
        return await context.run(_example, number)

    @routes.post("/kernel")
    async def kernel(asked: CompletionRequest) -> dict[str, Any]:
        return await context.run(_kernel, asked.image, asked.part, asked.factor)

    @routes.post("/network")
    async def network(asked: CompletionRequest) -> dict[str, Any]:
        return await context.run(_network, training.path, asked.image, asked.part, asked.factor)

    @routes.post("/download")
    async def download(asked: DownloadRequest) -> Response:
        content = await context.run(
            _download, training.path, asked.image, asked.part, f".{asked.format}"
        )
        return Response(
            content,
            media_type="application/octet-stream",
            headers={"content-disposition": f'attachment; filename="digit.{asked.format}"'},
        )

    return routes


# -- in the worker ---------------------------------------------------------------------------------


def _prepare(path: Path, epochs: int, report: Callable[[tuple[float, float]], None]) -> float:
    from weightloom.demo.completion import network

    return network.prepare(path, epochs, report)


def _example(number: int) -> dict[str, Any]:
    """A held-out digit: neither the kernel nor the network was trained on it."""
    from weightloom.demo.completion.kernel import digits

    data = digits()
    row = number % len(data.held_out)
    return {"image": data.held_out[row].tolist(), "label": int(data.held_out_labels[row])}


def _kernel(drawing: list[float], part: str, factor: int) -> dict[str, Any]:
    from weightloom.demo.completion import kernel
    from weightloom.demo.completion.kernel import SIDE, read_image

    seen, mask = read_image(drawing, part)
    coarse = min(factor, FINEST_DEVIATION)
    image, spread = kernel.complete(seen, part, SIDE * coarse)
    if coarse < factor:
        image = kernel.mean(seen, part, SIDE * factor)
    pixels = spread if coarse == 1 else kernel.complete(seen, part, SIDE)[1]
    visible = mask.bool()
    return {
        "side": SIDE * factor,
        "image": _rounded(image.tolist()),
        "deviation": _rounded(spread.tolist()),
        "deviation_side": SIDE * coarse,
        "seen": float(pixels[visible].mean()),
        "unseen": float(pixels[~visible].mean()) if not visible.all() else None,
        "neighbours": kernel.NEIGHBOURS,
    }


def _network(path: Path, image: list[float], part: str, factor: int) -> dict[str, Any]:
    from weightloom.demo.completion import network
    from weightloom.demo.completion.kernel import SIDE, read_image

    picture = network.draw(path, *read_image(image, part), SIDE * factor)
    return {"side": SIDE * factor, "image": _rounded(picture.tolist())}


def _download(path: Path, image: list[float], part: str, suffix: str) -> bytes:
    from weightloom.demo.completion import network
    from weightloom.demo.completion.kernel import read_image

    return network.generated(path, *read_image(image, part), suffix)


def _rounded(values: list[float]) -> list[float]:
    """Four digits are enough for a picture, in a quarter of the bytes."""
    return [round(value, 4) for value in values]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

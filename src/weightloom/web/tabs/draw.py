"""*Draw*: half a digit is drawn; a hypernetwork and a kernel complete it."""

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
FINEST = 8  # times as many pixels on a side
FINEST_DEVIATION = 2  # its cost grows with the points, and it has nothing finer to show


class Drawing(BaseModel):
    """An 8 x 8 image, row by row, and which part of it f may see."""

    image: list[Pixel] = Field(min_length=64, max_length=64)
    part: Part


class Completion(Drawing):
    factor: int = Field(1, ge=1, le=FINEST)


class Download(Drawing):
    format: Literal["safetensors", "onnx"]


class Training:
    """What the page is told about the hypernetwork's training."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.epochs = context.settings.draw_epochs
        # Other training, other name: the number before the epochs goes up with the recipe.
        self.path = context.settings.cache_dir / f"draw-1-{self.epochs}.safetensors"
        self._task: asyncio.Task[None] | None = None
        self._state: dict[str, Any] = {"state": "waiting", "share": 0.0, "error": None}

    def view(self) -> dict[str, Any]:
        return self._state

    def begin(self) -> None:
        """Start training, unless it runs or is done; after a failure it is tried again."""
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
            text = "training stopped with an error; the server's log says more"
            self._state = {"state": "failed", "share": 0.0, "error": None, "text": text}
        else:
            self._state = {"state": "ready", "share": 1.0, "error": _finite(error)}


def router(context: Context) -> APIRouter:
    made = APIRouter()
    training = Training(context)

    @made.get("/state")
    async def state() -> dict[str, Any]:
        return training.view()

    @made.post("/start")
    async def start() -> dict[str, Any]:
        training.begin()
        return training.view()

    @made.get("/example")
    async def example(number: Annotated[int, Field(ge=0, le=10**6)] = 0) -> dict[str, Any]:
        return await context.run(_example, number)

    @made.post("/kernel")
    async def kernel(asked: Completion) -> dict[str, Any]:
        return await context.run(_kernel, asked.image, asked.part, asked.factor)

    @made.post("/network")
    async def network(asked: Completion) -> dict[str, Any]:
        return await context.run(_network, training.path, asked.image, asked.part, asked.factor)

    @made.post("/download")
    async def download(asked: Download) -> Response:
        content = await context.run(
            _download, training.path, asked.image, asked.part, f".{asked.format}"
        )
        return Response(
            content,
            media_type="application/octet-stream",
            headers={"content-disposition": f'attachment; filename="digit.{asked.format}"'},
        )

    return made


# -- in the worker ---------------------------------------------------------------------------------


def _prepare(path: Path, epochs: int, report: Callable[[tuple[float, float]], None]) -> float:
    from weightloom.experiments.completion import network

    return network.prepare(path, epochs, report)


def _example(number: int) -> dict[str, Any]:
    """A digit that neither the kernel nor the network has learned from."""
    from weightloom.experiments.completion.digits import digits

    data = digits()
    row = number % len(data.held_out)
    return {"image": data.held_out[row].tolist(), "label": int(data.held_out_labels[row])}


def _kernel(image: list[float], part: str, factor: int) -> dict[str, Any]:
    from weightloom.experiments.completion import kernel
    from weightloom.experiments.completion.digits import SIDE, read_image

    seen, mask = read_image(image, part)
    coarse = min(factor, FINEST_DEVIATION)
    _, spread = kernel.complete(seen, part, SIDE * coarse)
    _, pixels = kernel.complete(seen, part, SIDE)
    own = mask.bool()
    return {
        "side": SIDE * factor,
        "image": _rounded(kernel.mean(seen, part, SIDE * factor).tolist()),
        "deviation": _rounded(spread.tolist()),
        "deviation_side": SIDE * coarse,
        "seen": float(pixels[own].mean()),
        "unseen": float(pixels[~own].mean()) if not own.all() else None,
        "neighbours": kernel.NEIGHBOURS,
    }


def _network(path: Path, image: list[float], part: str, factor: int) -> dict[str, Any]:
    from weightloom.experiments.completion import network
    from weightloom.experiments.completion.digits import SIDE, read_image

    drawn = network.draw(path, *read_image(image, part), SIDE * factor)
    return {"side": SIDE * factor, "image": _rounded(drawn.tolist())}


def _download(path: Path, image: list[float], part: str, suffix: str) -> bytes:
    from weightloom.experiments.completion import network
    from weightloom.experiments.completion.digits import read_image

    return network.generated(path, *read_image(image, part), suffix)


def _rounded(values: list[float]) -> list[float]:
    """For a picture; four digits make a quarter of the bytes."""
    return [round(value, 4) for value in values]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

"""*Kernels*: the exact kernel, those of finite networks on their way to it, and K^(r)."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from weightloom.web.context import Context

__all__ = ["router"]

DEEPEST = 5
WIDEST = 256
Activation = Literal["relu", "leaky_relu", "abs", "identity", "erf", "sin", "cos", "gelu", "tanh"]


class Asked(BaseModel):
    """A hypernetwork of two towers: depths count weight matrices."""

    kind: Literal["ntk", "nngp"] = "ntk"
    depth_f: int = Field(3, ge=1, le=DEEPEST)
    depth_g: int = Field(2, ge=1, le=DEEPEST)
    activation_f: Activation = "relu"
    activation_g: Activation = "relu"
    angle: float = Field(0.0, ge=0, le=math.pi + 1e-9, allow_inf_nan=False)


class Sampled(Asked):
    widths: list[Annotated[int, Field(ge=1, le=WIDEST)]] = Field(min_length=1, max_length=8)
    draws: int = Field(10, ge=2, le=40)


class Orders(BaseModel):
    setting: Literal["relu", "leaky", "smooth g", "smooth f"] = "relu"
    depth: int = Field(2, ge=1, le=3)
    widths: list[Annotated[int, Field(ge=2, le=4096)]] = Field(min_length=1, max_length=6)


def router(context: Context) -> APIRouter:
    made = APIRouter()

    @made.post("/exact")
    async def exact(asked: Asked) -> dict[str, Any]:
        return await context.run(_exact, asked.model_dump())

    @made.post("/sampled")
    async def sampled(asked: Sampled) -> dict[str, Any]:
        return await context.run(_sampled, asked.model_dump())

    @made.post("/orders")
    async def orders(asked: Orders) -> dict[str, Any]:
        return await context.run(_orders, asked.model_dump())

    return made


# -- in the worker ---------------------------------------------------------------------------------

DRAWS = 60  # networks of each width for K^(r): medians are asked for


def _towers(asked: dict[str, Any]) -> Any:
    from weightloom.experiments.infinite_width.curves import Towers

    return Towers(
        asked["kind"],
        (asked["depth_f"], asked["activation_f"]),
        (asked["depth_g"], asked["activation_g"]),
        asked["angle"],
    )


def _exact(asked: dict[str, Any]) -> dict[str, Any]:
    from weightloom.experiments.infinite_width.curves import curve

    return curve(_towers(asked))


def _sampled(asked: dict[str, Any]) -> dict[str, Any]:
    from weightloom.experiments.infinite_width.curves import sampled

    return sampled(_towers(asked), asked["widths"], asked["draws"])


def _orders(asked: dict[str, Any]) -> dict[str, Any]:
    from weightloom.errors import ConfigError
    from weightloom.experiments.infinite_width.curves import orders

    if asked["depth"] == 1 and max(asked["widths"]) > WIDEST:
        raise ConfigError(
            f"with H = 1, f has four layers, and at most {WIDEST} neurons in each are drawn here"
        )
    return orders(asked["setting"], asked["depth"], asked["widths"], DRAWS)

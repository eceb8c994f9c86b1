"""*Kernels*: exact kernels, kernels of sampled finite networks, and the higher orders K^(r)."""

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


class KernelRequest(BaseModel):
    """A hypernetwork of two towers; depths count weight matrices."""

    kind: Literal["ntk", "nngp"] = "ntk"
    depth_f: int = Field(3, ge=1, le=DEEPEST)
    depth_g: int = Field(2, ge=1, le=DEEPEST)
    activation_f: Activation = "relu"
    activation_g: Activation = "relu"
    angle: float = Field(0.0, ge=0, le=math.pi + 1e-9, allow_inf_nan=False)


class SampleRequest(KernelRequest):
    """Kernels of ``draws`` networks of each width."""

    widths: list[Annotated[int, Field(ge=1, le=WIDEST)]] = Field(min_length=1, max_length=8)
    draws: int = Field(10, ge=2, le=40)


class OrderRequest(BaseModel):
    """Sizes of K^(r) for several widths of f."""

    setting: Literal["relu", "leaky", "smooth g", "smooth f"] = "relu"
    depth: int = Field(2, ge=1, le=3)
    widths: list[Annotated[int, Field(ge=2, le=4096)]] = Field(min_length=1, max_length=6)


def router(context: Context) -> APIRouter:
    routes = APIRouter()

    @routes.post("/exact")
    async def exact(asked: KernelRequest) -> dict[str, Any]:
        return await context.run(_exact, asked.model_dump())

    @routes.post("/sampled")
    async def sampled(asked: SampleRequest) -> dict[str, Any]:
        return await context.run(_sampled, asked.model_dump())

    @routes.post("/orders")
    async def orders(asked: OrderRequest) -> dict[str, Any]:
        return await context.run(_orders, asked.model_dump())

    return routes


# -- in the worker ---------------------------------------------------------------------------------

DRAWS = 60  # networks of each width for the medians of K^(r)


def _towers(asked: dict[str, Any]) -> Any:
    from weightloom.demo.curves import Towers

    return Towers(
        asked["kind"],
        (asked["depth_f"], asked["activation_f"]),
        (asked["depth_g"], asked["activation_g"]),
        asked["angle"],
    )


def _exact(asked: dict[str, Any]) -> dict[str, Any]:
    from weightloom.demo.curves import curve

    return curve(_towers(asked))


def _sampled(asked: dict[str, Any]) -> dict[str, Any]:
    from weightloom.demo.curves import sampled

    return sampled(_towers(asked), asked["widths"], asked["draws"])


def _orders(asked: dict[str, Any]) -> dict[str, Any]:
    from weightloom.demo.curves import orders
    from weightloom.errors import ConfigError

    if asked["depth"] == 1 and max(asked["widths"]) > WIDEST:
        raise ConfigError(
            f"with H = 1, f has four layers of at most {WIDEST} neurons here, but a width of "
            f"{max(asked['widths'])} was asked for"
        )
    return orders(asked["setting"], asked["depth"], asked["widths"], DRAWS)

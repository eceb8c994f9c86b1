"""The tab ``results``."""

from __future__ import annotations

from fastapi import APIRouter

from weightloom.web.context import Context

__all__ = ["router"]


def router(context: Context) -> APIRouter:
    return APIRouter()

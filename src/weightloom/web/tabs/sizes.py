"""*Which model?*: parameters that a plain network, an embedding method, a hypernetwork need."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query

from weightloom import plugins
from weightloom.errors import ConfigError
from weightloom.web.context import Context

__all__ = ["router"]

#: Points along the chart's axis of errors.
POINTS = 61

Dimension = Annotated[int, Query(ge=1, le=1000)]
Error = Annotated[float, Query(ge=1e-12, lt=1, allow_inf_nan=False)]


def router(context: Context) -> APIRouter:
    routes = APIRouter()

    @routes.get("/rates")
    async def rates(
        m1: Dimension,
        m2: Dimension,
        eps: Error,
        smoothness: Annotated[int, Query(ge=1, le=100)] = 1,
        selector: Annotated[int | None, Query(ge=1, le=10**6)] = None,
        calibrate: bool = False,
    ) -> dict[str, Any]:
        store = context.settings.store if calibrate else None
        asked = (m1, m2, smoothness, eps, selector)
        answer: dict[str, Any] = await context.run(answer_for, asked, store)
        return answer

    return routes


def answer_for(
    asked: tuple[int, int, int, float, int | None], store: Path | None
) -> dict[str, Any]:
    """Rows of the table, lines of the chart, and texts; with ``store``, its measured constants."""
    from weightloom.bounds import advice, amount, parameter_rates, rates_along

    m1, m2, smoothness, eps, selector = asked
    constants, note = _measured(store, m1, m2, smoothness) if store is not None else (None, None)
    rates = parameter_rates(m1, m2, smoothness, eps, selector, constants)
    known = [rate for rate in rates.rates() if constants is None or rate.method in constants]
    top = min(-0.05, math.log10(eps) + 1)
    errors = [10 ** (top - 2 * i / (POINTS - 1)) for i in range(POINTS)]
    lines = rates_along(rates, errors)
    return {
        "rows": [
            {
                "method": rate.method,
                "name": rate.name,
                "parameters": amount(rate.log10),
                "log10": rate.log10,
                "exponent": rate.exponent,
                "kind": rate.kind if constants is None else "built",
                "theorem": rate.theorem,
                "constant": rates.constants[rate.method],
            }
            for rate in known
        ],
        "silent": [rate.name for rate in rates.rates() if rate not in known],
        "errors": errors,
        "lines": {rate.method: [point.log10 for point in lines[rate.method]] for rate in known},
        "advice": advice(rates, constants, "fill in how many, if you know it"),
        "assumptions": list(rates.assumptions),
        "calibration": note,
        "can_calibrate": bool(plugins.offered("weightloom.calibration")),
    }


def _measured(store: Path, m1: int, m2: int, smoothness: int) -> tuple[dict[str, float], str]:
    calibrator = plugins.calibration("take constants of 1")
    if not store.exists():
        raise ConfigError(
            f"there is no store of results with measured constants; run "
            f"`{calibrator.COMMAND}` first, or take constants of 1"
        )
    # Rows that cannot be read are ignored here; the Results tab reports them.
    measured = calibrator.calibrate_from(store, m1, m2, smoothness, on_corrupt=lambda text: None)
    return dict(measured.constants), measured.text()

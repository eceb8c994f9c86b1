"""Results as text and back, exactly: every float returns bit for bit, NaN and infinity included.

JSON has no NaN. Where only floats can stand (metrics, curves) the three are written as the strings
"nan", "inf" and "-inf": the text stays JSON that any program and SQLite's json_extract can read,
and nothing is mistaken for a missing value, as null would be.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from weightloom.lab.runs import Curve

__all__ = ["decode_curves", "decode_metrics", "encode", "encode_curves", "encode_metrics", "number"]


def number(value: float) -> float | str:
    """``value`` for JSON: itself, or the name of what JSON cannot say."""
    return value if math.isfinite(value) else str(value)


def encode(value: Any) -> str:
    """Compact JSON without NaN, names in their own order."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def encode_metrics(metrics: Mapping[str, float]) -> str:
    return encode({name: number(value) for name, value in metrics.items()})


def decode_metrics(text: str) -> dict[str, float]:
    return {name: float(value) for name, value in json.loads(text).items()}


def encode_curves(curves: Mapping[str, Curve]) -> str:
    return encode(
        {name: [steps, [number(v) for v in values]] for name, (steps, values) in curves.items()}
    )


def decode_curves(text: str) -> dict[str, Curve]:
    return {
        name: ([int(step) for step in steps], [float(value) for value in values])
        for name, (steps, values) in json.loads(text).items()
    }

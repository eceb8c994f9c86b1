"""Whole runs: every failure has its warning, and runs that train have none."""

from __future__ import annotations

import re

import pytest

from tests.hyper.diagnosis.tasks import (
    digits,
    emoji,
    real_emoji,
    siren,
    smooth,
    steps_of,
    textures,
)
from weightloom.data import MissingDataError

# -- three failures, and runs that train ---------------------------------------------------------

FAILURES = {
    "emoji 1e-3": (emoji, 1e-3, r"last activation \(Sigmoid\) is saturated.*Leave init out"),
    "emoji 1e-3, steps": (emoji, 1e-3, r"steps move the outputs too far.*Leave init out"),
    "siren": (siren, 1e-4, r"gradients explode on the way back.*Leave init out.*SIREN"),
    "siren 1e-3": (siren, 1e-3, r"loss rises on the very batch.*Leave init out"),
    "emoji 3e-3, saturated": (emoji, 3e-3, r"\(Sigmoid\) is saturated.*Leave init out"),
    "textures": (textures, 3e-3, r"steps move the outputs too far: step 1 .*Leave init out"),
    "textures, primary": (textures, 1e-4, r"primary can hardly fit.*features='fourier'"),
}
HEALTHY = {
    f"{make.__name__} {init} {head} {rate}": (make, init, head, rate)
    for make, init, head, rate in [
        (digits, "hyperfan_in", "full", 1e-4),
        (digits, "primary", "full", 1e-3),
        (digits, None, "delta", 1e-3),
        (emoji, "primary", "full", 1e-4),
        (emoji, None, "full", 1e-3),
        (emoji, None, "full", 3e-3),
        (emoji, None, "delta", 1e-4),
        (siren, None, "full", 1e-3),
        (digits, None, "full", 1e-3),
        (digits, None, "full", 3e-3),
        (smooth, None, "full", 1e-3),
        (smooth, None, "low_rank", 1e-3),
        (smooth, None, "chunked", 1e-3),
        (siren, None, "delta", 1e-3),
        (smooth, "hyperfan_in", "full", 1e-4),
        (smooth, "primary", "low_rank", 1e-3),
        (smooth, "primary", "chunked", 1e-3),
        (smooth, None, "delta", 1e-3),
    ]
}


def test_every_failure_has_its_warning() -> None:
    seen = {}
    for name, (make, rate, pattern) in FAILURES.items():
        texts = steps_of(make(), ("adam", rate)).warnings
        seen[name] = any(re.search(pattern, text) for text in texts)
    assert sum(seen.values()) == len(FAILURES), seen


def test_healthy_runs_have_none() -> None:
    seen = {
        name: steps_of(make(init, head), ("adam", rate)).warnings
        for name, (make, init, head, rate) in HEALTHY.items()
    }
    assert {name: texts for name, texts in seen.items() if texts} == {}
    assert len(seen) == 18


def test_emoji_themselves() -> None:
    try:
        failing, default = real_emoji(), real_emoji(None)
    except MissingDataError as error:
        pytest.skip(str(error))
    text = " ".join(steps_of(failing, ("adam", 1e-3)).warnings)
    assert re.search(
        r"steps move the outputs too far.*Leave init out.*Sigmoid\) is saturated", text
    )
    assert steps_of(default, ("adam", 1e-3)).warnings == []

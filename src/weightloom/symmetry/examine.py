"""Every question about one saved network, and the answers as plain values."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from torch import nn

from weightloom.errors import ConfigError, ShapeError, UnsupportedModuleError
from weightloom.symmetry.equivalent import Equivalence
from weightloom.symmetry.files import Loaded
from weightloom.symmetry.fingerprint import fingerprint
from weightloom.symmetry.normal import Normality, is_normal
from weightloom.symmetry.reduce import reduce

__all__ = ["CONVOLUTIONAL", "Found", "as_dict", "examine"]

# What a network can be without being readable; these become a line, other errors end it all.
SILENT = (UnsupportedModuleError, ShapeError, ConfigError)
CONVOLUTIONAL = "strides, padding and pooling are not in the file"


@dataclass(frozen=True)
class Found:
    """Everything about one file; None where ``silent`` says why."""

    loaded: Loaded
    parameters: int
    dtype: str
    fingerprint: str | None
    normality: Normality | None
    removable: int | None
    """units that `reduce` takes out, cascades included"""
    bounds: Any
    """what ``bounds`` of `examine` returned: a `weightloom.bounds.Report`"""
    silent: dict[str, str]


def examine(loaded: Loaded, bounds: Callable[[nn.Module], Any] | str) -> Found:
    """Run every question on one network; what cannot be answered is explained, not fatal.

    ``bounds`` is `weightloom.bounds.report` or the like (passed in: folders of one level do not
    import each other), or the reason why there is none.
    """
    net, silent = loaded.module, {}
    kinds = sorted({str(p.dtype).removeprefix("torch.") for p in net.parameters()})
    found: dict[str, Any] = dict.fromkeys(("fingerprint", "normality", "bounds"))
    questions: dict[str, Any] = {"fingerprint": fingerprint, "normality": is_normal}
    if isinstance(bounds, str):
        silent["bounds"] = bounds
    else:
        questions["bounds"] = bounds
    for name, ask in questions.items():
        try:
            found[name] = ask(net)
        except SILENT as error:
            silent[name] = str(error)
    removable = None
    if found["normality"] is not None:
        # Reducing copies the network: only if there is something to take out.
        removable = 0 if found["normality"] else reduce(net).removed
    size = sum(p.numel() for p in net.parameters())
    return Found(loaded, size, ", ".join(kinds), removable=removable, silent=silent, **found)


def as_dict(found: Sequence[Found], verdict: Equivalence | None) -> dict[str, Any]:
    """Plain values; numbers that JSON cannot hold are null."""
    made: dict[str, Any] = {"equivalence": None, "networks": [_network(one) for one in found]}
    if verdict is not None:
        kept = ("same", "mismatch", "weight_deviation", "output_deviation", "tolerance")
        made["equivalence"] = {key: _number(getattr(verdict, key)) for key in kept}
        made["equivalence"] |= {"probes": verdict.probes, "reduced": verdict.reduced}
    return made


def _network(one: Found) -> dict[str, Any]:
    normality = None
    if one.normality is not None:
        normality = {f.name: getattr(one.normality, f.name) for f in fields(one.normality)}
        normality = {"normal": bool(one.normality), "removable": one.removable, **normality}
    layers = one.loaded.layers
    return {
        "path": str(one.loaded.path),
        "layers": None if layers is None else list(layers),
        "assumptions": list(one.loaded.assumptions),
        "parameters": one.parameters,
        "dtype": one.dtype,
        "fingerprint": one.fingerprint,
        "normality": normality,
        "bounds": None if one.bounds is None else json.loads(one.bounds.json()),
        "not_available": one.silent,
    }


def _number(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value

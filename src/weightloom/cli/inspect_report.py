"""What ``weightloom inspect`` found, as a table and as JSON."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from weightloom.errors import ConfigError, ShapeError, UnsupportedModuleError

if TYPE_CHECKING:
    from weightloom.bounds import Report
    from weightloom.cli.inspect_files import Loaded
    from weightloom.symmetry import Equivalence, Normality

__all__ = ["Found", "as_dict", "as_text", "examine"]

SHOWN = 8  # units that are listed one by one
# What a network can be without being readable; these become a line, other errors end the command.
SILENT = (UnsupportedModuleError, ShapeError, ConfigError)


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
    bounds: Report | None
    silent: dict[str, str]


def examine(loaded: Loaded, bounds: bool, input_shape: Sequence[int] | None) -> Found:
    """Run every question on one network; what cannot be answered is explained, not fatal."""
    from weightloom.bounds import report
    from weightloom.symmetry import fingerprint, is_normal, reduce

    net, silent = loaded.module, {}
    kinds = sorted({str(p.dtype).removeprefix("torch.") for p in net.parameters()})
    found: dict[str, Any] = dict.fromkeys(("fingerprint", "normality", "bounds"))
    questions: dict[str, Any] = {"fingerprint": fingerprint, "normality": is_normal}
    if not bounds:
        silent["bounds"] = "left out (--no-bounds)"
    elif loaded.convolutional:
        silent["bounds"] = (
            "strides, padding and pooling are not in the file; give --module and --input-shape"
        )
    else:
        questions["bounds"] = lambda network: report(network, input_shape=input_shape)
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


# -- text ----------------------------------------------------------------------------------------


def as_text(found: list[Found], verdict: Equivalence | None, full: bool) -> str:
    from weightloom.lab import Table

    parts = [_verdict(verdict)] if verdict is not None else []
    names = _labels(found)
    rows = [[label, *cells] for label, *cells in _rows(found)]
    parts.append(Table(["", *names], rows).text())
    for name, one in zip(names, found, strict=True):
        parts += _details(name, one, full)
    parts.append(_assumed(names, found))
    return "\n\n".join(part for part in parts if part)


def _labels(found: list[Found]) -> list[str]:
    names = [one.loaded.path.name for one in found]
    if len(set(names)) < len(names):
        return [str(one.loaded.path) for one in found]
    return names


def _verdict(verdict: Equivalence) -> str:
    if verdict.same:
        how = " after clones and dead units were removed" if verdict.reduced else ""
        head = f"SAME function{how}"
    else:
        head = f"DIFFERENT: {verdict.mismatch}"
    outputs = "outputs not run"
    if verdict.output_deviation is not None:
        outputs = f"outputs on {verdict.probes} random inputs by {verdict.output_deviation:.3g}"
    measured = f"Weights deviate by {verdict.weight_deviation:.3g}"
    return f"{_filled(head)}\n{measured} (tolerance {verdict.tolerance:.3g}), {outputs}."


def _rows(found: list[Found]) -> list[list[str]]:
    rows = [
        ["parameters", *(f"{one.parameters:,}" for one in found)],
        ["dtype", *(one.dtype for one in found)],
        ["fingerprint", *((one.fingerprint or "not available")[:16] for one in found)],
        ["normal", *map(_normal, found)],
    ]
    reports = [one.bounds for one in found]
    if not any(reports):
        return rows
    rows.append(["widths", *(_maybe(r, lambda r: _widths(r.widths)) for r in reports)])
    for p in ("1", "2", "inf"):
        rows.append([f"Lipschitz, {p}-norm", *(_maybe(r, _range(p)) for r in reports)])
    rows.append(
        ["ln exchanges", *(_maybe(r, lambda r: f"{r.log_group_order:.6g}") for r in reports)]
    )
    rows.append(["ln covering number", *(_maybe(r, _covering) for r in reports)])
    return rows


def _maybe(report: Report | None, show: Any) -> str:
    return "not available" if report is None else show(report)


def _widths(widths: Sequence[int]) -> str:
    shown = [str(width) for width in widths]
    return "-".join(shown if len(shown) <= 8 else [*shown[:4], "...", *shown[-3:]])


def _range(p: str) -> Any:
    def show(report: Report) -> str:
        one = report.lipschitz[p]
        log = one.upper.log
        high = f"{math.exp(log):.4g}" if abs(log) < 700 else f"10^{log / math.log(10):.1f}"
        high = "0" if log == -math.inf else high
        # Large networks are not searched for two points that attain a lower bound.
        return f"at most {high}" if one.lower is None else f"{one.lower.value:.4g} to {high}"

    return show


def _covering(report: Report) -> str:
    if "rigorous" not in report.covering:
        return "not available"
    return f"{report.covering['rigorous'].log:.6g} (eps {report.settings['epsilon']:g})"


def _normal(one: Found) -> str:
    if one.normality is None:
        return "not available"
    return "yes" if one.normality else f"no, {one.removable} units can go"


def _details(name: str, one: Found, full: bool) -> list[str]:
    made = []
    if one.normality is not None and not one.normality:
        lines = str(one.normality).splitlines()
        more = [f"  and {len(lines) - SHOWN - 1} more"] if len(lines) > SHOWN + 1 else []
        made.append("\n".join([f"{name}: {lines[0]}", *map(_item, lines[1 : SHOWN + 1]), *more]))
    for topic, reason in one.silent.items():
        made.append(_filled(f"{name}: no {topic}: {reason}"))
    if full and one.bounds is not None:
        made.append(f"{name}: all bounds\n\n{one.bounds}")
    return made


def _assumed(names: list[str], found: list[Found]) -> str:
    """Once, if it is the same for all files."""
    said = {one.loaded.assumptions for one in found}
    lines: list[str] = []
    for name, one in zip(names, found, strict=True):
        if not one.loaded.assumptions or (lines and len(said) == 1):
            continue
        head = "ASSUMED, because a state dict does not show it"
        lines.append(f"{head}:" if len(said) == 1 else f"{head} ({name}):")
        lines += map(_item, one.loaded.assumptions)
    for name, one in zip(names, found, strict=True):
        if one.loaded.layers is not None:
            lines.append(_item(f"layers of {name}, in this order: {_listed(one.loaded.layers)}"))
    return "\n".join(lines)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names if len(names) <= 12 else [*names[:6], "...", *names[-3:]])


def _item(text: str) -> str:
    return textwrap.fill(text, 98, initial_indent="  - ", subsequent_indent="    ")


def _filled(text: str) -> str:
    return textwrap.fill(text, 98)


# -- JSON ----------------------------------------------------------------------------------------


def as_dict(found: list[Found], verdict: Equivalence | None) -> dict[str, Any]:
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

"""What ``weightloom inspect`` found, as a table."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weightloom.bounds import Report
    from weightloom.symmetry import Equivalence
    from weightloom.symmetry.examine import Found
    from weightloom.symmetry.files import Loaded

__all__ = ["as_text", "ask"]

SHOWN = 8  # units that are listed one by one


def ask(loaded: Loaded, bounds: bool, input_shape: Sequence[int] | None) -> Found:
    """Run every question on one network, with the options of the command line."""
    from weightloom.bounds import report
    from weightloom.symmetry.examine import CONVOLUTIONAL, examine

    if not bounds:
        return examine(loaded, "left out (--no-bounds)")
    if loaded.convolutional:
        return examine(loaded, f"{CONVOLUTIONAL}; give --module and --input-shape")
    return examine(loaded, lambda network: report(network, input_shape=input_shape))


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

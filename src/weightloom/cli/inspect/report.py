"""The findings of ``weightloom inspect`` as text."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weightloom.bounds import BoundsReport
    from weightloom.symmetry import Equivalence
    from weightloom.symmetry.files.answers import FileVerdict
    from weightloom.symmetry.files.checkpoints import Findings, Loaded

__all__ = ["as_text", "findings_of"]

MOST_LISTED = 8  # redundant units that are listed


def findings_of(loaded: Loaded, bounds: bool, input_shape: Sequence[int] | None) -> Findings:
    """Examine one network, with the options of the command line."""
    from weightloom.symmetry.files.checkpoints import CONVOLUTIONAL, examine

    if not bounds:
        return examine(loaded, without_bounds="left out (--no-bounds)")
    if loaded.convolutional:
        reason = f"{CONVOLUTIONAL}; give --module and --input-shape"
        return examine(loaded, without_bounds=reason)
    return examine(loaded, input_shape=input_shape)


# -- text ----------------------------------------------------------------------------------------


def as_text(findings: list[Findings], comparison: FileVerdict | None, full: bool) -> str:
    from weightloom.tables import aligned

    parts = [_verdict(comparison)] if comparison is not None else []
    names = _labels(findings)
    parts.append("\n".join(aligned([["", *names], *_rows(findings)], rule=True)))
    for name, each in zip(names, findings, strict=True):
        parts += _details(name, each, full)
    parts.append(_assumed(names, findings))
    return "\n\n".join(part for part in parts if part)


def _labels(findings: list[Findings]) -> list[str]:
    names = [each.loaded.path.name for each in findings]
    if len(set(names)) < len(names):
        return [str(each.loaded.path) for each in findings]
    return names


def _verdict(comparison: FileVerdict) -> str:
    verdict = comparison.verdict
    outputs = "outputs not run"
    if verdict.output_deviation is not None:
        outputs = f"outputs on {verdict.probes} inputs by {verdict.output_deviation:.3g}"
    measured = f"Weights deviate by {verdict.weight_deviation:.3g}"
    numbers = f"{measured} (tolerance {verdict.tolerance:.3g}), {outputs}."
    return "\n".join(
        [_filled(comparison.headline), *_witness(verdict), numbers, *_tried(comparison)]
    )


def _witness(verdict: Equivalence) -> list[str]:
    """The input that shows the difference, if it is short."""
    if verdict.probe_deviation is None:
        return []
    probe = verdict.probe
    shape = f" of shape {list(probe.shape)}" if hasattr(probe, "shape") else ""
    return [
        f"They differ by {verdict.probe_deviation:.3g} on an input{shape}; rounding of the weights "
        f"explains {verdict.probe_noise:.3g}."
    ]


def _tried(comparison: FileVerdict) -> list[str]:
    """What other activations would give, where no file says which it is."""
    if len(set(comparison.tried.values())) < 2 or comparison.of_any_activation:
        return []
    each = ", ".join(f"{name}: {answer}" for name, answer in comparison.tried.items())
    return [f"The files do not say their activation. {each}."]


def _rows(findings: list[Findings]) -> list[list[str]]:
    rows = [
        ["parameters", *(f"{each.parameters:,}" for each in findings)],
        ["dtype", *(each.dtype for each in findings)],
        ["fingerprint", *((each.fingerprint or "not available")[:16] for each in findings)],
        ["normal", *map(_normal, findings)],
    ]
    reports = [each.bounds for each in findings]
    if not any(reports):
        return rows
    rows.append(["widths", *(_maybe(r, lambda r: _widths(r.widths)) for r in reports)])
    for p in ("1", "2", "inf"):
        rows.append([f"Lipschitz, {p}-norm", *(_maybe(r, _range(p)) for r in reports)])
    rows.append(
        ["ln permutations", *(_maybe(r, lambda r: f"{r.log_group_order:.6g}") for r in reports)]
    )
    rows.append(["ln covering number", *(_maybe(r, _covering) for r in reports)])
    return rows


def _maybe(report: BoundsReport | None, show: Any) -> str:
    return "not available" if report is None else show(report)


def _widths(widths: Sequence[int]) -> str:
    texts = [str(width) for width in widths]
    return "-".join(texts if len(texts) <= 8 else [*texts[:4], "...", *texts[-3:]])


def _range(p: str) -> Any:
    def show(report: BoundsReport) -> str:
        bound = report.lipschitz[p]
        log = bound.upper.log
        high = f"{math.exp(log):.4g}" if abs(log) < 700 else f"10^{log / math.log(10):.1f}"
        high = "0" if log == -math.inf else high
        # Lower bounds are not searched for in large networks.
        return f"at most {high}" if bound.lower is None else f"{bound.lower.value:.4g} to {high}"

    return show


def _covering(report: BoundsReport) -> str:
    if "rigorous" not in report.covering:
        return "not available"
    return f"{report.covering['rigorous'].log:.6g} (eps {report.settings['epsilon']:g})"


def _normal(findings: Findings) -> str:
    if findings.normality is None:
        return "not available"
    return "yes" if findings.normality else f"no, {findings.removable} units can go"


def _details(name: str, findings: Findings, full: bool) -> list[str]:
    parts = []
    if findings.normality is not None and not findings.normality:
        lines = str(findings.normality).splitlines()
        more = (
            [f"  and {len(lines) - MOST_LISTED - 1} more"] if len(lines) > MOST_LISTED + 1 else []
        )
        parts.append(
            "\n".join([f"{name}: {lines[0]}", *map(_item, lines[1 : MOST_LISTED + 1]), *more])
        )
    for topic, reason in findings.unavailable.items():
        parts.append(_filled(f"{name}: no {topic}: {reason}"))
    if full and findings.bounds is not None:
        parts.append(f"{name}: all bounds\n\n{findings.bounds}")
    return parts


def _assumed(names: list[str], findings: list[Findings]) -> str:
    """Assumptions about the architecture; printed once if they are the same for all files."""
    assumptions = {each.loaded.assumptions for each in findings}
    lines: list[str] = []
    for name, each in zip(names, findings, strict=True):
        if not each.loaded.assumptions or (lines and len(assumptions) == 1):
            continue
        head = "ASSUMED, because a state dict does not show it"
        lines.append(f"{head}:" if len(assumptions) == 1 else f"{head} ({name}):")
        lines += map(_item, each.loaded.assumptions)
    for name, each in zip(names, findings, strict=True):
        if each.loaded.layers is not None:
            how = "as its file lists them" if each.loaded.described else "in this order"
            lines.append(_item(f"layers of {name}, {how}: {_listed(each.loaded.layers)}"))
    return "\n".join(lines)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names if len(names) <= 12 else [*names[:6], "...", *names[-3:]])


def _item(text: str) -> str:
    return textwrap.fill(text, 98, initial_indent="  - ", subsequent_indent="    ")


def _filled(text: str) -> str:
    return textwrap.fill(text, 98)

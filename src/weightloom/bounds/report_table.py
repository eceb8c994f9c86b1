"""A report as a table to read."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weightloom.bounds.report import Report

__all__ = ["table"]


def table(report: Report) -> str:
    parts = [_size(report), _norms(report), _lipschitz(report), _symmetry(report)]
    if report.covering:
        parts.append(_covering(report))
    if report.comparison is not None:
        head = "comparison of 002 (orders of magnitude of ln N, without constants)"
        parts.append([head, *_indent(str(report.comparison).splitlines())])
    if report.stochastic:
        parts.append(_stochastic(report))
    if report.notes:
        parts.append(["notes", *_wrapped(report.notes)])
    return "\n\n".join("\n".join(lines) for lines in parts)


def number(log: float) -> str:
    """exp(log) in six digits, or as a power of ten where it does not fit into a float."""
    if -700 < log < 700:
        return f"{math.exp(log):.6g}"
    return "0" if log == -math.inf else f"10^{log / math.log(10):.2f}"


def _size(report: Report) -> list[str]:
    widths = " -> ".join(map(str, report.widths))
    return [
        "size",
        f"  widths            {widths}",
        f"  parameters        {report.size:,}",
        f"  weight matrices   {report.depth} ({report.hidden_layers} hidden layers)",
        f"  hidden neurons    {report.neurons:,}, at most {report.width:,} in a layer",
    ]


def _norms(report: Report) -> list[str]:
    return ["norms", *(f"  {name:<20} {number(b.log):>12}" for name, b in report.norms.items())]


def _lipschitz(report: Report) -> list[str]:
    lines = ["Lipschitz constant", f"  {'norm':<5} {'at least':>12} {'at most':>12}  how"]
    for p, found in report.lipschitz.items():
        low = "not searched" if found.lower is None else f"{found.lower.value:.6g}"
        lines.append(f"  {p:<5} {low:>12} {number(found.upper.log):>12}  {found.upper.name}")
    return lines


def _symmetry(report: Report) -> list[str]:
    lines = ["symmetry", f"  ln(d_1! ... d_L!)    {report.log_group_order:.6g}"]
    if report.log_group_order_signs > report.log_group_order:
        lines.append(f"  ln, with sign flips  {report.log_group_order_signs:.6g}")
    if report.log_volume is not None and report.log_volume_representatives is not None:
        lines.append(
            f"  ln volume of the box {report.log_volume:.6g}, of representatives "
            f"{report.log_volume_representatives:.6g}"
        )
    return lines


def _covering(report: Report) -> list[str]:
    s = report.settings
    lines = [
        f"covering number, ln N (weights in [-B, B], B = {s['bound']:.4g}; inputs of length up to "
        f"{s['radius']:g}; eps = {s['epsilon']:g})"
    ]
    for rule, found in report.covering.items():
        state = "proven" if rule == "rigorous" else "holds" if found.valid else "do not rely on it"
        lines.append(f"  {rule:<10} {found.log:>14.6g}  {state}")
        lines += _wrapped(found.warnings, "             ")
    return lines


def _stochastic(report: Report) -> list[str]:
    lines = [
        "stochastic error, [sqrt(ln N(1/n) / n)]^k, up to a constant of the loss",
        f"  {'samples':>12} {'k = 1':>10} {'k = 2':>10}",
    ]
    lines += [f"  {n:>12,} {one:>10.4g} {two:>10.4g}" for n, one, two in report.stochastic]
    return lines


def _indent(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _wrapped(texts: tuple[str, ...], indent: str = "  ") -> list[str]:
    made: list[str] = []
    for text in texts:
        made += textwrap.wrap(text, 98, initial_indent=indent, subsequent_indent=indent)
    return made

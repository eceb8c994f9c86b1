"""The picture: held-out error against learning rate, a panel for each task."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from start_suite.contenders import CONTENDERS, OURS
from start_suite.report import NEAR, Errors, means
from start_suite.runs import RATES

__all__ = ["plot"]

COLUMNS = 4
TOP = 3.0  # errors above, and divergence, are drawn here


def plot(tasks: dict[str, Errors], path: Path, optimiser: str = "adam") -> None:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    names = list(tasks)
    rows = math.ceil(len(names) / COLUMNS)
    figure, axes = plt.subplots(
        rows, COLUMNS, figsize=(3.4 * COLUMNS, 2.6 * rows), squeeze=False, layout="constrained"
    )
    lines: dict[str, Any] = {}
    for axis, name in zip(axes.flat, names, strict=False):
        panel(axis, name, tasks[name], optimiser, lines)
    for axis in axes.flat[len(names) :]:
        axis.axis("off")
    for axis in axes[-1]:
        axis.set_xlabel(f"learning rate of {optimiser}")
    for axis in axes[:, 0]:
        axis.set_ylabel("held-out error")
    figure.legend(lines.values(), lines, loc="outside upper center", ncols=8, frameon=False)
    figure.savefig(path, dpi=90)
    plt.close(figure)


def panel(axis: Any, name: str, errors: Errors, optimiser: str, lines: dict[str, Any]) -> None:
    best = math.inf
    for index, contender in enumerate(CONTENDERS):
        by_rate = means(errors, contender)
        rates = [rate for rate in RATES[optimiser] if (optimiser, rate) in by_rate]
        if not rates:
            continue
        values = [min(by_rate[optimiser, rate], TOP) for rate in rates]
        best = min(best, *values)
        ours = contender == OURS
        style = {"lw": 2.6, "color": "black", "zorder": 5} if ours else {"lw": 1.2}
        (line,) = axis.plot(rates, values, "o-", ms=3.5, **{"color": f"C{index}", **style})
        lines.setdefault(contender, line)
    axis.axhspan(best, NEAR * best, color="0.88", zorder=0)
    axis.axhline(1.0, color="0.6", lw=0.8, ls=":")
    axis.set(title=name, xscale="log", yscale="log")

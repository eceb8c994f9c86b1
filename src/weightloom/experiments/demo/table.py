"""The table of results, once as cells for the page and once as text for the terminal."""

from __future__ import annotations

from weightloom.experiments.demo.run import Result

__all__ = ["HEADER", "cells", "text"]

HEADER = ("", "MSE", "MSE/variance", "primary", "trainable", "time")


def cells(result: Result) -> list[tuple[str, ...]]:
    """One row for each network and each baseline, under `HEADER`."""
    rows: list[tuple[str, ...]] = []
    for one in result.contenders:
        seconds = f"{one.history.seconds:.1f} s"
        if one.stopped_early:
            seconds += f" ({one.history.done} of {one.history.epochs} epochs)"
        rows.append(
            (
                one.name,
                f"{one.mse:.5f}",
                f"{one.ratio:.4f}",
                f"{one.primary:,}",
                f"{one.trainable:,}",
                seconds,
            )
        )
    if result.rival is None:
        rival = result.rival_sizes
        rows.append(
            (
                "embedding network",
                "",
                "",
                f"{rival['primary']:,}",
                f"{rival['trainable']:,}",
                "none",
            )
        )
    for guess in result.baselines:
        rows.append((guess.name, f"{guess.mse:.5f}", f"{guess.ratio:.4f}", "", "", ""))
    return rows


def text(result: Result) -> str:
    rows = [HEADER, *cells(result)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADER))]
    lines = []
    for row in rows:
        first, *rest = (
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join([first, *rest]).rstrip())
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)

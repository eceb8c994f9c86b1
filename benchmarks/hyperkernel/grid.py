"""Regression on every pixel: seconds, memory and residual against images and pixels.

n images of side x side pixels, the hyperkernel (f two hidden layers, g one), ridge 1e-3, to a
residual of 1e-6. Every fit runs in a process of its own (grid_worker.py), so that its CPU
seconds and its peak memory are its own; the products of that process (dgemm and sgemm, measured
before the fit) are the machine's peak beside it.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from workers import run_module

__all__ = ["grid"]

IMAGES, SIDE = 1000, 28
BARS = {"torus": (15.0, None), "kronecker": (60.0, 6e9)}
"""CPU seconds and bytes at 1,000 images x 784 pixels"""


HEADER = (
    f"{'system':10} {'images':>7} {'pixels':>7} {'equations':>10} {'CPU s':>7} {'wall s':>7} "
    f"{'memory':>8} {'residual':>9} {'iterations':>10} {'of dgemm':>9} {'dense matrix':>13}"
)


def grid(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print; returns all numbers."""
    print("\ngrid: float64, ridge 1e-3, tolerance 1e-6")
    print(HEADER)
    runs = []
    for system, images, side in _cases(options):
        runs.append(_run(system, images, side, options))
        print(_row(runs[-1]), flush=True)
        if options.json:  # what was measured is kept if the next one fails
            options.json.write_text(json.dumps({"grid": {"runs": runs}}, indent=1))
    exponents = {system: _exponents(runs, system) for system in BARS}
    for system, exponent in exponents.items():
        print(
            f"{system}: CPU seconds grow as images^{exponent['images']:.2f}, as pixels^"
            f"{exponent['pixels']:.2f} over the sizes above"
        )
    bars = [] if options.quick else _bars(runs)
    print("\n".join(bars))
    if options.plot:
        _draw(runs, exponents, options.plot)
    return {"runs": runs, "exponents": exponents, "bars": bars}


def _cases(options: argparse.Namespace) -> list[tuple[str, int, int]]:
    quick = options.quick
    images, side = ([50, 100, 200], [8, 12]) if quick else ([250, 500, 1000, 2000], [14, 20])
    images = [n for n in images if n <= options.largest]
    middle, full = (100, 12) if quick else (IMAGES, SIDE)
    sizes = [(n, full) for n in images] + [(middle, s) for s in side if s != full]
    cases = [(system, n, s) for system in BARS for n, s in sizes]
    return sorted(cases, key=lambda case: case[1] > IMAGES)  # the longest last


def _run(system: str, images: int, side: int, options: argparse.Namespace) -> dict[str, Any]:
    arguments = (system, images, side, options.threads, options.data)
    done = run_module("hyperkernel.grid_worker", *arguments)
    if done.returncode:
        raise SystemExit(f"{system}, {images} images of side {side}, failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def _row(run: dict[str, Any]) -> str:
    return (
        f"{run['system']:10} {run['images']:7,} {run['pixels']:7,} {run['equations']:10,} "
        f"{run['cpu']:7.1f} {run['seconds']:7.1f} {run['peak'] / 1e9:6.2f}GB "
        f"{run['residual']:9.1e} {run['iterations']:10} {run['share']:8.0%} "
        f"{run['equations'] ** 2 * 8 / 1e12:11.2f}TB"
    )


def _exponents(runs: list[dict[str, Any]], system: str) -> dict[str, float]:
    """Slopes of log CPU seconds, by least squares, at the other number's largest common value."""
    mine = [run for run in runs if run["system"] == system]
    pixels = max(run["pixels"] for run in mine)
    images = min(run["images"] for run in mine if run["pixels"] != pixels)
    return {
        "images": _slope([(r["images"], r["cpu"]) for r in mine if r["pixels"] == pixels]),
        "pixels": _slope([(r["pixels"], r["cpu"]) for r in mine if r["images"] == images]),
    }


def _slope(points: list[tuple[float, float]]) -> float:
    logs = [(math.log(a), math.log(b)) for a, b in points]
    mean_a, mean_b = (sum(column) / len(logs) for column in zip(*logs, strict=True))
    above = sum((a - mean_a) * (b - mean_b) for a, b in logs)
    return above / sum((a - mean_a) ** 2 for a, _ in logs)


def _bars(runs: list[dict[str, Any]]) -> list[str]:
    lines = []
    for run in runs:
        if (run["images"], run["pixels"]) != (IMAGES, SIDE**2):
            continue
        seconds, memory = BARS[run["system"]]
        met = run["cpu"] <= seconds and (memory is None or run["peak"] <= memory)
        limit = f"{seconds:.0f} CPU seconds" + (
            "" if memory is None else f", {memory / 1e9:.0f} GB"
        )
        lines.append(
            f"{'met' if met else 'NOT MET'}: {run['system']} {run['cpu']:.1f} CPU seconds, "
            f"{run['peak'] / 1e9:.1f} GB (bar: {limit}), residual {run['residual']:.1e}"
        )
    return lines


def _draw(runs: list[dict[str, Any]], exponents: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True, layout="constrained")
    for k, system in enumerate(BARS):
        mine = [run for run in runs if run["system"] == system]
        pixels = max(run["pixels"] for run in mine)
        images = min(run["images"] for run in mine if run["pixels"] != pixels)
        sides = {
            "images": [r for r in mine if r["pixels"] == pixels],
            "pixels": [r for r in mine if r["images"] == images],
        }
        for axis, (what, chosen) in zip(axes, sides.items(), strict=True):
            chosen = sorted(chosen, key=lambda r: r[what])
            axis.loglog(
                [r[what] for r in chosen],
                [r["cpu"] for r in chosen],
                "os"[k] + "-",
                label=f"{system}: slope {exponents[system][what]:.2f}",
            )
            fixed = f"{pixels} pixels each" if what == "images" else f"{images:,} images"
            axis.set(xlabel=f"{what} ({fixed})")
            ticks = [r[what] for r in chosen]
            axis.set_xticks(ticks, [f"{t:,}" for t in ticks])
            axis.minorticks_off()
    axes[0].set_ylabel("CPU seconds")
    for axis in axes:
        axis.legend(frameon=False)
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=150)
    print(f"drawn: {path}")

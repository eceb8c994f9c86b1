"""Could linear_operator do what weightloom.linalg does? The systems of regression on every pixel.

torus: every pixel observed, coordinates on a torus: a Cholesky factor for each frequency.
grid: every pixel observed, any coordinates: a sum of Kronecker products, conjugate gradients.
masked: the same with 30 percent of the pixels missing. logdet: its log determinant, estimated.
limit: a dense factor where memory is enough for two and a half matrices.
linear_operator (GPyTorch) gets the same numbers. It has no operator for a torus, so there
it gets weightloom's Fourier basis and a batch of matrices. On grids it gets its own preconditioner
at two ranks, and weightloom's; "as it comes" is without any setting changed.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from linear_systems.worker import CONTENDERS, TOLERANCE
from machine import describe
from tqdm import tqdm
from workers import run_module

OURS = "weightloom"
PARTS = tuple(CONTENDERS)
SIZES = {  # (images, side) for each part
    "quick": dict(zip(PARTS, [(50, 8), (30, 8), (30, 8), (20, 8), (40, 8)], strict=True)),
    "small": dict(zip(PARTS, [(300, 28), (100, 14), (100, 14), (40, 10), (100, 10)], strict=True)),
    "large": dict(zip(PARTS, [(1000, 28), (200, 20), (200, 20), (60, 14), (100, 14)], strict=True)),
}
HEADER = (
    f"{'contender':36} {'CPU s':>8} {'ratio':>7} {'quartiles':>15} {'memory':>9} "
    f"{'residual':>9} {'products':>8}"
)


def main() -> None:
    options = _parser().parse_args()
    unknown = [name for name in options.parts if name not in CONTENDERS]
    if unknown:
        raise SystemExit(f"unknown part {unknown[0]!r}; there are {', '.join(CONTENDERS)}")
    torch.set_num_threads(options.threads)
    record: dict[str, Any] = {"machine": describe()}
    peer = find_spec("linear_operator") is not None
    if peer:
        record["machine"]["linear_operator"] = version("linear_operator")
    else:
        print("linear_operator is not installed and is left out; benchmarks/README.md: Set-up")
    print(" ".join(f"{key}: {value};" for key, value in record["machine"].items()))
    for part in options.parts or CONTENDERS:
        names = [name for name in CONTENDERS[part] if peer or name == OURS]
        record[part] = _measure(part, names, options)
        if options.json:  # what was measured is kept if the next part fails
            options.json.write_text(json.dumps(record, indent=1))


def _measure(part: str, names: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """Every contender once in every round, in mixed order, each time in a process of its own."""
    images, side = SIZES[options.size][part]
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    order = random.Random(0)
    for _ in tqdm(range(options.rounds), desc=part, leave=False):
        for name in order.sample(names, len(names)):
            runs[name].append(_run(part, name, images, side, options))
    print(f"\n{part}: {images:,} images x {side**2:,} pixels, float64, ridge 1e-3", end="")
    print("" if part in TABLES else f", tolerance {TOLERANCE:.0e}")
    rows = TABLES.get(part, _solutions)(runs)
    print("\n".join(rows), flush=True)
    return {"images": images, "pixels": side**2, "runs": runs}


def _run(part: str, name: str, images: int, side: int, options: argparse.Namespace) -> Any:
    arguments = (part, name, images, side, options.threads, options.data)
    done = run_module("linear_systems.worker", *arguments)
    if done.returncode:
        raise SystemExit(f"{part}, {name}, failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def _solutions(runs: dict[str, list[dict[str, Any]]]) -> list[str]:
    rows = [HEADER]
    for name, mine in runs.items():
        ratio, low, high = _ratios(mine, runs[OURS])
        residual, products = max(run["residual"] for run in mine), mine[0].get("iterations", "")
        rows.append(
            f"{name:36} {_median(mine, 'cpu'):8.2f} {ratio:7.2f} {low:6.2f} ..{high:6.2f} "
            f"{_median(mine, 'peak') / 1e6:7.0f}MB {residual:9.1e} {products:>8}"
        )
    certificate = max(run["certificate"] for run in runs[OURS])
    rows.append(f"weightloom reported a residual of {certificate:.1e} by itself")
    return rows


def _logdets(runs: dict[str, list[dict[str, Any]]]) -> list[str]:
    rows = [
        f"{'contender':36} {'CPU s':>8} {'ratio':>7} {'value':>11} {'error':>9} "
        f"{'standard error':>15}"
    ]
    for name, mine in runs.items():
        run = mine[0]
        standard_error = run.get("standard error")
        rows.append(
            f"{name:36} {_median(mine, 'cpu'):8.2f} {_ratios(mine, runs[OURS])[0]:7.2f} "
            f"{run['logdet']:11.1f} {run['logdet'] - run['exact']:9.1f} "
            f"{'none given' if standard_error is None else f'{standard_error:.1f}':>15}"
        )
    rows.append(f"exact, from a dense factor: {runs[OURS][0]['exact']:.1f}")
    return rows


def _outcomes(runs: dict[str, list[dict[str, Any]]]) -> list[str]:
    rows = [f"{'contender':36} {'CPU s':>8}  outcome"]
    for name, mine in runs.items():
        rows.append(f"{name:36} {_median(mine, 'cpu'):8.2f}  {mine[0]['outcome'][:150]}")
    return rows


TABLES = {"logdet": _logdets, "limit": _outcomes}


def _ratios(mine: list[dict[str, Any]], ours: list[dict[str, Any]]) -> tuple[float, float, float]:
    """Median and quartiles, over rounds, of CPU seconds over weightloom's in the same round."""
    ratios = [a["cpu"] / b["cpu"] for a, b in zip(mine, ours, strict=True)]
    if len(ratios) < 2:
        return ratios[0], ratios[0], ratios[0]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return middle, low, high


def _median(runs: list[dict[str, Any]], key: str) -> float:
    return statistics.median(run[key] for run in runs)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(CONTENDERS)} (all)")
    parser.add_argument("--rounds", type=int, default=5, help="of each measurement (default 5)")
    parser.add_argument("--threads", type=int, default=1, help="threads (default 1)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write every number to this file")
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--quick", dest="size", action="store_const", const="quick", help="does it run?"
    )
    size.add_argument(
        "--large", dest="size", action="store_const", const="large", help="10 GB, half an hour"
    )
    parser.set_defaults(size="small")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(__file__).parents[2] / "shared" / "data",
        help="folder with MNIST/raw (default: ../shared/data; random images without)",
    )
    return parser


if __name__ == "__main__":
    main()

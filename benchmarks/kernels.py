"""How fast are the kernels of a hypernetwork? Gram matrices, and regression on every pixel.

gram: the hyperkernel (f two hidden layers, g one) of 1,000 images x 20 random pixels, N = 20,000
points with random Fourier features, as a dense matrix: weightloom against plain numpy, plain torch
and the same assembled from neural-tangents. grid: regression on every pixel of 250 to 2,000 images,
on a torus and with random Fourier features; CPU seconds, memory, how both grow.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from hyperkernel.gram import CONTENDERS, gram
from hyperkernel.grid import grid
from machine import describe

EXAMPLES = """\
examples:
  python benchmarks/kernels.py gram --quick            does it run?
  python benchmarks/kernels.py gram --json gram.json   half an hour, 20 GB; on a quiet machine
  python benchmarks/kernels.py grid --plot grid.png     ten minutes, 14 GB
  python benchmarks/kernels.py gram --only "weightloom" "plain torch"
  python benchmarks/kernels.py gram --neural-tangents ~/.venvs/nt/bin/python
"""


def main() -> None:
    options = _parser().parse_args()
    torch.set_num_threads(options.threads)
    parts = _parts()
    unknown = [name for name in options.parts if name not in parts]
    if unknown:
        raise SystemExit(f"unknown part {unknown[0]!r}; there are {', '.join(parts)}")
    record: dict[str, Any] = {"machine": describe()}
    print(" ".join(f"{key}: {value};" for key, value in record["machine"].items()))
    for name in options.parts or parts:
        record[name] = parts[name](options)
    if options.json:
        options.json.write_text(json.dumps(record, indent=1))


def _parts() -> dict[str, Callable[[argparse.Namespace], dict[str, Any]]]:
    """{name: measurement}; each prints its report and returns all numbers."""
    return {"gram": gram, "grid": grid}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="gram, grid (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="of each measurement (default 3)")
    parser.add_argument("--threads", type=int, default=2, help="threads (default 2)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write every number to this file")
    parser.add_argument(
        "--largest", type=int, default=2000, help="grid: images at most (default 2000: 14 GB)"
    )
    parser.add_argument("--plot", type=Path, metavar="PNG", help="grid: draw cost against size")
    parser.add_argument("--quick", action="store_true", help="small sizes, 2 rounds: does it run?")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", choices=list(CONTENDERS), help="gram: take part"
    )
    parser.add_argument(
        "--neural-tangents",
        metavar="PYTHON",
        default=os.environ.get("WEIGHTLOOM_NEURAL_TANGENTS_PYTHON"),
        help="an interpreter that imports neural_tangents (default: "
        "$WEIGHTLOOM_NEURAL_TANGENTS_PYTHON; left out without)",
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(__file__).parents[2] / "shared" / "data",
        help="folder with MNIST/raw (default: ../shared/data; random images without)",
    )
    return parser


if __name__ == "__main__":
    main()

"""How long does `symmetry.diff` take, in units of reading both files?

Files of random tensors, written to a temporary folder: a checkpoint, a copy of it, and copies in
which two tensors or all tensors changed. The unit is a plain read of both files into one buffer,
block by block. Reads come from the page cache, which is the hardest case: from a disk the unit is
longer and the ratio smaller. Peak memory is that of a process of its own, beyond the imports, in
units of the largest tensor.

    python benchmarks/differences.py                # 1 GB in two files, under a minute
    python benchmarks/differences.py --quick        # 64 MB
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from machine import describe
from safetensors.torch import save_file
from torch import Tensor

from weightloom.symmetry import CheckpointDiff, diff

BUFFER = 1 << 20
#: Prints the peak beyond what was in use before, in kB. Linux: the peak is set back after imports.
MEMORY = """
import sys, torch
from pathlib import Path
from weightloom.symmetry import diff

def line(key):
    text = Path("/proc/self/status").read_text().split(key + ":")[1]
    return int(text.split()[0])

diff({"w": torch.zeros(8, 8)}, {"w": torch.ones(8, 8)})
before = line("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
diff(sys.argv[1], sys.argv[2], progress=False)
print(line("VmHWM") - before)
"""

Change = Callable[[Tensor, torch.Generator], Tensor]


def checkpoint(megabytes: int, side: int) -> dict[str, Tensor]:
    """Square float32 matrices of 4 ``side``^2 bytes each."""
    generator = torch.Generator().manual_seed(0)
    count = max(4, megabytes * 10**6 // (4 * side**2))
    return {
        f"layers.{i}.weight": torch.randn(side, side, generator=generator) for i in range(count)
    }


def low_rank(weight: Tensor, generator: torch.Generator) -> Tensor:
    left, right = (torch.randn(len(weight), 8, generator=generator) for _ in range(2))
    return weight + 0.01 * left @ right.T


def noise(weight: Tensor, generator: torch.Generator) -> Tensor:
    return weight + 0.01 * torch.randn(weight.shape, generator=generator)


def cast(weight: Tensor, generator: torch.Generator) -> Tensor:
    return weight.bfloat16()


def quantised(weight: Tensor, generator: torch.Generator) -> Tensor:
    step = weight.abs().amax(1, keepdim=True) / 127
    return (weight / step).round() * step


def changed(state: dict[str, Tensor], change: Change, count: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    names = list(state)[:count]
    return {n: change(w, generator) if n in names else w for n, w in state.items()}


def read(*paths: Path) -> None:
    """The unit: every byte into memory once."""
    buffer = bytearray(BUFFER)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def compare(first: Path, second: Path, results: list[CheckpointDiff]) -> None:
    results.append(diff(first, second, progress=False))


def seconds(call: Callable[[], Any], rounds: int, clock: Callable[[], float]) -> float:
    times = []
    for _ in range(rounds):
        begin = clock()
        call()
        times.append(clock() - begin)
    return statistics.median(times)


def peak(first: Path, second: Path) -> int:
    """Bytes of memory that the comparison needed at most."""
    command = [sys.executable, "-c", MEMORY, str(first), str(second)]
    return 1024 * int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small files, to see that it runs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cpu-time", action="store_true", help="for a busy machine")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to FILE")
    options = parser.parse_args()
    side, megabytes = (1024, 32) if options.quick else (2048, 512)
    clock = time.process_time if options.cpu_time else time.perf_counter
    state = checkpoint(megabytes, side)
    cases: dict[str, dict[str, Tensor]] = {
        "identical": dict(state),
        "2 tensors of rank 8": changed(state, low_rank, 2),
        "2 tensors with noise": changed(state, noise, 2),
        "all cast to bfloat16": changed(state, cast, len(state)),
        "all quantised, int8": changed(state, quantised, len(state)),
        "all with noise": changed(state, noise, len(state)),
        "all of rank 8": changed(state, low_rank, len(state)),
    }
    print(describe())
    print(f"{len(state)} tensors, {sum(w.nbytes for w in state.values()) / 1e6:.0f} MB a file")
    print(f"\n{'b':<22}{'read both':>10}{'diff':>9}{'ratio':>7}{'memory / largest':>18}")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        first, second = (Path(folder) / f"{name}.safetensors" for name in "ab")
        save_file(state, first)
        for name, other in cases.items():
            save_file(other, second)
            read(first, second)  # both are in the page cache for all that follows
            unit = seconds(partial(read, first, second), options.rounds, clock)
            results: list[CheckpointDiff] = []
            call = partial(compare, first, second, results)
            ours = seconds(call, 1 if name.startswith("all") else options.rounds, clock)
            memory = peak(first, second) / (4 * side**2)
            rows.append({"b": name, "read": unit, "diff": ours, "memory": memory})
            print(f"{name:<22}{unit:>9.2f}s{ours:>8.2f}s{ours / unit:>7.2f}{memory:>18.1f}")
            print(f"  {results[0].headline}")
    if options.json:
        options.json.write_text(json.dumps({"machine": describe(), "rows": rows}, indent=2))


if __name__ == "__main__":
    main()

"""The machine's peak, the operations of a contender, and the memory of a step."""

from __future__ import annotations

import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from entries import Entry
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

__all__ = ["describe", "flops", "peak_memory", "sgemm_peak"]


def describe() -> dict[str, Any]:
    return {
        "cpu": _cpu(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "load average": round(os.getloadavg()[0], 2),  # above about 0.3 at the start: wait
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def sgemm_peak(sizes: tuple[int, ...] = (512, 1024, 2048), repeats: int = 5) -> float:
    """The most single-precision flops per second that this torch reaches on square products."""
    best = 0.0
    for size in sizes:
        a, b = torch.randn(size, size), torch.randn(size, size)
        torch.mm(a, b)
        times = []
        for _ in range(repeats):
            begin = time.perf_counter()
            torch.mm(a, b)
            times.append(time.perf_counter() - begin)
        best = max(best, 2 * size**3 / statistics.median(times))
    return best


def flops(entry: Entry, kind: str) -> int:
    """Floating-point operations in matrix products and convolutions, as torch counts them.

    Counted on the uncompiled model (a compiled one hides its operations). What is elementwise, such
    as multiply and sum, is not counted, so shares of the peak are, if anything, too low.
    """
    eager = getattr(entry.model, "_orig_mod", entry.model)
    plain = Entry(entry.contender, eager, entry.optimizer, entry.data, "")
    counter = FlopCounterMode(
        display=False, custom_mapping={torch.ops.aten.convolution_backward: _conv_backward}
    )
    with counter:
        plain.action(kind)()
    plain.rest()
    return counter.get_total_flops()


def _conv_backward(
    grad_out: Any, x: Any, weight: Any, *args: Any, out_shape: Any = None, **kwargs: Any
) -> int:
    """Each wanted gradient costs what the forward did.

    torch's own formula ignores groups in the gradient of the weight (2.13) and would count a
    grouped convolution as if every group saw every channel.
    """
    wanted = sum(bool(flag) for flag in args[-1][:2])
    return wanted * conv_flop_count(list(x), list(weight), list(grad_out))


def peak_memory(entry: Entry) -> int:
    """Peak of the bytes that a step holds beyond what it started with.

    What it started with are parameters and data; gradients, activations and temporaries count. Read
    from the allocator's own events through the profiler, so the number is exact and repeatable;
    what MKL and oneDNN allocate for themselves behind torch's back is not seen.
    """
    for _ in range(2):
        entry.step()
    entry.rest()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        entry.step()
    entry.rest()
    events = [e for e in run.profiler.kineto_results.events() if e.name() == "[memory]"]
    held, peak = 0, 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    if peak == 0:
        raise RuntimeError("the profiler reported no memory events")
    return peak

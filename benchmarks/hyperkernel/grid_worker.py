"""One fit of grid.py, in a process of its own: SYSTEM IMAGES SIDE THREADS DATA."""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from pathlib import Path

import torch

from hyperkernel.gram import images_of
from weightloom.kernels import FourierFeatures, HyperKernel, HyperKernelRegressor, Tower


def main() -> None:
    system, images, side, threads = sys.argv[1], *(int(a) for a in sys.argv[2:5])
    torch.set_num_threads(threads)
    values = _images(images, side, Path(sys.argv[5]))
    x = side * values / values.norm(dim=1, keepdim=True)
    axis = torch.arange(side, dtype=torch.float64)
    z = torch.cartesian_prod(axis, axis)
    features = (
        FourierFeatures(scale=0.5, period=float(side))
        if system == "torus"
        else FourierFeatures(scale=10 / 28, count=512)
    )
    kernel = HyperKernel(Tower(depth=3), Tower(depth=2), kind="ntk", features=features)
    model = HyperKernelRegressor(kernel, ridge=1e-3, solver=system, tolerance=1e-6)
    peak = _dgemm()
    if images <= 1000:  # untimed: compilers, and memory that the system hands out slowly at first
        HyperKernelRegressor(kernel, ridge=1e-3, solver=system).fit((x, z), values)
    begin, cpu = time.perf_counter(), time.process_time()
    model.fit((x, z), values)
    seconds, spent = time.perf_counter() - begin, time.process_time() - cpu
    solution = model.system_.solution
    print(
        json.dumps(
            {
                "system": system,
                "images": images,
                "pixels": side**2,
                "equations": images * side**2,
                "seconds": seconds,
                "cpu": spent,
                "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                "residual": solution.residual,
                "iterations": solution.iterations,
                "share": _flops(system, images, side**2, solution.iterations) / seconds / peak,
                "images from": str(sys.argv[5]),
            }
        )
    )


def _images(count: int, side: int, data: Path) -> torch.Tensor:
    """The first images, in [0, 1], shrunk to side x side by area averages: [count, side^2]."""
    images, _ = images_of(count, data)
    pixels = torch.as_tensor(images, dtype=torch.float64).view(count, 1, 28, 28)
    return torch.nn.functional.interpolate(pixels, (side, side), mode="area").view(count, -1)


def _dgemm() -> float:
    """Double-precision flops per second of a product of 2,000."""
    a = torch.rand(2000, 2000, dtype=torch.float64)
    times = []
    for _ in range(4):
        begin = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - begin)
    return 2 * 2000**3 / statistics.median(times)


def _flops(system: str, n: int, P: int, iterations: int) -> float:
    """Operations of the factors and of the products in each iteration; others are not counted."""
    if system == "torus":
        side = round(P**0.5)
        return (side // 2 + 1) ** 2 * n**3 / 3
    return P * n**3 / 3 + iterations * 2 * 12 * n * P * (n + P)


if __name__ == "__main__":
    main()

"""Why weightloom.kernels.fused uses numba: a comparison with torch in blocks and torch.compile.

From tables over distinct images and pixels to the Gram matrix (f depth 3, g depth 2, ReLU,
hyperkernel), upper half computed, lower mirrored, the same for all. CPU seconds count: with two
threads wall-clock time is half of it, and CPU time suffers less from neighbours on the machine.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from machine import describe
from timing import Times, median_ratio
from torch import Tensor

from weightloom.kernels import HyperKernel, Tower, fused
from weightloom.kernels.covariance import ConditionPart, Covariance
from weightloom.linalg.memory import empty


@dataclass(frozen=True)
class Tables:
    kernel: HyperKernel
    condition: ConditionPart  # [u, u]
    points: Covariance  # [p, p]
    image: Tensor  # [N]
    pixel: Tensor  # [N]


def make(images: int, pixels: int) -> Tables:
    generator = torch.Generator().manual_seed(0)
    kernel = HyperKernel(Tower(3), Tower(2))
    x = torch.rand(images, 784, dtype=torch.float64, generator=generator)
    z = torch.randn(784, 256, dtype=torch.float64, generator=generator)
    return Tables(
        kernel,
        kernel.condition_part(x),
        kernel.point_part(z),
        torch.arange(images).repeat_interleave(pixels),
        torch.randint(0, 784, (images * pixels,), generator=generator),
    )


def numba_loops(t: Tables) -> Tensor:
    where = t.image, t.pixel
    out = empty((len(t.image), len(t.image)), torch.float64)
    return fused.join(t.kernel, t.condition, t.points, where, where, out, symmetric=True)


def entries(shared: Tensor, tangent: Tensor, gap: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """The same formula as the loops, with torch's own asin and sin."""
    g = shared + gap * (1 - shared)
    t = 2 * torch.asin(torch.sqrt(g / 2))
    value = (torch.sin(t) + 2 * (1 - g) * (math.pi - t)) / math.pi
    return value * tangent * left[:, None] * right


def gathered(
    shared: Tensor, tangent: Tensor, gap: Tensor, scale: Tensor, image: Tensor, pixel: Tensor,
    image2: Tensor, pixel2: Tensor, scale2: Tensor,
) -> Tensor:  # fmt: skip
    rows, columns = (image[:, None], image2), (pixel[:, None], pixel2)
    return entries(shared[rows], tangent[rows], gap[columns], scale, scale2)


def blocks(t: Tables, side: int, function: Callable[..., Tensor]) -> Tensor:
    """function on blocks of the upper half, one after the other."""
    cov, tangent = t.condition.covariance, t.condition.ntk
    scale = (cov.left.flatten()[t.image] * t.points.left.flatten()[t.pixel]).sqrt()
    N = len(t.image)
    out = empty((N, N), torch.float64)
    parts = [slice(start, min(start + side, N)) for start in range(0, N, side)]
    tables = cov.gap, tangent, t.points.gap
    for a, i in enumerate(parts):
        mine = scale[i], t.image[i], t.pixel[i]
        for j in parts[a:]:
            block = function(*tables, *mine, t.image[j], t.pixel[j], scale[j])
            out[i, j] = block
            if i != j:
                out[j, i] = block.mT
    return out


def compiled() -> Callable[..., Tensor]:
    return torch.compile(gathered, dynamic=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=384, help="x 20 pixels (default 384)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(" ".join(f"{key}: {value};" for key, value in describe().items()))
    t = make(options.images, 20)
    compiled_function = compiled()
    ways: dict[str, Callable[[], Tensor]] = {
        "numba": lambda: numba_loops(t),
        "torch, blocks of 128": lambda: blocks(t, 128, gathered),
        "torch, blocks of 256": lambda: blocks(t, 256, gathered),
        "torch, blocks of 512": lambda: blocks(t, 512, gathered),
        "torch.compile, blocks of 256": lambda: blocks(t, 256, compiled_function),
        "torch.compile, blocks of 512": lambda: blocks(t, 512, compiled_function),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    reference = numba_loops(t)
    for number in range(options.rounds + 1):  # the first is not counted: compiling
        for name in random.Random(number).sample(list(ways), len(ways)):
            begin, used = time.perf_counter(), time.process_time()
            result = ways[name]()
            if number:
                seconds[name].append(time.perf_counter() - begin)
                cpu[name].append(time.process_time() - used)
            else:
                torch.testing.assert_close(result, reference, rtol=1e-13, atol=0)
    print(f"N = {len(t.image):,}: median seconds, CPU seconds, ratio of CPU seconds to numba's")
    for name in ways:
        times, used_times = Times(tuple(seconds[name])), Times(tuple(cpu[name]))
        ratio = median_ratio(used_times, Times(tuple(cpu["numba"])))
        print(
            f"  {name:<30}{times.median:7.2f}{used_times.median:7.2f}"
            f"{ratio[0]:7.1f}  [{ratio[1]:.1f} .. {ratio[2]:.1f}]"
        )


if __name__ == "__main__":
    main()

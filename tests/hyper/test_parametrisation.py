"""The default start: steps move a generated network as far, whatever its features and its width.

Coordinate checks, as those of muP: how far the outputs are from where they were after 1, 2 and 10
steps, over numbers of features, widths, depths and heads. docs/initialisation.md has the reasons.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor, nn

import weightloom as wl
from weightloom.hyper.heads import reach

AFTER = (1, 2, 10)
HEADS: dict[str, Callable[[], wl.Head]] = {
    "full": wl.FullHead,
    "low rank": lambda: wl.LowRankHead(4),
    "chunked": wl.ChunkedHead,
    "per layer": wl.PerLayerHead,
    "delta": wl.DeltaHead,
    "delta, rank 4": lambda: wl.DeltaHead(4),
    "adapter": lambda: wl.AdapterHead(4),
    "adapter, width 64": lambda: wl.AdapterHead(4, 64),
}


def problem() -> tuple[Tensor, Tensor, Tensor]:
    """16 conditions, 32 points of each, and targets that depend on both."""
    random = torch.Generator().manual_seed(3)
    condition = torch.randn(16, 8, generator=random)
    x = 2 * torch.rand(16, 32, 2, generator=random) - 1
    phase, height, slope = (condition[:, None, i : i + 1] for i in range(3))
    return x, condition, torch.sin(3 * x[..., :1] + phase) * height + x[..., 1:] * slope


def built(width: int = 32, depth: int = 3, k: int = 64, head: str = "full") -> wl.HyperNetwork:
    primary = wl.mlp([2, *[width] * (depth - 1), 1])
    encoder = wl.mlp([8, 64, k], last_activation=True)
    return wl.HyperNetwork(primary, encoder, HEADS[head]())


def moved(
    forward: Callable[[], Tensor], parameters: Iterable[nn.Parameter], optimiser: str
) -> list[float]:
    """How far the outputs are from the start, rms, after some steps."""
    learned = [parameter for parameter in parameters if parameter.requires_grad]
    adam = optimiser == "adam"
    steps = torch.optim.Adam(learned, 1e-3) if adam else torch.optim.SGD(learned, 1e-2)
    target = problem()[2]
    start, distances = forward().detach(), []
    for step in range(1, AFTER[-1] + 1):
        steps.zero_grad()
        (forward() - target).square().mean().backward()
        steps.step()
        if step in AFTER:
            distances.append((forward().detach() - start).square().mean().sqrt().item())
    return distances


def distances(optimiser: str = "adam", seeds: int = 3, **options: object) -> list[float]:
    """Of the hypernetwork: means over seeds."""
    x, condition, _ = problem()
    runs = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        hyper = built(**options)  # type: ignore[arg-type]
        runs.append(moved(lambda h=hyper: h(x, condition), hyper.parameters(), optimiser))
    return torch.tensor(runs).mean(0).tolist()


def distances_alone(optimiser: str = "adam", seeds: int = 3, **options: int) -> list[float]:
    """Of its primary, trained by itself on all conditions."""
    x = problem()[0]
    runs = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        primary = copy.deepcopy(wl.mlp([2, *[options["width"]] * (options["depth"] - 1), 1]))
        runs.append(moved(lambda p=primary: p(x), primary.parameters(), optimiser))
    return torch.tensor(runs).mean(0).tolist()


def spread(rows: list[list[float]]) -> float:
    """The largest ratio between settings, at any number of steps."""
    return max(max(column) / min(column) for column in zip(*rows, strict=True))


def ratios(first: list[float], second: list[float]) -> list[float]:
    return [a / b for a, b in zip(first, second, strict=True)]

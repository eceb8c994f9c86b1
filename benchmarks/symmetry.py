"""How fast, and how surely, are two checkpoints found to be the same function?

speed: deciding equivalence of a network and a disguised copy (units exchanged, rescaled or turned
around), against plain weight matching (git re-basin's algorithm, by hand, with SciPy's assignment)
and against the machine: one product per layer with a batch of 64 inputs, float32. rates: how many
of many disguised copies are recognised, and how many copies with one weight changed are taken for
the same, per activation and depth.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import describe
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from weightloom.symmetry import equivalent, random_equivalent

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "gelu": nn.GELU,
}
BATCH = 64


def network(width: int, depth: int, activation: str, ends: tuple[int, int] = (32, 10)) -> nn.Module:
    """``depth`` hidden layers of one width, PyTorch's default weights."""
    sizes = [ends[0], *[width] * depth, ends[1]]
    layers: list[nn.Module] = []
    for k, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        layers += [nn.Linear(inputs, outputs)] + ([ACTIVATIONS[activation]()] if k < depth else [])
    return nn.Sequential(*layers)


def weight_matching(a: nn.Module, b: nn.Module, sweeps: int = 50) -> list[np.ndarray]:
    """Exchanges of b's hidden units with the largest inner product with a's weights, by descent."""
    first, second = ([m for m in net.modules() if isinstance(m, nn.Linear)] for net in (a, b))
    order = [torch.arange(layer.out_features) for layer in first[:-1]]
    for _ in range(sweeps):
        moved = False
        for k in torch.randperm(len(order)).tolist():
            incoming = second[k].weight if k == 0 else second[k].weight[:, order[k - 1]]
            last = k + 1 == len(order)
            after = second[k + 1].weight if last else second[k + 1].weight[order[k + 1]]
            score = first[k].weight @ incoming.T + torch.outer(first[k].bias, second[k].bias)
            score = score + first[k + 1].weight.T @ after
            _, found = linear_sum_assignment(score.detach().numpy(), maximize=True)
            moved |= not np.array_equal(found, order[k].numpy())
            order[k] = torch.from_numpy(found)
        if not moved:
            break
    return [one.numpy() for one in order]


def matches(a: nn.Module, b: nn.Module) -> bool:
    """Whether weight matching brings the hidden weights together, to float32's rounding."""
    first, second = ([m for m in net.modules() if isinstance(m, nn.Linear)] for net in (a, b))
    order = [torch.from_numpy(one) for one in weight_matching(a, b)]
    for k, (mine, other) in enumerate(zip(first, second, strict=True)):
        weight = other.weight if k == len(order) else other.weight[order[k]]
        weight = weight if k == 0 else weight[:, order[k - 1]]
        if not torch.allclose(mine.weight, weight, rtol=1e-4, atol=1e-6):
            return False
    return True


def products(net: nn.Module) -> Callable[[], Tensor]:
    """One matrix product per layer with a batch of inputs, activations left out."""
    layers = [m for m in net.modules() if isinstance(m, nn.Linear)]
    inputs = [torch.randn(BATCH, layer.in_features) for layer in layers]
    return lambda: [x @ m.weight.T for x, m in zip(inputs, layers, strict=True)][-1]


def seconds(call: Callable[[], Any], repeats: int) -> float:
    call()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def speed(options: argparse.Namespace) -> list[dict[str, Any]]:
    sizes = [(128, 4), (256, 2)] if options.quick else [(1024, 4), (4096, 2), (4096, 8)]
    rows = []
    print(
        f"\n{'width x depth':>14} {'parameters':>12} {'equivalent':>11} {'products':>9} "
        f"{'ratio':>6} {'weight matching':>16} {'ratio':>7}"
    )
    for width, depth in sizes:
        net = network(width, depth, "relu")
        copy = random_equivalent(net, torch.Generator().manual_seed(1))
        count = sum(p.numel() for p in net.parameters())
        if not equivalent(net, copy):
            raise SystemExit(f"{width} x {depth}: a copy was not recognised; nothing to time")
        ours = seconds(lambda net=net, copy=copy: equivalent(net, copy), options.rounds)
        plain = seconds(products(net), options.rounds)
        # One sweep over wide networks takes minutes: only where it is the bar.
        peer = None
        if width <= 1024:
            begin = time.perf_counter()
            weight_matching(net, copy)
            peer = time.perf_counter() - begin
        rows.append(
            {
                "width": width,
                "depth": depth,
                "equivalent": ours,
                "products": plain,
                "weight matching": peer,
            }
        )
        shown = ("", "") if peer is None else (f"{peer:.2f}s", f"{peer / ours:.1f}")
        print(
            f"{f'{width} x {depth}':>14} {count:12,} {ours:10.3f}s {plain:8.3f}s "
            f"{ours / plain:6.1f} {shown[0]:>16} {shown[1]:>7}",
            flush=True,
        )
    return rows


def rates(options: argparse.Namespace) -> list[dict[str, Any]]:
    copies, width = (10, 16) if options.quick else (options.copies, 32)
    rows = []
    print(
        f"\n{'activation':>12} {'depth':>6} {'copies':>7} {'recognised':>11} "
        f"{'changed, called same':>21} {'weight matching':>16}"
    )
    for activation in ACTIVATIONS:
        for depth in (1, 2, 4, 8):
            found = wrong = matched = 0
            for seed in range(copies):
                torch.manual_seed(seed)
                net = network(width, depth, activation, (8, 4))
                copy = random_equivalent(net, torch.Generator().manual_seed(seed))
                found += bool(equivalent(net, copy))
                matched += matches(net, copy)
                with torch.no_grad():
                    layer = copy[2 * (seed % depth)]
                    layer.weight[seed % width, 0] += 1e-2 * layer.weight.norm(dim=1)[seed % width]
                wrong += bool(equivalent(net, copy))
            rows.append(
                {
                    "activation": activation,
                    "depth": depth,
                    "copies": copies,
                    "recognised": found,
                    "wrong": wrong,
                    "weight matching": matched,
                }
            )
            print(
                f"{activation:>12} {depth:6} {copies:7} {found / copies:11.1%} {wrong:21} "
                f"{matched / copies:16.1%}",
                flush=True,
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="speed, rates (default: both)")
    parser.add_argument("--rounds", type=int, default=5, help="timed calls (default 5)")
    parser.add_argument("--copies", type=int, default=200, help="rates: copies (default 200)")
    parser.add_argument("--threads", type=int, default=2, help="threads (default 2)")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run?")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write every number to this file")
    options = parser.parse_args()
    parts = {"speed": speed, "rates": rates}
    unknown = [name for name in options.parts if name not in parts]
    if unknown:
        raise SystemExit(f"unknown part {unknown[0]!r}; there are {', '.join(parts)}")
    torch.set_num_threads(options.threads)
    record: dict[str, Any] = {"machine": describe()}
    print(" ".join(f"{key}: {value};" for key, value in record["machine"].items()))
    with torch.no_grad():
        for name in options.parts or parts:
            record[name] = parts[name](options)
    if options.json:
        options.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()

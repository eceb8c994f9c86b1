"""How fast and how reliably are two checkpoints recognised as the same function?

speed: deciding equivalence of a network and a disguised copy (units permuted, rescaled or turned
around), against plain weight matching (git re-basin's algorithm, by hand, with SciPy's assignment),
rebasin, and the machine: one product per layer with a batch of 64 inputs, float32. rates: how many
of many disguised copies are recognised, and how many copies with one weight changed are taken for
the same, per activation and depth. For the peers: in how many cases they find the right
permutations, and in how many the weights come together, which is all that their users can see.
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

import torch
from machine import describe
from symmetry_peers import Peer, installed, permutations_found, together
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


def speed(options: argparse.Namespace, peers: dict[str, Peer]) -> list[dict[str, Any]]:
    sizes = [(128, 4), (256, 2)] if options.quick else [(1024, 4), (4096, 2), (4096, 8)]
    rows = []
    heads = "".join(f" {name:>16} {'ratio':>7}" for name in peers)
    print(
        f"\n{'width x depth':>14} {'parameters':>12} {'equivalent':>11} {'products':>9} "
        f"{'ratio':>6}{heads}"
    )
    for width, depth in sizes:
        net = network(width, depth, "relu")
        copy = random_equivalent(net, torch.Generator().manual_seed(1))
        count = sum(p.numel() for p in net.parameters())
        if not equivalent(net, copy).same:
            raise SystemExit(f"{width} x {depth}: a copy was not recognised; nothing to time")
        ours = seconds(lambda net=net, copy=copy: equivalent(net, copy), options.rounds)
        plain = seconds(products(net), options.rounds)
        row = {"width": width, "depth": depth, "equivalent": ours, "products": plain}
        columns = ""
        for name, peer in peers.items():
            if width > 1024:  # one sweep over wide networks takes minutes: only where it is the bar
                row[name], columns = None, columns + f" {'':>16} {'':>7}"
                continue
            begin = time.perf_counter()
            peer(net, copy)
            row[name] = time.perf_counter() - begin
            columns += f" {row[name]:15.2f}s {row[name] / ours:7.1f}"
        rows.append(row)
        print(
            f"{f'{width} x {depth}':>14} {count:12,} {ours:10.3f}s {plain:8.3f}s "
            f"{ours / plain:6.1f}{columns}",
            flush=True,
        )
    return rows


def rates(options: argparse.Namespace, peers: dict[str, Peer]) -> list[dict[str, Any]]:
    copies, width = (4, 16) if options.quick else (options.copies, 32)
    tried = min(copies, options.peer_copies)
    depths = (1, 2) if options.quick else (1, 2, 4, 8)
    rows = []
    heads = "".join(f" {name + ': permutations':>30} {'weights':>8}" for name in peers)
    print(
        f"\n{'activation':>12} {'depth':>6} {'copies':>7} {'recognised':>11} "
        f"{'changed, called same':>21}{heads}"
    )
    for activation, depth in itertools.product(ACTIVATIONS, depths):
        row = rate(activation, depth, width, copies, peers, tried, options.scale)
        rows.append(row)
        shares = "".join(
            f" {row[name]['permutations'] / tried:30.1%} {row[name]['weights'] / tried:8.1%}"
            for name in peers
        )
        print(
            f"{activation:>12} {depth:6} {copies:7} {row['recognised'] / copies:11.1%} "
            f"{row['wrong']:21}{shares}",
            flush=True,
        )
    return rows


def rate(
    activation: str,
    depth: int,
    width: int,
    copies: int,
    peers: dict[str, Peer],
    tried: int,
    scale: float,
) -> dict[str, Any]:
    """How many of the disguised copies are recognised; peers get the first ones."""
    row: dict[str, Any] = {"activation": activation, "depth": depth, "copies": copies}
    row |= {"peers tried on": tried, "scale": scale}
    row |= {"recognised": 0, "wrong": 0}
    row |= {name: {"permutations": 0, "weights": 0} for name in peers}
    for seed in range(copies):
        torch.manual_seed(seed)
        net = network(width, depth, activation, (8, 4))
        generator = torch.Generator().manual_seed(seed)
        copy = random_equivalent(net, generator, (1 / scale, scale))
        row["recognised"] += equivalent(net, copy).same
        for name, peer in peers.items() if seed < tried else ():
            near = peer(net, copy)
            row[name]["permutations"] += permutations_found(net, near)
            row[name]["weights"] += together(net, near)
        layer = copy[2 * (seed % depth)]
        layer.weight[seed % width, 0] += 1e-2 * layer.weight.norm(dim=1)[seed % width]
        row["wrong"] += equivalent(net, copy).same
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="speed, rates (default: both)")
    parser.add_argument("--rounds", type=int, default=5, help="timed calls (default 5)")
    parser.add_argument("--copies", type=int, default=200, help="rates: copies (default 200)")
    parser.add_argument(
        "--peer-copies", type=int, default=40, help="rates: copies that peers get (default 40)"
    )
    parser.add_argument(
        "--scale",
        type=float,
        default=10.0,
        help="rates: copies of ReLU networks are rescaled by up to this factor (default 10)",
    )
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
    peers = installed()
    with torch.no_grad():
        for name in options.parts or parts:
            record[name] = parts[name](options, peers)
    if options.json:
        options.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()

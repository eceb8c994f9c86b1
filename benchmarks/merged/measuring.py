"""Losses on the line between two networks, for every contender; what is finished is kept."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from merged.contenders import Contender
from merged.networks import TASKS, images, trained
from weightloom.files import atomic_write
from weightloom.symmetry import align, interpolate, merge, repair

__all__ = ["MATCHED", "POINTS", "Store", "measure_merge", "measure_pairs"]

MATCHED = 1000  # training images that units are matched and statistics measured on
TESTED = 1000  # test images that losses are measured on
POINTS = (0.0, 0.25, 0.5, 0.75, 1.0)
BATCH = 250


class Store:
    """Numbers by key, in a JSON file that is written after each of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def get(self, key: str, compute: Callable[[], Any]) -> Any:
        if key not in self.values:
            self.values[key] = compute()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(self.path) as temporary:
                temporary.write_text(json.dumps(self.values, indent=1))
        return self.values[key]


@torch.no_grad()
def loss_on(network: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    parts = [network(rows) for rows in inputs.split(500)]
    return float(F.cross_entropy(torch.cat(parts), labels))


def measure_pairs(
    name: str,
    seeds: Sequence[int],
    folder: Path,
    share: float,
    store: Store,
    peers: dict[str, Contender],
) -> dict[str, list[dict[str, Any]]]:
    """For each contender the results of all pairs of seeds, in the same order."""
    results: dict[str, list[dict[str, Any]]] = {}
    for pair in combinations(seeds, 2):
        a, b = (trained(name, seed, folder, share) for seed in pair)
        line = Line(name, a, b)
        for contender, run in line.contenders(peers).items():
            key = f"{name} | {share:g} | {pair[0]}-{pair[1]} | {contender}"
            results.setdefault(contender, []).append(store.get(key, run))
            print(f"{key}: {results[contender][-1]['barrier']:.4f}", flush=True)
    return results


class Line:
    """One pair of networks and the images that it is measured on."""

    def __init__(self, name: str, a: nn.Module, b: nn.Module) -> None:
        data = images(TASKS[name].data)
        self.a, self.b = a, b
        self.matched, self.labels = data.train[:MATCHED], data.labels[:MATCHED]
        self.test, self.test_labels = data.test[:TESTED], data.test_labels[:TESTED]
        self.normed = any(isinstance(layer, nn.BatchNorm2d) for layer in a.modules())

    def contenders(self, peers: dict[str, Contender]) -> dict[str, Callable[[], dict[str, Any]]]:
        """What is measured, by name. "+ reset": BatchNorm's statistics are measured again."""
        runs: dict[str, Callable[[], dict[str, Any]]] = {}
        for name, peer in peers.items():
            runs[name] = lambda peer=peer: self.peer(peer, False)
            if self.normed:
                runs[f"{name} + reset"] = lambda peer=peer: self.peer(peer, True)
        runs["weightloom, not repaired"] = lambda: self.ours(False)
        runs["weightloom"] = lambda: self.ours(True)
        return runs

    def peer(self, peer: Contender, reset: bool) -> dict[str, Any]:
        begin = time.perf_counter()
        moved = peer(self.a, self.b, self.matched)
        seconds = time.perf_counter() - begin

        def between(t: float, start: nn.Module = self.a) -> nn.Module:
            network = interpolate(start, moved, t)
            if reset:
                update_bn([(rows,) for rows in self.matched.split(BATCH)], network)
            return network.eval()

        with torch.no_grad():  # b itself, and b with its units permuted
            own, permuted = between(0.0, self.b), between(1.0)
            gap = float((own(self.test[:100]) - permuted(self.test[:100])).abs().max())
        return self.curve(between, moved, seconds) | {"outputs changed by": gap}

    def ours(self, repaired: bool) -> dict[str, Any]:
        """align, chosen by the loss on the training images that units are matched on."""
        batches = list(self.matched.split(BATCH))
        begin = time.perf_counter()
        result = align(
            self.a, self.b, batches, repair=repaired,
            loss=lambda network: loss_on(network, self.matched, self.labels),
        )  # fmt: skip
        seconds = time.perf_counter() - begin

        def between(t: float) -> nn.Module:
            network = interpolate(self.a, result.module, t)
            if not repaired:
                return network
            return repair(network, [self.a, result.module], batches, weights=[1 - t, t])

        curve = self.curve(between, result.module, seconds)
        return curve | {"method": result.method, "scores": result.scores}

    def curve(
        self, between: Callable[[float], nn.Module], moved: nn.Module, seconds: float
    ) -> dict[str, Any]:
        """Test losses at all points (the ends are the networks themselves), and their height."""
        ends = {0.0: self.a, 1.0: self.b}
        losses = [loss_on(ends.get(t) or between(t), self.test, self.test_labels) for t in POINTS]
        line = [(1 - t) * losses[0] + t * losses[-1] for t in POINTS]
        height = max(0.0, *(loss - own for loss, own in zip(losses, line, strict=True)))
        return {"losses": losses, "barrier": height, "seconds": seconds}


def measure_merge(
    name: str, seeds: Sequence[int], folder: Path, share: float, store: Store
) -> dict[str, Any]:
    """All networks of a task in one: test losses before, averaged as given, and merged."""

    def run() -> dict[str, Any]:
        networks = [trained(name, seed, folder, share) for seed in seeds]
        line = Line(name, networks[0], networks[1])
        begin = time.perf_counter()
        result = merge(
            networks, list(line.matched.split(BATCH)),
            loss=lambda network: loss_on(network, line.matched, line.labels),
        )  # fmt: skip
        seconds = time.perf_counter() - begin
        own = [loss_on(network, line.test, line.test_labels) for network in networks]
        naive = interpolate(interpolate(networks[0], networks[1], 1 / 2), networks[2], 1 / 3)
        return {
            "losses": own,
            "naive": loss_on(naive, line.test, line.test_labels),
            "merged": loss_on(result.module, line.test, line.test_labels),
            "method": result.method,
            "seconds": seconds,
        }

    return store.get(f"{name} | {share:g} | merge of {len(seeds)}", run)

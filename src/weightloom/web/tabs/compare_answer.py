"""What two saved networks have in common, as plain values; runs in the worker."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weightloom.bounds import report
from weightloom.errors import ShapeError, UnsupportedModuleError
from weightloom.symmetry import Element, Equivalence, loss_barrier, random_equivalent, reduce
from weightloom.symmetry.examine import CONVOLUTIONAL, as_dict, examine
from weightloom.symmetry.files import Loaded, load_by_names, same_function

__all__ = ["EXAMPLES", "answer_for", "bounds_of", "example", "reduced_file"]

#: Units of one layer whose exchange is sent; removed units that are named.
MOST_UNITS, MOST_LINES = 64, 40
#: Mixing two networks runs each of them 22 times; beyond this it is left out.
MOST_MIXED = 300_000
PROBES = 256

File = tuple[Path, str]
"""where it is, and what the reader calls it"""


def answer_for(files: list[File], activation: str | None) -> dict[str, Any]:
    """Everything about one network, or about two and how they belong together."""
    loaded: list[Loaded] = []
    for path, label in files:
        # Layers are compared by position: "fc1" in one file may be "0" in the other.
        names = loaded[0].layers if loaded else None
        loaded.append(load_by_names(path, activation, names, label))
    verdict = same_function(loaded[0], loaded[1]) if len(loaded) == 2 else None
    # Bounds take seconds where the rest takes none: `bounds_of` is asked for them afterwards.
    found = [examine(one, "") for one in loaded]
    answer = as_dict(found, verdict)
    for shown, one in zip(answer["networks"], found, strict=True):
        shown["name"] = shown.pop("path")
        shown["not_available"].pop("bounds")
        shown["activation"] = one.loaded.activation
        shown["removed"] = _removed(one.loaded.module) if one.removable else []
    if verdict is not None:
        answer["matched"] = _matched(verdict.element)
        answer["mixed"] = _mixed(loaded[0], loaded[1], verdict)
    return answer


def bounds_of(file: File, activation: str | None) -> dict[str, Any]:
    """Lipschitz constants and capacity of one network; ``reason`` where there are none."""
    path, label = file
    loaded = load_by_names(path, activation, label=label)
    found = examine(loaded, CONVOLUTIONAL if loaded.convolutional else report)
    (shown,) = as_dict([found], None)["networks"]
    return {"bounds": shown["bounds"], "reason": shown["not_available"].get("bounds")}


def _removed(module: nn.Module) -> list[str]:
    lines = [str(one) for one in reduce(module).log]
    more = len(lines) - MOST_LINES
    return lines[:MOST_LINES] + ([f"and {more} more"] if more > 0 else [])


def _matched(element: Element | None) -> list[dict[str, Any]]:
    """For each layer of hidden units: which unit of the second is which of the first, and its
    scale."""
    if element is None:
        return []
    rows = []
    for space, order in element.permutation.items():
        factor = element.factor.get(space)
        rows.append(
            {
                "layer": space,
                "units": len(order),
                "moved": int((order != torch.arange(len(order))).sum()),
                "permutation": order[:MOST_UNITS].tolist(),
                "factor": None if factor is None else _plain(factor[:MOST_UNITS]),
            }
        )
    return rows


def _mixed(a: Loaded, b: Loaded, verdict: Equivalence) -> dict[str, Any] | None:
    """How far outputs on the line from one set of weights to the other are from the first's.

    As given, and with the second aligned to the first: a disguise shows as a hill that is gone
    after alignment. None where the two cannot be mixed, or it would take long.
    """
    size = sum(p.numel() for p in a.module.parameters())
    first = next((part for part in a.module.modules() if isinstance(part, nn.Linear)), None)
    if verdict.reduced or a.convolutional or b.convolutional or first is None or size > MOST_MIXED:
        return None
    generator = torch.Generator().manual_seed(0)
    probes = torch.randn(PROBES, first.in_features, generator=generator).to(first.weight)
    with torch.no_grad():
        wanted = a.module(probes)

    @torch.no_grad()
    def away(network: nn.Module) -> float:
        return float((network(probes) - wanted).double().square().mean())

    try:
        found = loss_barrier(a.module, b.module, away, steps=11)
    except (ShapeError, UnsupportedModuleError):  # another architecture: nothing to mix
        return None
    return {
        "t": list(found.ts),
        "given": [_number(each) for each in found.naive_losses],
        "aligned": [_number(each) for each in found.losses],
        "distance_before": _number(found.alignment.distance_before),
        "distance_after": _number(found.alignment.distance_after),
        "method": found.alignment.method,
        "probes": PROBES,
    }


def reduced_file(file: File, activation: str | None) -> bytes:
    """The network without units that can go, as a safetensors file."""
    from safetensors.torch import save

    path, label = file
    loaded = load_by_names(path, activation, label=label)
    small = reduce(loaded.module).module
    state = {name: tensor.contiguous() for name, tensor in small.state_dict().items()}
    return save(state, {"activation": loaded.activation or "relu"})


def _plain(values: Tensor) -> list[float | None]:
    return [_number(float(f"{value:.6g}")) for value in values.double().tolist()]


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


# -- an example to try ---------------------------------------------------------------------------

#: What can be tried without files of one's own: name, and what the second network is.
EXAMPLES = {
    "disguised": "the same: units exchanged, rescaled",
    "cloned": "the same: a clone and an idle unit more",
    "changed": "almost the same: one weight differs",
}


def example(kind: str) -> tuple[bytes, bytes]:
    """Two safetensors files: a small network and what ``kind`` makes of it."""
    from safetensors.torch import save

    generator = torch.Generator().manual_seed(1)
    first = _network([3, 8, 6, 2], generator)
    wide = _with_clones(first) if kind == "cloned" else first
    second = random_equivalent(wide, generator)
    if kind == "changed":
        with torch.no_grad():
            next(second.parameters())[2, 1] += 0.05
    made = (
        save({k: v.contiguous() for k, v in net.state_dict().items()}, {"activation": "relu"})
        for net in (first, second)
    )
    one, other = made
    return one, other


def _network(widths: list[int], generator: torch.Generator) -> nn.Sequential:
    layers: list[nn.Module] = []
    for into, out in itertools.pairwise(widths):
        layer = nn.Linear(into, out, dtype=torch.float64)
        with torch.no_grad():
            layer.weight.normal_(0, math.sqrt(2 / into), generator=generator)
            layer.bias.normal_(0, 0.5, generator=generator)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _with_clones(network: nn.Sequential) -> nn.Sequential:
    """The same function with two more units: half of unit 0 again, and one that nobody reads."""
    old = {name: tensor.detach() for name, tensor in network.state_dict().items()}
    wide = nn.Sequential(nn.Linear(3, 10), nn.ReLU(), nn.Linear(10, 6), nn.ReLU(), nn.Linear(6, 2))
    wide = wide.double()
    out = old["2.weight"]
    with torch.no_grad():
        for name in ("0.weight", "0.bias"):
            tensor = old[name]
            more = torch.cat([tensor[:1], tensor[3:4] - 1])
            wide.get_parameter(name).copy_(torch.cat([tensor, more]))
        split = torch.cat([out[:, :1] / 2, out[:, 1:], out[:, :1] / 2, 0 * out[:, :1]], 1)
        wide.get_parameter("2.weight").copy_(split)
        for name in ("2.bias", "4.weight", "4.bias"):
            wide.get_parameter(name).copy_(old[name])
    return wide

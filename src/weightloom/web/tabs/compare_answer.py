"""Answers of *Same network?* as plain values. Runs in the worker, because it imports torch."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weightloom.errors import ConfigError, ShapeError, UnsupportedModuleError
from weightloom.hyper.saving.described import about
from weightloom.symmetry import Element, Equivalence, loss_barrier, random_equivalent, reduce
from weightloom.symmetry.files.checkpoints import (
    CONVOLUTIONAL,
    Loaded,
    as_dict,
    examine,
    load_by_names,
)
from weightloom.symmetry.files.comparing import compare_files

__all__ = ["EXAMPLES", "answer_for", "bounds_of", "example", "reduced_file"]

#: Most units of a layer whose permutation is sent; most removed units that are listed.
MOST_UNITS, MOST_LINES = 64, 40
#: Most numbers of an input or output that are shown.
MOST_PROBED = 16
#: Most parameters for interpolation, which runs 22 networks.
MOST_MIXED = 300_000
PROBES = 256

File = tuple[Path, str]
"""path, and the name that the reader knows it by"""


def answer_for(files: list[File], activation: str | None) -> dict[str, Any]:
    """Everything about one network, or about two networks and how they are related."""
    comparison = None
    if len(files) == 2:
        comparison, loaded = compare_files(files[0], files[1], activation)
    else:
        loaded = [load_by_names(path, activation, label=label) for path, label in files]
    # Bounds take seconds: the page asks `bounds_of` for them afterwards.
    findings = [examine(network, without_bounds="") for network in loaded]
    answer = as_dict(findings, comparison)
    for row, each in zip(answer["networks"], findings, strict=True):
        row["name"] = row.pop("path")
        row["not_available"].pop("bounds")
        row["activation"] = each.loaded.activation
        row["removed"] = _removed(each.loaded.module) if each.removable else []
    if comparison is not None:
        verdict = comparison.verdict
        answer["equivalence"]["probe"] = _probe(loaded[0], loaded[1], verdict)
        answer["matched"] = _matched(verdict.element)
        answer["mixed"] = _interpolation(loaded[0], loaded[1], verdict)
    return answer


def bounds_of(file: File, activation: str | None) -> dict[str, Any]:
    """Lipschitz constants and capacity of one network, or the ``reason`` why there are none."""
    path, label = file
    loaded = load_by_names(path, activation, label=label)
    findings = examine(loaded, without_bounds=CONVOLUTIONAL if loaded.convolutional else None)
    (row,) = as_dict([findings], None)["networks"]
    return {"bounds": row["bounds"], "reason": row["not_available"].get("bounds")}


@torch.no_grad()
def _probe(a: Loaded, b: Loaded, verdict: Equivalence) -> dict[str, Any] | None:
    """The input of those that were tried where outputs differ most, if it is a short vector."""
    probe = verdict.probe
    if not isinstance(probe, Tensor) or probe.dim() != 2 or probe.shape[1] > MOST_PROBED:
        return None
    outputs = [each.module(probe.to(next(each.module.parameters()))) for each in (a, b)]
    row = int((outputs[0] - outputs[1]).abs().amax(1).argmax())
    first, second = (_plain(output[row][:MOST_PROBED]) for output in outputs)
    return {"input": _plain(probe[row]), "outputs": [first, second]}


def _removed(module: nn.Module) -> list[str]:
    lines = [str(entry) for entry in reduce(module).log]
    more = len(lines) - MOST_LINES
    return lines[:MOST_LINES] + ([f"and {more} more"] if more > 0 else [])


def _matched(element: Element | None) -> list[dict[str, Any]]:
    """For each hidden layer: the units of the second network in the first's order, and scales."""
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


def _interpolation(a: Loaded, b: Loaded, verdict: Equivalence) -> dict[str, Any] | None:
    """Distance of outputs from the first network's, along the line between the two weights.

    With the second network as given, and aligned to the first: for two networks that are equal
    up to a permutation, the barrier is gone after alignment. None where the two cannot be
    interpolated, or it would take too long.
    """
    size = sum(p.numel() for p in a.module.parameters())
    first = next((part for part in a.module.modules() if isinstance(part, nn.Linear)), None)
    if verdict.reduced or a.convolutional or b.convolutional or first is None or size > MOST_MIXED:
        return None
    generator = torch.Generator().manual_seed(0)
    probes = torch.randn(PROBES, first.in_features, generator=generator).to(first.weight)
    with torch.no_grad():
        outputs = a.module(probes)

    @torch.no_grad()
    def distance(network: nn.Module) -> float:
        return float((network(probes) - outputs).double().square().mean())

    try:
        barrier = loss_barrier(a.module, b.module, distance, steps=11)
    except (ConfigError, ShapeError, UnsupportedModuleError):  # nothing to interpolate
        return None
    return {
        "t": list(barrier.ts),
        "given": [_number(loss) for loss in barrier.naive_losses],
        "aligned": [_number(loss) for loss in barrier.losses],
        "distance_before": _number(barrier.alignment.distance_before),
        "distance_after": _number(barrier.alignment.distance_after),
        "method": barrier.alignment.method,
        "probes": PROBES,
    }


def reduced_file(file: File, activation: str | None) -> bytes:
    """The network without its redundant units, as a safetensors file."""
    path, label = file
    loaded = load_by_names(path, activation, label=label)
    return _safetensors(reduce(loaded.module).module)


def _plain(values: Tensor) -> list[float | None]:
    return [_number(float(f"{value:.6g}")) for value in values.double().tolist()]


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


# -- examples --------------------------------------------------------------------------------------

#: Pairs to try without files of one's own: name, and what the second network is.
EXAMPLES = {
    "disguised": "same, permuted and rescaled",
    "cloned": "same, with redundant units",
    "changed": "one weight differs",
}


def example(kind: str) -> tuple[bytes, bytes]:
    """Two safetensors files: a small network, and the variant of it that ``kind`` names."""
    generator = torch.Generator().manual_seed(1)
    first = _network([3, 8, 6, 2], generator)
    wide = _with_clones(first) if kind == "cloned" else first
    second = random_equivalent(wide, generator)
    if kind == "changed":
        with torch.no_grad():
            next(second.parameters())[2, 1] += 0.05
    return _safetensors(first), _safetensors(second)


def _safetensors(network: nn.Module) -> bytes:
    from safetensors.torch import save

    state = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
    return save(state, about(network))


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
    """The same function with two more units: unit 0 split in two, and one with weight 0 out."""
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

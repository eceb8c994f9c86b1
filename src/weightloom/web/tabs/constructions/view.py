"""What the page shows of a construction: curves, errors, affine pieces, and the network itself."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from weightloom.construct import Certified, affine_pieces, measure, pieces
from weightloom.construct.layers import linear_layers, to_dense
from weightloom.construct.shallow import CertifiedL1
from weightloom.errors import ConfigError, WeightloomError
from weightloom.web.tabs.constructions.catalogue import build
from weightloom.web.tabs.constructions.makers import Built

__all__ = ["safetensors_of", "view"]

POINTS, SIDE = 641, 61  # on a line (multiples of 1/128 among them); on each side of a square
MOST_PIECES, MOST_MARKS = 200_000, 1200
MOST_UNITS, MOST_EDGES = 80, 900  # of a network that is drawn unit by unit
DIGITS = 7


def view(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """Everything that the page shows about one construction."""
    built = build(name, given)
    size = measure(built.network)
    answer: dict[str, Any] = {
        "nodes": size.nodes,
        "layers": size.layers,
        "nonzeros": size.nonzeros,
        "notes": list(built.notes),
        "graph": _graph(built.network),
        "pieces": None,
        "certificate": None,
    }
    if built.certified is None:
        return answer | _along_segment(built)
    answer["certificate"] = _certificate(built.certified)
    if built.certified.domain.dims == 1:
        return answer | _on_line(built.certified)
    return answer | _on_square(built.certified)


def safetensors_of(name: str, given: dict[str, Any]) -> bytes:
    """The network as a safetensors file.

    Its metadata name the activation, so that *Same network?* and `weightloom inspect` do not
    assume another.
    """
    from safetensors.torch import save

    network = build(name, given).network
    if isinstance(network, nn.Sequential):
        network = to_dense(network)
    kinds = {type(part).__name__.lower() for part in network.modules() if not _has_weights(part)}
    kinds -= {"sequential"}
    state = {key: tensor.contiguous() for key, tensor in network.state_dict().items()}
    return save(state, {"activation": ", ".join(sorted(kinds)), "construction": name})


def _has_weights(part: nn.Module) -> bool:
    return any(True for _ in part.parameters())


# -- what it computes ----------------------------------------------------------------------------


def _on_line(certified: Certified) -> dict[str, Any]:
    ((low, high),) = certified.domain.sides
    facts = _pieces(certified.network, low, high)
    x = torch.linspace(low, high, POINTS, dtype=torch.float64)
    if facts is not None and facts["count"] <= MOST_MARKS:
        x = torch.cat([x, torch.tensor(facts["breakpoints"], dtype=torch.float64)]).unique()
    target, output = _values(certified, x[:, None])
    return {
        "dims": 1,
        "x": _plain(x),
        "target": [_plain(column) for column in target.T],
        "output": [_plain(column) for column in output.T],
        "error": _plain((output - target).abs().amax(1)),
        "pieces": facts,
    }


def _on_square(certified: Certified) -> dict[str, Any]:
    axes = [torch.linspace(a, b, SIDE, dtype=torch.float64) for a, b in certified.domain.sides]
    points = torch.cartesian_prod(axes[1], axes[0]).flip(1)  # row by row, x fastest
    target, output = _values(certified, points)
    return {
        "dims": 2,
        "side": SIDE,
        "domain": [list(side) for side in certified.domain.sides],
        "target": _plain(target[:, 0]),
        "output": _plain(output[:, 0]),
        "error": _plain((output - target).abs().amax(1)),
    }


def _along_segment(built: Built) -> dict[str, Any]:
    low, high = built.segment if built.segment is not None else (0.0, 1.0)
    along = affine_pieces(built.network, low, high, max_pieces=MOST_PIECES)
    t = along.breakpoints
    x = torch.cat([torch.linspace(float(t[0]), float(t[-1]), POINTS, dtype=torch.float64), t])
    x = x.unique()
    return {
        "dims": 1,
        "x": _plain(x),
        "target": [],
        "output": [_plain(column) for column in along(x).T],
        "error": [],
        "pieces": _piece_facts(built.network, along),
    }


@torch.no_grad()
def _values(certified: Certified, points: Tensor) -> tuple[Tensor, Tensor]:
    """Values of the target and of the network at points [n, dims]: [n, outputs] each."""
    if certified.target is None:
        raise ConfigError("this construction has no target to compare with")
    output = certified.network(points).reshape(len(points), -1)
    return certified.target(points).reshape(len(points), -1).to(torch.float64), output


def _certificate(certified: Certified) -> dict[str, Any]:
    mean = isinstance(certified, CertifiedL1)
    # A tenth of the library's default effort, to answer quickly.
    measured = certified.measure(points=4000, rounds=2 if mean else 4)
    return {
        "kind": "mean" if mean else "largest",
        "bound": certified.error_bound,
        "measured": measured.error,
        "holds": measured.holds,
        "worst": list(measured.worst),
        "points": measured.points,
    }


# -- pieces --------------------------------------------------------------------------------------


def _pieces(network: nn.Module, low: float, high: float) -> dict[str, Any] | None:
    """Exact breakpoints on an interval; None if there are too many or they cannot be computed."""
    try:
        along = affine_pieces(network, low, high, max_pieces=MOST_PIECES)
    except WeightloomError:
        return None
    return _piece_facts(network, along)


def _piece_facts(network: nn.Module, along: pieces.AffinePieces) -> dict[str, Any]:
    inner = along.breakpoints[1:-1]
    hidden = [layer.out_features for layer in linear_layers(network)[:-1]]
    log10 = sum(math.log10(width + 1) for width in hidden)
    return {
        "count": along.count,
        "breakpoints": _plain(inner[:MOST_MARKS]),
        "shown": min(len(inner), MOST_MARKS),
        "jumps": _plain(along.jumps[:MOST_MARKS]),
        "bound": pieces.pieces_bound(hidden) if log10 < 15 else None,
        "log10_bound": log10,
    }


# -- the network ---------------------------------------------------------------------------------


def _graph(network: nn.Module) -> dict[str, Any]:
    """Widths, and the weights between units if there are few enough to draw."""
    layers = linear_layers(network)
    widths = [layers[0].in_features, *(layer.out_features for layer in layers)]
    graph: dict[str, Any] = {"widths": widths, "edges": None}
    possible = sum(layer.in_features * layer.out_features for layer in layers)
    if sum(widths) > MOST_UNITS or possible > 50 * MOST_EDGES:
        return graph
    dense = to_dense(nn.Sequential(*layers))
    edges = []
    for number, layer in enumerate(dense):
        weight: Tensor = layer.weight.detach()  # type: ignore[operator]
        for out, into in weight.nonzero().tolist():
            edges.append([number, into, out, float(f"{float(weight[out, into]):.4g}")])
    if len(edges) <= MOST_EDGES:
        graph["edges"] = edges
    return graph


def _plain(values: Tensor) -> list[float]:
    """Seven digits: enough for a chart, in a third of the bytes."""
    return [float(f"{value:.{DIGITS}g}") for value in values.detach().double().tolist()]

"""Which networks the experiment ``rates`` builds and trains, at each scale."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weightloom.experiments.modularity.rates_trained import primary_size
from weightloom.lab import Run

__all__ = ["cost_of", "runs_at"]

Dims = tuple[int, int]

# Bumps per axis, by m1 + m2. A grid of twice as many nodes per axis halves the error of the zero
# function, whatever the signs, so eps = height / 2 is the natural place to compare at.
PIECES: dict[str, dict[int, Sequence[int]]] = {
    "smoke": {2: (2, 4, 8)},
    "laptop": {2: (2, 3, 4, 6, 8, 12, 16, 24, 32), 3: (2, 3, 4, 6, 8, 10), 4: (2, 3, 4, 5, 6)},
    "paper": {
        2: (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128),
        3: (2, 3, 4, 6, 8, 12, 16, 24),
        4: (2, 3, 4, 5, 6, 8, 10),
    },
}
# Nodes per axis for smooth targets, by m1 + m2.
COUNTS: dict[str, dict[int, Sequence[int]]] = {
    "smoke": {2: (5, 9, 17)},
    "laptop": {2: (9, 13, 17, 25, 33, 49, 65), 3: (7, 9, 13, 17, 21), 4: (5, 6, 7, 8, 10, 12)},
    "paper": {
        2: (9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257),
        3: (7, 9, 13, 17, 25, 33, 49),
        4: (5, 6, 7, 8, 10, 12, 14, 17, 20),
    },
}
DIMS: dict[str, Sequence[Dims]] = {
    "smoke": ((1, 1),),
    "laptop": ((1, 1), (1, 2), (2, 1), (2, 2)),
    "paper": ((1, 1), (1, 2), (2, 1), (2, 2)),
}
# Repetitions. Bumps have the same error whatever the signs, so there are fewer of them.
SEEDS = {"smoke": {"bump": 1, "smooth": 1}, "laptop": {"bump": 2, "smooth": 3}}
SEEDS["paper"] = {"bump": 2, "smooth": 5}
SELECTOR = 2  # w of Theorem 6

# Points of the grid on which the error of a built network is measured, before refinement: this
# many, or as many as keep (weights x points) below WORK, some seconds on one core.
POINTS = {"smoke": 2_500, "laptop": 20_000, "paper": 60_000}
WORK = {"smoke": 3e8, "laptop": 3e8, "paper": 3e9}


@dataclass(frozen=True)
class Plan:
    """What is trained for one (m1, m2)."""

    pieces: Sequence[int]
    """bumps per axis"""
    seeds: int
    epochs: int
    samples: int
    features: int
    """hat functions of the condition, per axis"""
    rates: Sequence[float] = (0.01, 0.03)
    embeddings: Sequence[int] = (4, 32)
    window: Mapping[str, tuple[float, float]] = field(
        default_factory=lambda: {"hypernetwork": (0.4, 4.0), "embedding": (0.6, 5.0)}
    )
    """smallest and largest hidden width that is tried, in bumps per axis"""

    def widths(self, model: str, pieces: int) -> list[int]:
        low, high = self.window[model]
        return [width for width in WIDTHS if low * pieces <= width <= high * pieces]


WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
_NARROW = {"hypernetwork": (0.5, 2.0), "embedding": (1.0, 3.0)}
_WIDE = {"hypernetwork": (0.4, 6.0), "embedding": (0.6, 8.0)}
TRAINED: dict[str, dict[Dims, Plan]] = {
    "smoke": {(1, 1): Plan((2, 3), 1, 25, 1024, 17, (0.03,), (4,), _NARROW)},
    "laptop": {(1, 1): Plan((2, 3, 4, 6, 8), 3, 75, 8192, 33)},
    "paper": {
        (1, 1): Plan((2, 3, 4, 6, 8, 12), 5, 200, 16384, 49, (0.003, 0.01, 0.03), window=_WIDE),
        (1, 2): Plan((2, 3, 4, 5), 3, 150, 32768, 17, (0.003, 0.01, 0.03), window=_WIDE),
        (2, 1): Plan((2, 3, 4, 5), 3, 150, 32768, 33, (0.003, 0.01, 0.03), window=_WIDE),
    },
}
BATCH = 256
ENCODER = [64, 64]


def runs_at(name: str, scale: str) -> list[Run]:
    """All runs of the experiment, the quick ones first."""
    built = [
        Run(name, config, seed)
        for config in [*_constructive(scale), *_total(scale)]
        for seed in range(SEEDS[scale]["bump" if config["target"] == "bump" else "smooth"])
    ]
    trained = [
        Run(name, config, seed)
        for dims, plan in TRAINED[scale].items()
        for config in _trained(dims, plan)
        for seed in range(plan.seeds)
    ]
    return built + trained


def _constructive(scale: str) -> Iterator[dict[str, Any]]:
    for m1, m2 in DIMS[scale]:
        common = {"part": "constructive", "m1": m1, "m2": m2}
        for network in ("hypernetwork", "plain"):
            for d in PIECES[scale][m1 + m2]:
                bump = {"target": "bump", "shape": "tent", "pieces": d, "counts": 2 * d}
                yield _measured(scale, {**common, "network": network, **bump})
            for n in COUNTS[scale][m1 + m2]:
                smooth = {"target": "smooth", "frequencies": _frequencies(m1, m2), "counts": n}
                yield _measured(scale, {**common, "network": network, **smooth})


def _total(scale: str) -> Iterator[dict[str, Any]]:
    for m1, m2 in DIMS[scale]:
        if (m1, m2) == (2, 1):  # the roles of x and I are alike here
            continue
        common = {"part": "total", "m1": m1, "m2": m2, "selector": SELECTOR}
        for network in ("hypernetwork", "plain"):
            for d in PIECES[scale][m1 + m2]:
                bump = {"target": "factored bump", "frequencies": 1, "pieces": d, "counts": 2 * d}
                yield _measured(scale, {**common, "network": network, **bump})
            for n in COUNTS[scale][m1 + m2]:
                smooth = {"target": "factored smooth", "frequencies": 1, "counts": n}
                yield _measured(scale, {**common, "network": network, **smooth})


def _measured(scale: str, config: dict[str, Any]) -> dict[str, Any]:
    """With the number of points on which the error is looked for."""
    points = min(POINTS[scale], max(2_000, int(WORK[scale] / _weights(config))))
    return {**config, "points": points}


def _weights(config: Mapping[str, Any]) -> float:
    """About how many nonzeros the network has that a run builds."""
    m1, m2 = config["m1"], config["m2"]
    if config["network"] == "plain":
        return float(13 * config["counts"] ** (m1 + m2))
    inside = 0 if config["part"] == "total" else config["counts"] ** (m1 + m2)
    return float(13 * (config["counts"] ** m1 + config["counts"] ** m2) + inside)


def _frequencies(m1: int, m2: int) -> int:
    """On few nodes per axis only slow waves are in the range where theory speaks."""
    return 2 if m1 + m2 == 2 else 1


def _trained(dims: Dims, plan: Plan) -> Iterator[dict[str, Any]]:
    m1, m2 = dims
    common = {
        "part": "trained",
        "target": "bump",
        "shape": "tent",
        "m1": m1,
        "m2": m2,
        "encoder": ENCODER,
        "optimiser": "adam",
        "schedule": "cosine",
        "batch_size": BATCH,
        "epochs": plan.epochs,
        "samples": plan.samples,
        "features": plan.features,
    }
    methods = [("hypernetwork", 0), *(("embedding", k) for k in plan.embeddings)]
    for model, embedding in methods:
        for pieces in plan.pieces:
            for width in plan.widths(model, pieces):
                shape = {"embedding": embedding, "hidden": _hidden(model, m1, width)}
                for rate in plan.rates:
                    chosen = {"pieces": pieces, "learning_rate": rate}
                    yield {**common, "model": model, **shape, **chosen}


def _hidden(model: str, m1: int, width: int) -> list[int]:
    """One hidden layer is enough for a g on a line; what sees two numbers or more gets two."""
    return [width] if model == "hypernetwork" and m1 == 1 else [width, width]


def cost_of(run: Run) -> float:
    """Seconds on one core, roughly."""
    config = run.config
    if config["part"] != "trained":
        return 0.05 + _weights(config) * (config["points"] + 8_000) / 4e8
    width = config["encoder"][-1]
    last = primary_size(config) if config["model"] == "hypernetwork" else config["embedding"]
    encoder = config["features"] ** config["m2"] * width + width * width + width * last
    steps = config["epochs"] * config["samples"] / config["batch_size"]
    return 5e-4 * steps + 6 * encoder * config["epochs"] * config["samples"] / 3e10

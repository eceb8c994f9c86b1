"""Parameters against error, for networks built by hand and trained: Theorems 2 to 6.

The constants say which networks are built and trained at each scale; `Rates` is the experiment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from weightloom_papers.lab import Experiment, Outcome, Result, ResultTable, Run, Workspace
from weightloom_papers.lab.runs import digest_of
from weightloom_papers.modularity.experiments.rates.networks import (
    execute_trained,
    measure,
    primary_size,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Rates", "cost_of", "runs_at"]


Dims = tuple[int, int]

# Bumps per axis, by m1 + m2. A grid with two nodes per bump halves the error of the zero function,
# whatever the signs, so networks are compared at eps = height / 2.
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

# Repetitions. The error on bumps does not depend on their signs, so they need fewer.
SEEDS = {
    "smoke": {"bump": 1, "smooth": 1},
    "laptop": {"bump": 2, "smooth": 3},
    "paper": {"bump": 2, "smooth": 5},
}

SELECTOR = 2  # w of Theorem 6

# Grid points for the error of a built network, before refinement: at most POINTS, and at most WORK
# as a product with the number of weights (a few seconds on one core).
POINTS = {"smoke": 2_500, "laptop": 20_000, "paper": 60_000}
WORK = {"smoke": 3e8, "laptop": 3e8, "paper": 3e9}


@dataclass(frozen=True)
class TrainedSizes:
    """Which networks are trained for one (m1, m2)."""

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
    """smallest and largest hidden width, in bumps per axis"""

    def widths(self, model: str, pieces: int) -> list[int]:
        low, high = self.window[model]
        return [width for width in WIDTHS if low * pieces <= width <= high * pieces]


WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
_NARROW = {"hypernetwork": (0.5, 2.0), "embedding": (1.0, 3.0)}
_WIDE = {"hypernetwork": (0.4, 6.0), "embedding": (0.6, 8.0)}

TRAINED: dict[str, dict[Dims, TrainedSizes]] = {
    "smoke": {(1, 1): TrainedSizes((2, 3), 1, 25, 1024, 17, (0.03,), (4,), _NARROW)},
    "laptop": {(1, 1): TrainedSizes((2, 3, 4, 6, 8), 3, 75, 8192, 33)},
    "paper": {
        (1, 1): TrainedSizes(
            (2, 3, 4, 6, 8, 12), 5, 200, 16384, 49, (0.003, 0.01, 0.03), window=_WIDE
        ),
        (1, 2): TrainedSizes((2, 3, 4, 5), 3, 150, 32768, 17, (0.003, 0.01, 0.03), window=_WIDE),
        (2, 1): TrainedSizes((2, 3, 4, 5), 3, 150, 32768, 33, (0.003, 0.01, 0.03), window=_WIDE),
    },
}

BATCH = 256
ENCODER = [64, 64]


def runs_at(name: str, scale: str) -> list[Run]:
    """All runs of the experiment: built networks first, then trained ones."""
    built = [
        Run(name, config, seed)
        for config in [*_constructive(scale), *_total(scale)]
        for seed in range(SEEDS[scale]["bump" if config["target"] == "bump" else "smooth"])
    ]
    trained = [
        Run(name, config, seed)
        for dims, sizes in TRAINED[scale].items()
        for config in _trained(dims, sizes)
        for seed in range(sizes.seeds)
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
        if (m1, m2) == (2, 1):  # x and I have symmetric roles here: as (1, 2)
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
    """``config`` with the number of points on which the error is measured."""
    points = min(POINTS[scale], max(2_000, int(WORK[scale] / _weights(config))))
    return {**config, "points": points}


def _weights(config: Mapping[str, Any]) -> float:
    """Approximate number of nonzeros of the network that a run builds."""
    m1, m2 = config["m1"], config["m2"]
    if config["network"] == "plain":
        return float(13 * config["counts"] ** (m1 + m2))
    inside = 0 if config["part"] == "total" else config["counts"] ** (m1 + m2)
    return float(13 * (config["counts"] ** m1 + config["counts"] ** m2) + inside)


def _frequencies(m1: int, m2: int) -> int:
    """With few nodes per axis, only low frequencies reach the range of the theorem's rate."""
    return 2 if m1 + m2 == 2 else 1


def _trained(dims: Dims, sizes: TrainedSizes) -> Iterator[dict[str, Any]]:
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
        "epochs": sizes.epochs,
        "samples": sizes.samples,
        "features": sizes.features,
    }
    methods = [("hypernetwork", 0), *(("embedding", k) for k in sizes.embeddings)]
    for model, embedding in methods:
        for pieces in sizes.pieces:
            for width in sizes.widths(model, pieces):
                shape = {"embedding": embedding, "hidden": _hidden(model, m1, width)}
                for rate in sizes.rates:
                    chosen = {"pieces": pieces, "learning_rate": rate}
                    yield {**common, "model": model, **shape, **chosen}


def _hidden(model: str, m1: int, width: int) -> list[int]:
    """One hidden layer for a g with one input; two for networks with more inputs."""
    return [width] if model == "hypernetwork" and m1 == 1 else [width, width]


def cost_of(run: Run) -> float:
    """Approximate seconds on one core."""
    config = run.config
    if config["part"] != "trained":
        return 0.05 + _weights(config) * (config["points"] + 8_000) / 4e8
    width = config["encoder"][-1]
    last = primary_size(config) if config["model"] == "hypernetwork" else config["embedding"]
    encoder = config["features"] ** config["m2"] * width + width * width + width * last
    steps = config["epochs"] * config["samples"] / config["batch_size"]
    return 5e-4 * steps + 6 * encoder * config["epochs"] * config["samples"] / 3e10


class Rates(Experiment):
    """Three parts, named by ``part`` in a run's configuration.

    - "constructive": certified networks for bump and smooth targets on finer and finer grids;
    - "trained": the smallest primary that reaches a given relative error by training;
    - "total": all weights together, for targets with a selector of few numbers (Theorem 6).
    """

    name = "modularity/rates"
    title = "How the primary network grows with accuracy"
    claim = (
        "To reach error eps on an r-smooth target, a hypernetwork's primary needs of order "
        "eps^-(m1/r) parameters, a plain network eps^-((m1+m2)/r); for r = 1 an embedding method's "
        "predictor needs eps^-(m1+m2), or eps^-min(m1+m2, 2 m1) if the embedding may grow."
    )
    paper = "modularity, Theorems 2-6"
    main_metrics = ("sup", "rms", "primary", "total", "bound", "relative_rms")

    def runs(self, scale: str) -> list[Run]:
        return runs_at(self.name, scale)

    def group(self, run: Run) -> str:
        """Built networks of one kind, which run in turn; trained ones of one shape, run at once."""
        config = dict(run.config)
        trained = config["part"] == "trained"
        free = ("pieces", "learning_rate") if trained else ("pieces", "counts", "points")
        for name in free:
            config.pop(name, None)
        return f"{config['part']}-{digest_of(config)}"

    def size_limit(self) -> int:
        """Stacked networks are small, so large groups have little overhead."""
        return 32

    def cost(self, run: Run) -> float:
        return cost_of(run)

    def execute(self, runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
        if runs[0].config["part"] == "trained":
            yield from execute_trained(runs, workspace)
        else:
            for run in runs:
                yield run, measure(run.config, run.seed)

    def figures(self, results: Sequence[Result]) -> Mapping[str, Figure]:
        from weightloom_papers.modularity.experiments.rates.figure import draw_rates

        return draw_rates(results)

    def table(self, results: Sequence[Result]) -> ResultTable:
        from weightloom_papers.modularity.experiments.rates.analysis import rates_table

        return rates_table(results, self.title)

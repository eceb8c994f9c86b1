"""What a run of ``rates`` does: build a network by hand, or train one, and measure it.

Parts "constructive" and "total" build networks (`measure`); part "trained" trains them on the bumps
of Lemma 15 (`execute_trained`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from weightloom import construct
from weightloom.construct import Box, Certified, CertifiedHypernetwork, Grid, hat_layers
from weightloom.data import BumpTarget, CubeTarget, FactoredTarget, FourierTarget
from weightloom.errors import ConfigError
from weightloom.hyper import EmbeddingNetwork, FullHead, HyperNetwork, count_parameters, mlp
from weightloom.training import Member, Report, Settings, Split
from weightloom_papers.lab import Outcome, Run, Workspace
from weightloom_papers.lab.experiment import train_members

__all__ = [
    # Built by hand
    "make_target", "build", "measure", "as_hypernetwork",
    # Trained
    "condition_features", "build_model", "primary_size", "execute_trained", "fine_grid",
]  # fmt: skip

# Points with a likely large error that are checked besides the grid.
SUSPECTS = 2_000


def make_target(config: Mapping[str, Any], seed: int) -> CubeTarget:
    """The function that the network of a run approximates."""
    m1, m2, kind = config["m1"], config["m2"], config["target"]
    if kind == "bump":
        return BumpTarget(m1, m2, config["pieces"], config["shape"], seed)
    if kind == "smooth":
        return FourierTarget(m1, m2, config["frequencies"], seed)
    if kind in ("factored bump", "factored smooth"):
        pieces = config["pieces"] if kind == "factored bump" else None
        return FactoredTarget(m1, m2, config["selector"], pieces, config["frequencies"], seed)
    raise ConfigError(f"target {kind!r} is unknown to the experiment rates")


def build(config: Mapping[str, Any], target: CubeTarget) -> Certified:
    """The network a run asks for: "plain" or "hypernetwork", on a grid of ``counts`` per axis.

    Smooth targets are interpolated with the corners of the domain among the nodes, which makes the
    error quadratic in the spacing; for other targets the corners gain nothing.
    """
    curvature = getattr(target, "curvature", None)
    m1, m2 = config["m1"], config["m2"]
    options: dict[str, Any] = {
        "counts": config["counts"],
        "corners": curvature is not None,
        "lipschitz": target.lipschitz,
        "curvature": curvature,
    }
    if config["network"] == "plain":
        return construct.interpolate(target.at, m1 + m2, **options)
    if isinstance(target, FactoredTarget):
        return construct.factored_hypernetwork(target.basis, target.coefficients, m1, m2, **options)
    return construct.hypernetwork(target, m1, m2, **options)


def measure(config: Mapping[str, Any], seed: int) -> Outcome:
    """Build a network, verify its certificate, and count its parameters.

    ``sup`` and ``rms`` are errors. ``written`` counts the weights that depend on the target, in the
    network whose input is x (N_g generated weights; for a plain network its output weights).
    ``primary`` counts the nonzeros of that network, fixed layers included, ``total`` those of all
    networks. ``sobolev`` bounds the target's norm in W_{r,m}, r = 2 if it is smooth and else 1.
    """
    started = time.perf_counter()
    target = make_target(config, seed)
    network = build(config, target)
    dims = config["m1"] + config["m2"]
    check = network.verify(points=config["points"], seed=seed, extra=_suspects(target, dims))
    if isinstance(network, CertifiedHypernetwork):
        written, primary = network.primary_size, network.primary_nonzeros
    else:
        written, primary = config["counts"] ** dims, network.nonzeros
    metrics: dict[str, float] = {
        "sup": check.error,
        "rms": check.rms,
        "bound": check.bound,
        "height": target.height,
        "sobolev": target.sobolev(2 if "smooth" in config["target"] else 1),
        "written": written,
        "primary": primary,
        "total": network.nonzeros,
        "depth": network.layers,
        "points": check.points,
    }
    return Outcome("done", metrics, seconds=time.perf_counter() - started)


def _suspects(target: CubeTarget, dims: int) -> Tensor:
    """Points where the error is likely largest: centres of bumps, and corners where bumps meet."""
    generator = torch.Generator().manual_seed(1)
    if not isinstance(target, BumpTarget):
        return 2 * torch.rand(SUSPECTS, dims, generator=generator, dtype=torch.float64) - 1
    centres = target.centres()
    places = torch.cat([centres, (centres + 1 / target.pieces).clamp(-1, 1)])
    return places[torch.randperm(len(places), generator=generator)[:SUSPECTS]]


def as_hypernetwork(built: CertifiedHypernetwork) -> HyperNetwork:
    """The same function as a `HyperNetwork`: hats of I are the features, f's last layer the head.

    Only the output weights are generated; the other layers of g are fixed.
    """
    *hats, last = built.encoder
    table = last.get_parameter("weight").T[:, None, :]  # [features, 1, N_g]
    head = FullHead(offset=False)
    hyper = HyperNetwork(
        built.primary,
        torch.nn.Sequential(*hats),
        head=head,
        init="default",
        generate=built.generated,
        features=len(table),
        freeze_rest=True,
        condition_dims=1,
        feature_moment=1.0,
    )
    with torch.no_grad():
        head.table(built.generated).copy_(table)
    return hyper


# Approximate number of grid points for the errors, and of those evaluated during training.
GRID = 20_000


WATCHED = 2_000


def condition_features(config: Mapping[str, Any], conditions: Tensor) -> Tensor:
    """Hat functions of a fine grid of I: the first, fixed layers of f and of e. [n, features^m2].

    Both methods get them, so that neither fails because its encoder did not learn to distinguish
    conditions: the theorems let encoders be "as large as we wish" and compare g with q. They are
    not trained, so they are computed once, before training.
    """
    counts = (config["features"],) * config["m2"]
    layers = hat_layers(Grid(Box.cube(config["m2"]), counts, corners=True), torch.float32)
    with torch.no_grad():
        return nn.Sequential(*layers)(conditions.float())


def build_model(config: Mapping[str, Any], seed: int) -> nn.Module:
    """The model of a run, g(x; f(I)) or q(x, e(I)); encoders differ only in their last layer."""
    features = config["features"] ** config["m2"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = mlp([features, *config["encoder"]], last_activation=True)
        if config["model"] == "hypernetwork":
            middle = torch.rand(256, config["m2"]) * 2 - 1
            return HyperNetwork(
                mlp([config["m1"], *config["hidden"], 1]),
                encoder,
                init="hyperfan_in",
                calibration=condition_features(config, middle),
            )
        encoder.append(nn.Linear(config["encoder"][-1], config["embedding"]))
        inputs = config["m1"] + config["embedding"]
        return EmbeddingNetwork(mlp([inputs, *config["hidden"], 1]), encoder)


def primary_size(config: Mapping[str, Any]) -> int:
    """N_g or N_q of a run, without building it."""
    inner = config["m1"] + config["embedding"]
    total = 0
    for width in [*config["hidden"], 1]:
        total, inner = total + (inner + 1) * width, width
    return total


def execute_trained(runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
    """Train all runs of one architecture at once; they differ in target, seed and learning rate."""
    config = runs[0].config
    splits: dict[tuple[int, int], dict[str, Split]] = {}
    members = []
    for run in runs:
        key = (run.config["pieces"], run.seed)
        if key not in splits:
            splits[key] = _splits(run)
        members.append(
            Member(
                model=build_model(run.config, seed=run.seed),
                train=splits[key]["train"],
                held_out={"watched": splits[key]["watched"]},
                seed=run.seed,
                learning_rate=run.config["learning_rate"],
                name=f"{run.config['pieces']} pieces, rate {run.config['learning_rate']:g}, "
                f"seed {run.seed}",
            )
        )
    batches = -(-config["samples"] // config["batch_size"])
    settings = Settings(
        epochs=config["epochs"],
        batch_size=config["batch_size"],
        optimiser="adam",
        schedule="cosine",
        evaluate_every=max(1, config["epochs"] * batches // 8),
    )
    reports = train_members(members, settings, workspace, _group_label(runs))
    for run, member, report in zip(runs, members, reports, strict=True):
        test = splits[run.config["pieces"], run.seed]["test"]
        yield run, _outcome(run, member.model, test, report)


def _splits(run: Run) -> dict[str, Split]:
    """Random training points, a fine test grid and a part of it; targets divided by the height."""
    config = run.config
    target = _bump_target(run)
    generator = torch.Generator().manual_seed(run.seed)
    dims = config["m1"] + config["m2"]
    random = 2 * torch.rand(config["samples"], dims, generator=generator, dtype=torch.float64) - 1
    grid = fine_grid(dims, target)
    watched = grid[torch.randperm(len(grid), generator=generator)[:WATCHED]]
    places = {"train": random, "test": grid, "watched": watched}
    splits = {}
    for name, points in places.items():
        x, conditions = points[:, : config["m1"]], points[:, config["m1"] :]
        value = (target.at(points) / target.height)[:, None]
        inputs = (x.float(), condition_features(config, conditions))
        splits[name] = Split(inputs, value.float())
    return splits


def fine_grid(dims: int, target: BumpTarget, points: int = GRID) -> Tensor:
    """A grid finer than the bumps that contains their centres: an odd number of points in each."""
    per_axis = points ** (1 / dims) / target.pieces
    each = max(3, 2 * int((per_axis - 1) // 2) + 1)
    count = each * target.pieces
    axis = (torch.arange(count, dtype=torch.float64) + 0.5) * (2 / count) - 1
    return torch.cartesian_prod(*[axis] * dims).reshape(-1, dims)


def _bump_target(run: Run) -> BumpTarget:
    config = run.config
    return BumpTarget(config["m1"], config["m2"], config["pieces"], config["shape"], run.seed)


@torch.no_grad()
def _outcome(run: Run, model: nn.Module, test: Split, report: Report) -> Outcome:
    """Errors in the target's units, and relative to the error of the zero function."""
    target = _bump_target(run)
    model.eval()
    pieces = zip(*(part.split(4096) for part in test.inputs), strict=True)
    outputs = torch.cat([model(*inputs) for inputs in pieces])
    errors = (outputs - test.target).double()
    if report.status == "diverged":
        errors = errors * math.nan
    deviation = float(test.target.double().square().mean().sqrt())
    sizes = count_parameters(model)
    rms, sup = float(errors.square().mean().sqrt()), float(errors.abs().max())
    metrics = {
        "rms": rms * target.height,
        "sup": sup * target.height,
        "mse": (rms * target.height) ** 2,
        "relative_rms": rms / deviation,
        "relative_sup": sup,
        "mse_over_variance": (rms / deviation) ** 2,
        "height": target.height,
        "target_rms": deviation * target.height,
        "train_mse": report.final.get("train", math.nan) * target.height**2,
        "primary": sizes["primary"],
        "total": sizes["trainable"],
        "steps": report.steps,
    }
    return Outcome(report.status, metrics, report.curves, report.message, report.seconds)


def _group_label(runs: Sequence[Run]) -> str:
    config = runs[0].config
    shape = "-".join(map(str, [config["m1"] + config["embedding"], *config["hidden"], 1]))
    return f"rates: {config['model']} {shape}, {len(runs)} at once"

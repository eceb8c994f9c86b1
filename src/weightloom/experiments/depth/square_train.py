"""What ``square-error`` does: measure networks that were built, train others of their sizes."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from weightloom.construct import measure as sizes_of
from weightloom.errors import ConfigError
from weightloom.experiments.depth.square_build import (
    deep_square,
    errors,
    shallow_square,
    started,
)
from weightloom.lab import Outcome, Run, Workspace
from weightloom.lab.members import train_members
from weightloom.training import Member, Settings, Split

__all__ = ["execute_trained", "measure"]


def measure(config: Mapping[str, Any]) -> Outcome:
    """Errors of a built network: ``network`` "deep" (size: levels) or "shallow" (size: nodes)."""
    began = time.perf_counter()
    if config["network"] not in ("deep", "shallow"):
        raise ConfigError(f"network {config['network']!r} is unknown; wanted deep or shallow")
    make = deep_square if config["network"] == "deep" else shallow_square
    net = make(config["size"], config["best"])
    return Outcome("done", _metrics(net), seconds=time.perf_counter() - began)


def execute_trained(runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
    """Train all runs of one shape at once, on all points at every step."""
    config = runs[0].config
    x = torch.linspace(0, 1, config["points"], dtype=torch.float64)[:, None]
    data = Split((x,), x.square())
    members = [
        Member(
            started(c["kind"], c["i"], c["start"], c["noise"], run.seed),
            data,
            seed=run.seed,
            learning_rate=c["learning_rate"],
            name=f"{c['start']}, rate {c['learning_rate']:g}, seed {run.seed}",
        )
        for run in runs
        for c in [run.config]
    ]
    settings = Settings(
        epochs=config["steps"],
        batch_size=config["points"],
        optimiser="adam",
        schedule="cosine",
        precision="64-true",
        evaluate_every=max(1, config["steps"] // 20),
    )
    label = f"square-error: {config['kind']}, i = {config['i']}, {len(runs)} at once"
    reports = train_members(members, settings, workspace, label)
    for run, member, report in zip(runs, members, reports, strict=True):
        metrics = _metrics(member.model)
        metrics["train_mse"] = report.final.get("train", math.nan)
        yield run, Outcome(report.status, metrics, report.curves, report.message, report.seconds)


def _metrics(net: nn.Module) -> dict[str, float]:
    size = sizes_of(net)
    metrics: dict[str, float] = {"nodes": size.nodes, "layers": size.layers}
    if not all(bool(torch.isfinite(weight).all()) for weight in net.parameters()):
        return metrics | dict.fromkeys(("sup", "l2", "pieces"), math.nan)
    sup, l2, pieces = errors(net)
    return metrics | {"sup": sup, "l2": l2, "pieces": pieces}

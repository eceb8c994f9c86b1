"""What ``pieces`` does: count, train, count again."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from weightloom.experiments.depth.pieces_nets import (
    INPUTS,
    count,
    lines_through,
    network,
    noisy_sawtooth,
    task,
)
from weightloom.lab import Outcome, Run, Workspace
from weightloom.lab.members import train_members
from weightloom.training import Member, Settings, Split

__all__ = ["count_random", "count_sawtooth", "execute_trained"]


def count_random(config: Mapping[str, Any], seed: int) -> Outcome:
    """Pieces of a network at its start, along lines through standard normal points."""
    began = time.perf_counter()
    net = network(config["inputs"], config["width"], config["depth"], config["init"], seed)
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(64, config["inputs"], generator=generator, dtype=torch.float64)
    metrics = _counted(net, lines_through(points, config["lines"], seed), "pieces", "inside")
    return Outcome("done", metrics, seconds=time.perf_counter() - began)


def count_sawtooth(config: Mapping[str, Any], seed: int) -> Outcome:
    """Pieces of Delta^depth on the whole line and on [0, 1], its weights a little off."""
    began = time.perf_counter()
    net = noisy_sawtooth(config["depth"], config["noise"], seed)
    ends = (torch.zeros(1), torch.ones(1))
    metrics = _counted(net, [ends], "pieces", "inside")
    return Outcome("done", metrics, seconds=time.perf_counter() - began)


def execute_trained(runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
    """Train all seeds of one task and shape at once; count along the same lines before and after.

    ``before``, ``after``: pieces on whole lines, means over lines; ``..._inside``: between the two
    training points that a line goes through. ``loss``: mean squared error over the variance.
    """
    config = runs[0].config
    members, lines, starts = [], [], []
    for run in runs:
        x, y = task(config["task"], config["points"], run.seed)
        net = network(
            INPUTS[config["task"]], config["width"], config["depth"], config["init"], run.seed
        )
        starts.append(copy.deepcopy(net))
        lines.append(lines_through(x, config["lines"], run.seed))
        data = Split((x.float(),), y.float())
        members.append(Member(net.float(), data, seed=run.seed, name=f"seed {run.seed}"))
    settings = Settings(
        epochs=config["steps"],
        batch_size=config["points"],
        learning_rate=config["learning_rate"],
        optimiser="adam",
        schedule="cosine",
        evaluate_every=max(1, config["steps"] // 20),
    )
    label = f"pieces: {config['task']}, {config['depth']} x {config['width']}, {len(runs)} at once"
    reports = train_members(members, settings, workspace, label)
    for run, member, start, along, report in zip(
        runs, members, starts, lines, reports, strict=True
    ):
        metrics = _counted(start, along, "before", "before_inside")
        net = _double(member.model)
        if all(bool(torch.isfinite(weight).all()) for weight in net.parameters()):
            metrics |= _counted(net, along, "after", "after_inside")
        y = member.train.target
        metrics["loss"] = report.final.get("train", math.nan) / float(y.var(correction=0))
        yield run, Outcome(report.status, metrics, report.curves, report.message, report.seconds)


def _double(net: nn.Module) -> nn.Sequential:
    return nn.Sequential(*copy.deepcopy(net).double().children())


def _counted(
    net: nn.Sequential, lines: Sequence[tuple[Tensor, Tensor]], whole: str, inside: str
) -> dict[str, float]:
    """Mean pieces over lines; ``most`` is the largest count, which the lemma is about."""
    found = [count(net, line) for line in lines]
    return {
        whole: sum(a for a, _ in found) / len(found),
        inside: sum(b for _, b in found) / len(found),
        f"{whole}_most": max(a for a, _ in found),
    }

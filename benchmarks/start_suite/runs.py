"""One run: a contender learns a task with one optimiser, one rate and one seed."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import nn

from start_suite.base import Problem
from start_suite.contenders import CONTENDERS
from start_suite.rivals import MODELS
from start_suite.tasks import load
from weightloom.errors import NonFiniteWeightsError

__all__ = ["RATES", "Job", "Result", "run"]

RATES = {"adam": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2), "sgd": (1e-3, 1e-2, 1e-1)}


@dataclass(frozen=True)
class Job:
    """What is run; also the key in the store."""

    task: str
    contender: str
    optimiser: str
    rate: float
    seed: int
    steps: int

    def __str__(self) -> str:
        return f"{self.task} {self.contender} {self.optimiser} {self.rate:g} seed {self.seed}"


@dataclass(frozen=True)
class Result:
    job: Job
    error: float | None
    """held out, 1 is the mean; infinite if training diverged; None if it does not apply"""
    seconds: float


def run(job: Job) -> Result:
    """Train on one thread, and measure. Divergence is a result, not a failure."""
    torch.set_num_threads(1)
    problem = load(job.task)
    began = time.process_time()
    torch.manual_seed(job.seed)
    if job.contender in MODELS:
        problem, model = MODELS[job.contender](problem)
    else:
        model = CONTENDERS[job.contender](problem)
    error = None if model is None else learn(model, problem, job)
    return Result(job, error, time.process_time() - began)


def learn(model: nn.Module, problem: Problem, job: Job) -> float:
    generator = torch.Generator().manual_seed(job.seed)
    optimiser = make_optimiser(model, job)
    # The rate falls to zero along half a cosine, as in most training today.
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, job.steps)
    try:
        for _ in range(job.steps):
            loss = problem.loss(model, generator)
            if not math.isfinite(loss.item()):
                return math.inf
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            decay.step()
        with torch.no_grad():
            error = problem.error(model)
    except NonFiniteWeightsError:
        return math.inf
    return error if math.isfinite(error) else math.inf


def make_optimiser(model: nn.Module, job: Job) -> torch.optim.Optimizer:
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if job.optimiser == "adam":
        return torch.optim.Adam(learned, lr=job.rate)
    return torch.optim.SGD(learned, lr=job.rate, momentum=0.9)

"""A few training steps on a copy of the hypernetwork, beside one of its networks by itself.

The scale of a start does not say how far a step goes: Adam moves each of a head's k numbers for a
weight by the learning rate, so generated weights may move much further than ordinary ones. The
yardstick is an ordinary network with the weights of the first condition, trained by the same
optimiser on the same batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_flatten, tree_map

from weightloom.errors import ShapeError
from weightloom.hyper.conditions import Features
from weightloom.hyper.diagnosis.capacity import unexplained_alone
from weightloom.hyper.diagnosis.hooks import Inputs, Loss, is_float, one_number, pick
from weightloom.hyper.diagnosis.optimisers import (
    OptimiserChoice,
    describe,
    for_copy,
    for_parameters,
    frozen_groups,
    missing_parameters,
    moved_statistics,
    statistics_of,
)
from weightloom.hyper.diagnosis.report import StepReport, StepRow
from weightloom.hyper.diagnosis.saturation import LastActivation, last_activation
from weightloom.hyper.hypernetwork import HyperNetwork
from weightloom.hyper.rows import call
from weightloom.hyper.rows.functional import unshare

__all__ = ["run_steps"]

SEED = 0
"""of every forward pass: with dropout, outputs before and after a step have the same mask"""


@dataclass
class TrainedRun:
    """Losses and outputs of one training run; the first belong to the start."""

    losses: list[float] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)


def run_steps(
    hyper: HyperNetwork,
    condition: Any,
    inputs: Inputs,
    target: Any,
    loss: Loss,
    choice: OptimiserChoice,
    steps: int,
) -> StepReport:
    """Train a copy of ``hyper`` for a few steps and report what they did; ``hyper`` is untouched.

    Random state is the caller's to restore.
    """
    twin, optimiser = for_copy(choice, hyper, hyper.head)
    twin = cast(HyperNetwork, twin)
    twin.check_finite = False
    statistics = statistics_of(twin)
    weights, single = _weights(twin, condition)
    before = _response(twin, condition, inputs, single)
    fitted = None if single else unexplained_alone(twin, weights, inputs, target)
    alone = _train_alone(hyper, weights, single, inputs, loss, choice, steps)
    activation = _last_activation(twin, weights, inputs, single)
    args, kwargs = inputs
    run = _train(lambda: twin(args[0], condition, *args[1:], **kwargs), loss, optimiser, steps)
    scale = _scale(run.outputs[0], target)
    moved = moved_statistics(twin, statistics)
    after = _response(twin, condition, inputs, single)
    instance = isinstance(choice, Optimizer)
    return StepReport(
        rows=_rows(run, alone, scale, activation, target),
        optimiser=describe(optimiser),
        scale=scale,
        last_activation=None if activation is None else activation.name,
        response_before=None if before is None else before / scale,
        response=None if after is None else after / scale,
        dead_fraction=_dead(twin, condition),
        moved_statistics=moved,
        missing=missing_parameters(twin, optimiser),
        frozen_groups=frozen_groups(twin, optimiser) if instance else [],
        unexplained_alone=fitted,
    )


# -- training ------------------------------------------------------------------------------------


def _train(forward: Callable[[], Any], loss: Loss, optimiser: Optimizer, steps: int) -> TrainedRun:
    """Losses and outputs before each step and after the last; ends early if not finite."""
    run = TrainedRun()

    def evaluate() -> Tensor:
        torch.manual_seed(SEED)
        output = forward()
        value = one_number(loss(output))
        evaluate.last = (value.item(), _first_tensor(output))  # type: ignore[attr-defined]
        return value

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = evaluate()
        if value.requires_grad:
            value.sum().backward()
        return value

    for step in range(steps + 1):
        value = closure() if step < steps else evaluate()
        number, output = evaluate.last  # type: ignore[attr-defined]
        run.losses.append(number)
        run.outputs.append(output.detach().clone())
        if not math.isfinite(number) or not value.requires_grad:
            break
        if step < steps:
            # Only LBFGS needs the closure; others would run the network twice with it.
            optimiser.step(closure if isinstance(optimiser, torch.optim.LBFGS) else None)  # type: ignore[arg-type]
    return run


def _train_alone(
    hyper: HyperNetwork,
    weights: dict[str, Tensor],
    single: bool,
    inputs: Inputs,
    loss: Loss,
    choice: OptimiserChoice,
    steps: int,
) -> TrainedRun:
    """One network for all rows: the weights of the first condition, as ordinary parameters.

    What the primary learns directly is trained, too; not the base of a relative head, which is
    part of the weights already.
    """
    leaves = {name: value[0].detach().clone().requires_grad_() for name, value in weights.items()}
    rows = len(next(iter(weights.values())))
    twin, _ = for_copy(("sgd", 0.0), hyper, hyper.head)
    twin = cast(HyperNetwork, twin)
    bases = twin.head.bases()
    rest = [p for name, p in twin.primary.named_parameters() if name not in bases]
    learned = [parameter for parameter in rest if parameter.requires_grad]
    optimiser = for_parameters(choice, [*leaves.values(), *learned], hyper.head)

    def forward() -> Any:
        args, kwargs = inputs
        if single:
            return twin.run(args[0], leaves, *args[1:], **kwargs)
        every = {name: leaf.expand(rows, *leaf.shape) for name, leaf in leaves.items()}
        return twin.run(args[0], every, *args[1:], **kwargs)

    return _train(forward, loss, optimiser, steps)


# -- measuring -----------------------------------------------------------------------------------


def _rows(
    run: TrainedRun, alone: TrainedRun, scale: float, activation: LastActivation | None, target: Any
) -> list[StepRow]:
    rows = []
    for step, (value, output) in enumerate(zip(run.losses, run.outputs, strict=True)):
        change = _change(run, step, scale)
        other = _change(alone, step, scale)
        known = change is not None and other
        matching = activation is not None and _matches(output, target)
        rows.append(
            StepRow(
                step=step,
                loss=value,
                alone_loss=alone.losses[step] if step < len(alone.losses) else math.nan,
                change=change,
                alone_change=other,
                ratio=change / other if known else None,  # type: ignore[operator]
                saturated=None if activation is None else activation.saturated(output),
                wrong=activation.wrong(output, target) if activation and matching else None,
            )
        )
    return rows


def _change(run: TrainedRun, step: int, scale: float) -> float | None:
    if step == 0 or step >= len(run.outputs):
        return None
    moved = run.outputs[step].double() - run.outputs[step - 1].double()
    return moved.square().mean().sqrt().item() / scale


def _scale(output: Tensor, target: Any) -> float:
    """Not the targets' deviation alone: pictures on white paper start far from their mean."""
    start = output.double()
    if _matches(output, target):
        values = target.double()
        error = (start - values).square().mean().sqrt().item()
        candidates = [values.std(unbiased=False).item(), error]
    else:
        candidates = [start.square().mean().sqrt().item()]
    scale = max((c for c in candidates if math.isfinite(c)), default=1.0)
    return scale if scale > 0.0 else 1.0


def _matches(output: Tensor, target: Any) -> bool:
    return is_float(target) and target.shape == output.shape


def _first_tensor(output: Any) -> Tensor:
    tensor = next((leaf for leaf in tree_flatten(output)[0] if is_float(leaf)), None)
    if tensor is None:
        raise ShapeError(
            f"the primary returned {type(output).__name__} without a floating-point tensor, so "
            f"steps have nothing to measure; leave optimiser= out"
        )
    return cast(Tensor, tensor)


def _weights(hyper: HyperNetwork, condition: Any) -> tuple[dict[str, Tensor], bool]:
    with torch.no_grad():
        features, single = hyper._encode(condition)
        generated = hyper.generated(features)
        return {name: generated[name].dense() for name in hyper.spec}, single


def _response(hyper: HyperNetwork, condition: Any, inputs: Inputs, single: bool) -> float | None:
    """How much outputs depend on the condition: rms difference to those of the row before."""
    if single:
        return None
    args, kwargs = inputs
    with torch.no_grad():
        features, _ = hyper._encode(condition)
        outputs = []
        for values in (features, features.roll(1, 0)):
            torch.manual_seed(SEED)
            outputs.append(_first_tensor(hyper(args[0], Features(values), *args[1:], **kwargs)))
    difference = outputs[0].double() - outputs[1].double()
    return difference.square().mean().sqrt().item() if len(features) > 1 else None


def _dead(hyper: HyperNetwork, condition: Any) -> float:
    with torch.no_grad():
        features, _ = hyper._encode(condition)
    return (features == 0).all(dim=0).double().mean().item()


def _last_activation(
    hyper: HyperNetwork, weights: dict[str, Tensor], inputs: Inputs, single: bool
) -> LastActivation | None:
    """From one network, called by itself: batched calls end in operations of their own."""
    args, kwargs = tree_map(unshare, inputs) if single else pick(inputs, 0)
    first = {name: value[0].clone().requires_grad_() for name, value in weights.items()}
    return last_activation(_first_tensor(call(hyper.primary, hyper.spec, first, args, kwargs)))

"""Measuring a hypernetwork at work: scales, gradients, dependence on the condition.

The measurement is slow and simple on purpose: a copy of the primary, with hooks, is run once for
each condition. None of the code that makes `HyperNetwork` fast is involved, so the numbers are
independent of it, and a model that has diverged can still be measured.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from weightloom.errors import ShapeError
from weightloom.hyper.diagnosis.advice import advise
from weightloom.hyper.diagnosis.arguments import (
    check_numbers,
    check_rows,
    detached,
    first_rows,
    objective,
    one_optimiser,
    split_target,
)
from weightloom.hyper.diagnosis.hooks import (
    Gradients,
    Inputs,
    Loss,
    MeasuredRun,
    finite,
    is_float,
    participation,
    rms,
)
from weightloom.hyper.diagnosis.optimisers import OptimiserChoice
from weightloom.hyper.diagnosis.report import Diagnosis, FeatureSummary, LayerRow
from weightloom.hyper.diagnosis.step_advice import advise_steps
from weightloom.hyper.diagnosis.steps import run_steps
from weightloom.hyper.hypernetwork import HyperNetwork

__all__ = ["diagnose"]


def diagnose(
    hyper: HyperNetwork,
    x: Any,
    condition: Tensor,
    *args: Any,
    target: Any = None,
    loss: Callable[..., Tensor] | None = None,
    optimiser: OptimiserChoice | None = None,
    optimizer: OptimiserChoice | None = None,
    steps: int = 5,
    limit: int = 16,
    **kwargs: Any,
) -> Diagnosis:
    """Measure ``hyper(x, condition, *args)``: scales, gradients, dependence on the condition.

    The ``target`` may also be the last positional argument: ``diagnose(hyper, x, condition, y)``.
    Where the primary could take that as an input, too, an error asks for ``target=``.

    Gradients are those of ``loss(output)``, which returns one number, or ``loss(output, target)``
    if a ``target`` is given. The default loss is the mean square error, without a target half the
    mean square of the output. ``condition`` is [b, *c] with one row of x each, or a single
    condition, for which dependence is unknown. Without a loss or target only the first ``limit``
    conditions are used; else all of them.

    With an ``optimiser`` (or ``optimizer``) a copy of the model is trained for a few ``steps`` on
    this batch: do they move outputs too far, or not at all? It is an instance over
    ``hyper.parameters()``, a function from parameters to one, or a pair such as ("adam", 1e-3).
    Beside it one of the written networks is trained by itself: the yardstick.

    The model is not changed: parameters, gradients, mode, running statistics, random state and the
    optimiser stay as they are. It runs in its current mode, training or evaluation.

    >>> import weightloom as wl
    >>> hyper = wl.HyperNetwork(wl.mlp([2, 16, 1]), wl.mlp([5, 8], last_activation=True))
    >>> x, condition, y = torch.randn(4, 100, 2), torch.randn(4, 5), torch.randn(4, 100, 1)
    >>> diagnosis = diagnose(hyper, x, condition, y, optimiser=("adam", 1e-3), steps=3)
    >>> [row.layer for row in diagnosis.rows], len(diagnosis.steps.rows)
    (['0', '2'], 4)
    """
    check_numbers(limit, steps)
    chosen = one_optimiser(optimiser, optimizer)
    if target is None:
        args, target = split_target(hyper.primary, x, args, kwargs)
    if chosen is not None and target is None and loss is None:
        raise ShapeError(
            "optimiser= runs training steps, which need the loss of your training; pass target=, "
            "or loss= a function of the output that returns one number"
        )
    with torch.inference_mode(False), torch.enable_grad(), _untouched(hyper):
        inputs = tree_map(detached, ((x, *args), kwargs))
        condition, target = tree_map(detached, (condition, target))
        compare = objective(loss, target)
        features, single = hyper._encode(condition)
        if not single:
            check_rows(inputs, features.shape[0])
        report = None
        if chosen is not None:
            with torch.random.fork_rng():
                report = run_steps(hyper, condition, inputs, target, compare, chosen, steps)
        if not single and loss is None and target is None:
            features, condition, inputs = first_rows((features, condition, inputs), limit)
        diagnosis = _measure(hyper, condition, features, inputs, single, compare)
        diagnosis.steps = report
    diagnosis.warnings = [*advise(diagnosis), *advise_steps(diagnosis)]
    return diagnosis


def _measure(
    hyper: HyperNetwork,
    condition: Tensor,
    features: Tensor,
    inputs: Inputs,
    single: bool,
    loss: Loss,
) -> Diagnosis:
    generated = hyper.generated(features)
    weights = {name: _with_gradient(generated[name].dense()) for name in hyper.spec}
    run = MeasuredRun(hyper.primary, hyper.spec, weights)
    value = run.forward(inputs, single, loss)
    gradients = run.backward(value, [*hyper.encoder.parameters(), *hyper.head.parameters()])
    rows = run.rows(gradients)
    alone = _alone(hyper, weights, inputs, single, loss)
    return Diagnosis(
        rows=rows,
        features=_features(hyper, features.detach()),
        conditions=features.shape[0],
        condition_rank=None if features.shape[0] < 2 else _condition_rank(condition),
        input_rms=rms(leaf for leaf in tree_flatten(inputs[0][0])[0] if is_float(leaf)),
        loss=math.nan if value is None else value.item(),
        encoder_grad=_relative(hyper.encoder, gradients),
        head_grad=_relative(hyper.head, gradients),
        initialisation=hyper.initialisation,
        non_finite=_non_finite(hyper, condition, features, inputs, rows, value),
        alone=alone,
    )


def _alone(
    hyper: HyperNetwork, weights: dict[str, Tensor], inputs: Inputs, single: bool, loss: Loss
) -> list[LayerRow]:
    """The same measurement of the primary by itself, for starts that are meant to be like it.

    A transformer's own scales are its author's choice. Of init="mup" the mean over the conditions
    is taken: it starts as the primary plus a part that depends on the condition.
    """
    own = {name: value for name, value in hyper._own_values().items() if value is not None}
    if hyper.initialisation.startswith("mup"):
        own = {name: value.mean(0) for name, value in weights.items()}
    if len(own) < len(hyper.spec):
        return []
    repeated = {
        name: own[name].detach().expand_as(value).clone().requires_grad_()
        for name, value in weights.items()
    }
    run = MeasuredRun(hyper.primary, hyper.spec, repeated)
    return run.rows(run.backward(run.forward(inputs, single, loss), []))


def _initialised_for(hyper: HyperNetwork) -> float | None:
    """The second moment of features that the initialisation used; None if it used none."""
    uses_it = hyper.initialisation.startswith(("hyperfan", "primary"))
    return hyper.initial_features.moment if uses_it else None


def _features(hyper: HyperNetwork, features: Tensor) -> FeatureSummary:
    zero = features == 0
    # As the head is given them: without their mean. Features behind a ReLU grow together early in
    # training, and would seem to lie in one direction.
    given = hyper.scaled(features).double()
    return FeatureSummary(
        count=features.shape[1],
        second_moment=features.double().square().mean().item(),
        initialised_for=_initialised_for(hyper),
        zero_fraction=zero.double().mean().item(),
        dead_fraction=zero.all(dim=0).double().mean().item(),
        effective_rank=participation(given) if features.shape[0] > 1 else None,
    )


def _condition_rank(condition: Tensor) -> float:
    flat = condition.reshape(condition.shape[0], -1)
    if condition.is_floating_point():
        return participation(flat.double())
    return float(len(flat.unique(dim=0)) - 1)


def _relative(part: nn.Module, gradients: Gradients) -> float | None:
    """Norm of the gradient over norm of the parameters; None if there is nothing to train."""
    trained = [parameter for parameter in part.parameters() if parameter in gradients]
    size, slope = rms(trained), rms(gradients[parameter] for parameter in trained)
    return None if size is None or slope is None or size == 0.0 else slope / size


def _non_finite(
    hyper: HyperNetwork,
    condition: Tensor,
    features: Tensor,
    inputs: Inputs,
    rows: Sequence[LayerRow],
    value: Tensor | None,
) -> list[str]:
    """What is NaN or infinite, in the order of the computation."""
    places = [] if finite(condition) else ["the condition"]
    places += _bad_parameters("encoder", hyper.encoder)
    places += [] if finite(features) else ["the features"]
    places += _bad_parameters("head", hyper.head)
    places += [f"the weights of layer {row.layer!r}" for row in rows if row.non_finite]
    places += [] if all(map(finite, tree_flatten(inputs)[0])) else ["the input"]
    places += [
        f"the outputs of layer {row.layer!r}"
        for row in rows
        if row.output_rms is not None and not math.isfinite(row.output_rms)
    ]
    return places if value is None or finite(value) else [*places, "the loss"]


def _bad_parameters(part: str, module: nn.Module) -> list[str]:
    named = module.named_parameters()
    return [f"parameter {name!r} of the {part}" for name, value in named if not finite(value)]


def _with_gradient(tensor: Tensor) -> Tensor:
    """The tensor itself if it requires a gradient; else a detached copy that does."""
    return tensor if tensor.requires_grad else tensor.detach().requires_grad_()


@contextlib.contextmanager
def _untouched(module: nn.Module) -> Iterator[None]:
    """Buffers and random state are the same afterwards, also after an error.

    Modules work on copies of their buffers, so a graph that still needs the originals for its
    backward pass finds them unchanged.
    """
    originals = [
        (part, name, buffer)
        for part in module.modules()
        for name, buffer in part._buffers.items()
        if buffer is not None
    ]
    copies = {id(buffer): buffer.clone() for _, _, buffer in originals}
    with torch.random.fork_rng():
        try:
            for part, name, buffer in originals:
                part._buffers[name] = copies[id(buffer)]
            yield
        finally:
            for part, name, buffer in originals:
                part._buffers[name] = buffer

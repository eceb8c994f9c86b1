"""Measuring a hypernetwork at work: scales, gradients, dependence on the condition.

The measurement is slow and simple on purpose: a copy of the primary, with hooks, is run once for
each condition. None of the code that makes `HyperNetwork` fast is involved, so the numbers are
independent of it, and a model that has diverged can still be measured.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from weightloom.errors import ShapeError
from weightloom.hyper.diagnosis.advice import advise
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
from weightloom.hyper.diagnosis.report import Diagnosis, FeatureSummary, LayerRow
from weightloom.hyper.hypernetwork import HyperNetwork

__all__ = ["diagnose"]


def diagnose(
    hyper: HyperNetwork,
    x: Any,
    condition: Tensor,
    *args: Any,
    loss: Loss | None = None,
    limit: int = 16,
    **kwargs: Any,
) -> Diagnosis:
    """Measure ``hyper(x, condition, ...)``: scales, gradients, dependence on the condition.

    Gradients are those of ``loss(output)``, which returns one number. The default loss is half the
    mean square of the output. ``condition`` is [b, *c] with one row of x each, or a single
    condition, for which dependence is unknown. Without a loss only the first ``limit`` conditions
    are used; with a loss all of them, because it may hold one target for each.

    The model is not changed: gradients, mode, running statistics and random state stay as they
    are. It runs in its current mode, training or evaluation.

    >>> import weightloom as wl
    >>> hyper = wl.HyperNetwork(wl.mlp([2, 16, 1]), wl.mlp([5, 8], last_activation=True))
    >>> diagnosis = diagnose(hyper, torch.randn(4, 100, 2), torch.randn(4, 5))
    >>> [row.layer for row in diagnosis.rows]
    ['0', '2']
    """
    if limit < 1:
        raise ShapeError(f"limit={limit} was given; at least 1 condition is needed")
    with torch.inference_mode(False), torch.enable_grad(), _untouched(hyper):
        inputs = tree_map(_detached, ((x, *args), kwargs))
        condition = _detached(condition)
        features, single = hyper._encode(condition)
        if not single:
            _check_rows(inputs, features.shape[0])
            if loss is None:
                features, condition, inputs = _first((features, condition, inputs), limit)
        diagnosis = _measure(hyper, condition, features, inputs, single, loss or _half_mean_square)
    diagnosis.warnings = advise(diagnosis)
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
    return Diagnosis(
        rows=rows,
        features=_features(features.detach(), _initialised_for(hyper)),
        conditions=features.shape[0],
        condition_rank=None if features.shape[0] < 2 else _condition_rank(condition),
        input_rms=rms(leaf for leaf in tree_flatten(inputs[0][0])[0] if is_float(leaf)),
        loss=math.nan if value is None else value.item(),
        encoder_grad=_relative(hyper.encoder, gradients),
        head_grad=_relative(hyper.head, gradients),
        initialisation=hyper.initialisation,
        non_finite=_non_finite(hyper, condition, features, inputs, rows, value),
    )


def _initialised_for(hyper: HyperNetwork) -> float | None:
    """The second moment of features that the initialisation used; None if it used none."""
    uses_it = hyper.initialisation.startswith(("hyperfan", "primary"))
    return hyper.initial_features.moment if uses_it else None


def _features(features: Tensor, initialised_for: float | None) -> FeatureSummary:
    zero = features == 0
    return FeatureSummary(
        count=features.shape[1],
        second_moment=features.double().square().mean().item(),
        initialised_for=initialised_for,
        zero_fraction=zero.double().mean().item(),
        dead_fraction=zero.all(dim=0).double().mean().item(),
        effective_rank=participation(features.double()) if features.shape[0] > 1 else None,
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


# -- arguments -----------------------------------------------------------------------------------


def _half_mean_square(output: Any) -> Tensor:
    tensor = next((leaf for leaf in tree_flatten(output)[0] if is_float(leaf)), None)
    if tensor is None:
        raise ShapeError(
            f"the primary returned {type(output).__name__} without a floating-point tensor; pass "
            f"loss=, a function of the output that returns one number"
        )
    return 0.5 * tensor.square().mean()


def _check_rows(inputs: Inputs, rows: int) -> None:
    for leaf in tree_flatten(inputs)[0]:
        if isinstance(leaf, Tensor) and (leaf.dim() == 0 or leaf.shape[0] != rows):
            raise ShapeError(
                f"condition has {rows} rows but an input has shape {tuple(leaf.shape)}; each row "
                f"of x needs one condition (or pass a single condition without a leading "
                f"dimension, or wrap what all share in weightloom.shared)"
            )


def _first(tree: Any, count: int) -> Any:
    return tree_map(lambda leaf: leaf[:count] if isinstance(leaf, Tensor) else leaf, tree)


def _detached(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.clone() if leaf.is_inference() else leaf.detach()


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

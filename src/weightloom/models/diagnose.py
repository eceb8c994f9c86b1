"""Measuring a hypernetwork at work: scales, gradients, dependence on the condition.

The measurement is slow and plain on purpose: a copy of the primary is run once for each condition,
by itself, with hooks. Nothing of the machinery that makes `HyperNetwork` fast is involved, so what
is measured is what the network means, and a model that has gone wrong can still be looked at.
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
from weightloom.models.diagnosis import Diagnosis, Features, LayerRow, advise
from weightloom.models.diagnosis.numbers import finite, is_float, participation, rms
from weightloom.models.diagnosis.run import Gradients, Inputs, Loss, Run
from weightloom.models.hyper import HyperNetwork

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
    """What a person debugging ``hyper(x, condition, ...)`` wants to know; see `Diagnosis`.

    Gradients are of ``loss(output)``, one number; left out, of half the mean square of the output.
    ``condition`` is [b, *c] with one row of x each, or a single condition, for which nothing can
    be said about dependence. Without a loss only the first ``limit`` conditions are looked at; a
    loss is given all of them, since it may hold a target for each.

    The model is not changed: gradients, mode, running statistics and random state stay as they
    were. It is run in the mode (training or evaluation) that it is in.

    >>> import weightloom as wl
    >>> hyper = wl.HyperNetwork(wl.mlp([2, 16, 1]), wl.mlp([5, 8], last_activation=True))
    >>> found = diagnose(hyper, torch.randn(4, 100, 2), torch.randn(4, 5))
    >>> [row.layer for row in found.rows]
    ['0', '2']
    """
    if limit < 1:
        raise ShapeError(f"limit={limit} was given; at least 1 condition must be looked at")
    with torch.inference_mode(False), torch.enable_grad(), _untouched(hyper):
        inputs = tree_map(_detached, ((x, *args), kwargs))
        condition = _detached(condition)
        features, single = hyper._encode(condition)
        if not single:
            _check_rows(inputs, features.shape[0])
            if loss is None:
                features, condition, inputs = _first((features, condition, inputs), limit)
        found = _measure(hyper, condition, features, inputs, single, loss or _half_mean_square)
    found.warnings = advise(found)
    return found


def _measure(
    hyper: HyperNetwork,
    condition: Tensor,
    features: Tensor,
    inputs: Inputs,
    single: bool,
    loss: Loss,
) -> Diagnosis:
    generated = hyper.head.generate(features)
    weights = {name: _with_gradient(generated[name].dense()) for name in hyper.spec}
    run = Run(hyper.primary, hyper.spec, weights)
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
    """The second moment of features that the head reckoned with; None if it did not reckon."""
    reckons = hyper.initialisation.startswith(("hyperfan", "primary"))
    return hyper.initial_features.moment if reckons else None


def _features(features: Tensor, initialised_for: float | None) -> Features:
    zero = features == 0
    return Features(
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
    """What is NaN or infinite, in the order in which it would spread."""
    found = [] if finite(condition) else ["the condition"]
    found += _bad_parameters("encoder", hyper.encoder)
    found += [] if finite(features) else ["the features"]
    found += _bad_parameters("head", hyper.head)
    found += [f"the weights of layer {row.layer!r}" for row in rows if row.non_finite]
    found += [] if all(map(finite, tree_flatten(inputs)[0])) else ["the input"]
    found += [
        f"the outputs of layer {row.layer!r}"
        for row in rows
        if row.output_rms is not None and not math.isfinite(row.output_rms)
    ]
    return found if value is None or finite(value) else [*found, "the loss"]


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
    """The tensor itself if it has a history to follow back; else a fresh start for gradients."""
    return tensor if tensor.requires_grad else tensor.detach().requires_grad_()


@contextlib.contextmanager
def _untouched(module: nn.Module) -> Iterator[None]:
    """Buffers and random state are the same afterwards, whatever happens inside.

    Modules work on copies of their buffers, so even a graph that remembers the originals for a
    later backward pass finds them unchanged.
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

"""Warnings from the numbers of a diagnosis: what is wrong, and what to do about it.

The limits are rules of thumb. Tried on untrained MLPs of depth 2 to 16: init="hyperfan_in" stays
within all of them, "primary" gets the warning that weights hardly depend on the condition, and deep
networks that start as nn.Linear does get the one about vanishing gradients. Tried on the tasks of
benchmarks/start.py with the default start, before and in training: no warnings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from weightloom.hyper.diagnosis.report import Diagnosis, LayerRow, number, percent

__all__ = ["DEAD", "FEW", "advise", "gradients_over_depth", "independent", "is_default"]

SCALE = 30.0
"""factor by which outputs may exceed the larger of 1 and the input's scale, or fall below both"""
DEPTH, PER_LAYER, SHALLOW = 3e3, 5.0, 100.0
"""factors by which the norm of gradients of outputs may differ between the first and the last
layer: in any network, for each layer, and in shallow networks. A SIREN of four layers that starts
with init="hyperfan_in" has 5,700; by itself 1"""
OWN = 10.0
"""factor by which scales may differ from those of the primary by itself, where that is the start.
Of init="mup" the mean over conditions stands for the primary. Training moves that too, so it may
exceed the limits above by this factor at most"""
PARTS = 1e3
"""factor by which relative gradients may differ between head and encoder"""
HARDLY, HARDLY_AT_OWN = 0.01, 1e-6
"""share of the weights' mean square below which they hardly depend on the condition; for init="mup"
less, since the mean square is the primary's own: a SIREN that trains well has 0.0002"""
MOMENT = 10.0
"""factor by which the features' second moment may differ from what the head was initialised for"""
DEAD = 0.8
"""share of dead features; up to two thirds are dead in runs with ReLU that train well"""
COLLAPSED = 1.1
"""effective rank of features in one direction; 1.2 where brightness is learned first (CIFAR-10)"""
FEW = 4
"""with fewer conditions there are no warnings about dead or collapsed features"""


def advise(diagnosis: Diagnosis) -> list[str]:
    """Warnings, the most serious first. If something is not finite, only that."""
    if diagnosis.non_finite:
        return [_not_finite(diagnosis)]
    checks: tuple[Callable[[Diagnosis], str | None], ...] = (
        _exploding,
        _vanishing,
        independent,
        gradients_over_depth,
        _no_gradient,
        _head_against_encoder,
        _feature_scale,
        _dead_features,
        _collapsed_features,
    )
    return [text for text in (check(diagnosis) for check in checks) if text is not None]


def is_default(diagnosis: Diagnosis) -> bool:
    """Whether training starts from the primary's own weights: init="mup" or a relative head."""
    return _is_mup(diagnosis) or _is_relative(diagnosis)


def _is_mup(diagnosis: Diagnosis) -> bool:
    return diagnosis.initialisation.startswith("mup")


def _is_relative(diagnosis: Diagnosis) -> bool:
    """A head that writes changes, which are zero at the start: DeltaHead, AdapterHead."""
    return diagnosis.initialisation.startswith("delta")


def _starts_at_one_network(diagnosis: Diagnosis) -> bool:
    """Whether all conditions have the given primary at the start: relative heads and FiLM."""
    return _is_relative(diagnosis) or "neither scaled nor shifted" in diagnosis.initialisation


# -- not finite ----------------------------------------------------------------------------------


def _not_finite(diagnosis: Diagnosis) -> str:
    cause = diagnosis.non_finite[0]
    verb = "is" if cause in ("the condition", "the input", "the loss") else "are"
    if cause.startswith("parameter"):
        verb = "is"
    first = next((text for text in diagnosis.non_finite if text.startswith("the weights")), None)
    then = f"; {first} come first among the generated" if first not in (None, cause) else ""
    return f"{cause} {verb} not finite (NaN or infinity){then}. {_cure(cause)}"


def _cure(cause: str) -> str:
    if cause in ("the condition", "the input"):
        return "Clean the data: look for missing values and divisions by a zero deviation"
    if cause.startswith("parameter"):
        return (
            "Training has diverged: go back to an earlier checkpoint or start again with the "
            "default start (leave init out), a lower learning rate and "
            "torch.nn.utils.clip_grad_norm_"
        )
    if cause == "the loss":
        return "The network's output is finite, so look into loss: a logarithm or division by zero"
    return (
        "The parameters are finite, so numbers overflow on the way: normalise the condition and "
        "the input, leave init out (the default start), lower the learning rate"
    )


# -- scale ---------------------------------------------------------------------------------------


def _exploding(diagnosis: Diagnosis) -> str | None:
    limit = SCALE * max(1.0, diagnosis.input_rms or 1.0)
    own = _own(diagnosis, "output_rms", high=limit)
    large = (
        row
        for row in diagnosis.rows
        if (row.output_rms or 0.0) > max(limit, OWN * own.get(row.layer, 0.0))
    )
    row = next(large, None)
    if row is None:
        return None
    last = _with_output(diagnosis)[-1]
    return (
        f"activations explode with depth: rms {number(diagnosis.input_rms)} at the input, "
        f"{number(row.output_rms)} after layer {row.layer!r}, {number(last.output_rms)} after "
        f"{last.layer!r}. {_rescale(diagnosis)}"
    )


def _vanishing(diagnosis: Diagnosis) -> str | None:
    """Without the last layer: a trained network may well return small numbers.

    Scales must stay small up to there: branches beside residual connections may be small.
    """
    limit = min(1.0, diagnosis.input_rms or 1.0) / SCALE
    own = _own(diagnosis, "output_rms", low=limit)
    small = [
        (row.output_rms or 0.0) < min(limit, own.get(row.layer, math.inf) / OWN)
        for row in _with_output(diagnosis)[:-1]
    ]
    if not small or not small[-1]:
        return None
    row = _with_output(diagnosis)[small.index(True)]
    return (
        f"activations vanish with depth: rms {number(diagnosis.input_rms)} at the input, "
        f"{number(row.output_rms)} after layer {row.layer!r}. {_rescale(diagnosis)}"
    )


def _rescale(diagnosis: Diagnosis) -> str:
    if diagnosis.initialisation.startswith("hyperfan_in"):
        return (
            "Leave init out (the default start does not depend on the features' scale), or pass "
            "calibration= a batch of conditions to init='hyperfan_in'; if this is after training, "
            "lower the learning rate or put norm layers into the primary"
        )
    if _is_relative(diagnosis):
        return (
            "The primary by itself does not do so: the written change is too large. Lower the "
            "learning rate"
        )
    if _is_mup(diagnosis):
        return (
            "The default start has the scale of the primary itself: initialise the primary for its "
            "activations (torch.nn.init.kaiming_normal_) or put norm layers into it; if this is "
            "after training, lower the learning rate"
        )
    return (
        "Leave init out (the default start), which begins at the primary's own scale, or put in "
        "norm layers"
    )


def _own(
    diagnosis: Diagnosis, name: str, low: float = 0.0, high: float = math.inf
) -> dict[str, float]:
    """A number of each layer of the primary by itself; empty where that is not the start.

    Of init="mup" between ``low`` and ``high``.
    """
    known = {row.layer: getattr(row, name) for row in diagnosis.alone}
    values = {layer: value for layer, value in known.items() if value is not None}
    if not _is_mup(diagnosis):
        return values
    return {layer: min(max(value, low), high) for layer, value in values.items()}


def _with_output(diagnosis: Diagnosis) -> list[LayerRow]:
    return [row for row in diagnosis.rows if row.output_rms is not None]


# -- dependence on the condition -----------------------------------------------------------------


def independent(diagnosis: Diagnosis) -> str | None:
    """Whether conditions get the same weights, or nearly so."""
    rows = [row for row in diagnosis.rows if row.dependence is not None]
    if not rows:
        return None
    if all(row.effective_rank == 0.0 for row in rows):
        if _starts_at_one_network(diagnosis) and _inputs_differ(diagnosis):
            return None  # such a head starts there; whether it stays there, training steps show
        return f"all conditions get the same weights: {_same_weights(diagnosis)}"
    total = sum(row.size for row in rows)
    share = sum(row.size * (row.dependence or 0.0) for row in rows) / total
    if share >= (HARDLY_AT_OWN if _is_mup(diagnosis) else HARDLY):
        return None
    if _is_relative(diagnosis) or diagnosis.steps is not None:
        return None  # some starts are near the primary on purpose; steps show whether it stays so
    start = (
        f"the weights hardly depend on the condition: {percent(share)} of their mean square "
        f"changes with it."
    )
    if _is_mup(diagnosis):
        return (
            f"{start} Normalise the conditions to mean 0 and deviation 1, and lower the learning "
            f"rate: the start writes a larger part for each condition"
        )
    return (
        f"{start} init='primary' starts like this on purpose (and so do norm, attention "
        f"and recurrent layers under any init); if outputs ignore the condition after training, "
        f"leave init out (the default start), normalise the conditions, or give the head a higher "
        f"learning rate"
    )


def _inputs_differ(diagnosis: Diagnosis) -> bool:
    return diagnosis.condition_rank != 0.0 and diagnosis.features.effective_rank != 0.0


def _same_weights(diagnosis: Diagnosis) -> str:
    if diagnosis.condition_rank == 0.0:
        return "the conditions given are all equal; pass different ones"
    if diagnosis.features.effective_rank == 0.0:
        return (
            "the encoder returns the same features for different conditions; look for dead "
            "activations or a constant in it, and normalise the conditions"
        )
    return "the head ignores the features; build it again and leave init out (the default start)"


# -- gradients -----------------------------------------------------------------------------------


def gradients_over_depth(diagnosis: Diagnosis) -> str | None:
    """Whether the gradient differs too much between the first and the last layer."""
    ends = _gradient_ends(diagnosis.rows)
    if ends is None:
        return None
    first, last, ratio, layers = ends
    limit = min(DEPTH, max(SHALLOW, PER_LAYER**layers))
    if 1.0 / limit <= ratio <= limit:
        return None
    own = _gradient_ends(diagnosis.alone)
    alike = own is not None and 1.0 / OWN <= ratio / own[2] <= OWN
    if alike and _is_relative(diagnosis):
        return None  # so does the given primary by itself, as it was trained
    verb = "explode" if ratio > 1.0 else "vanish"
    return (
        f"gradients {verb} on the way back: rms {number(last.output_grad_rms)} at layer "
        f"{last.layer!r}, {number(first.output_grad_rms)} at {first.layer!r}. "
        f"{_remedy(diagnosis, alike)}"
    )


def _remedy(diagnosis: Diagnosis, alike: bool) -> str:
    if alike or diagnosis.initialisation.startswith("primary"):
        return (
            "So they do in the primary by itself: initialise it for its activations "
            "(torch.nn.init.kaiming_normal_), or give it norm layers or residual connections; if "
            "this is after training, lower the learning rate"
        )
    if is_default(diagnosis):
        return "The primary by itself does not do so: lower the learning rate"
    return (
        "Leave init out (the default start begins with the primary's own weights, which a SIREN "
        "needs), or start with init='hyperfan_out', or give the primary norm layers or residual "
        "connections"
    )


def _gradient_ends(rows: Sequence[LayerRow]) -> tuple[LayerRow, LayerRow, float, int] | None:
    """First and last layer with a gradient, the ratio of their norms, and the steps between.

    Norms, not rms: a layer with one output has fewer numbers than a wide one, not less gradient.
    """
    known = [row for row in rows if row.output_grad_norm]
    if len(known) < 2:
        return None
    first, last = known[0], known[-1]
    ratio = (first.output_grad_norm or 0.0) / (last.output_grad_norm or 1.0)
    return first, last, ratio, len(known) - 1


def _no_gradient(diagnosis: Diagnosis) -> str | None:
    known = [row for row in diagnosis.rows if row.size and row.weight_grad_rms is not None]
    silent = [row.layer for row in known if not row.weight_grad_rms and not row.bias_grad_rms]
    if not silent:
        return None
    if len(silent) == len(known):
        return (
            "the gradient of the loss is zero everywhere: the output is zero or the loss does not "
            "look at it; pass the loss= of your training"
        )
    return (
        f"no gradient reaches layer {', '.join(map(repr, silent))}: the layer is not used, or the "
        f"activations behind it are dead for every input. Leave it out of generate=, use "
        f"activations that do not die (GELU, LeakyReLU), or leave init out (the default start)"
    )


def _head_against_encoder(diagnosis: Diagnosis) -> str | None:
    if diagnosis.steps is not None and "SGD" not in diagnosis.steps.optimiser:
        return None  # Adam and its like divide by the size of the gradient
    head, encoder = diagnosis.head_grad, diagnosis.encoder_grad
    if head is None or encoder is None or (head == 0.0 and encoder == 0.0):
        return None
    if all(row.effective_rank == 0.0 for row in diagnosis.rows if row.size):
        return None  # no gradient reaches the features then; `independent` looks at that
    ratio = math.inf if encoder == 0.0 else head / encoder
    if 1.0 / PARTS <= ratio <= PARTS:
        return None
    large, small = ("head", "encoder") if ratio > 1.0 else ("encoder", "head")
    return (
        f"the gradient of the {large} is far larger than that of the {small} (relative to their "
        f"parameters: head {number(head)}, encoder {number(encoder)}), so with one learning rate "
        f"the {small} hardly moves. Use Adam or a learning rate for each, and leave init out (the "
        f"default start)"
    )


# -- features ------------------------------------------------------------------------------------


def _feature_scale(diagnosis: Diagnosis) -> str | None:
    measured, wanted = diagnosis.features.second_moment, diagnosis.features.initialised_for
    if wanted is None or wanted / MOMENT <= measured <= wanted * MOMENT:
        return None
    return (
        f"the features' second moment is {number(measured)}, but the head was initialised for "
        f"{number(wanted)}, so generated weights are off by a factor of "
        f"{number(math.sqrt(measured / wanted))}. Before training, leave init out (the default "
        f"start), pass calibration= a batch of conditions to HyperNetwork or normalise the "
        f"conditions; after it, put a norm layer at the end of the encoder"
    )


def _dead_features(diagnosis: Diagnosis) -> str | None:
    if diagnosis.conditions < FEW or diagnosis.features.dead_fraction <= DEAD:
        return None
    return (
        f"{percent(diagnosis.features.dead_fraction)} of the features are zero for every "
        f"condition: the encoder's last activation is dead there. Use one that does not die (GELU, "
        f"LeakyReLU, or none), normalise the conditions, or lower the learning rate"
    )


def _collapsed_features(diagnosis: Diagnosis) -> str | None:
    rank, conditions = diagnosis.features.effective_rank, diagnosis.condition_rank
    if diagnosis.conditions < FEW or rank is None or conditions is None:
        return None
    if not 0.0 < rank < COLLAPSED or conditions < 2.0 * rank:
        return None
    return (
        f"the features vary in about one direction (effective rank {rank:.1f}) though the "
        f"conditions differ in {conditions:.1f}: all generated networks lie on one line. Normalise "
        f"the conditions, check the encoder's initialisation, or widen its narrowest layer"
    )

"""Warnings from training steps: what they did to the outputs, and what to do about it.

Limits were chosen on emoji-like pictures, digits, waves and SIRENs (docs/diagnose.md): runs that
train stay below them, runs that fail exceed them by a factor of two or more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from weightloom.hyper.diagnosis.advice import (
    DEAD,
    FEW,
    gradients_over_depth,
    independent,
    is_default,
)
from weightloom.hyper.diagnosis.report import Diagnosis, StepReport, number, percent

__all__ = ["advise_steps"]

FAR, RATIO = 0.5, 3.0
"""a step is too far if outputs move by more than half their scale, and by more than this many times
what a step does to one network by itself; and if the loss rises, and does not fall below what it
was, or jumps. Long steps to a lower loss are fine: the first ones go to the mean"""
STILL = 1e-5
"""outputs that move less than this in every step stand still"""
SATURATED, WRONG = 0.9, 0.1
"""share of saturated outputs, and of those whose target is elsewhere"""
RISE, JUMP, STALL = 1.1, 3.0, 0.97
"""factors of the loss: a rise in one step or in all of them, a rise of the first loss at any step,
and what counts as no progress"""
IGNORED = 5e-4
"""change of outputs, over their scale, if rows have the weights of others: less is none. Runs that
train had 0.01 or more after five steps"""
UNEXPLAINED = 0.5
"""share of a target's variance that the primary by itself leaves"""


def advise_steps(diagnosis: Diagnosis) -> list[str]:
    """Warnings, the parts that train wrongly first; none without steps or if nothing is finite."""
    report = diagnosis.steps
    if report is None or diagnosis.non_finite:
        return []
    parts = _present(diagnosis, report, (_missing, _frozen_group, _statistics))
    # One cause of a bad course is enough: what overshoots also saturates and raises the loss.
    checks = (_too_far, _saturated, _not_finite, _still, _rises, _stalls, _still_the_same)
    course = _present(diagnosis, report, checks)[:1]
    if _too_far(diagnosis, report) and (text := _saturated(diagnosis, report)):
        course.append(text)
    return [*parts, *course, *_present(diagnosis, report, (_died, _cannot_fit))]


Check = Callable[[Diagnosis, StepReport], str | None]


def _present(diagnosis: Diagnosis, report: StepReport, checks: Sequence[Check]) -> list[str]:
    texts = (check(diagnosis, report) for check in checks)
    return [text for text in texts if text is not None]


# -- parts ---------------------------------------------------------------------------------------


def _missing(diagnosis: Diagnosis, report: StepReport) -> str | None:
    if not report.missing:
        return None
    verb = "is" if len(report.missing) == 1 else "are"
    return (
        f"{_names(report.missing)} {verb} not in the optimiser, so what requires a gradient there "
        f"never moves. Make the optimiser from hyper.parameters(), or freeze these parameters with "
        f"requires_grad_(False)"
    )


def _frozen_group(diagnosis: Diagnosis, report: StepReport) -> str | None:
    if not report.frozen_groups:
        return None
    return (
        f"the optimiser's group with {report.frozen_groups[0]!r} is frozen: nothing in it requires "
        f"a gradient. Call requires_grad_(True) to train it, or leave the group out"
    )


def _statistics(diagnosis: Diagnosis, report: StepReport) -> str | None:
    if not report.moved_statistics:
        return None
    return (
        f"a frozen part changes while training: the running statistics of "
        f"{_names(report.moved_statistics)}, which is in training mode. Call eval() on it; "
        f"hyper.train() leaves a frozen encoder in evaluation mode then"
    )


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:3]))
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown


# -- the course of the steps ---------------------------------------------------------------------


def _too_far(diagnosis: Diagnosis, report: StepReport) -> str | None:
    row = next(
        (
            row
            for before, row in pairwise(report.rows)
            if (row.change or 0.0) > FAR
            and (row.ratio is None or row.ratio > RATIO)
            and not row.loss < RISE * before.loss
            and not (row.loss < JUMP * before.loss and report.rows[-1].loss < STALL * before.loss)
        ),
        None,
    )
    if row is None:
        return None
    return (
        f"steps move the outputs too far: step {row.step} by {number(row.change)} times their "
        f"scale, {number(row.ratio)} times as far as one of the written networks moves by itself; "
        f"the loss goes from {number(report.rows[row.step - 1].loss)} to {number(row.loss)}. "
        f"{_smaller_steps(diagnosis, row.ratio)}"
    )


def _smaller_steps(diagnosis: Diagnosis, ratio: float | None = None) -> str:
    times = f" (about {ratio:.0f} times)" if ratio is not None and ratio > RATIO else ""
    if is_default(diagnosis):
        return f"Lower the learning rate{times}"
    return (
        f"Leave init out (the default start makes written weights move as ordinary ones do), or "
        f"lower the learning rate{times}"
    )


def _saturated(diagnosis: Diagnosis, report: StepReport) -> str | None:
    last, first = report.rows[-1], report.rows[0]
    if (last.saturated or 0.0) < SATURATED:
        return None
    better = last.loss < STALL * first.loss
    if (last.wrong is None and better) or (last.wrong is not None and last.wrong < WRONG):
        return None
    step = next(row.step for row in report.rows if (row.saturated or 0.0) >= SATURATED)
    when = "from the start" if step == 0 else f"after {step} step{'s' if step > 1 else ''}"
    return (
        f"the last activation ({report.last_activation}) is saturated: {when} "
        f"{percent(report.rows[step].saturated)} of the outputs are at its ends, where hardly any "
        f"gradient passes. {_smaller_steps(diagnosis)}; or drop the activation and put it into the "
        f"loss (binary_cross_entropy_with_logits)"
    )


def _not_finite(diagnosis: Diagnosis, report: StepReport) -> str | None:
    row = report.rows[-1]
    if math.isfinite(row.loss):
        return None
    return (
        f"the loss is not finite after step {row.step}. {_smaller_steps(diagnosis)}; "
        f"torch.nn.utils.clip_grad_norm_ keeps single steps small"
    )


def _still(diagnosis: Diagnosis, report: StepReport) -> str | None:
    moved = [row.change for row in report.rows if row.change is not None]
    if moved and max(moved) >= STILL:
        return None
    alone = max((row.alone_change or 0.0 for row in report.rows), default=0.0)
    start = (
        f"steps do not move the outputs: at most {number(max(moved, default=0.0))} times their "
        f"scale ({report.optimiser})"
    )
    if alone < STILL:
        return (
            f"{start}, nor those of a written network by itself. Raise the learning rate; if that "
            f"does not help, the loss or the activations pass no gradient"
        )
    return (
        f"{start}, though a written network by itself moves by {number(alone)}. Check that the "
        f"head requires a gradient and is in the optimiser, and that features are not all zero"
    )


def _rises(diagnosis: Diagnosis, report: StepReport) -> str | None:
    losses = [row.loss for row in report.rows]
    if losses[0] <= 0.0 or not (losses[-1] > RISE * losses[0] or max(losses) > JUMP * losses[0]):
        return None
    alone = report.rows[-1].alone_loss
    also = alone > report.rows[0].alone_loss
    advice = "Lower the learning rate" if also else _smaller_steps(diagnosis)
    beside = ", and so does that of a written network by itself" if also else ""
    return (
        f"the loss rises on the very batch that is trained on{beside}: from {number(losses[0])} to "
        f"{number(max(losses))}. {advice}"
    )


def _stalls(diagnosis: Diagnosis, report: StepReport) -> str | None:
    """Outputs move a lot, to no avail; a written network by itself gets better meanwhile."""
    first, last = report.rows[0], report.rows[-1]
    moved = sum(row.change or 0.0 for row in report.rows)
    improves_alone = last.alone_loss < 0.8 * first.alone_loss
    if moved < FAR or last.loss < STALL * first.loss or not improves_alone:
        return None
    return (
        f"the loss does not fall ({number(first.loss)} to {number(last.loss)}) though the outputs "
        f"move by {number(moved)} times their scale, while that of a written network by itself "
        f"falls to {percent(last.alone_loss / first.alone_loss)}. {_smaller_steps(diagnosis)}"
    )


_DISTINCT = (
    "Normalise the conditions to mean 0 and deviation 1, and check that the encoder passes their "
    "differences on (dead or saturated activations); or raise the head's learning rate"
)


def _still_the_same(diagnosis: Diagnosis, report: StepReport) -> str | None:
    """Weights that hardly depend on the condition: fine at the start, not if steps leave it so."""
    before, after = report.response_before, report.response
    if before is None or after is None or after >= IGNORED or after > 2.0 * before:
        return None
    if independent(diagnosis):
        return None  # has been said
    course = "the steps do not change that" if before < IGNORED else "the steps have made it so"
    remedy = _smaller_steps(diagnosis) if before >= IGNORED else _DISTINCT
    return (
        f"the weights hardly depend on the condition, and {course}: with the weights of another "
        f"condition, outputs change by {number(after)} times their scale ({number(before)} at the "
        f"start). {remedy}"
    )


# -- features and the primary --------------------------------------------------------------------


def _died(diagnosis: Diagnosis, report: StepReport) -> str | None:
    before = diagnosis.features.dead_fraction
    if diagnosis.conditions < FEW or report.dead_fraction <= DEAD or before > DEAD:
        return None
    return (
        f"features die in the first steps: {percent(before)} are zero for every condition at the "
        f"start, {percent(report.dead_fraction)} after {report.rows[-1].step} steps. Lower the "
        f"learning rate of the encoder, or end it with an activation that does not die (GELU, "
        f"LeakyReLU, or none)"
    )


def _cannot_fit(diagnosis: Diagnosis, report: StepReport) -> str | None:
    share = report.unexplained_alone
    if share is None or share <= UNEXPLAINED:
        return None
    if gradients_over_depth(diagnosis):
        return None  # networks that pass no gradient cannot be trained by themselves either
    return (
        f"the primary can hardly fit these targets: trained by itself on a single condition it "
        f"still leaves {percent(min(share, 1.0))} of the variance, and no hypernetwork writes a "
        f"better one. A plain network on coordinates is slow at fine detail: use "
        f"wl.coordinate_network(features='fourier') as the primary, or a wider one"
    )

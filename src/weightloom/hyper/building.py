"""Choices made once, when a hypernetwork is built: its head, its features, its start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from weightloom.errors import HeadError, ShapeError
from weightloom.hyper.encoders import (
    Condition,
    ConditionDims,
    Dims,
    FeatureStatistics,
    condition_dims,
    encode,
    feature_width,
    probe_conditions,
)
from weightloom.hyper.heads import FullHead, Head, make_head
from weightloom.hyper.rows.functional import modes_restored
from weightloom.hyper.start import (
    FixedScaling,
    Normalisation,
    Scaling,
    apply_ntk,
    check_init,
    init_targets,
    multipliers,
    mup_targets,
    reach,
    same_for_multiples,
    varying_share,
)
from weightloom.hyper.start.scaling import FEWEST_NORMALISED
from weightloom.networks import WeightSpec

__all__ = [
    "choose_dims",
    "choose_head",
    "choose_multipliers",
    "choose_scaling",
    "choose_width",
    "initialise_head",
    "plain_features_hint",
]

DEFAULT_INIT = "mup"
PLAIN_INIT = "hyperfan_in"
"""The default before: features are used as they are, also by heads that start at the primary."""


def choose_head(head: str | Head, init: str | None) -> Head:
    if init is not None:
        check_init(init)
    if init == "ntk" and isinstance(head, str) and head == "full":
        return FullHead(offset=False)
    chosen = make_head(head)
    if chosen.relative and init not in (None, DEFAULT_INIT, PLAIN_INIT):
        raise HeadError(
            f"init={init!r} was given with a delta head, which starts at the given primary; leave "
            f"init out (init={PLAIN_INIT!r} uses features as they are)"
        )
    return chosen


def choose_dims(encoder: nn.Module, given: Dims) -> ConditionDims:
    if isinstance(given, int):
        return ConditionDims(given, given)
    tensor = 1 if isinstance(encoder, nn.Identity) else condition_dims(encoder)
    return ConditionDims(tensor if given is None else None, given)


def choose_width(encoder: nn.Module, dims: ConditionDims, calibration: Condition | None) -> int:
    if calibration is not None:
        with torch.no_grad(), modes_restored(encoder):
            encoder.eval()  # or BatchNorm would update its statistics
            return encode(encoder, calibration, dims)[0].shape[1]
    width = feature_width(encoder)
    if width is None:
        raise ShapeError(
            f"how many features the encoder ({type(encoder).__name__}) returns cannot be read from "
            f"its layers; pass features=k, or calibration= a batch of conditions"
        )
    return width


def choose_scaling(
    head: Head,
    encoder: nn.Module,
    dims: ConditionDims,
    init: str | None,
    calibration: Condition | None,
    known: FeatureStatistics,
) -> Scaling | None:
    """What brings features to the size that "mup" wants; None for the other starts."""
    if (init or DEFAULT_INIT) != "mup":
        return None
    like = next(head.parameters())
    probe = calibration if calibration is not None else probe_conditions(encoder, dims.tensor)
    bare = isinstance(encoder, nn.Identity) or head.features < FEWEST_NORMALISED
    if bare or same_for_multiples(encoder, probe, dims):
        return FixedScaling(head.features, known.moment, like)
    return Normalisation(head.features, head.learns_constant, like)


def choose_multipliers(head: Head, primary: nn.Module, init: str | None) -> dict[str, float]:
    """Factors for wide, narrow and steep layers with "mup"; a change of given weights has none."""
    if (init or DEFAULT_INIT) != "mup" or head.relative:
        return {}
    spec: WeightSpec = head.spec  # type: ignore[assignment]
    return multipliers(primary, spec)


def initialise_head(
    head: Head,
    primary: nn.Module,
    encoder: nn.Module,
    values: Mapping[str, Tensor],
    init: str | None,
    known: FeatureStatistics,
    scaling: Scaling | None,
    slowed: Mapping[str, float],
) -> str:
    """Initialise the head's parameters; return a description of how."""
    chosen = check_init(init or DEFAULT_INIT)
    spec: WeightSpec = head.spec  # type: ignore[assignment]
    moment = known.moment if scaling is None else (reach(head.features) / head.features) ** 2
    if head.relative:
        head.zero(moment)
        return f"delta: generates the given primary exactly; {_scaled(scaling, known)}"
    if chosen == "default":
        head.default()
        return "default: every layer as nn.Linear does it, whatever the primary needs"
    if chosen == "ntk":
        apply_ntk(primary, encoder, head)
        return "ntk: standard normal parameters, scales in the forward pass"
    if chosen == "mup":
        head.initialise(mup_targets(primary, head, values, slowed), moment)
        return f"mup: own weights and a part for each condition; {_scaled(scaling, known)}"
    share = varying_share(primary, spec, chosen, known.spread * head.degree)
    head.initialise(init_targets(primary, spec, values, chosen, share), moment)
    done = f"{chosen}: second moment of features {known.moment:.4g} ({known.source})"
    if chosen == "primary":
        return done
    return f"{done}, {share:.0%} of the weights' variance depends on the condition"


def _scaled(scaling: nn.Module | None, known: FeatureStatistics) -> str:
    if scaling is None:
        return "features as they are"
    if isinstance(scaling, Normalisation):
        return "features normalised for each condition"
    return f"features divided by the root of {known.moment:.4g} ({known.source})"


def plain_features_hint(own: Iterable[str], given: Iterable[str]) -> str:
    """What to do with a checkpoint of a model whose features were used as they are."""
    missing = {name for name in own if name.startswith("scaling.")} - set(given)
    if not missing:
        return ""
    return f"; it is of features that were used as they are: build it with init={PLAIN_INIT!r}"

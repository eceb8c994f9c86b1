"""Everything that is known about a network's size and steepness, in one object."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from weightloom.bounds.chain import Chain, read_chain
from weightloom.bounds.compare import Comparison, compare_chain, size
from weightloom.bounds.covering import RULES, Covering, log_covering_number
from weightloom.bounds.lipschitz import Attained, lipschitz_lower
from weightloom.bounds.norms import Bound, all_norms
from weightloom.bounds.report_class import (
    class_of,
    exchangeable,
    largest_of,
    notes_of,
    reason_of,
    signs_of,
)
from weightloom.bounds.report_table import table
from weightloom.bounds.stochastic import stochastic_error
from weightloom.bounds.widths import log_group_order, log_volume
from weightloom.errors import ConfigError

__all__ = ["LipschitzRange", "Report", "report"]

SAMPLES = (10**3, 10**4, 10**5, 10**6, 10**7)

# Above this many parameters the search for a lower bound is shorter: one step reads them all.
LARGE = 10**6
# Above this many it is only made when asked for: a minute per norm at 67 million.
HUGE = 10**7


@dataclass(frozen=True)
class LipschitzRange:
    """The constant in one norm lies between what a pair of points attains and what is proven."""

    norm: str
    upper: Bound
    lower: Attained | None
    """None: not searched for"""


@dataclass(frozen=True)
class Report:
    """See `report`. ``str()`` is a table to read, `json` the same for programs."""

    widths: tuple[int, ...]
    size: int
    width: int
    depth: int
    """weight matrices"""
    hidden_layers: int
    neurons: int
    norms: dict[str, Bound]
    lipschitz: dict[str, LipschitzRange]
    log_group_order: float
    """ln(d_1! ... d_L!)"""
    log_group_order_signs: float
    """the same with sign flips, where activations allow them"""
    log_volume: float | None
    log_volume_representatives: float | None
    covering: dict[str, Covering]
    comparison: Comparison | None
    stochastic: tuple[tuple[int, float, float], ...]
    """(samples, k = 1, k = 2), up to the loss's constant"""
    settings: dict[str, float]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return table(self)

    def json(self, indent: int | None = 2) -> str:
        """Numbers that do not fit into a float are null; their logarithms are there."""
        return json.dumps(_plain(self.dict()), indent=indent, allow_nan=False)

    def dict(self) -> dict[str, Any]:
        """The fields as plain values."""
        skip = ("norms", "lipschitz", "covering", "comparison", "stochastic")
        made = {k: v for k, v in vars(self).items() if k not in skip}
        made["norms"] = {k: {"value": float(v), "log": v.log} for k, v in self.norms.items()}
        made["lipschitz"] = {k: _range(v) for k, v in self.lipschitz.items()}
        made["covering"] = {k: vars(v) for k, v in self.covering.items()}
        rows = [] if self.comparison is None else [vars(row) for row in self.comparison.rows]
        made["comparison"] = rows
        keys = ("samples", "error", "error_squared")
        made["stochastic"] = [dict(zip(keys, line, strict=True)) for line in self.stochastic]
        return made


def report(
    net: nn.Module,
    *,
    input_shape: Sequence[int] | None = None,
    radius: float = 1.0,
    bound: float | None = None,
    epsilon: float = 0.1,
    samples: Sequence[int] = SAMPLES,
    search: bool | None = None,
    seed: int = 0,
) -> Report:
    """Size, norms by name, Lipschitz ranges, symmetry, covering numbers and 002's table of ``net``.

    ``radius`` (B_x) and ``epsilon`` are those of 002; ``bound`` (B) is by default the largest
    weight or bias of the network, so that the class is the smallest box that holds it.
    ``search=False`` leaves out the lower bounds. What cannot be said (002 is silent on
    convolutions) is in ``notes``.
    """
    chain = read_chain(net, input_shape)
    found = all_norms(chain)
    largest = max(largest_of(p) for layer in chain.affine for p in layer.module.parameters())
    bound = (largest or 1.0) if bound is None else bound
    notes = notes_of(chain, bound, largest)
    hidden = chain.widths[1:-1]
    dense = reason_of(chain)
    notes += [dense] if dense else []
    classes = class_of(chain) if not dense else None
    covering, stochastic = _coverings(chain, classes, bound, radius, epsilon, samples, notes)
    comparison = None
    if not dense and hidden:
        comparison = compare_chain(chain, radius, epsilon, found["product 2"])
    volume = None if dense else log_volume(chain.widths, bound)
    order = log_group_order(exchangeable(chain))
    return Report(
        widths=chain.widths,
        size=size(chain),
        width=max(hidden, default=0),
        depth=len(chain.affine),
        hidden_layers=len(hidden),
        neurons=sum(hidden),
        norms=found,
        lipschitz=_ranges(net, chain, found, search, input_shape, seed, notes),
        log_group_order=order,
        log_group_order_signs=log_group_order(exchangeable(chain), signs_of(chain)),
        log_volume=volume,
        log_volume_representatives=None if volume is None else volume - order,
        covering=covering,
        comparison=comparison,
        stochastic=stochastic,
        settings={"radius": radius, "bound": bound, "epsilon": epsilon},
        notes=tuple(notes),
    )


def _ranges(
    net: nn.Module,
    chain: Chain,
    found: dict[str, Bound],
    search: bool | None,
    input_shape: Sequence[int] | None,
    seed: int,
    notes: list[str],
) -> dict[str, LipschitzRange]:
    if search is None:
        search = size(chain) <= HUGE
        if not search:
            notes.append(
                "Lipschitz: large network, so no search for lower bounds; pass search=True"
            )
    known = None not in chain.shapes
    if search and not known:
        notes.append("Lipschitz: no lower bound without input_shape=(channels, height, width)")
    starts, rounds = (64, 20) if size(chain) <= LARGE else (6, 3)
    made = {}
    for p in ("1", "2", "inf"):
        uppers = [found[key] for key in (f"product {p}", f"paths {p}") if key in found]
        lower = None
        if search and known:
            lower = lipschitz_lower(
                net, p, input_shape=input_shape, starts=starts, rounds=rounds, seed=seed
            )
        made[p] = LipschitzRange(p, min(uppers, key=lambda b: b.log), lower)
    return made


def _coverings(
    chain: Chain,
    classes: tuple[tuple[float, ...], float] | None,
    bound: float,
    radius: float,
    epsilon: float,
    samples: Sequence[int],
    notes: list[str],
) -> tuple[dict[str, Covering], tuple[tuple[int, float, float], ...]]:
    if classes is None:
        return {}, ()
    slopes, at_zero = classes
    widths = chain.widths
    made = {}
    for rule in RULES:
        if rule == "theorem3" and (len(widths) != 3 or widths[-1] != 1):
            notes.append("Theorem 3 is about one hidden layer and one output; left out")
            continue
        made[rule] = log_covering_number(
            widths,
            bound=bound,
            radius=radius,
            lipschitz=slopes,
            epsilon=epsilon,
            rule=rule,
            at_zero=at_zero,
        )
    errors = []
    for n in samples:
        one = stochastic_error(
            widths, n, bound=bound, radius=radius, lipschitz=slopes, at_zero=at_zero
        )
        errors.append((n, one, one**2))
    return made, tuple(errors)


def _range(found: LipschitzRange) -> dict[str, Any]:
    made: dict[str, Any] = {"upper": float(found.upper), "log_upper": found.upper.log}
    made["how"] = found.upper.name
    made["lower"] = None if found.lower is None else found.lower.value
    return made


def _plain(value: Any) -> Any:
    """Tuples as lists and numbers that JSON cannot hold as None."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | int | bool):
        return value
    raise ConfigError(f"{type(value).__name__} cannot be written as JSON")

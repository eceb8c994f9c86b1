"""Everything known about a network's size, norms and capacity, in one object and one table."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from weightloom.bounds.chain import Chain, read_chain
from weightloom.bounds.comparison import (
    BoundsComparison,
    compare_chain,
    network_class,
    require_dense,
)
from weightloom.bounds.covering import RULES, Covering, log_covering_number, stochastic_error
from weightloom.bounds.lipschitz_constants import Attained, lipschitz_lower, smallest
from weightloom.bounds.network_norms import Bound, all_norms
from weightloom.bounds.semidefinite import closed_form
from weightloom.bounds.semidefinite.recursion import Norms
from weightloom.bounds.stages import Elementwise
from weightloom.bounds.widths import log_group_order, log_volume
from weightloom.errors import ConfigError, UnsupportedModuleError
from weightloom.tables import aligned, line

__all__ = ["BoundsReport", "LipschitzRange", "report"]

SAMPLES = (10**3, 10**4, 10**5, 10**6, 10**7)

# Above this many parameters the search for a lower bound is shorter: every step reads them all.
LARGE = 10**6
# Above this many there is no search unless asked for: it takes a minute per norm at 67 million.
HUGE = 10**7


@dataclass(frozen=True)
class LipschitzRange:
    """The Lipschitz constant in one norm: at least ``lower``, at most ``upper``."""

    norm: str
    upper: Bound
    """proven"""
    lower: Attained | None
    """attained by a pair of points; None if there was no search"""

    @property
    def ratio(self) -> float | None:
        """``upper`` / ``lower``: how far from sharp the bound is at most; None if not known."""
        if self.lower is None or self.lower.value == 0:
            return None
        return float(self.upper) / self.lower.value


@dataclass(frozen=True)
class BoundsReport:
    """See `report`. ``str()`` gives a table, `json` the same for programs."""

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
    comparison: BoundsComparison | None
    stochastic: tuple[tuple[int, float, float], ...]
    """(samples, k = 1, k = 2), up to the loss's constant"""
    settings: dict[str, float]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return _table(self)

    def json(self, indent: int | None = 2) -> str:
        """The fields as JSON. Numbers that do not fit into a float are null; see their logs."""
        return json.dumps(_plain(self.dict()), indent=indent, allow_nan=False)

    def dict(self) -> dict[str, Any]:
        """The fields as plain values."""
        nested = ("norms", "lipschitz", "covering", "comparison", "stochastic")
        fields = {k: v for k, v in vars(self).items() if k not in nested}
        fields["norms"] = {k: {"value": float(v), "log": v.log} for k, v in self.norms.items()}
        fields["lipschitz"] = {k: _range_fields(v) for k, v in self.lipschitz.items()}
        fields["covering"] = {k: vars(v) for k, v in self.covering.items()}
        rows = [] if self.comparison is None else [vars(row) for row in self.comparison.rows]
        fields["comparison"] = rows
        keys = ("samples", "error", "error_squared")
        fields["stochastic"] = [dict(zip(keys, line, strict=True)) for line in self.stochastic]
        return fields


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
) -> BoundsReport:
    """Size, norms by name, Lipschitz ranges, symmetry, covering numbers, comparison table.

    ``radius`` (B_x) and ``epsilon`` are those of functional-equivalence; ``bound`` (B) is by
    default the largest weight or bias of the network, so that the class is the smallest box that
    contains it. ``search=False`` leaves out the lower bounds. What cannot be computed
    (functional-equivalence does not cover convolutions) is listed in ``notes``.
    """
    chain = read_chain(net, input_shape)
    norms = all_norms(chain)
    largest = max(_largest(p) for layer in chain.affine for p in layer.module.parameters())
    bound = (largest or 1.0) if bound is None else bound
    notes = _notes(chain, bound, largest)
    hidden = chain.widths[1:-1]
    not_dense = _why_not_dense(chain)
    notes += [not_dense] if not_dense else []
    classes = None if not_dense else network_class(chain)
    covering, stochastic = _coverings(chain, classes, bound, radius, epsilon, samples, notes)
    comparison = None
    if not not_dense and hidden:
        comparison = compare_chain(chain, radius, epsilon, norms["product 2"])
    volume = None if not_dense else log_volume(chain.widths, bound)
    order = log_group_order(chain.permutable_widths)
    return BoundsReport(
        widths=chain.widths,
        size=chain.size,
        width=max(hidden, default=0),
        depth=len(chain.affine),
        hidden_layers=len(hidden),
        neurons=sum(hidden),
        norms=norms,
        lipschitz=_ranges(net, chain, norms, search, input_shape, seed, notes),
        log_group_order=order,
        log_group_order_signs=log_group_order(chain.permutable_widths, chain.sign_symmetric),
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
    norms: dict[str, Bound],
    search: bool | None,
    input_shape: Sequence[int] | None,
    seed: int,
    notes: list[str],
) -> dict[str, LipschitzRange]:
    """Lipschitz ranges by norm; adds to ``notes`` why a lower bound is missing."""
    if search is None:
        search = chain.size <= HUGE
        if not search:
            notes.append(
                "Lipschitz: large network, so no search for lower bounds; pass search=True"
            )
    known = None not in chain.shapes
    if search and not known:
        notes.append("Lipschitz: no lower bound without input_shape=(channels, height, width)")
    starts, rounds = (64, 20) if chain.size <= LARGE else (6, 3)
    ranges = {}
    for p in ("1", "2", "inf"):
        uppers = [norms[key] for key in (f"product {p}", f"paths {p}") if key in norms]
        if p == "2" and known:
            stage_norms = Norms(chain, norms["product 2"])
            uppers.append(closed_form(chain, norms=stage_norms))
        lower = None
        if search and known:
            lower = lipschitz_lower(
                net, p, input_shape=input_shape, starts=starts, rounds=rounds, seed=seed
            )
        ranges[p] = LipschitzRange(p, smallest(uppers), lower)
    return ranges


def _coverings(
    chain: Chain,
    classes: tuple[tuple[float, ...], float] | None,
    bound: float,
    radius: float,
    epsilon: float,
    samples: Sequence[int],
    notes: list[str],
) -> tuple[dict[str, Covering], tuple[tuple[int, float, float], ...]]:
    """Covering numbers by rule, and stochastic errors; empty without a class."""
    if classes is None:
        return {}, ()
    slopes, at_zero = classes
    widths = chain.widths
    coverings = {}
    for rule in RULES:
        if rule == "theorem3" and (len(widths) != 3 or widths[-1] != 1):
            notes.append("Theorem 3 is about one hidden layer and one output; left out")
            continue
        coverings[rule] = log_covering_number(
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
        error = stochastic_error(
            widths, n, bound=bound, radius=radius, lipschitz=slopes, at_zero=at_zero
        )
        errors.append((n, error, error**2))
    return coverings, tuple(errors)


def _notes(chain: Chain, bound: float, largest: float) -> list[str]:
    """What a reader of the numbers has to know about this network."""
    notes = []
    probed = [s.name for s in chain.stages if isinstance(s, Elementwise) and s.activation.probed]
    if probed:
        notes.append(
            f"activation of {', '.join(probed)}: slope measured on a grid, so upper bounds are not "
            f"proven"
        )
    if bound < largest:
        notes.append(
            f"bound={bound:.6g} is below the largest weight {largest:.6g}: the covered class does "
            f"not hold this network"
        )
    if len({id(layer.module) for layer in chain.affine}) < len(chain.affine):
        notes.append("layers share weights: sizes and symmetries are those of separate layers")
    grouped = [s.name for s in chain.affine if getattr(s.module, "groups", 1) > 1]
    if grouped:
        notes.append(
            f"channels next to the grouped convolution {', '.join(grouped)} are left out of the "
            f"symmetries"
        )
    if isinstance(chain.stages[-1], Elementwise):
        notes.append("the covering numbers leave out the activation behind the last layer")
    return notes


def _why_not_dense(chain: Chain) -> str | None:
    """Why the class of functional-equivalence does not contain the network; None if it does."""
    try:
        require_dense(chain)
    except UnsupportedModuleError as error:
        return str(error)
    return None


def _largest(parameter: nn.Parameter) -> float:
    return float(parameter.detach().abs().max()) if parameter.numel() else 0.0


def _range_fields(constant: LipschitzRange) -> dict[str, Any]:
    return {
        "upper": float(constant.upper),
        "log_upper": constant.upper.log,
        "how": constant.upper.name,
        "lower": None if constant.lower is None else constant.lower.value,
    }


def _plain(value: Any) -> Any:
    """Tuples as lists, and numbers that JSON cannot hold as None."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | int | bool):
        return value
    raise ConfigError(f"{type(value).__name__} cannot be written as JSON")


# -- the table -----------------------------------------------------------------------------------


def _table(report: BoundsReport) -> str:
    parts = [_size(report), _norms(report), _lipschitz(report), _symmetry(report)]
    if report.covering:
        parts.append(_covering(report))
    if report.comparison is not None:
        head = "comparison of bounds (orders of magnitude of ln N, without constants)"
        parts.append([head, *_indent(str(report.comparison).splitlines())])
    if report.stochastic:
        parts.append(_stochastic(report))
    if report.notes:
        parts.append(["notes", *_wrapped(report.notes)])
    return "\n\n".join("\n".join(lines) for lines in parts)


def _number(log: float) -> str:
    """exp(log) in six digits, or as a power of ten where it does not fit into a float."""
    if -700 < log < 700:
        return f"{math.exp(log):.6g}"
    return "0" if log == -math.inf else f"10^{log / math.log(10):.2f}"


def _size(report: BoundsReport) -> list[str]:
    widths = " -> ".join(map(str, report.widths))
    return [
        "size",
        f"  widths            {widths}",
        f"  parameters        {report.size:,}",
        f"  weight matrices   {report.depth} ({report.hidden_layers} hidden layers)",
        f"  hidden neurons    {report.neurons:,}, at most {report.width:,} in a layer",
    ]


def _norms(report: BoundsReport) -> list[str]:
    rows = [[name, _number(bound.log)] for name, bound in report.norms.items()]
    return ["norms", *_indent(aligned(rows, "lr", widths=[20, 11]))]


def _lipschitz(report: BoundsReport) -> list[str]:
    rows = [["norm", "at least", "at most", "how"]]
    for p, constant in report.lipschitz.items():
        low = "not searched" if constant.lower is None else f"{constant.lower.value:.6g}"
        rows.append([p, low, _number(constant.upper.log), constant.upper.name])
    return ["Lipschitz constant", *_indent(aligned(rows, "lrrl", widths=[4, 12, 11]))]


def _symmetry(report: BoundsReport) -> list[str]:
    lines = ["symmetry", f"  ln(d_1! ... d_L!)    {report.log_group_order:.6g}"]
    if report.log_group_order_signs > report.log_group_order:
        lines.append(f"  ln, with sign flips  {report.log_group_order_signs:.6g}")
    if report.log_volume is not None and report.log_volume_representatives is not None:
        lines.append(
            f"  ln volume of the box {report.log_volume:.6g}, of representatives "
            f"{report.log_volume_representatives:.6g}"
        )
    return lines


def _covering(report: BoundsReport) -> list[str]:
    s = report.settings
    lines = [
        f"covering number, ln N (weights in [-B, B], B = {s['bound']:.4g}; inputs of length up to "
        f"{s['radius']:g}; eps = {s['epsilon']:g})"
    ]
    for rule, covering in report.covering.items():
        valid = "holds" if covering.valid else "do not rely on it"
        state = "proven" if rule == "rigorous" else valid
        lines += _indent([line([rule, f"{covering.log:.6g}", state], [10, 13, 0], "lrl")])
        lines += _wrapped(covering.warnings, "             ")
    return lines


def _stochastic(report: BoundsReport) -> list[str]:
    rows = [["samples", "k = 1", "k = 2"]]
    rows += [[f"{n:,}", f"{first:.4g}", f"{second:.4g}"] for n, first, second in report.stochastic]
    title = "stochastic error, [sqrt(ln N(1/n) / n)]^k, up to a constant of the loss"
    return [title, *_indent(aligned(rows, "r", widths=[12, 9, 9]))]


def _indent(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _wrapped(texts: tuple[str, ...], indent: str = "  ") -> list[str]:
    lines: list[str] = []
    for text in texts:
        lines += textwrap.wrap(text, 98, initial_indent=indent, subsequent_indent=indent)
    return lines

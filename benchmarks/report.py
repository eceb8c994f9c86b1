"""Tables of measurements, and the bars (targets) that weightloom has to meet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from contenders import Contender
from floor import FLOOR
from timing import Times, median_ratio

__all__ = ["Bar", "Row", "Section", "bars", "render", "render_bars", "to_json"]

HAND = "hand-written"
OURS = "weightloom"
ALLOWED = 1.05  # weightloom over the best hand-written version
PEER_SPEEDUP = 2.5  # on (a), a training step, against the fastest peer
UNREST = 0.15  # quartile distance over median beyond which a section carries a warning
BMM_SPEEDUP = 1.8  # on (a), a training step, against bmm on written weights


@dataclass(frozen=True)
class Row:
    """One contender's result in one section."""

    contender: Contender
    times: Times
    flops: int
    memory: int | None  # bytes, of a step
    checked: str


@dataclass(frozen=True)
class Section:
    """One workload, forward or step."""

    workload: str
    title: str
    kind: str
    sgemm: float  # flops per second
    rows: list[Row]

    def best(self, family: str, compiled: bool | None = None) -> Row | None:
        """The fastest of a family by its median; None if it has no member here."""
        return _fastest(
            row
            for row in self.rows
            if row.contender.family == family and compiled in (None, row.contender.compiled)
        )

    def best_peer(self, name: str | None = None) -> Row | None:
        """The fastest use of any peer, or the fastest of those used in the way ``name`` says."""
        peers = (row for row in self.rows if row.contender.peer)
        return _fastest(row for row in peers if name in (None, row.contender.name))

    @property
    def unrest(self) -> float:
        """How much times vary: the fastest contender's quartile distance over median."""
        best = _fastest(self.rows)
        if best is None:
            return 0.0
        low, high = best.times.quartiles
        return (high - low) / best.times.median


def _fastest(rows: Iterable[Row]) -> Row | None:
    return min(rows, key=lambda row: row.times.median, default=None)


@dataclass(frozen=True)
class Bar:
    text: str
    ratio: float
    quartiles: tuple[float, float]
    limit: str
    met: bool
    detail: str = field(default="")


def bars(section: Section) -> list[Bar]:
    """Every bar that this section can decide."""
    results = [_no_slower(section, *mode) for mode in MODES]
    if section.workload == "a" and section.kind == "step":
        ours = section.best(OURS, compiled=False)
        peer, readme = section.best_peer(), section.best_peer("as its README")
        bmm = [row for row in section.rows if row.contender.role == "bmm"]
        results.append(_faster(ours, peer, "fastest peer, best idiom", PEER_SPEEDUP))
        results.append(_faster(ours, readme, "fastest peer as in its README", PEER_SPEEDUP))
        results.append(_faster(ours, bmm[0] if bmm else None, "bmm", BMM_SPEEDUP))
        # Is it within reach? The same ratio for the floor of a step.
        results.append(_faster(section.best(FLOOR), peer, "fastest peer, best idiom", PEER_SPEEDUP))
    return [bar for bar in results if bar is not None]


MODES = [("eager against eager", False), ("compiled against compiled", True), ("best", None)]


def _no_slower(section: Section, mode: str, compiled: bool | None) -> Bar | None:
    ours, hand = section.best(OURS, compiled), section.best(HAND, compiled)
    if ours is None or hand is None:
        return None
    ratio, low, high = median_ratio(ours.times, hand.times)
    text = f"({section.workload}) {section.kind}: weightloom / best hand-written, {mode}"
    return Bar(
        text, ratio, (low, high), f"<= {ALLOWED}", ratio <= ALLOWED, f"{hand.contender.label}"
    )


def _faster(ours: Row | None, other: Row | None, name: str, wanted: float) -> Bar | None:
    if ours is None or other is None:
        return None
    ratio, low, high = median_ratio(other.times, ours.times)
    text = f"(a) step: {name} / {ours.contender.label}"
    return Bar(text, ratio, (low, high), f">= {wanted}", ratio >= wanted, other.contender.label)


def render(section: Section) -> str:
    """The section as a table, fastest first. Ratios are to the best hand-written, eager or not."""
    best = section.best(HAND) or _fastest(section.rows)
    lines = [f"\n{section.kind} of {section.title}", _HEADER]
    for row in sorted(section.rows, key=lambda row: row.times.median):
        lines.append(_line(row, best, section.sgemm) if best else row.contender.label)
    lines.append(f"sgemm peak in this run: {section.sgemm / 1e9:.0f} GFLOP/s")
    if section.unrest > UNREST:
        lines.append(
            f"CAUTION: the fastest contender's quartiles are {section.unrest:.0%} of its median "
            f"apart; the machine was busy, and these numbers are not to be trusted"
        )
    return "\n".join(lines)


_HEADER = (
    f"{'contender':62} {'median':>9}  {'quartiles':>17}  {'ratio':>6} {'quartiles':>13}"
    f" {'peak':>5} {'memory':>8}"
)


def _line(row: Row, best: Row, sgemm: float) -> str:
    low, high = (1e3 * value for value in row.times.quartiles)
    ratio, first, third = median_ratio(row.times, best.times)
    share = row.flops / row.times.median / sgemm
    memory = "" if row.memory is None else f"{row.memory / 1e6:.1f} MB"
    return (
        f"{row.contender.label:62} {1e3 * row.times.median:6.2f} ms  {low:7.2f} ..{high:8.2f}"
        f"  {ratio:6.2f} {first:5.2f} ..{third:6.2f} {share:5.0%} {memory:>8}"
    )


def render_bars(results: list[Bar]) -> str:
    if not results:
        return "\nNo bar decided: weightloom or the hand-written versions were not measured"
    lines = ["\nBars (median of ratios within rounds, quartiles in brackets)"]
    for bar in results:
        verdict = "met    " if bar.met else "NOT MET"
        low, high = bar.quartiles
        lines.append(
            f"{verdict} {bar.text}: {bar.ratio:.2f} [{low:.2f} .. {high:.2f}], wanted {bar.limit}"
            f"  ({bar.detail})"
        )
    return "\n".join(lines)


def to_json(section: Section) -> dict[str, Any]:
    best = section.best(HAND)
    return {
        "workload": section.workload,
        "title": section.title,
        "kind": section.kind,
        "sgemm_flops_per_second": section.sgemm,
        "unrest": section.unrest,
        "best_hand_written": best.contender.label if best else None,
        "contenders": [_row_to_json(row, best, section.sgemm) for row in section.rows],
        "bars": [asdict(bar) for bar in bars(section)],
    }


def _row_to_json(row: Row, best: Row | None, sgemm: float) -> dict[str, Any]:
    return {
        "label": row.contender.label,
        "family": row.contender.family,
        "compiled": row.contender.compiled,
        "median_seconds": row.times.median,
        "quartiles_seconds": row.times.quartiles,
        "seconds": row.times.seconds,
        "ratio_to_best_hand_written": median_ratio(row.times, best.times) if best else None,
        "flops": row.flops,
        "share_of_sgemm_peak": row.flops / row.times.median / sgemm,
        "peak_memory_bytes": row.memory,
        "verified": row.checked,
    }

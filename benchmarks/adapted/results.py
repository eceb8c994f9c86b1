"""Tables of measurements, and the bars (targets) that weightloom has to meet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from report import UNREST, Bar
from timing import Times, median_ratio

from adapted.contenders import HAND, PEFT, Adapting, Bound
from adapted.serving import MANY, Serving
from adapted.settings import Setting

__all__ = ["Measured", "Results", "ServingResults"]

ALLOWED = 1.03  # weightloom over the best hand-written version
DECODING = 1.3  # PEFT over weightloom

_COLUMNS = f"{'median':>10}  {'quartiles':>17}  {'ratio':>6} {'quartiles':>13} {'memory':>9}"
_HEADER = f"{'contender':38} {_COLUMNS}"


@dataclass(frozen=True)
class Measured:
    """One contender's result."""

    label: str
    kind: type[Adapting]
    times: Times
    memory: int | None  # bytes, of a step
    checked: str


@dataclass(frozen=True)
class Results:
    """One setting: forward, step or decode."""

    setting: Setting
    kind: str
    rows: list[Measured]
    missing: dict[str, str]

    @property
    def title(self) -> str:
        return f"{self.kind} of {self.setting}"

    def bars(self) -> list[Bar]:
        ours = _fastest(row for row in self.rows if row.kind is Bound)
        hand, peft = self._best(HAND), self._best(PEFT)
        bars = []
        if ours and hand:
            bars.append(self._bar(ours.times, hand, ALLOWED, "weightloom / best hand-written"))
        if ours and peft and self.kind != "decode":
            bars.append(self._bar(ours.times, peft, 1.0, "weightloom / PEFT"))
        if ours and peft and self.kind == "decode":
            bars.append(self._bar(peft.times, ours, DECODING, "PEFT / weightloom", least=True))
        if ours and hand and ours.memory and hand.memory:
            share = ours.memory / hand.memory
            text = f"{self.title}: memory of weightloom / hand-written"
            bars.append(Bar(text, share, (share, share), "<= 1.0", share <= 1.0, hand.label))
        return bars

    def _best(self, family: str) -> Measured | None:
        return _fastest(row for row in self.rows if row.kind.family == family)

    def _bar(
        self, times: Times, other: Measured, limit: float, text: str, least: bool = False
    ) -> Bar:
        ratio, low, high = median_ratio(times, other.times)
        met = ratio >= limit if least else ratio <= limit
        sign = ">=" if least else "<="
        label = other.label
        return Bar(f"{self.title}: {text}", ratio, (low, high), f"{sign} {limit}", met, label)

    def render(self) -> str:
        """A table, fastest first. Ratios are to the best hand-written version."""
        best = self._best(HAND) or _fastest(self.rows)
        lines = [f"\n{self.title}", _HEADER]
        if best is not None:
            ordered = sorted(self.rows, key=lambda row: row.times.median)
            lines += [_line(row, best) for row in ordered]
            low, high = best.times.quartiles
            unrest = (high - low) / best.times.median
            if unrest > UNREST:
                lines.append(
                    f"CAUTION: quartiles of {best.label} are {unrest:.0%} of its median apart: the "
                    f"machine was busy. Ratios within rounds suffer less than times"
                )
        lines += [f"not measured: {label}: {reason}" for label, reason in self.missing.items()]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        best = self._best(HAND)
        rows = [
            {
                "label": row.label,
                "seconds": row.times.seconds,
                "ratio_to_best_hand_written": best and median_ratio(row.times, best.times),
                "peak_memory_bytes": row.memory,
                "verified": row.checked,
            }
            for row in self.rows
        ]
        return {
            **asdict(self.setting),
            "kind": self.kind,
            "contenders": rows,
            "not_measured": self.missing,
            "bars": [asdict(bar) for bar in self.bars()],
        }


def _fastest(rows: Iterable[Measured]) -> Measured | None:
    return min(rows, key=lambda row: row.times.median, default=None)


def _line(row: Measured, best: Measured) -> str:
    low, high = (1e3 * value for value in row.times.quartiles)
    ratio, first, third = median_ratio(row.times, best.times)
    memory = "" if row.memory is None else f"{row.memory / 1e6:.1f} MB"
    return (
        f"{row.label:38} {1e3 * row.times.median:7.1f} ms  {low:7.1f} ..{high:8.1f}"
        f"  {ratio:6.3f} {first:5.3f} ..{third:6.3f} {memory:>9}"
    )


@dataclass(frozen=True)
class ServingResults:
    """Requests per second of one setting."""

    setting: Setting
    served: list[Serving]

    def bars(self) -> list[Bar]:
        return [self._bar(serving) for serving in self.served]

    def _bar(self, serving: Serving) -> Bar:
        ratio, low, high = median_ratio(serving.times[1], serving.times[MANY])
        text = (
            f"serving {self.setting}, {_requests(serving)}: requests per second of {MANY} "
            f"threads / of one"
        )
        return Bar(text, ratio, (low, high), ">= 1.0", ratio >= 1.0, _threads(serving))

    def render(self) -> str:
        lines = [f"\nserving {self.setting}: bind and forward, requests per second"]
        for serving in self.served:
            rates = [f"{1 / times.median:.1f} with {n}" for n, times in serving.times.items()]
            text = f"{_requests(serving)}, {_threads(serving)}"
            lines.append(f"{text:52} {', '.join(rates)} threads")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self.setting),
            "kind": "serving",
            "served": [asdict(serving) for serving in self.served],
            "bars": [asdict(bar) for bar in self.bars()],
        }


def _requests(serving: Serving) -> str:
    return f"{serving.rows} condition{'s' if serving.rows > 1 else ''} each"


def _threads(serving: Serving) -> str:
    return f"torch with {serving.torch_threads} thread{'s' if serving.torch_threads > 1 else ''}"

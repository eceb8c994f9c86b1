"""What is done and what came of it: a run, its outcome, and both together as they are remembered.

These three values flow through the whole lab. They hold plain values only, so they can be sent to
another process or machine, written into the store, and read by the page.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weightloom.errors import ConfigError

__all__ = ["INTERRUPTED", "STATUSES", "Config", "Curve", "Outcome", "Result", "Run", "Scalar"]

Scalar = str | int | float | bool | None
Config = Mapping[str, Any]  # a Scalar or a list of them for each name
Curve = tuple[list[int], list[float]]  # steps and values

#: How a run can end. "failed" is an exception; the others are training's own words.
STATUSES = ("done", "plateau", "diverged", "failed")
#: Training's word for Ctrl-C. Such an outcome is not stored: the lab stops, and resumes later.
INTERRUPTED = "interrupted"


@dataclass(frozen=True, eq=False)
class Run:
    """One remembered piece of work: equal experiment, configuration and seed are the same run.

    ``config`` must be complete: everything that changes the result is in it, because a run that is
    in the store is not run again. Values are strings, numbers, booleans, None, or lists of those.
    Order of names does not matter, nor whether a whole number is written 1 or 1.0.

    >>> a = Run("fig3a", {"depth": 2, "epochs": 5}, seed=0)
    >>> a == Run("fig3a", {"epochs": 5.0, "depth": 2}, seed=0)
    True
    >>> a == Run("fig3a", {"depth": 2, "epochs": 5}, seed=1)
    False
    """

    experiment: str
    config: Config
    seed: int

    def __post_init__(self) -> None:
        problems: list[str] = []
        if not isinstance(self.experiment, str) or not self.experiment:
            problems.append(f"experiment is {self.experiment!r}, wanted a name")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            problems.append(f"seed is {self.seed!r}, wanted an int")
        elif not -(2**63) <= self.seed < 2**63:
            problems.append(f"seed is {self.seed}, wanted at most 64 bits")
        plain = {}
        for name, value in self.config.items():
            if not isinstance(name, str):
                problems.append(f"the name {name!r} is not a string")
            plain[name] = _plain(f"config[{name!r}]", value, problems)
        if problems:
            raise ConfigError(
                f"a run of {self.experiment!r} cannot be remembered: {'; '.join(problems)}. "
                "Wanted: strings, finite numbers, booleans, None, and lists of those"
            )
        object.__setattr__(self, "config", plain)

    @functools.cached_property
    def key(self) -> str:
        """32 hex digits that name this run: a digest of its canonical JSON."""
        canonical = [self.experiment, _canonical(self.config), self.seed]
        text = json.dumps(canonical, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass
class Outcome:
    """What came of a run: how it ended, its numbers and its curves.

    ``metrics`` and the values of curves may be NaN or infinite. ``seconds`` is this run's share of
    the time; 0 lets the lab measure it. The status "interrupted" stops the lab: it is not stored,
    and the run is resumed from its workspace next time.
    """

    status: str
    metrics: dict[str, float]
    curves: dict[str, Curve] = field(default_factory=dict)
    message: str = ""
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.status not in (*STATUSES, INTERRUPTED):
            raise ConfigError(
                f"an outcome has status {self.status!r}; wanted one of {', '.join(STATUSES)} "
                f"or {INTERRUPTED}"
            )
        self.metrics = {name: float(value) for name, value in self.metrics.items()}
        self.curves = {name: _curve(name, *curve) for name, curve in self.curves.items()}
        # A traceback may quote a file name that is not UTF-8; that must not cost the result.
        self.message = self.message.encode(errors="backslashreplace").decode()
        self.seconds = float(self.seconds)
        if not (math.isfinite(self.seconds) and self.seconds >= 0):
            raise ConfigError(f"an outcome took {self.seconds} seconds; wanted a time")

    @property
    def failed(self) -> bool:
        """Whether it ended in an exception: then it is tried again next time."""
        return self.status == "failed"


@dataclass(frozen=True)
class Result:
    """A run, its outcome, what it was made with, and when (ISO time, UTC)."""

    run: Run
    outcome: Outcome
    provenance: Mapping[str, Any] = field(default_factory=dict)
    finished: str = ""


def _plain(where: str, value: Any, problems: list[str], nested: bool = False) -> Any:
    """``value`` as JSON has it (lists for tuples, float for its subclasses), problems noted."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            problems.append(f"{where} is {value}")
        return float(value)
    if isinstance(value, list | tuple) and not nested:
        return [_plain(f"{where}[{i}]", each, problems, True) for i, each in enumerate(value)]
    problems.append(f"{where} is a {type(value).__name__}")
    return None


def _canonical(value: Any) -> Any:
    """Whole floats as ints, so that 1 and 1.0, equal in Python, give one key."""
    if isinstance(value, Mapping):
        return {name: _canonical(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_canonical(each) for each in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _curve(name: str, steps: Sequence[int], values: Sequence[float]) -> Curve:
    if len(steps) != len(values):
        raise ConfigError(
            f"curve {name!r} has {len(steps)} steps but {len(values)} values; each needs the other"
        )
    return [int(step) for step in steps], [float(value) for value in values]

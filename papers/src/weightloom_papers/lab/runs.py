"""A run, its outcome, and both together as a stored result.

These three values flow through the whole lab. They hold plain values only, so they can be sent to
another process or machine, stored, and read by the page.
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

__all__ = [
    # the three values
    "Run", "Outcome", "Result",
    # what they hold
    "Config", "Curve", "Scalar", "STATUSES", "INTERRUPTED",
    # identity
    "digest_of", "RENAMED", "RENAMED_ENTRIES", "first_name",
]  # fmt: skip

Scalar = str | int | float | bool | None


Config = Mapping[str, Any]  # a Scalar or a list of them for each name


Curve = tuple[list[int], list[float]]  # steps and values


#: How a run can end. "failed" is an exception; the others are statuses of `weightloom.training`.
STATUSES = ("done", "plateau", "diverged", "failed")


#: Stopped by Ctrl-C. Such an outcome is not stored: the lab stops, and resumes later.
INTERRUPTED = "interrupted"


def digest_of(value: Any) -> str:
    """A digest of plain values, such as configurations: 16 hexadecimal digits.

    >>> digest_of({"depth": 2, "width": 8}) == digest_of({"width": 8, "depth": 2})
    True
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class Run:
    """One unit of work. Runs with equal experiment, configuration and seed are the same run.

    ``config`` must contain everything that changes the result, because a stored run is not run
    again. Values are strings, numbers, booleans, None, or lists of those. The order of names does
    not matter, nor whether a whole number is written 1 or 1.0.

    >>> a = Run("modularity/fig3a", {"depth": 2, "epochs": 5}, seed=0)
    >>> a == Run("modularity/fig3a", {"epochs": 5.0, "depth": 2}, seed=0)
    True
    >>> a == Run("modularity/fig3a", {"depth": 2, "epochs": 5}, seed=1)
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
        entries = _ENTRIES.get(self.experiment, {}) if isinstance(self.experiment, str) else {}
        plain = {}
        for given, value in self.config.items():
            if not isinstance(given, str):
                problems.append(f"the name {given!r} is not a string")
            name = entries.get(given, given)
            if name in plain:
                problems.append(f"config[{given!r}] is config[{name!r}], which was given too")
            plain[name] = _plain(f"config[{given!r}]", value, problems)
        if problems:
            raise ConfigError(
                f"a run of {self.experiment!r} cannot be stored: {'; '.join(problems)}. "
                "Wanted: strings, finite numbers, booleans, None, and lists of those"
            )
        object.__setattr__(self, "config", plain)

    @functools.cached_property
    def key(self) -> str:
        """A digest of the run's canonical JSON: 32 hexadecimal digits.

        Experiments and entries of configurations that were renamed enter with their first names,
        see `RENAMED` and `RENAMED_ENTRIES`.
        """
        first = RENAMED_ENTRIES.get(self.experiment, {})
        config = {first.get(name, name): value for name, value in self.config.items()}
        canonical = [first_name(self.experiment), _canonical(config), self.seed]
        text = json.dumps(canonical, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass
class Outcome:
    """The outcome of a run: its status, metrics and curves.

    Metrics and values of curves may be NaN or infinite. ``seconds`` is this run's share of the
    time; with 0 the lab measures it. The status "interrupted" stops the lab: the outcome is not
    stored, and the run is resumed from its workspace next time.
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
        # A traceback may quote a file name that is not UTF-8; the result is stored all the same.
        self.message = self.message.encode(errors="backslashreplace").decode()
        self.seconds = float(self.seconds)
        if not (math.isfinite(self.seconds) and self.seconds >= 0):
            raise ConfigError(f"an outcome took {self.seconds} seconds; wanted a time")

    @property
    def failed(self) -> bool:
        """Whether it ended with an exception; such a run is repeated next time."""
        return self.status == "failed"


@dataclass(frozen=True)
class Result:
    """A run, its outcome, its provenance, and when it finished (ISO time, UTC)."""

    run: Run
    outcome: Outcome
    provenance: Mapping[str, Any] = field(default_factory=dict)
    finished: str = ""


def _plain(where: str, value: Any, problems: list[str], nested: bool = False) -> Any:
    """``value`` as JSON stores it: lists for tuples, plain numbers; problems are collected."""
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
    """Whole floats as ints, so that 1 and 1.0 give the same key."""
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


# -- renamed experiments and entries ---------------------------------------------------------------

#: First name -> name, for runs that were first stored under a name without a paper ("fig3a"). Keys
#: are digests of the first name, so that stored results, checkpoints and the random numbers seeded
#: by a key stay valid. A new experiment needs no entry.
RENAMED = {
    "fig3a": "modularity/fig3a",
    "fig3b": "modularity/fig3b",
    "fig3c": "modularity/fig3c",
    "fig3d": "modularity/fig3d",
    "fig3e": "modularity/fig3e",
    "fig3f": "modularity/fig3f",
    "fig3-robust": "modularity/fig3-robust",
    "rates": "modularity/rates",
    "fig1a": "infinite-width/fig1a",
    "fig1b": "infinite-width/fig1b",
    "thm1": "infinite-width/thm1",
    "remark1": "infinite-width/remark1",
    "fig2": "infinite-width/fig2",
    "fig3": "infinite-width/fig3",
    "fig4": "infinite-width/fig4",
    "fig5": "infinite-width/fig5",
    "table1": "infinite-width/table1",
    "scale": "infinite-width/scale",
    "legendre-tails": "depth-separation/legendre-tails",
    "depth-separation": "depth-separation/training",
    "square-error": "deep-learning-theory/square-error",
    "sobolev": "deep-learning-theory/sobolev",
    "pieces": "deep-learning-theory/pieces",
    "maurey": "deep-learning-theory/maurey",
    "barron": "deep-learning-theory/barron",
    "near-init": "deep-learning-theory/near-init",
}


#: Experiment -> {name: first name} of entries of its configurations. A `Run` takes both names and
#: has the new one.
RENAMED_ENTRIES = {"infinite-width/fig1a": {"sampler": "road"}}


_FIRST = {name: first for first, name in RENAMED.items()}
_ENTRIES = {
    experiment: {first: name for name, first in names.items()}
    for experiment, names in RENAMED_ENTRIES.items()
}


def first_name(experiment: str) -> str:
    """The name under which runs of ``experiment`` were first stored.

    >>> first_name("infinite-width/fig5"), first_name("my-own")
    ('fig5', 'my-own')
    """
    return _FIRST.get(experiment, experiment)

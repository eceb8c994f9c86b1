"""How to train: plain values, checked once, with all problems in one error."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from weightloom.errors import TrainingError
from weightloom.training.choices import OBJECTIVES, OPTIMISERS, SCHEDULES

__all__ = ["Settings", "spelled"]

# Not "16-mixed" or "16-true": half precision needs loss scaling, which skips the very steps with
# infinite gradients that are reported as divergence here.
PRECISIONS = ("32-true", "64-true", "bf16-mixed", "bf16-true")


def spelled(name: str, british: Any, american: Any) -> Any:
    """The value that was given under one of two spellings of an argument."""
    if british is not None and american is not None:
        other = name.replace("optimiser", "optimizer")
        raise TrainingError(
            f"{name}= and {other}= were both given; they are two spellings of one argument, so "
            f"give one of them"
        )
    return american if british is None else british


def _either_spelling(make: Callable[..., None]) -> Callable[..., None]:
    """``optimizer`` and ``optimizer_options`` are taken for ``optimiser...``.

    Not fields of their own: `replace`, checkpoints and results have one name for it.
    """

    @functools.wraps(make)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in ("optimiser", "optimiser_options"):
            american = name.replace("optimiser", "optimizer")
            if american in kwargs:
                kwargs[name] = spelled(name, kwargs.get(name), kwargs.pop(american))
        make(self, *args, **kwargs)

    return init


@dataclass(frozen=True)
class Settings:
    """How members are trained; what belongs to one member alone is in `Member`.

    ``optimiser_options`` go to torch.optim (adam's betas as ``beta1`` and ``beta2``). The spelling
    ``optimizer`` is taken too.
    ``schedule`` "cosine" rises linearly over a tenth of all steps (at least 50, at most half of
    them), then falls to zero; "step" multiplies by ``factor`` after every ``every`` epochs.

    >>> Settings(epochs=3, batch_size=20, optimiser="adam").learning_rate
    0.01
    """

    epochs: int
    batch_size: int
    learning_rate: float = 0.01
    objective: str = "mse"
    optimiser: str = "sgd"
    optimiser_options: Mapping[str, float] = field(default_factory=dict)
    schedule: str = "constant"
    schedule_options: Mapping[str, float] = field(default_factory=dict)
    clip_norm: float | None = None
    """largest norm of each member's own gradient"""
    evaluate_every: int | None = None
    """steps between evaluations; None: once per epoch. There is always one after the last step"""
    patience: int | None = None
    """stop a member when its "validation" value has not improved in this many evaluations"""
    min_improvement: float = 0.01
    """what counts as improvement, relative to the best value so far"""
    checkpoint_every: float = 30.0
    """seconds between checkpoints; 0: after every step"""
    precision: str = "32-true"
    accelerator: str = "cpu"
    devices: int = 1

    def __post_init__(self) -> None:
        problems = [text for text in self._problems() if text]
        if problems:
            raise TrainingError("these settings cannot be used: " + "; ".join(problems))

    def _problems(self) -> Iterable[str | None]:
        for name in ("epochs", "batch_size", "evaluate_every", "patience", "devices"):
            yield _whole(name, getattr(self, name), optional=name in ("evaluate_every", "patience"))
        yield _number("learning_rate", self.learning_rate, above=0.0)
        yield _number("clip_norm", self.clip_norm, above=0.0, optional=True)
        yield _number("min_improvement", self.min_improvement, least=0.0, below=1.0)
        yield _number("checkpoint_every", self.checkpoint_every, least=0.0)
        yield _choice("objective", self.objective, OBJECTIVES)
        yield _choice("precision", self.precision, PRECISIONS)
        yield from _named("optimiser", self.optimiser, self.optimiser_options, OPTIMISERS)
        yield from _named("schedule", self.schedule, self.schedule_options, SCHEDULES)

    def plain(self) -> dict[str, Any]:
        """Everything that a result depends on, as JSON values."""
        kept = asdict(self)
        for name in ("checkpoint_every", "accelerator", "devices"):
            del kept[name]
        for name in ("optimiser_options", "schedule_options"):
            kept[name] = dict(sorted(getattr(self, name).items()))
        return kept


Settings.__init__ = _either_spelling(Settings.__init__)  # type: ignore[method-assign]


def _whole(name: str, value: Any, optional: bool) -> str | None:
    if optional and value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        return f"{name}={value!r} must be a whole number, at least 1"
    return None


def _number(
    name: str,
    value: Any,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    below: float = math.inf,
    optional: bool = False,
) -> str | None:
    if optional and value is None:
        return None
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if good and above < value < below and value >= least:
        return None
    bounds = [f"above {above:g}" if above > -math.inf else "", f"at least {least:g}"]
    limits = [text for text in bounds if text and "inf" not in text]
    limits += [f"below {below:g}"] if below < math.inf else []
    return f"{name}={value!r} must be a finite number {' and '.join(limits)}"


def _choice(name: str, value: Any, known: Iterable[str]) -> str | None:
    if value in tuple(known):
        return None
    return f"{name}={value!r} is unknown (choose one of {', '.join(known)})"


def _named(
    kind: str, name: str, options: Mapping[str, float], known: Mapping[str, Mapping[str, float]]
) -> Iterable[str | None]:
    wrong = _choice(kind, name, known)
    yield wrong
    if wrong:
        return
    for option, value in options.items():
        if option not in known[name]:
            offered = ", ".join(known[name]) or "none"
            yield f"{kind} {name!r} has no option {option!r} (it takes: {offered})"
        else:
            yield _number(f"{kind}_options[{option!r}]", value, least=0.0)

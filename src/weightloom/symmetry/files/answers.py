"""The verdict on two files, and the words for what it depends on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from weightloom.errors import WeightloomError
from weightloom.symmetry.equivalence import equivalent
from weightloom.symmetry.verdict.answer import Equivalence

__all__ = ["TRIED", "FileVerdict", "compare_modules"]

#: One activation of each kind that allows something of its own: scales, signs, flips, nothing.
TRIED = ("relu", "tanh", "sigmoid", "gelu")
_STAND_IN = "strides, padding and pooling are as assumed"


@dataclass(frozen=True)
class FileVerdict:
    """Whether two files hold the same function, and if what."""

    verdict: Equivalence
    tried: Mapping[str, str] = field(default_factory=dict)
    """activation -> answer, where no file says which it is"""
    stand_in: bool = False
    """convolutions with made-up strides, padding and pooling"""

    @property
    def answer(self) -> str:
        """As for one activation; undecided if some activations give that and none is the same."""
        answers = set(self.tried.values())
        if not answers or "same" in answers:
            return self.verdict.answer
        return "undecided" if "undecided" in answers else self.verdict.answer

    @property
    def condition(self) -> str | None:
        """What the answer depends on, to be read after "if"; None: nothing was guessed."""
        parts = [_STAND_IN] if self.stand_in else []
        named = [name for name, answer in self.tried.items() if answer == self.answer]
        if named and not self.of_any_activation:
            listed = " or ".join(_shown(name) for name in named)
            parts.insert(0, f"{listed} is between the layers" if parts else listed)
        return " and ".join(parts) or None

    @property
    def of_any_activation(self) -> bool:
        """Only permutations were needed, which every elementwise activation allows."""
        return self.tried.get("gelu") == "same"

    @property
    def headline(self) -> str:
        """The answer in a line: "SAME function if ReLU", "DIFFERENT: ..."."""
        verdict, answer = self.verdict, self.answer
        condition = f" if {self.condition}" if self.condition else ""
        if answer == "same":
            how = " after clones and dead units were removed" if verdict.reduced else ""
            every = " for every activation" if self.of_any_activation else ""
            return f"SAME function{every}{how}{condition}"
        if answer == "different":
            return f"DIFFERENT{condition}: {verdict.mismatch}"
        return f"UNDECIDED{condition}: missing: {verdict.missing or verdict.mismatch}"

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; infinities become None."""
        verdict = self.verdict
        kept = ("mismatch", "missing", "weight_deviation", "output_deviation", "tolerance",
                "probes", "reduced", "probe_deviation", "probe_noise")  # fmt: skip
        plain = {key: _finite(getattr(verdict, key)) for key in kept}
        same = {"same": True, "different": False}.get(self.answer)
        about = {"answer": self.answer, "same": same, "headline": self.headline}
        return about | {"condition": self.condition, "tried": dict(self.tried)} | plain


def compare_modules(
    pairs: Mapping[str | None, Callable[[], tuple[nn.Module, nn.Module]]],
    tolerance: float | None,
    stand_in: bool = False,
) -> FileVerdict:
    """The verdict on pairs of networks, by the activation that was assumed for them.

    With the key None nothing was guessed, and there is one pair. A pair that cannot be built with
    an activation is left out.
    """
    if None in pairs:
        return FileVerdict(equivalent(*pairs[None](), tolerance), {}, stand_in)
    verdicts: dict[str, Equivalence] = {}
    for name, make in pairs.items():
        try:
            verdicts[str(name)] = equivalent(*make(), tolerance)
        except WeightloomError:
            if not verdicts:
                raise
    best = min(verdicts, key=lambda name: _ORDER[verdicts[name].answer])
    tried = {name: verdict.answer for name, verdict in verdicts.items()}
    return FileVerdict(verdicts[best], tried, stand_in)


#: The answer that is shown first, if activations give several.
_ORDER = {"same": 0, "undecided": 1, "different": 2}


def _shown(name: str) -> str:
    return {"relu": "ReLU", "gelu": "GELU"}.get(name, name)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value

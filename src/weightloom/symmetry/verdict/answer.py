"""What `equivalent` says: one of three answers, and the evidence for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weightloom.errors import UndecidedError
from weightloom.symmetry.spec import Element

__all__ = ["ANSWERS", "Equivalence"]

ANSWERS = ("same", "different", "undecided")


@dataclass(frozen=True)
class Equivalence:
    """The verdict of `equivalent`.

    ``answer`` is "same", "different" or "undecided"; ``bool()`` of an undecided verdict raises
    `UndecidedError`.
    """

    answer: str
    element: Element | None
    """maps b to a: ``apply(element, b)`` has the weights of a. Else the nearest, or None; None also
    where the same function was decided without one (`weightloom.symmetry.piecewise`)"""
    weight_deviation: float
    """largest deviation of a weight after the element was applied, relative to the weight's own
    size (see `weightloom.symmetry.verdict.weights`); infinite if units have no partner"""
    output_deviation: float | None
    """largest difference of outputs on the probes, relative to the largest output; None: not run"""
    mismatch: str | None
    """the first difference, in words"""
    missing: str | None
    """undecided: what would be needed to decide"""
    tolerance: float
    """what ``weight_deviation`` may be, see `default_tolerance`"""
    probes: int = 0
    """how many inputs the outputs were compared on"""
    reduced: bool = False
    """clones or dead units were removed first; ``element`` maps the reduced networks"""
    probe: Any = None
    """different: an input on which the outputs differ; a tensor, or a tuple or dict of arguments"""
    probe_deviation: float | None = None
    """largest difference of the outputs on ``probe``; where rounding of all weights hides it: of
    the first network, as it is and with the weights that deviate replaced"""
    probe_noise: float | None = None
    """what rounding of the weights explains of ``probe_deviation``"""

    @property
    def same(self) -> bool:
        """Whether the answer is "same"; see ``answer`` for the other two."""
        return self.answer == "same"

    def __bool__(self) -> bool:
        if self.answer == "undecided":
            raise UndecidedError(
                f"it is undecided whether the networks are the same function: {self.missing}; ask "
                f'for .answer, which is "same", "different" or "undecided"'
            )
        return self.same

    def __str__(self) -> str:
        outputs = "not run"
        if self.output_deviation is not None:
            outputs = f"on {self.probes} probes by {self.output_deviation:.3g}"
        return (
            f"{self._head()} (weights deviate by {self.weight_deviation:.3g}, tolerance "
            f"{self.tolerance:.3g}; outputs {outputs})"
        )

    def _head(self) -> str:
        if self.answer == "same":
            return "the same function"
        if self.answer == "different":
            return f"different: {self.mismatch}"
        return f"undecided: {self.missing}"

"""In which order the product "features x head x input" is computed, layer by layer, and why."""

from __future__ import annotations

from dataclasses import dataclass

from weightloom.weights import Decision

__all__ = ["Plan"]


@dataclass(frozen=True)
class Plan:
    """What `HyperNetwork.plan` returns; print it to read it."""

    decisions: tuple[Decision, ...]
    conditions: int

    @property
    def orders(self) -> dict[str, str]:
        """Layer name -> "write", "contract", "factor" or "loop"."""
        return {decision.layer: decision.order for decision in self.decisions}

    def __str__(self) -> str:
        if not self.decisions:
            return "nothing to choose: no linear or convolution layer is generated row by row"
        width = max(len("layer"), *(len(decision.layer) for decision in self.decisions))
        lines = [f"{self.conditions} conditions, costs in millions of operations"]
        lines += [f"{'layer':<{width}}  {'order':<8}  why"]
        for decision in self.decisions:
            lines.append(f"{decision.layer:<{width}}  {decision.order:<8}  {decision.reason}")
            if len(decision.costs) > 1:
                costs = ", ".join(f"{k} {v / 1e6:,.1f}" for k, v in decision.costs.items())
                lines.append(f"{'':<{width}}  {'':<8}  ({costs})")
        return "\n".join(lines)

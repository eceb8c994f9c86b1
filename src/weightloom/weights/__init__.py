"""What a network's weights are, and how to call a network with given ones."""

from weightloom.weights.apply import (
    VMAP_REFUSALS,
    RowwiseCall,
    Shared,
    call,
    shared,
    with_aliases,
)
from weightloom.weights.generated import Expanded, Factored, Generated, LinearCall, Written
from weightloom.weights.route import Routes
from weightloom.weights.rules import Decision, Rules
from weightloom.weights.spec import WeightSpec

__all__ = [
    # names, shapes, order
    "WeightSpec",
    # a generated tensor, written or not
    "Generated",
    "Written",
    "Expanded",
    "Factored",
    "LinearCall",
    # calling a module with given weights
    "call",
    "with_aliases",
    "shared",
    "Shared",
    "RowwiseCall",
    "Routes",
    "Rules",
    "Decision",
    "VMAP_REFUSALS",
]

"""One set of weights for each row: a network called with the weights that a head generates.

`Generated` is what a head returns: a tensor for each condition, written out or not. `RowwiseCall`
applies a module with it, each layer in the cheapest order; `call` takes one set for all of x.
"""

from weightloom.hyper.rows.functional import Shared, call, fill, shared, strip
from weightloom.hyper.rows.generated import Expanded, Factored, Generated, LinearCall, Written
from weightloom.hyper.rows.rowwise import RowwiseCall
from weightloom.hyper.rows.rules import CallPlan, Decision

__all__ = [
    # a generated tensor, before or after it is written
    "Generated",
    "Written",
    "Expanded",
    "Factored",
    "LinearCall",
    # one set of weights for each row
    "RowwiseCall",
    "CallPlan",
    "Decision",
    # one set of weights for all rows
    "call",
    "shared",
    "Shared",
    # weights taken out of a module, and put back
    "strip",
    "fill",
]

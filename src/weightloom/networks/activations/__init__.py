"""Activations: one table that symmetry, bounds, constructions, kernels and initialisation read.

To add an activation, add a row to `weightloom.networks.activations.table`, or call `register`.
"""

from weightloom.networks.activations.probes import (
    evaluator,
    is_elementwise,
    probe_kind,
    probe_lipschitz,
)
from weightloom.networks.activations.record import Activation, Kind, Pieces, Scalar
from weightloom.networks.activations.resolve import (
    classify,
    lookup,
    measure,
    module_of,
    named_modules,
)
from weightloom.networks.activations.table import (
    ELEMENTWISE,
    TABLE,
    Cosine,
    Exponential,
    Sine,
    Threshold,
    register,
    registered,
)

__all__ = [
    # The table
    "TABLE",
    "Activation",
    "Kind",
    "Pieces",
    "Scalar",
    "register",
    "registered",
    "ELEMENTWISE",
    # From a module, a function or a name to a record
    "lookup",
    "classify",
    "measure",
    "module_of",
    "named_modules",
    # Properties of unknown functions
    "evaluator",
    "is_elementwise",
    "probe_kind",
    "probe_lipschitz",
    # Modules that torch does not have
    "Cosine",
    "Exponential",
    "Sine",
    "Threshold",
]

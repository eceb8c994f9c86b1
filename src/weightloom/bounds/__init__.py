"""How steep is a network, how rich is its class, and how large must it be?

`report` answers the first two for a network in hand, `parameter_rates` the third from dimensions
and an error.
"""

from weightloom.bounds.blocks.rules import (
    attention_lipschitz,
    gated_lipschitz,
    normalised_length,
)
from weightloom.bounds.chain import Chain, read_chain
from weightloom.bounds.comparison import BoundsComparison, ComparisonRow, compare
from weightloom.bounds.covering import (
    RULES,
    Covering,
    log_covering_number,
    log_ranges,
    log_sensitivity,
    stochastic_error,
)
from weightloom.bounds.lipschitz_constants import Attained, lipschitz, lipschitz_lower
from weightloom.bounds.network_norms import Bound, norms, path_norm, spectral_complexity
from weightloom.bounds.network_report import BoundsReport, LipschitzRange, report
from weightloom.bounds.rates import (
    METHODS,
    ParameterRates,
    Rate,
    advice,
    amount,
    parameter_rates,
    rates_along,
)
from weightloom.bounds.widths import log_group_order, log_volume, parameters

__all__ = [
    # Everything about one network
    "report",
    "BoundsReport",
    "LipschitzRange",
    # How steep is it?
    "spectral_complexity",
    "path_norm",
    "norms",
    "lipschitz",
    "lipschitz_lower",
    "Bound",
    "Attained",
    "read_chain",
    "Chain",
    # How steep is a block, from its weights?
    "attention_lipschitz",
    "gated_lipschitz",
    "normalised_length",
    # How rich is its class?
    "log_covering_number",
    "log_sensitivity",
    "log_ranges",
    "stochastic_error",
    "log_group_order",
    "log_volume",
    "parameters",
    "Covering",
    "RULES",
    "compare",
    "BoundsComparison",
    "ComparisonRow",
    # How large must it be?
    "parameter_rates",
    "ParameterRates",
    "Rate",
    "METHODS",
    "advice",
    "amount",
    "rates_along",
]

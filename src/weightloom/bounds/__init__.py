"""Capacity and size: numbers in, numbers out."""

from weightloom.bounds.activations import Activation
from weightloom.bounds.advice import advice, amount, rates_along
from weightloom.bounds.chain import Chain, read_chain
from weightloom.bounds.compare import Comparison, Row, compare
from weightloom.bounds.covering import (
    RULES,
    Covering,
    log_covering_number,
    log_ranges,
    log_sensitivity,
)
from weightloom.bounds.covering_printed import printed_range
from weightloom.bounds.lipschitz import Attained, lipschitz, lipschitz_lower
from weightloom.bounds.norms import Bound, norms, path_norm, spectral_complexity
from weightloom.bounds.rates import METHODS, ParameterRates, Rate, parameter_rates
from weightloom.bounds.report import LipschitzRange, Report, report
from weightloom.bounds.stochastic import stochastic_error
from weightloom.bounds.widths import log_group_order, log_volume, parameters

__all__ = [
    # Everything about one network
    "report",
    "Report",
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
    "Activation",
    # How rich is its class?
    "log_covering_number",
    "log_sensitivity",
    "log_ranges",
    "printed_range",
    "stochastic_error",
    "log_group_order",
    "log_volume",
    "parameters",
    "Covering",
    "RULES",
    "compare",
    "Comparison",
    "Row",
    # How large must it be?
    "parameter_rates",
    "ParameterRates",
    "Rate",
    "METHODS",
    "advice",
    "amount",
    "rates_along",
]

"""Capacity and size: numbers in, numbers out."""

from weightloom.bounds.rates import METHODS, ParameterRates, Rate, parameter_rates

__all__ = [
    # How large must it be?
    "parameter_rates",
    "ParameterRates",
    "Rate",
    "METHODS",
]

"""Adapters: low-rank changes of a given network, in PEFT's format."""

from weightloom.hyper.adapters.adapter import Adapter
from weightloom.hyper.adapters.combining import combine
from weightloom.hyper.adapters.factors import AdapterLayer
from weightloom.hyper.adapters.reconstruction import AdapterFit, fit_adapters
from weightloom.hyper.adapters.written import adapter_of, check_writes_changes

__all__ = [
    # the change of a network, layer by layer
    "Adapter",
    "AdapterLayer",
    "combine",
    # written by a head
    "adapter_of",
    "check_writes_changes",
    # training a head to write given ones
    "fit_adapters",
    "AdapterFit",
]

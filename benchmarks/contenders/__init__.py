"""The contenders, one file for each family. `collect` gathers them and lists missing ones."""

from __future__ import annotations

import importlib

from contenders.base import Contender, Unavailable

__all__ = ["Contender", "Unavailable", "collect"]

OWN = ["weightloom_", "handwritten", "torch_func"]
PEERS = ["hypnettorch_", "hyperlight_", "hyper_nn_", "torchhyper_"]


def collect(key: str, peers: bool, compiled: bool) -> tuple[list[Contender], dict[str, str]]:
    """The contenders of a workload, and {family: reason} of those that cannot be measured."""
    contenders: list[Contender] = []
    missing: dict[str, str] = {}
    for name in OWN + (PEERS if peers else []):
        try:
            family = importlib.import_module(f"contenders.{name}")
            contenders += family.contenders(key)
        except Exception as error:  # old libraries break in many ways when imported
            missing[name.rstrip("_")] = f"{type(error).__name__}: {error}"
    return [c for c in contenders if compiled or not c.compiled], missing

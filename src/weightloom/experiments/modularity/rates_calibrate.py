"""Constants for the theorems' rates, from networks that were really built."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weightloom.bounds import parameter_rates
from weightloom.errors import ConfigError
from weightloom.experiments.modularity.rates_numbers import good, smoothness
from weightloom.lab import Result

__all__ = ["COMMAND", "Calibration", "calibrate"]

COMMAND = "weightloom reproduce rates --scale laptop"


@dataclass(frozen=True)
class Calibration:
    """Constants by method (see `weightloom.bounds.METHODS`), and what they rest on."""

    constants: Mapping[str, float]
    networks: int
    target: str

    def text(self) -> str:
        return (
            f"Constants measured on {self.networks} networks built by hand for {self.target} "
            f"targets (experiment rates), scaled to norm 1; weights that are not zero are counted. "
            f"So these are sizes of networks that exist, whatever a smaller one could do."
        )


def calibrate(results: Sequence[Result], m1: int, m2: int, r: int) -> Calibration:
    """Constants C in N = C eps^-exponent, with the theorem's exponent and networks of ``rates``.

    Errors are divided by the target's Sobolev norm, because the theorems are about targets of norm
    1. The finer half of the networks counts (geometric mean): small ones are dominated by terms of
    lower order. A plain network is an embedding method that embeds the condition as it is, so it
    gives the embedding method's constant too; a growing embedding was not built.
    """
    built = [one for part in ("constructive", "total") for one in good(results, part)]
    known = {(c["m1"], c["m2"], smoothness(c["target"])) for c in (one.run.config for one in built)}
    if not known:
        raise ConfigError(
            f"the store has no networks of the experiment rates to calibrate with; run `{COMMAND}` "
            f"first (or `--scale smoke` for a rough try), or leave out --calibrate"
        )
    if (m1, m2, r) not in known:
        there = ", ".join(f"m1={a} m2={b} r={c}" for a, b, c in sorted(known))
        raise ConfigError(
            f"rates has built no networks for m1={m1} m2={m2} r={r}, only for {there}; run "
            f"`{COMMAND}` for all that it has, or leave out --calibrate"
        )
    here = [one for one in built if _key(one) == (m1, m2, r)]
    constants: dict[str, float] = {}
    for method, part, network, counted in (
        ("plain", "constructive", "plain", "primary"),
        ("primary", "constructive", "hypernetwork", "primary"),
        ("total", "total", "hypernetwork", "total"),
    ):
        chosen = [
            one
            for one in here
            if (one.run.config["part"], one.run.config["network"]) == (part, network)
        ]
        if chosen:
            constants[method] = _constant(chosen, method, counted, m1, m2, r)
    if not {"plain", "primary"} <= set(constants):
        raise ConfigError(
            f"the store has only a part of the networks for m1={m1} m2={m2} r={r}; run `{COMMAND}` "
            f"to its end, or leave out --calibrate"
        )
    constants["embedding"] = constants["plain"]
    return Calibration(constants, len(here), "bump" if r == 1 else "smooth")


def _key(one: Result) -> tuple[int, int, int]:
    config = one.run.config
    return config["m1"], config["m2"], smoothness(config["target"])


def _constant(
    chosen: Sequence[Result], method: str, counted: str, m1: int, m2: int, r: int
) -> float:
    """Geometric mean, over the finer half, of what was counted over what constant 1 would give."""
    logs = []
    for one in chosen:
        metrics = one.outcome.metrics
        eps = metrics["sup"] / metrics["sobolev"]
        if not 0 < eps < 1:
            continue
        rates = parameter_rates(m1, m2, r, eps, selector=one.run.config.get("selector"))
        line = getattr(rates, method)
        logs.append((eps, math.log10(metrics[counted]) - line.log10))
    logs.sort()
    finer = [log for _, log in logs[: max(1, (len(logs) + 1) // 2)]]
    return float(10 ** (sum(finer) / len(finer)))

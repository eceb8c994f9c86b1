"""Constants of the theorems' rates, measured on the networks that ``rates`` built."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from weightloom.bounds import parameter_rates
from weightloom.errors import ConfigError
from weightloom_papers.lab import Result, Store
from weightloom_papers.modularity.experiments.rates.analysis import good, smoothness

__all__ = ["COMMAND", "RatesCalibration", "calibrate", "calibrate_from"]

COMMAND = "weightloom reproduce modularity/rates --scale laptop"


@dataclass(frozen=True)
class RatesCalibration:
    """Constants by method (see `weightloom.bounds.METHODS`), and the networks behind them."""

    constants: Mapping[str, float]
    networks: int
    target: str

    def text(self) -> str:
        return (
            f"Constants measured on {self.networks} networks built by hand for {self.target} "
            f"targets (modularity/rates), scaled to norm 1; weights that are not zero are counted. "
            f"So these are sizes of networks that exist, whatever a smaller one could do."
        )


def calibrate_from(
    store: Path, m1: int, m2: int, r: int, on_corrupt: Callable[[str], None]
) -> RatesCalibration:
    """`calibrate` with the results of a store; ``on_corrupt`` is called for unreadable rows."""
    with Store(store, create=False, on_corrupt=on_corrupt) as opened:
        return calibrate(opened.results("modularity/rates"), m1, m2, r)


def calibrate(results: Sequence[Result], m1: int, m2: int, r: int) -> RatesCalibration:
    """Constants C in N = C eps^-exponent, with the theorem's exponent and networks of ``rates``.

    Errors are divided by the target's Sobolev norm, because the theorems are about targets of norm
    1. The constant is the geometric mean over the finer half of the networks: small ones are
    dominated by terms of lower order. A plain network is an embedding method whose embedding is the
    condition itself, so it also gives the embedding method's constant. Growing embeddings were not
    built.
    """
    built = [result for part in ("constructive", "total") for result in good(results, part)]
    _check_known({_key(result) for result in built}, (m1, m2, r))
    here = [result for result in built if _key(result) == (m1, m2, r)]
    constants: dict[str, float] = {}
    for method, part, network, counted in (
        ("plain", "constructive", "plain", "primary"),
        ("primary", "constructive", "hypernetwork", "primary"),
        ("total", "total", "hypernetwork", "total"),
    ):
        chosen = [
            result
            for result in here
            if (result.run.config["part"], result.run.config["network"]) == (part, network)
        ]
        if chosen:
            constants[method] = _constant(chosen, method, counted, m1, m2, r)
    if not {"plain", "primary"} <= set(constants):
        raise ConfigError(
            f"the store has only a part of the networks for m1={m1} m2={m2} r={r}; run `{COMMAND}` "
            f"to its end, or leave out --calibrate"
        )
    constants["embedding"] = constants["plain"]
    return RatesCalibration(constants, len(here), "bump" if r == 1 else "smooth")


def _check_known(known: Collection[tuple[int, int, int]], wanted: tuple[int, int, int]) -> None:
    """Raise unless networks for ``wanted`` = (m1, m2, r) were built."""
    if not known:
        raise ConfigError(
            f"the store has no networks of the experiment modularity/rates to calibrate with; run "
            f"`{COMMAND}` first (or `--scale smoke` for a rough try), or leave out --calibrate"
        )
    if wanted not in known:
        m1, m2, r = wanted
        there = ", ".join(f"m1={a} m2={b} r={c}" for a, b, c in sorted(known))
        raise ConfigError(
            f"rates has built no networks for m1={m1} m2={m2} r={r}, only for {there}; run "
            f"`{COMMAND}` for all that it has, or leave out --calibrate"
        )


def _key(result: Result) -> tuple[int, int, int]:
    config = result.run.config
    return config["m1"], config["m2"], smoothness(config["target"])


def _constant(
    chosen: Sequence[Result], method: str, counted: str, m1: int, m2: int, r: int
) -> float:
    """Geometric mean, over the finer half, of the size over the size for constant 1."""
    logs = []
    for result in chosen:
        metrics = result.outcome.metrics
        eps = metrics["sup"] / metrics["sobolev"]
        if not 0 < eps < 1:
            continue
        rates = parameter_rates(m1, m2, r, eps, selector=result.run.config.get("selector"))
        line = getattr(rates, method)
        logs.append((eps, math.log10(metrics[counted]) - line.log10))
    logs.sort()
    finer = [log for _, log in logs[: max(1, (len(logs) + 1) // 2)]]
    return float(10 ** (sum(finer) / len(finer)))

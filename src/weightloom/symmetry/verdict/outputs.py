"""Do two networks differ on an input by more than rounding of their weights explains?

Both networks run in float64, so what differs is their function and not the arithmetic. Weights in
a file were rounded, though: two equivalent networks whose weights are stored in float32 differ by
what float32 has cut off. How much that is depends on the network and the input, and no formula
knows it (norms give bounds that are far too large). So it is measured: every weight w of the copy
is moved to w (1 + t) or w (1 - t), at random, and the network runs again. The largest change in a
few such samples is the noise of that input; t is `output_tolerance`.

- An element of the group rounds each weight twice, by at most one unit roundoff u each time and by
  0.4 u on average (errors are about uniform within a binade), so the outputs of a disguised copy
  move by a random sum with about 0.6 times the deviation of a sample with t = u. In half precision
  t = 4 u, which is 7 deviations of one element; else t = 8 u, which is 14 deviations of one and 1.4
  of a hundred in a row.
- The weights of both networks are moved, each by itself, because a network that computes with large
  numbers that cancel loses more to rounding than one that does not.
- Networks above 16 million parameters run in float32 first, which agreement or a difference of a
  hundred times the noise survives; between the two, float64 decides.
- If the network itself computes in a coarser dtype than its weights have (float32 inside a
  float64 copy), that dtype sets t.
- Where nothing changes in the samples, 64 roundings of float64 at the largest output remain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from weightloom.symmetry.verdict.running import LARGE, Arguments, Runner

__all__ = ["MeasuredOutputs", "OutputDifference", "compare_outputs", "measure", "output_tolerance"]

_SAMPLES, _SAMPLES_LARGE = 6, 2
_FLOOR = 64 * 2.0**-53


def output_tolerance(unit: float) -> float:
    """The relative change of weights whose effect on the outputs counts as rounding."""
    return (4 if unit > 1e-4 else 8) * unit


@dataclass(frozen=True)
class OutputDifference:
    """How far the outputs of two networks are from each other, over all probes."""

    relative: float
    """largest difference / largest output; infinite where one is NaN or has another shape"""
    ratio: float
    """largest difference / noise of a probe; above 1 is beyond rounding"""
    rows: int
    """inputs that were compared"""
    probe: Arguments | None
    """the one with the largest ratio"""
    difference: float
    """largest difference on it"""
    noise: float
    """what rounding explains of it"""
    blind: str | None = None
    """why agreement of the outputs says nothing"""

    @property
    def beyond_rounding(self) -> bool:
        return self.ratio > 1


@dataclass(frozen=True)
class MeasuredOutputs:
    """Outputs of one network on every probe, and how much they change with its weights."""

    values: list[list[Tensor]]
    noise: list[list[float]]
    random: bool


def measure(
    runner: Runner,
    probes: Sequence[Arguments],
    unit: float,
    tolerance: float | None = None,
    samples: int | None = None,
) -> MeasuredOutputs:
    """Runs a network on the probes, as it is and with its weights moved.

    ``unit``: unit roundoff of the weights. ``tolerance`` replaces `output_tolerance`. Raises
    `RunError` if it cannot be run.
    """
    first, computed = runner.run_with_unit(probes[0])
    amount = output_tolerance(max(unit, computed)) if tolerance is None else tolerance
    values = [first, *(runner.run(probe) for probe in probes[1:])]
    noise = [[0.0] * len(outputs) for outputs in values]
    if samples is None:
        samples = _SAMPLES if runner.size <= LARGE else _SAMPLES_LARGE
    for seed in range(samples):
        with runner.moved(amount, seed):
            for probe, base, worst in zip(probes, values, noise, strict=True):
                for i, (moved, own) in enumerate(zip(runner.run(probe), base, strict=False)):
                    if moved.shape == own.shape:
                        worst[i] = max(worst[i], _largest(_difference(moved, own)))
    again = runner.run(probes[0], seed=1)
    random = not all(_equal(x, y) for x, y in zip(again, values[0], strict=False))
    return MeasuredOutputs(values, noise, random)


def compare_outputs(
    first: MeasuredOutputs, second: MeasuredOutputs, probes: Sequence[Arguments]
) -> OutputDifference:
    """The largest difference of outputs on the probes, and the probe that shows most."""
    gaps = [
        _gap(probe, (first.values[i], second.values[i]), (first.noise[i], second.noise[i]))
        for i, probe in enumerate(probes)
    ]
    worst = max(gaps, key=lambda gap: gap.ratio)
    blind = gaps[0].blind if all(gap.blind for gap in gaps) else None
    if first.random or second.random:
        blind = "outputs are random in eval mode, so runs cannot be compared"
        worst = replace(worst, ratio=0.0)
    relative, rows = max(gap.relative for gap in gaps), sum(gap.rows for gap in gaps)
    return replace(worst, relative=relative, rows=rows, blind=blind)


def _gap(
    probe: Arguments,
    values: tuple[list[Tensor], list[Tensor]],
    noise: tuple[list[float], list[float]],
) -> OutputDifference:
    """The largest ratio among the tensors of the outputs on one probe."""
    rows = probe.rows
    if [t.shape for t in values[0]] != [t.shape for t in values[1]]:
        return OutputDifference(math.inf, math.inf, rows, probe, math.inf, 0.0)
    worst = OutputDifference(0.0, 0.0, rows, probe, 0.0, 0.0)
    relative, blind = 0.0, None
    for x, y, noise_x, noise_y in zip(*values, *noise, strict=True):
        gap = _largest(_difference(x, y))
        top = max(_largest(x), _largest(y))
        explained = max(noise_x, noise_y, _FLOOR * top)
        ratio = 0.0 if gap == 0 else (gap / explained if explained > 0 else math.inf)
        if math.isinf(gap):
            ratio = math.inf
        if ratio > worst.ratio:
            worst = OutputDifference(0.0, ratio, rows, probe, gap, explained)
        relative = max(relative, math.inf if math.isinf(gap) else gap / top if top else 0.0)
        if bool((x.isnan() & y.isnan()).any()):
            blind = "outputs of both networks are NaN on the probes"
    return replace(worst, relative=relative, blind=blind)


def _difference(x: Tensor, y: Tensor) -> Tensor:
    """|x - y|: equal infinities agree, NaN in both is left out, NaN in one is infinite."""
    gap = (x - y).abs().nan_to_num(math.inf, posinf=math.inf)
    return torch.where((x == y) | (x.isnan() & y.isnan()), 0.0, gap)


def _equal(x: Tensor, y: Tensor) -> bool:
    return x.shape == y.shape and not bool(_difference(x, y).any())


def _largest(values: Tensor) -> float:
    """The largest finite magnitude, or infinity if a difference is infinite."""
    if not values.numel():
        return 0.0
    return float(values.abs().nan_to_num(0.0, posinf=math.inf).max())

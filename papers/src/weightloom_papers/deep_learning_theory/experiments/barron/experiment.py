"""Networks sampled from the Barron density of Gaussians, in one to a hundred dimensions.

The target is g(x) = exp(-|x|^2 / (2 sigma^2)) on the unit ball. The distribution P has a uniform
direction and a uniform radius, so that g(x) has the same distribution in every dimension. (With x
uniform on the ball, nearly all points are near the sphere, where g is nearly constant.)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from weightloom.construct import Box, interpolate
from weightloom.construct.shallow import (
    BarronForm,
    GaussianSpectrum,
    NumericSpectrum,
    barron_norm,
    gaussian_form,
    sampling_law,
)
from weightloom.construct.shallow.cells import Cells
from weightloom.construct.shallow.spectrum import swept
from weightloom.errors import ConfigError
from weightloom_papers.lab import Experiment, Outcome, Result, ResultTable, Run, Workspace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "Barron",
    "MEASURES",
    "ball_points",
    "best_constant",
    "exact_error",
    "grid_guarantee",
    "grid_nodes",
    "measure_grid",
    "measure_norm",
    "measure_sampled",
]


def ball_points(count: int, dims: int, seed: int) -> Tensor:
    """Points of P: [count, dims]."""
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(count, dims, dtype=torch.float64, generator=generator)
    radius = torch.rand(count, 1, dtype=torch.float64, generator=generator)
    return radius * direction / direction.norm(dim=-1, keepdim=True)


def exact_error(form: BarronForm, points: Tensor) -> float:
    """k times the expected squared error of k thresholds over the points, in any dimension.

    E|V|^2 = mass * integral of |q(w, b)| 1[w.x >= b], and the integral over b is 4 pi |g~(w)|
    times that of |sin(2 pi b)| up to w.x. Under |g~| / height, w.x is N(0, (spread |x|)^2): an
    integral over one normal variable, in every dimension. (`expected_error` integrates over w and
    is limited to three dimensions.)
    """
    spectrum = _gaussian(form)
    cells = Cells(Box((0.0,), (9.0,)), 256)
    z = cells.places[:, 0]
    density = cells.weights * (-z.square() / 2).exp() / math.sqrt(2 * math.pi)
    radius = points.norm(dim=-1, keepdim=True)
    on = 4 * math.pi * spectrum.height * swept(spectrum.spread * radius * z) @ density
    mean = (spectrum.function(points) - form.offset).square().mean()
    return form.mass * float(on.mean()) - float(mean)


def _gaussian(form: BarronForm) -> GaussianSpectrum:
    if not isinstance(form.spectrum, GaussianSpectrum):
        raise ConfigError(f"the spectrum is a {type(form.spectrum).__name__}; wanted a Gaussian's")
    return form.spectrum


def best_constant(sigma: float) -> float:
    """Root mean squared error of the best constant under P, the baseline for networks."""
    at, weights = (torch.from_numpy(each) for each in np.polynomial.legendre.leggauss(200))
    values, weights = (-((at + 1) / 2).square() / (2 * sigma**2)).exp(), weights / 2
    mean = float(values @ weights)
    return math.sqrt(float(values.square() @ weights) - mean**2)


def measure_sampled(config: Mapping[str, Any], seed: int) -> Outcome:
    """Errors of sampled threshold networks.

    ``error`` is the mean squared error over trials, ``bound`` mass^2 / k, ``barron`` (2 C)^2 / k
    with the Barron norm C, ``expected`` the exact mean on these points.
    """
    started = time.perf_counter()
    dims, width = config["dims"], config["width"]
    form = gaussian_form(dims, config["sigma"])
    points = ball_points(config["points"], dims, seed)
    generator = torch.Generator().manual_seed((seed * 1009 + dims) * 1_000_003 + width)
    (row,) = sampling_law(
        form,
        [width],
        points,
        trials=config["trials"],
        generator=generator,
        target=_gaussian(form).function,
    )
    metrics = {
        "error": row.error,
        "standard_error": row.standard_error,
        "expected": exact_error(form, points) / width,
        "bound": row.bound,
        "barron": (2 * form.spectrum.barron_norm()) ** 2 / width,
        "above": row.above,
    }
    return Outcome("done", metrics, seconds=time.perf_counter() - started)


def grid_guarantee(dims: int, sigma: float, nodes: float) -> float:
    """The sup error on [-1, 1]^d that a grid with at most ``nodes`` nodes guarantees for g.

    The least of three: a constant (half of the range on the ball), values at the centres of cells
    (Lipschitz constant exp(-1/2) / sigma times half a diagonal), and linear interpolation between
    the corners (second derivatives of at most 1 / sigma^2, d h^2 / 8 of them).
    """
    constant = (1 - math.exp(-1 / (2 * sigma**2))) / 2
    per_axis = math.floor(nodes ** (1 / dims) + 1e-9)
    centres = math.exp(-0.5) / sigma * math.sqrt(dims) / max(per_axis, 1)
    if per_axis < 2:
        return min(constant, centres)
    linear = dims / (2 * sigma**2 * (per_axis - 1) ** 2)
    return min(constant, centres, linear)


def grid_nodes(dims: int, sigma: float, eps: float) -> float:
    """log10 of the nodes a grid needs to guarantee ``eps``, by the better of two methods."""
    centres = math.ceil(math.exp(-0.5) / sigma * math.sqrt(dims) / eps)
    linear = 1 + math.ceil(math.sqrt(dims / (2 * sigma**2 * eps)))
    return dims * math.log10(min(centres, linear))


def measure_grid(config: Mapping[str, Any], seed: int) -> Outcome:
    """A piecewise-linear interpolant of g on a grid with ``count`` nodes per axis, built."""
    started = time.perf_counter()
    dims, count, sigma = config["dims"], config["count"], config["sigma"]
    spectrum = GaussianSpectrum(dims, sigma, height=1.0)
    certified = interpolate(
        spectrum.function,
        dims,
        counts=count,
        corners=True,
        lipschitz=math.exp(-0.5) / sigma,
        norm="2",
        curvature=dims / sigma**2,
    )
    points = ball_points(config["points"], dims, seed)
    with torch.no_grad():
        gap = certified.network(points)[:, 0] - spectrum.function(points)
    spacing = 2 / (count - 1)
    metrics = {
        "rms": float(gap.square().mean().sqrt()),
        "sup": float(gap.abs().max()),
        "guarantee": min(
            math.exp(-0.5) / sigma * math.sqrt(dims) * spacing / 2,
            dims * spacing**2 / (8 * sigma**2),
        ),
        "grid": count**dims,
        "nodes": certified.nodes,
    }
    return Outcome("done", metrics, seconds=time.perf_counter() - started)


def measure_norm(config: Mapping[str, Any], seed: int) -> Outcome:
    """The Barron norm of g: closed form, Monte Carlo; up to three dimensions quadrature and FFT.

    ``holder`` is the text's bound, sqrt(d) / sigma at height 1; ``mass`` that of Theorem 2.12.
    """
    started = time.perf_counter()
    dims, sigma = config["dims"], config["sigma"]
    spectrum = GaussianSpectrum(dims, sigma, height=1.0)
    generator = torch.Generator().manual_seed(seed)
    sizes = 2 * math.pi * spectrum.sample(config["draws"], 0, generator).norm(dim=-1)
    metrics = {
        "closed": spectrum.barron_norm(),
        "holder": math.sqrt(dims) / sigma,
        "mass": spectrum.threshold_mass(1.0),
        "monte_carlo": float(sizes.mean()),
        "monte_carlo_error": float(sizes.std()) / math.sqrt(len(sizes)),
    }
    if dims <= 3:
        numeric = NumericSpectrum(
            lambda w: spectrum.magnitude(w).to(torch.complex128), dims, reach=7 * spectrum.spread
        )
        side = torch.arange(-6, 6, 0.25, dtype=torch.float64) * sigma
        mesh = torch.stack(torch.meshgrid(*[side] * dims, indexing="ij"), -1)
        metrics["quadrature"] = numeric.barron_norm()
        metrics["fft"] = barron_norm(spectrum.function(mesh), 0.25 * sigma).value
    return Outcome("done", metrics, seconds=time.perf_counter() - started)


#: By ``part`` of a run's configuration.
MEASURES: dict[str, Callable[[Mapping[str, Any], int], Outcome]] = {
    "sampled": measure_sampled,
    "grid": measure_grid,
    "norm": measure_norm,
}

SIGMA = 0.5

#: Dimensions and widths of sampled networks, trials, repetitions.
SAMPLED: dict[str, tuple[Sequence[int], Sequence[int], int, int]] = {
    "smoke": ((1, 4, 16), (16, 64, 256), 8, 2),
    "laptop": ((1, 2, 3, 5, 10, 20, 50, 100), (16, 32, 64, 128, 256, 512, 1024, 2048), 24, 4),
    "paper": ((1, 2, 3, 5, 10, 20, 50, 100, 300), tuple(2**i for i in range(4, 14)), 50, 10),
}

#: Grid nodes per axis by dimension, for interpolants that are built and measured. Odd numbers, so
#: that there is a node at the maximum of the Gaussian: a fair baseline.
GRIDS: dict[str, Mapping[int, Sequence[int]]] = {
    "smoke": {1: (3, 9), 2: (3, 5)},
    "laptop": {1: (3, 5, 9, 17, 33), 2: (3, 5, 9, 17, 33), 3: (3, 5, 7, 9, 11), 5: (3, 5),
               7: (3,)},
    "paper": {1: (3, 5, 9, 17, 33, 65), 2: (3, 5, 9, 17, 33, 65), 3: (3, 5, 7, 9, 11, 13, 17),
              5: (3, 5, 7), 7: (3, 5), 9: (3,)},
}  # fmt: skip

#: Standard deviations and dimensions whose Barron norms are computed; draws of the Monte Carlo.
NORMS: dict[str, tuple[Sequence[float], Sequence[int], int]] = {
    "smoke": ((0.5,), (1, 2, 10), 2_000),
    "laptop": ((0.25, 0.5, 1.0), (1, 2, 3, 5, 10, 20, 50, 100), 100_000),
    "paper": ((0.25, 0.5, 1.0), (1, 2, 3, 5, 10, 20, 50, 100, 300, 1000), 1_000_000),
}

POINTS = {"smoke": 200, "laptop": 500, "paper": 1_000}


class Barron(Experiment):
    """Three parts, named by ``part`` in a run's configuration.

    - "sampled": thresholds sampled from the density of Theorem 2.12, their L2 error;
    - "grid": piecewise-linear interpolants on a grid, the alternative, exponential in d;
    - "norm": Barron norms by three numerical methods beside the closed form.
    """

    name = "deep-learning-theory/barron"
    title = "Gaussians by sampled thresholds, in many dimensions"
    claim = (
        "A function whose Barron norm is C is within 2 C / sqrt(k) of k thresholds, in L2 of any "
        "distribution on the unit ball, whatever the dimension; for Gaussians of fixed height C "
        "grows like sqrt(d)."
    )
    paper = "deep-learning-theory, Theorem 2.12 and Example 2.18 (2)"
    main_metrics = ("error", "expected", "bound", "rms", "closed")
    seconds_per_cost = 0.9

    def runs(self, scale: str) -> list[Run]:
        return [*self._sampled(scale), *self._grids(scale), *self._norms(scale)]

    def _sampled(self, scale: str) -> Iterator[Run]:
        dims, widths, trials, seeds = SAMPLED[scale]
        common = {"part": "sampled", "sigma": SIGMA, "trials": trials, "points": POINTS[scale]}
        for d in dims:
            for seed in range(seeds):
                for width in widths:
                    yield Run(self.name, {**common, "dims": d, "width": width}, seed)

    def _grids(self, scale: str) -> Iterator[Run]:
        for d, counts in GRIDS[scale].items():
            for count in counts:
                config = {"part": "grid", "sigma": SIGMA, "dims": d, "count": count}
                yield Run(self.name, {**config, "points": POINTS[scale]}, 0)

    def _norms(self, scale: str) -> Iterator[Run]:
        sigmas, dims, draws = NORMS[scale]
        for sigma in sigmas:
            for d in dims:
                yield Run(self.name, {"part": "norm", "sigma": sigma, "dims": d, "draws": draws}, 0)

    def group(self, run: Run) -> str:
        config = run.config
        return f"{config['part']}-{config['dims']}-{run.seed}"

    def cost(self, run: Run) -> float:
        """In units of 100 million numbers in hidden layers."""
        config: Mapping[str, Any] = run.config
        if config["part"] == "sampled":
            work = config["trials"] * config["points"] * config["width"]
            return 0.05 + float(work) * (1 + config["dims"] / 30) / 1e8
        if config["part"] == "grid":
            return 0.1 + float(config["count"] ** config["dims"]) * config["points"] / 1e7
        return 0.2 + float(config["draws"] * config["dims"]) / 1e8

    def execute(self, runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
        for run in runs:
            yield run, MEASURES[run.config["part"]](run.config, run.seed)

    def figures(self, results: Sequence[Result]) -> Mapping[str, Figure]:
        from weightloom_papers.deep_learning_theory.experiments.barron.figure import draw_barron

        return draw_barron(results)

    def table(self, results: Sequence[Result]) -> ResultTable:
        from weightloom_papers.deep_learning_theory.experiments.barron.analysis import barron_table

        return barron_table(results, self.title)

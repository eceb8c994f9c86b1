"""The theorem of "Depth separation for neural networks" in numbers: tails, and widths from them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from weightloom_papers.depth_separation.experiments.training.networks import depth3_widths
from weightloom_papers.depth_separation.harmonics import (
    coefficients,
    gauss_jacobi,
    polynomial_bound,
    sine_tail,
    sine_tails,
)
from weightloom_papers.depth_separation.separable import (
    SQUARED_ERROR,
    depth2_log2_width,
    depth3_log2_width,
    printed_depth2_log2_width,
)
from weightloom_papers.lab import Experiment, Outcome, Result, ResultTable, Run, Workspace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["LegendreTails", "built_log2_width", "measure_tails", "measure_widths"]

# Dimensions whose tails are computed at every degree, by both methods, and the last dimension of
# the widths. Quadrature takes d^9 operations, Bessel functions d^3.
DIMS = {"smoke": (2, 3), "laptop": (2, 3, 4, 5, 6, 7), "paper": (2, 3, 4, 5, 6, 7, 8, 9, 10)}
LAST = {"smoke": 20, "laptop": 60, "paper": 120}
#: Degrees that are kept for drawing, about; n = d^2 is always among them.
KEPT = 120


class LegendreTails(Experiment):
    """Two parts, named by ``part`` in a run's configuration.

    - "tails": ||P_n F||^2 of sin(pi d^3 t) ("paper") or sin(pi sqrt(d) t) ("smooth") against n;
    - "widths": what follows for networks of depth 2, beside the width of depth 3, against d.
    """

    name = "depth-separation/legendre-tails"
    title = "Legendre tails of sin(pi d^3 <x, x'>), and the widths that follow"
    claim = (
        "Polynomials of degree below d^2 miss a constant part of sin(pi d^3 <x, x'>): "
        "P_n F >= 1/(5 e pi). So networks of depth 2 with weights up to 2^d need width "
        "2^Omega(d log d) where 16 pi d^5 / eps is enough for depth 3."
    )
    paper = "depth-separation, main theorem, lemma and conclusion"
    seconds_per_cost = 1.0
    main_metrics = ("tail_quadrature", "tail_recurrence", "apart", "lemma")

    def runs(self, scale: str) -> list[Run]:
        tails = [
            Run(self.name, {"part": "tails", "function": function, "d": d, "kept": KEPT}, 0)
            for d in DIMS[scale]
            for function in ("paper", "smooth")
        ]
        return [*tails, Run(self.name, {"part": "widths", "last": LAST[scale]}, 0)]

    def group(self, run: Run) -> str:
        """One job for each part: starting a job costs more than these runs."""
        return str(run.config["part"])

    def cost(self, run: Run) -> float:
        config = run.config
        if config["part"] == "widths":
            return 0.1 + 2e-6 * float(config["last"]) ** 3
        return 0.1 + (2e-7 * config["d"] ** 9 if config["function"] == "paper" else 0.0)

    def execute(self, runs: Sequence[Run], workspace: Workspace) -> Iterator[tuple[Run, Outcome]]:
        for run in runs:
            config = run.config
            if config["part"] == "tails":
                yield run, measure_tails(config["d"], config["function"], config["kept"])
            else:
                yield run, measure_widths(config["last"])

    def figures(self, results: Sequence[Result]) -> Mapping[str, Figure]:
        from weightloom_papers.depth_separation.experiments.legendre_tails.figure import draw_tails

        return draw_tails(results)

    def table(self, results: Sequence[Result]) -> ResultTable:
        from weightloom_papers.depth_separation.experiments.legendre_tails.analysis import (
            tails_table,
        )

        return tails_table(results, self.title)


def measure_tails(d: int, function: str, kept: int = KEPT) -> Outcome:
    """Tails at all degrees that matter, by quadrature and by Bessel functions.

    The lemma is about sin(pi sqrt(d) m t): m is d^2.5 for the paper's function and 1 for the smooth
    one. A tail at n is the distance to polynomials of degree k = n - 1. ``apart`` is the largest
    difference between both methods, ``lemma_ratio`` the least tail / bound over 0 <= k < m.
    """
    started = time.perf_counter()
    m = d**2.5 if function == "paper" else 1.0
    w = math.pi * math.sqrt(d) * m
    exact = sine_tails(d, w)
    summed = _by_quadrature(d, w, len(exact) - 1)
    at, degrees = d * d, _degrees(len(exact) - 1, d * d, kept)
    bounds = {n: polynomial_bound(m, n - 1) for n in range(1, math.ceil(m) + 1)}
    # Stored results call the second method by what computed Bessel functions first: a recurrence.
    metrics = {
        "m": m,
        "tail_quadrature": float(summed[at]),
        "tail_recurrence": float(exact[at]),
        "apart": float((exact - summed).abs().max()),
        "squared_norm": float(exact[0]),
        "lemma": max(0.0, polynomial_bound(m, at - 1)),
        "lemma_ratio": min(float(exact[n]) / bound for n, bound in bounds.items() if bound > 0),
        "degrees": len(exact) - 1,
    }
    curves = {
        "quadrature": (degrees, [float(summed[n]) for n in degrees]),
        "recurrence": (degrees, [float(exact[n]) for n in degrees]),
    }
    return Outcome("done", metrics, curves, seconds=time.perf_counter() - started)


def _by_quadrature(d: int, w: float, degree: int) -> torch.Tensor:
    """||P_n F||^2 for n = 0, ..., degree: the squared norm minus the first n coefficients'."""
    nodes = math.ceil(w) + degree + 60
    alpha = coefficients(lambda t: torch.sin(w * t), d, degree, nodes=nodes)
    t, weights = gauss_jacobi(d, nodes)
    norm = float(weights @ torch.sin(w * t).square())
    return norm - torch.cat([alpha.new_zeros(1), alpha.square().cumsum(0)[:-1]])


def _degrees(last: int, at: int, kept: int) -> list[int]:
    """Evenly spread logarithms, and ``at``."""
    even = {round(math.exp(i / (kept - 1) * math.log(last))) for i in range(kept)}
    return sorted({n for n in (*even, at) if n <= last})


def measure_widths(last: int) -> Outcome:
    """log2 of widths for d = 2, ..., last, and the tail at n = d^2 that some of them use.

    Lower bounds on depth 2: as printed, with the lemma's bound on the square of P_n F, and with the
    tail itself. Widths of depth 3: as printed, and of the network that `construct` builds.
    """
    started = time.perf_counter()
    dims = list(range(2, last + 1))
    tails = [sine_tail(d, math.pi * d**3, d * d) for d in dims]
    values = {
        "depth 2, printed": [printed_depth2_log2_width(d) for d in dims],
        "depth 2, lemma": [depth2_log2_width(d) for d in dims],
        "depth 2, tail": [
            depth2_log2_width(d, tail=tail) for d, tail in zip(dims, tails, strict=True)
        ],
        "depth 3, printed": [depth3_log2_width(d) for d in dims],
        "depth 3, built": [built_log2_width(d) for d in dims],
        "tail": tails,
        "lemma": [polynomial_bound(d**2.5, d * d) for d in dims],
    }
    curves = {name: (dims, each) for name, each in values.items()}
    metrics = {"least_tail": min(tails), "dimensions": len(dims)}
    return Outcome("done", metrics, curves, seconds=time.perf_counter() - started)


def built_log2_width(d: int, eps: float = math.sqrt(SQUARED_ERROR)) -> float:
    """log2 of the wider layer of `construct.depth3` for sin(pi d^3 <x, x'>), without building it.

    >>> round(2 ** built_log2_width(3, eps=0.1))
    1698
    """
    return math.log2(max(depth3_widths(d, math.pi * d**3, eps)))

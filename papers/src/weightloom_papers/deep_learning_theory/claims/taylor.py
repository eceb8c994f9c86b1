"""The Taylor model of a network at its initialisation: Definition 3.1 to Proposition 3.4."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from weightloom.construct import TaylorModel, linearize
from weightloom_papers.claims import PaperClaim, Size, Statement
from weightloom_papers.deep_learning_theory.claims.judging import (
    Measured,
    every,
    generator,
    unit,
)
from weightloom_papers.deep_learning_theory.near_init.shallow import Shallow

__all__ = ["CLAIMS"]


@torch.no_grad()
def _both(
    model: TaylorModel, start: dict[str, Tensor], u: dict[str, Tensor], t: float, x: Tensor
) -> tuple[Tensor, Tensor]:
    """F_0 and F at w0 + t u."""
    model.move_to({key: w + t * u[key] for key, w in start.items()})
    return model(x), model.network()(x)


def taylor_model(size: Size) -> list[Measured]:
    """F_0 of real networks along random lines w0 + t u, against differences of F itself."""
    rows = []
    nets = {
        "tanh 3-20-20-1": nn.Sequential(
            nn.Linear(3, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 1)
        ),
        "GELU with LayerNorm": nn.Sequential(
            nn.Linear(3, 20), nn.LayerNorm(20), nn.GELU(), nn.Linear(20, 1)
        ),
    }
    for name, net in nets.items():
        net, model = net.double(), linearize(net)
        x = torch.randn(10, 3, dtype=torch.float64)
        start = {key: w.detach().clone() for key, w in model.start().items()}
        for _ in range(2 if size == "quick" else 20):
            u = {key: torch.randn_like(w) / math.sqrt(w.numel()) for key, w in start.items()}

            h = 1e-4
            here, above, below, far = (_both(model, start, u, t, x) for t in (0.0, h, -h, 2.0))
            derivative = (above[1] - below[1]) / (2 * h)
            predicted = here[1] + 2.0 * derivative
            rows.append(
                Measured(name=name, off=float((far[0] - predicted).abs().max()),
                    missing=float((far[0] - (predicted - here[1])).abs().max()),
                    network=float((far[1] - far[0]).abs().max()))
            )  # fmt: skip
    return rows


TAYLOR = (
    "{r.name}, |w - w0| = 2 per layer: F_0 is off F(w0) + differences of F by {r.off:.2g}; F "
    "itself is {r.network:.2g} away"
)

# Central differences with h = 1e-4: h^2 times third derivatives (below 100), rounding 1e-16/h.
DIFFERENCES = 2 * (1e-8 * 100 + 1e-11)

# Kolmogorov-Smirnov: further than 2.2/sqrt(n) from the distribution in one of 8,000 samples.
FURTHEST = 2.2


def initialisations(size: Size) -> list[Measured]:
    """PyTorch's own start of a layer d -> m and of a layer m -> 1."""
    rows = []
    repeats = 20 if size == "quick" else 200
    for name, fan, out in (("v_j, d = 50", 50, 400), ("a_j, m = 2000", 2000, 1)):
        weights = torch.cat([nn.Linear(fan, out).weight.detach().flatten() for _ in range(repeats)])
        scaled = weights.double() * math.sqrt(fan)
        ordered, n = scaled.sort().values, len(scaled)
        uniform = (ordered + 1) / 2
        steps = torch.arange(1, n + 1, dtype=torch.float64) / n
        rows.append(
            Measured(name=name, n=n, largest=float(scaled.abs().max()),
                distance=float((uniform - steps).abs().max()) + 1 / n,
                variance=float(scaled.square().mean()),
                spread=float(scaled.square().std()) / math.sqrt(n))
        )  # fmt: skip
    return rows


STARTS = (
    "{r.name}, {r.n} weights: largest {r.largest:.6g}/sqrt(fan in), furthest from the uniform "
    "distribution {r.distance:.2g}, variance {r.variance:.4g}/fan in"
)


def smooth(size: Size) -> list[Measured]:
    """|F(x; V) - F_0(x; V)| and |F(x; V) - F(x; V0)| for V along x, and at random."""
    rows = []
    for name in ("tanh", "softplus", "sin", "square"):
        for radius in (0.001, 0.1, 1.0):
            for seed in range(1 if size == "quick" else 10):
                net = Shallow.sample(100, 3, name, seed=seed)
                x = unit(3)[None]
                noise = torch.randn(net.hidden.shape, generator=generator(seed)).double()
                for move in ((net.out > 0)[:, None] * x, net.out[:, None] * x, noise):
                    hidden = net.hidden + radius * move / move.norm()
                    here = net.network(hidden)(x).item()
                    bound = net.sigma.smoothness * net.largest_out / 2 * radius**2
                    rows.append(
                        Measured(name=name, radius=radius, bound=bound,
                            model=abs(here - float(net.taylor(x, hidden))),
                            start=abs(here - net.network()(x).item()))
                    )  # fmt: skip
    return rows


SMOOTH = (
    "{r.name}, 100 nodes, |V - V0| = {r.radius}: F is {r.model:.4g} from F_0(x; V), {r.start:.4g} "
    "from F_0(x; V0); bound {r.bound:.4g}"
)

# Outputs near 1 as sums of 100 terms.
ROUNDING = 1e-14


CLAIMS = (
    PaperClaim(
        name="deep-learning-theory/taylor-model",
        place="Definition 3.1",
        items=(13,),
        measure=taylor_model,
        printed=Statement(
            "F_0(x; w) = F(x; w0) + <dF(x; w0), w - w0>.",
            every(lambda r: r.off, lambda r: DIFFERENCES, TAYLOR),
        ),
        wrong=Statement(
            "F_0(x; w) = <dF(x; w0), w - w0>.",
            every(lambda r: r.missing, lambda r: DIFFERENCES, TAYLOR),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/default-initialisation",
        place="Remark 3.2",
        items=(50,),
        measure=initialisations,
        printed=Statement(
            "PyTorch starts with a_j uniform on +-1/sqrt(m), v_ji uniform on +-1/sqrt(d): "
            "variances of the order of 1/m and 1/d, a third of those of the theory.",
            every(
                lambda r: max(
                    r.largest - 1,
                    r.distance - FURTHEST / math.sqrt(r.n),
                    abs(r.variance - 1 / 3) - 4 * r.spread,
                ),
                lambda r: 1e-6,
                STARTS,
            ),
        ),
        wrong=Statement(
            "The variances are those of the theory, 1/m and 1/d.",
            every(lambda r: abs(r.variance - 1), lambda r: 4 * r.spread, STARTS),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/smooth-near-initialisation",
        place="Proposition 3.4",
        items=(14,),
        measure=smooth,
        printed=Statement(
            "|F(x; V) - F_0(x; V0)| <= (beta |a|_inf/2) |V - V0|^2 for beta-smooth activations, "
            "|x| <= 1.",
            every(lambda r: r.start, lambda r: r.bound + ROUNDING, SMOOTH),
        ),
        corrected=Statement(
            "|F(x; V) - F_0(x; V)|, the Taylor model at V, is at most that; F_0(x; V0) = F(x; V0).",
            every(lambda r: r.model, lambda r: r.bound + ROUNDING, SMOOTH),
        ),
        wrong=Statement(
            "|F(x; V) - F_0(x; V)| <= 0.9 (beta |a|_inf/2) |V - V0|^2.",
            every(lambda r: r.model, lambda r: 0.9 * r.bound + ROUNDING, SMOOTH),
        ),
    ),
)

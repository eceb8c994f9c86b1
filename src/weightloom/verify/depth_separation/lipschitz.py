"""One variable: Lipschitz functions by networks of depth 2."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from weightloom.construct.layers import to_dense
from weightloom.construct.separation import lipschitz_network
from weightloom.verify.claim import Claim, Evidence, Size, Statement
from weightloom.verify.depth_separation.angles import EPS, sine, zigzag

__all__ = ["CLAIMS"]


@dataclass(frozen=True)
class Built:
    """A network for one function: as the slides build it, and the narrower one."""

    name: str
    R: float
    L: float
    eps: float
    error: float
    """largest error on [-R, R], spacing as printed"""
    error_narrow: float
    width: int
    width_narrow: int
    needed: int
    """pieces that any network needs, less one: how often f swings beyond -eps and eps"""
    alpha: float
    """largest | |alpha| - 1 |"""
    beta: float
    gamma: float
    slope: float
    """largest slope, on [-R, R] and far outside"""
    offset: float
    """|constant - f(0)|"""

    @property
    def ratio(self) -> float:
        return self.R * self.L / self.eps


def _build(name: str, f: Callable[[Tensor], Tensor], R: float, L: float, eps: float,
           points: int) -> Built:  # fmt: skip
    wide, narrow = (
        lipschitz_network(f, radius=R, lipschitz=L, eps=eps, printed=printed)
        for printed in (True, False)
    )
    (alpha, beta), (gamma, constant) = _weights_of(wide.network)
    far = torch.linspace(-10 * R, 10 * R, points, dtype=torch.float64)
    x = torch.sort(torch.cat([far, far / 10])).values
    with torch.no_grad():
        values = wide.network(x[:, None])[:, 0]
        inside = (far / 10)[:, None]
        errors = [float((one.network(inside)[:, 0] - f(inside[:, 0])).abs().max())
                  for one in (wide, narrow)]  # fmt: skip
    gaps = x.diff()
    slopes = (values.diff().abs() / gaps)[gaps > 1e-6 * R]
    return Built(
        name, R, L, eps, errors[0], errors[1], wide.nodes, narrow.nodes,
        _swings(f(inside[:, 0]), eps),
        alpha=float((alpha.abs() - 1).abs().max()), beta=float(beta.abs().max()),
        gamma=float(gamma.abs().max()), slope=float(slopes.max()),
        offset=abs(float(constant) - float(f(torch.zeros(1, dtype=torch.float64)))),
    )  # fmt: skip


def _weights_of(network: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Weights [flattened] and biases of the linear layers."""
    dense = to_dense(network) if isinstance(network, nn.Sequential) else network
    layers = [part for part in dense.modules() if isinstance(part, nn.Linear)]
    return [(one.weight.detach().reshape(-1), one.bias.detach()) for one in layers]


def _swings(values: Tensor, eps: float) -> int:
    """How often values go from above eps to below -eps or back.

    A continuous function within eps of them changes its sign as often; m ReLU units give at most
    m + 1 linear pieces, and at most one change of sign in each.
    """
    signs = [1 if v > 0 else -1 for v in values.tolist() if abs(v) > eps]
    return sum(a != b for a, b in pairwise(signs))


def _measure(size: Size) -> list[Built]:
    points = 20_001 if size == "quick" else 200_001
    made = []
    for R, L, eps in ((1.0, 1.0, 0.1), (2.0, 3.0, 0.7), (1.0, 4.0, 0.3), (0.5, 1.0, 0.33)):
        for name, f in (
            ("sin", sine(L)),
            ("zigzag of height 1.05 eps", zigzag(L, 1.05 * eps)),
            ("zigzag of height eps / 2", zigzag(L, eps / 2)),
        ):
            made.append(_build(name, f, R, L, eps, points))
    return made


def _says(text: str, seen: Callable[[Built], float], said: Callable[[Built], float]) -> Statement:
    def judge(measured: list[Built]) -> Evidence:
        one = max(measured, key=lambda m: seen(m) / said(m))
        told = f"{one.name}, R = {one.R:g}, L = {one.L:g}, eps = {one.eps:g}, {one.width} units "
        told += f"({one.width_narrow} with twice the spacing): {seen(one):.6g}, {said(one):.6g} is"
        return Evidence(seen(one) / said(one), 1 + 1e-9, told + " said")

    return Statement(text, judge)


def _parts(one: Built, kink: float) -> float:
    """Largest of alpha, beta, gamma and slope over what is said of them."""
    alpha = 1 + one.alpha / EPS if one.alpha else 1.0
    constant = one.offset / (EPS * (1 + one.L * one.R))
    return max(alpha, constant, one.beta / one.R, one.gamma / (kink * one.L), one.slope / one.L)


def _weights(text: str, kink: float) -> Statement:
    def judge(measured: list[Built]) -> Evidence:
        one = max(measured, key=lambda m: _parts(m, kink))
        told = f"{one.name}, R = {one.R:g}, L = {one.L:g}, eps = {one.eps:g}: |alpha| = 1 to "
        told += f"{one.alpha:.1g}, |beta| <= {one.beta:.4g}, |gamma| <= {one.gamma:.4g}, slopes <= "
        # Slopes are differences of outputs over gaps above 1e-6 R; outputs are rounded to 1e-13.
        return Evidence(_parts(one, kink), 1 + 1e-6, told + f"{one.slope:.6g} on [-10 R, 10 R]")

    return Statement(text, judge)


CLAIMS = (
    Claim("003/lipschitz-error", "Lipschitz function approximation", (7,), _measure,
          printed=_says("An L-Lipschitz f on [-R, R] is within eps of its interpolant with spacing "
                        "eps / L (in fact within eps / 2)", lambda m: m.error, lambda m: m.eps),
          wrong=_says("... within eps / 3", lambda m: m.error, lambda m: m.eps / 3)),
    Claim("003/lipschitz-width", "Lipschitz function approximation", (7,), _measure,
          printed=_says("m <= 2 R L / eps ReLU units are enough (twice the spacing of the proof, "
                        "2 ceil(R L / (2 eps)) units, are within eps)",
                        lambda m: m.width_narrow * max(1.0, m.error_narrow / m.eps),
                        lambda m: 2 * m.ratio),
          wrong=_says("m <= R L / (2 eps) units are enough (each swing of f beyond eps needs one)",
                      lambda m: float(m.needed), lambda m: m.ratio / 2)),
    Claim("003/lipschitz-width-proof", "Lipschitz function approximation - proof", (7,), _measure,
          printed=_says("The interpolant with spacing eps / L has m <= 2 R L / eps units",
                        lambda m: float(m.width), lambda m: 2 * m.ratio),
          corrected=_says("It has 2 ceil(R L / eps): widths need a ceiling",
                          lambda m: float(m.width), lambda m: 2 * math.ceil(m.ratio - 1e-9)),
          wrong=_says("It has ceil(R L / eps)", lambda m: float(m.width),
                      lambda m: math.ceil(m.ratio - 1e-9))),
    Claim("003/lipschitz-weights", "Lipschitz function approximation", (7,), _measure,
          printed=_weights("f(0) + sum gamma_i s(alpha_i x + beta_i): alpha = 1 or -1, |beta| <= "
                           "R, |gamma| <= 2 L, and the network is L-Lipschitz on the whole line",
                           2.0),
          wrong=_weights("... |gamma| <= 3/2 L", 1.5)),
)  # fmt: skip

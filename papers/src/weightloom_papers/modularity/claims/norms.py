"""The complexity C(f), the Lipschitz constant, and the norm of the parameters.

`random_network` samples the networks that these and other claims of the paper are checked on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weightloom import mlp
from weightloom.bounds import path_norm, spectral_complexity
from weightloom.symmetry import apply, random_element, random_equivalent, read
from weightloom_papers.claims import Evidence, PaperClaim, Size, Statement

__all__ = ["CLAIMS", "EPS", "random_network"]

EPS = torch.finfo(torch.float64).eps
ORDERS = {"1": 1.0, "2": 2.0, "max": math.inf}
ROUNDING = 1e-12  # relative, after a few hundred operations


@torch.no_grad()
def random_network(
    sizes: Sequence[int],
    activation: str | Callable[[], nn.Module] = "relu",
    *,
    bias: bool = True,
    last_bias: bool = True,
) -> nn.Sequential:
    """A fully connected network in float64: weights of variance 1 / fan-in, biases of variance 1.

    ``last_bias=False`` gives networks of the form (4), which have no bias after the last matrix.
    """
    net = mlp(sizes, activation, bias=bias).double()
    linear = [layer for layer in net if isinstance(layer, nn.Linear)]
    for layer in linear:
        layer.weight.normal_(0.0, 1 / math.sqrt(layer.in_features))
        if layer.bias is not None:
            layer.bias.normal_()
    if not last_bias:
        linear[-1].register_parameter("bias", None)
    return net


# -- Lemma 4: steepness against C(f) ------------------------------------------------------------


@dataclass(frozen=True)
class Steepness:
    """Largest measured |f(x) - f(y)| / (C(f) |x - y|), by norm and network."""

    ratios: dict[str, dict[str, float]]


def _networks(size: Size) -> dict[str, nn.Sequential]:
    count = 3 if size == "quick" else 12
    total = nn.Linear(100, 1, bias=False).double()
    nn.init.ones_(total.weight)
    networks = {"sum of 100 inputs": nn.Sequential(total)}
    for i in range(count):
        networks[f"ReLU 5-8-8-3, draw {i}"] = random_network([5, 8, 8, 3], last_bias=False)
        networks[f"tanh 4-6-2, draw {i}"] = random_network([4, 6, 2], "tanh", last_bias=False)
    networks["ReLU 5-8-8-3, positive weights of equal column sums"] = _positive([5, 8, 8, 3])
    return networks


@torch.no_grad()
def _positive(sizes: list[int]) -> nn.Sequential:
    """A network that attains the bound of Lemma 4: positive weights, all column sums equal."""
    net = random_network(sizes, last_bias=False)
    for layer in net:
        if isinstance(layer, nn.Linear):
            layer.weight.abs_()
            layer.weight.div_(layer.weight.sum(0)).mul_(1.5)
            if layer.bias is not None:
                layer.bias.abs_()
    return net


@torch.no_grad()
def _steepest(net: nn.Sequential, order: float, points: int) -> float:
    """Largest difference quotient over pairs of points: along axes, along (1, .., 1), at random."""
    first = next(layer for layer in net if isinstance(layer, nn.Linear))
    dims = first.in_features
    x = torch.rand(points, dims, dtype=torch.float64)
    steps = torch.cat(
        [
            torch.eye(dims, dtype=torch.float64).repeat(-(-points // dims), 1)[:points],
            torch.ones(points, dims, dtype=torch.float64),
            torch.randn(points, dims, dtype=torch.float64),
        ]
    )
    start = x.repeat(3, 1)
    moved = net(start + steps) - net(start)
    ratio = moved.norm(order, dim=1) / steps.norm(order, dim=1)
    return float(ratio.max())


def _measure_steepness(size: Size) -> Steepness:
    points = 400 if size == "quick" else 5000
    return Steepness(
        {
            norm: {
                name: _steepest(net, order, points) / spectral_complexity(net)
                for name, net in _networks(size).items()
            }
            for norm, order in ORDERS.items()
        }
    )


def _worst_ratio(measured: Steepness, norms_: tuple[str, ...], allowed: float) -> Evidence:
    norm, name, ratio = max(
        ((n, name, r) for n in norms_ for name, r in measured.ratios[n].items()), key=lambda t: t[2]
    )
    at = f"{name}: steepness in the {norm}-norm is {ratio:.6g} C(f), the largest of"
    return Evidence(ratio, allowed + ROUNDING, f"{at} {len(measured.ratios['1'])} networks")


LIPSCHITZ = PaperClaim(
    name="modularity/lipschitz",
    place="Eq. 5, Lemma 4",
    items=(2, 3),
    measure=_measure_steepness,
    printed=Statement(
        "C(f) = L^(k-1) prod_i ||W_i||_1 bounds the Lipschitz constant of f (in which norm is not "
        "said; 1, 2 and max are tried)",
        lambda measured: _worst_ratio(measured, ("1", "2", "max"), 1.0),
    ),
    corrected=Statement(
        "C(f) bounds the Lipschitz constant from the 1-norm to the 1-norm, and is attained there",
        lambda measured: _worst_ratio(measured, ("1",), 1.0),
    ),
    wrong=Statement(
        "0.99 C(f) bounds the Lipschitz constant in the 1-norm",
        lambda measured: _worst_ratio(measured, ("1",), 0.99),
    ),
)


# -- Lemma 3: zero biases -----------------------------------------------------------------------


def _measure_growth(size: Size) -> dict[str, float]:
    """|f(x)|_1 / (C(f) |x|_1), for an activation of Lipschitz constant 2 (slope 2 below zero)."""
    ratios = {}
    for depth in (2, 3, 4):
        for sign, kind in ((1.0, "random signs"), (-1.0, "weights that reach the bound")):
            net = random_network([4, *[6] * (depth - 1), 2], lambda: nn.LeakyReLU(2.0), bias=False)
            if sign < 0:
                _alternate(net)
            points = torch.cat([torch.eye(4), torch.rand(200 if size == "quick" else 5000, 4)])
            x = torch.cat([points, -points]).double()
            with torch.no_grad():
                grown = net(x).norm(1, dim=1) / x.norm(1, dim=1)
            ratios[f"{depth} matrices, {kind}"] = float(grown.max()) / spectral_complexity(net)
    return ratios


@torch.no_grad()
def _alternate(net: nn.Sequential) -> None:
    """Weights that reach the bound: positive columns of sum 1, the last matrix negative."""
    linear = [layer for layer in net if isinstance(layer, nn.Linear)]
    for i, layer in enumerate(linear):
        layer.weight.abs_()
        layer.weight.div_(layer.weight.sum(0))
        # -x passes the first activation with slope 2, and stays negative after positive weights.
        if i == len(linear) - 1:
            layer.weight.neg_()


def _most(measured: dict[str, float], allowed: float, what: str) -> Evidence:
    name, ratio = max(measured.items(), key=lambda pair: pair[1])
    return Evidence(ratio, allowed + ROUNDING, f"{name}: {what} {ratio:.6g}")


GROWTH = PaperClaim(
    name="modularity/lipschitz-zero-biases",
    place="Lemma 3",
    items=(3,),
    measure=_measure_growth,
    printed=Statement(
        "with zero biases and s(0) = 0, ||f(x)||_1 <= L^(k-1) ||x||_1 prod_i ||W_i||_1",
        lambda measured: _most(measured, 1.0, "||f(x)||_1 / (C(f) ||x||_1) reaches"),
    ),
    wrong=Statement(
        "the same with L^(k-2)",
        lambda measured: _most(measured, 0.5, "||f(x)||_1 / (C(f) ||x||_1) reaches"),
    ),
)


# -- C(f) is a number of the parameters, not of f ------------------------------------------------


@dataclass(frozen=True)
class RescaledNorms:
    """Largest factors by which norms change when neurons are rescaled; change of the outputs."""

    outputs: float
    spectral: float
    paths: float
    frobenius: float


def _measure_rescaled(size: Size) -> RescaledNorms:
    rows = []
    for _ in range(8 if size == "quick" else 40):
        net = random_network([4, 6, 6, 2])
        other = random_equivalent(net, scales=(0.1, 10.0))
        x = torch.randn(100, 4, dtype=torch.float64)
        with torch.no_grad():
            apart = float((net(x) - other(x)).abs().max() / net(x).abs().max())
        rows.append(
            (
                apart,
                _factor(spectral_complexity(net), spectral_complexity(other)),
                _factor(path_norm(net), path_norm(other)),
                _factor(_frobenius(net), _frobenius(other)),
            )
        )
    return RescaledNorms(*(max(column) for column in zip(*rows, strict=True)))


def _frobenius(net: nn.Module) -> float:
    """Product of the Frobenius norms, without the library."""
    matrices = [p.detach() for p in net.parameters() if p.dim() == 2]
    return math.prod(float(w.norm()) for w in matrices)


def _factor(a: float, b: float) -> float:
    return max(a / b, b / a)


def _changed(measured: RescaledNorms, factor: float, name: str) -> Evidence:
    at = (
        f"ReLU 4-6-6-2, neurons rescaled by 0.1 to 10: {name} changes by a factor of up to "
        f"{factor:.6g} while outputs move by {measured.outputs:.1e} of their size"
    )
    return Evidence(factor, 1 + ROUNDING, at)


INVARIANCE = PaperClaim(
    name="modularity/complexity-of-a-function",
    place="Eq. 5",
    items=(2,),
    measure=_measure_rescaled,
    printed=Statement(
        "C(f) := C([W, b]) is a number of the function f",
        lambda measured: _changed(measured, measured.spectral, "C"),
    ),
    corrected=Statement(
        "C is a number of the parameters; what rescaling ReLU neurons leaves as it is is the path "
        "norm",
        lambda measured: _changed(measured, measured.paths, "the path norm"),
    ),
    wrong=Statement(
        "the product of the Frobenius norms is left as it is",
        lambda measured: _changed(measured, measured.frobenius, "the product of Frobenius norms"),
    ),
)


# -- Lemma 2: isomorphisms and the norm of the parameters ----------------------------------------


@dataclass(frozen=True)
class ParameterIsometry:
    """Largest deviations over random networks: of (16), of (17), and of (17) for rescalings."""

    linear: float
    norm: float
    rescaled: float


def _flat(net: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in net.parameters()])


@torch.no_grad()
def _measure_isometry(size: Size) -> ParameterIsometry:
    linear = norm = rescaled = 0.0
    for _ in range(8 if size == "quick" else 40):
        a, b, minus = (random_network([3, 5, 4, 2], "gelu") for _ in range(3))
        for p, q, r in zip(minus.parameters(), a.parameters(), b.parameters(), strict=True):
            p.copy_(q - r)
        spec = read(a)
        pi = random_element(spec)
        moved = [_flat(apply(pi, net, spec)) for net in (a, b, minus)]
        linear = max(linear, float((moved[0] - moved[1] - moved[2]).abs().max()))
        size_ = float(_flat(a).norm())
        norm = max(norm, abs(float(moved[0].norm()) / size_ - 1))
        relu = random_network([3, 5, 4, 2])
        other = random_equivalent(relu)
        rescaled = max(rescaled, abs(float(_flat(other).norm() / _flat(relu).norm()) - 1))
    return ParameterIsometry(linear, norm, rescaled)


ISOMETRY = PaperClaim(
    name="modularity/parameter-norm",
    place="Eqs. 15 to 17, Lemma 2",
    items=(10,),
    measure=_measure_isometry,
    printed=Statement(
        "isomorphisms are linear, pi o [W1] - pi o [W2] = pi o [W1 - W2], and keep the 2-norm of "
        "the parameters",
        lambda measured: Evidence(
            max(measured.linear, measured.norm),
            # additions of the same numbers in another order: one epsilon for each of 61
            61 * EPS,
            f"GELU 3-5-4-2, random permutations: (16) is off by {measured.linear:.1e}, the norm by "
            f"{measured.norm:.1e} of itself",
        ),
    ),
    wrong=Statement(
        "every change of parameters that keeps the function (ReLU scales too) keeps the norm",
        lambda measured: Evidence(
            measured.rescaled,
            61 * EPS,
            f"ReLU 3-5-4-2, rescaled: norm changes by {measured.rescaled:.1e}",
        ),
    ),
)

CLAIMS = (LIPSCHITZ, GROWTH, INVARIANCE, ISOMETRY)

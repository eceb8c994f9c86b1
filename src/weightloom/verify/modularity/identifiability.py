"""Which changes of parameters leave the function as it is: Definitions 1, 2, 6, Theorem 1."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weightloom.verify.claim import Claim, Evidence, Size, Statement
from weightloom.verify.modularity.shallow import RELU, TANH
from weightloom.verify.sampling import EPS, draw_network

__all__ = ["CLAIMS"]


# -- Definition 2 ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Renamed:
    """Largest change of outputs under Eq. 7, and under Eq. 7 with one index inverted."""

    printed: float
    inverted: float
    size: float


@torch.no_grad()
def _renamed(net: nn.Sequential, gammas: list[Tensor], invert: bool) -> nn.Sequential:
    """V^i[j, l] = W^i[gamma_{i+1}(j), gamma_i(l)], d^i[j] = b^i[gamma_{i+1}(j)]."""
    other = draw_network([4, 6, 5, 3], type(net[1]), last_bias=False)
    layers = [layer for layer in net if isinstance(layer, nn.Linear)]
    copies = [layer for layer in other if isinstance(layer, nn.Linear)]
    for i, (old, new) in enumerate(zip(layers, copies, strict=True)):
        columns = gammas[i].argsort() if invert else gammas[i]
        new.weight.copy_(old.weight[gammas[i + 1]][:, columns])
        if old.bias is not None:
            new.bias.copy_(old.bias[gammas[i + 1]])
    return other


@torch.no_grad()
def _measure_renamed(size: Size) -> Renamed:
    printed = inverted = largest = 0.0
    cycle = torch.tensor([1, 2, 0])  # not its own inverse
    for activation in (nn.ReLU, nn.Tanh, nn.GELU, nn.Sigmoid, nn.ELU):
        for _ in range(2 if size == "quick" else 20):
            net = draw_network([4, 6, 5, 3], activation, last_bias=False)
            inner = [torch.randperm(6), torch.randperm(5)]
            inner = [torch.cat([cycle, 3 + torch.randperm(len(g) - 3)]) for g in inner]
            gammas = [torch.arange(4), *inner, torch.arange(3)]
            x = torch.randn(100, 4, dtype=torch.float64)
            y = net(x)
            largest = max(largest, float(y.abs().max()))
            printed = max(printed, float((_renamed(net, gammas, False)(x) - y).abs().max()))
            inverted = max(inverted, float((_renamed(net, gammas, True)(x) - y).abs().max()))
    return Renamed(printed, inverted, largest)


def _moved(seen: Renamed, moved: float) -> Evidence:
    # sums of at most 6 terms in another order, through three layers
    allowed = 100 * EPS * seen.size
    at = "five activations, networks 4-6-5-3, 3-cycles among the exchanges: outputs of size up to"
    return Evidence(moved, allowed, f"{at} {seen.size:.2g} move by {moved:.1e}")


ISOMORPHISM = Claim(
    name="000/isomorphism",
    place="Definition 2, Eq. 7",
    items=(1, 6),
    measure=_measure_renamed,
    printed=Statement(
        "V^i[j, l] = W^i[gamma_{i+1}(j), gamma_i(l)], d^i[j] = b^i[gamma_{i+1}(j)], the outer "
        "gammas the identity: the same function, whatever the activation",
        lambda seen: _moved(seen, seen.printed),
    ),
    wrong=Statement(
        "the same with the inverse of gamma_i in the second index",
        lambda seen: _moved(seen, seen.inverted),
    ),
)


# -- Definition 6: are equal normal networks isomorphic? ------------------------------------------


@dataclass(frozen=True)
class Refound:
    """Networks 1-2-1 that were fitted to another one until they were equal.

    Distances of the parameters after the best of all exchanges: as they are, with signs, with
    positive scales divided out; by activation, the largest over fits."""

    fits: dict[str, int]
    residual: float
    plain: dict[str, float]
    group: dict[str, float]
    signs: dict[str, float]


def _distance(p: Tensor, q: Tensor) -> float:
    """Between the neurons of two networks, after the best exchange."""
    a, b = p[:6].reshape(2, 3), q[:6].reshape(2, 3)
    return min(
        float((a - b[list(order)]).abs().max()) for order in itertools.permutations(range(2))
    )


def _signed(theta: Tensor) -> Tensor:
    """Every neuron with a positive incoming weight."""
    rows = theta[:6].reshape(2, 3)
    return torch.cat([(rows * rows[:, :1].sign()).flatten(), theta[6:]])


def _scaled(theta: Tensor) -> Tensor:
    """Every neuron with an incoming weight of size one."""
    w, b, a = theta[:6].reshape(2, 3).unbind(1)
    size = w.abs()
    return torch.cat([torch.stack([w / size, b / size, a * size], 1).flatten(), theta[6:]])


_TEACHERS = {
    # rows (w, b, a): far from clones, kinks inside [-3, 3]
    "tanh": torch.tensor([1.3, 0.4, 0.8, -2.0, 0.7, 0.5, 0.2], dtype=torch.float64),
    "ReLU": torch.tensor([1.3, 0.4, 0.8, 0.6, -0.9, 1.1, 0.2], dtype=torch.float64),
}
_MODELS = {"tanh": TANH, "ReLU": RELU}
_NORMAL = {"tanh": _signed, "ReLU": _scaled}


def _measure_refound(size: Size) -> Refound:
    starts = 60 if size == "quick" else 1000
    x = torch.linspace(-3, 3, 61, dtype=torch.float64)
    fits: dict[str, int] = {}
    plain: dict[str, float] = {}
    group: dict[str, float] = {}
    signs: dict[str, float] = {}
    worst = 0.0
    for name, teacher in _TEACHERS.items():
        found = _fits(name, teacher, x, starts)
        fits[name] = len(found)
        worst = max([worst, *(left for _, left in found)])
        students = [theta for theta, _ in found]
        normal = _NORMAL[name]
        plain[name] = max(_distance(s, teacher) for s in students)
        group[name] = max(_distance(normal(s), normal(teacher)) for s in students)
        signs[name] = max(_distance(_signed(s), _signed(teacher)) for s in students)
    return Refound(fits, worst, plain, group, signs)


def _fits(name: str, teacher: Tensor, x: Tensor, starts: int) -> list[tuple[Tensor, float]]:
    """Students that reached the teacher's function, of so many random starts."""
    start = torch.randn(starts, 7, dtype=torch.float64)
    if name == "ReLU":  # other signs of the slopes are another sum of kinks and a line
        start[:, 0:6:3] = start[:, 0:6:3].abs() + 0.1
    model = _MODELS[name]
    found, left = model.fit(model(teacher, x), x, start, rounds=60)
    return [(theta, float(rest)) for theta, rest in zip(found, left, strict=True) if rest < 1e-11]


def _apart(seen: Refound, distances: dict[str, float], what: str) -> Evidence:
    name, worst = max(distances.items(), key=lambda pair: pair[1])
    # Residuals of at most 1e-11 at 61 points over the least singular value of the fit, 0.02 (two
    # zero ones for the scales of ReLU aside), and over weights as small as 0.01.
    at = (
        f"{sum(seen.fits.values())} networks 1-2-1, fitted from random starts until their outputs "
        f"agreed with another one's within {seen.residual:.0e}: parameters differ by {worst:.2g} "
        f"after {what} ({name})"
    )
    return Evidence(worst, 1e-6, at)


IDENTIFIABLE = Claim(
    name="000/identifiability",
    place="Definitions 1 and 6",
    items=(12, 9),
    measure=_measure_refound,
    printed=Statement(
        "normal networks with the same function are isomorphic, that is equal up to exchanges of "
        "neurons (tried for tanh and ReLU)",
        lambda seen: _apart(seen, seen.plain, "the best exchange"),
    ),
    corrected=Statement(
        "they are equal up to exchanges and signs for tanh, and up to exchanges and positive "
        "scales for ReLU with slopes of one sign",
        lambda seen: _apart(seen, seen.group, "the best exchange, signs and scales"),
    ),
    wrong=Statement(
        "they are equal up to exchanges and signs for both",
        lambda seen: _apart(seen, seen.signs, "the best exchange and signs"),
    ),
)


# -- Theorem 1 ------------------------------------------------------------------------------------


def _clipped(x: Tensor) -> Tensor:
    return x.clamp(0, 1)


@dataclass(frozen=True)
class Separated:
    """Two normal, non-isomorphic networks: how far apart their outputs are, by width of rho."""

    clipped: float
    close: tuple[float, ...]
    apart: tuple[float, ...]


def _pair(activation: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """x clipped to [0, 4], by three neurons, in two ways that no exchange turns into another."""
    one = activation(x) + activation(x - 1) + 2 * activation((x - 2) / 2)
    other = 2 * activation(x / 2) + activation(x - 2) + activation(x - 3)
    return one, other


def _measure_separated(size: Size) -> Separated:
    x = torch.linspace(-3, 7, 2001 if size == "quick" else 100_001, dtype=torch.float64)
    close, apart = [], []
    for width in (0.1, 0.01, 0.001):

        def rho(t: Tensor, s: float = width) -> Tensor:
            # clipped ReLU averaged over a normal shift of standard deviation s: entire
            def half(u: Tensor) -> Tensor:
                return (
                    u * torch.special.ndtr(u / s)
                    + s * torch.exp(-((u / s) ** 2) / 2) / (2 * torch.pi) ** 0.5
                )

            return half(t) - half(t - 1)

        one, other = _pair(rho, x)
        close.append(float((rho(x) - _clipped(x)).abs().max()))
        apart.append(float((one - other).abs().max()))
    one, other = _pair(_clipped, x)
    return Separated(float((one - other).abs().max()), tuple(close), tuple(apart))


def _told_apart(apart: float, close: float, name: str) -> Evidence:
    at = f"two normal networks 1-3-1 that are no exchange of each other, {name}: outputs "
    at += f"{apart:.2e} apart, with the activation within {close:.2e} of the clipped ReLU"
    return Evidence(100 * EPS, apart, at)


THEOREM_1 = Claim(
    name="000/theorem-1",
    place="Theorem 1",
    items=(13,),
    measure=_measure_separated,
    printed=Statement(
        "as close as you like to an activation such as the clipped ReLU there is one that induces "
        "identifiability (checked: it tells normal networks apart that the clipped ReLU does not)",
        lambda seen: _told_apart(min(seen.apart), seen.close[-1], "smoothed clipped ReLU"),
    ),
    wrong=Statement(
        "the clipped ReLU itself tells them apart",
        lambda seen: _told_apart(seen.clipped, 0.0, "clipped ReLU"),
    ),
)


@dataclass(frozen=True)
class Variation:
    """Integral of |s'| and total variation of s' on [-R, R], for R = 50 and R = 100."""

    integral: dict[str, tuple[float, float]]
    total: dict[str, tuple[float, float]]


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "clipped ReLU": _clipped,
    "logistic": torch.sigmoid,
    "tanh": torch.tanh,
    "ReLU": torch.relu,
    "ELU": nn.functional.elu,
}


def _measure_variation(size: Size) -> Variation:
    steps = 4_001 if size == "quick" else 400_001
    integral, total = {}, {}
    for name, activation in _ACTIVATIONS.items():
        sums, variations = [], []
        for radius in (50.0, 100.0):
            x = torch.linspace(-radius, radius, steps, dtype=torch.float64)
            secants = activation(x).diff() / x.diff()  # the derivative's means, without autograd
            sums.append(float((secants.abs() * x.diff()).sum()))
            variations.append(float(secants.diff().abs().sum()))
        integral[name], total[name] = (sums[0], sums[1]), (variations[0], variations[1])
    return Variation(integral, total)


def _grown(seen: Variation, names: tuple[str, ...]) -> Evidence:
    growth = {
        name: max(
            seen.integral[name][1] / seen.integral[name][0],
            seen.total[name][1] / seen.total[name][0],
        )
        for name in names
    }
    name, worst = max(growth.items(), key=lambda pair: pair[1])
    small, large = seen.integral[name]
    at = (
        f"{name}: the integral of |s'| over [-50, 50] is {small:.4g}, over [-100, 100] it is "
        f"{large:.4g}; it or the variation of s' grows by a factor of at most {worst:.3g} "
        f"({', '.join(names)})"
    )
    return Evidence(worst, 1.01, at)  # steps: one percent of the width of a kink


BOUNDED_VARIATION = Claim(
    name="000/bounded-variation",
    place="Section 2.2, after Theorem 1",
    items=(13,),
    measure=_measure_variation,
    printed=Statement(
        "the clipped ReLU, the logistic function and tanh have s' in BV(R): integrable, and of "
        "bounded variation",
        lambda seen: _grown(seen, ("clipped ReLU", "logistic", "tanh")),
    ),
    wrong=Statement(
        "so have ReLU and ELU, the activations of Section 6",
        lambda seen: _grown(seen, ("ReLU", "ELU")),
    ),
)

CLAIMS = (ISOMORPHISM, IDENTIFIABLE, THEOREM_1, BOUNDED_VARIATION)

"""Which changes of the parameters keep the function: Definitions 1, 2 and 6, Theorem 1.

`ShallowFamily` holds networks 1-n-1 as plain vectors and fits many of them at once. It is used to
find other parameters of a given function.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weightloom_papers.claims import Evidence, PaperClaim, Size, Statement
from weightloom_papers.modularity.claims.norms import EPS, random_network

__all__ = ["CLAIMS", "RELU", "ShallowFamily", "TANH"]

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ShallowFamily:
    """f(x) = sum_j a_j s(w_j x + b_j) + c; parameters [..., 3 n + 1] are (w, b, a) by neuron, c."""

    activation: Function
    derivative: Function

    def __call__(self, theta: Tensor, x: Tensor) -> Tensor:
        """theta [..., 3 n + 1], x [p] -> [..., p]."""
        w, b, a, c = self._parts(theta)
        out: Tensor = (a * self.activation(w * x[:, None] + b)).sum(-1) + c
        return out

    def fit(self, y: Tensor, x: Tensor, starts: Tensor, rounds: int) -> tuple[Tensor, Tensor]:
        """From each start [s, 3 n + 1], parameters that fit y [p] at x [p], and the largest error.

        Levenberg and Marquardt's method; any start may end in a local minimum.
        """
        theta, damping = starts.clone(), torch.full((len(starts),), 1e-2).to(starts)
        r = self(theta, x) - y
        for _ in range(rounds):
            j = self._jacobian(theta, x)
            normal = j.mT @ j
            ridge = torch.diag_embed(normal.diagonal(dim1=1, dim2=2) + 1e-12)
            damped = normal + damping[:, None, None] * ridge
            step = torch.linalg.solve(damped, -(j.mT @ r[..., None]))[..., 0]
            tried = self(theta + step, x) - y
            better = tried.square().sum(1) < r.square().sum(1)
            theta = torch.where(better[:, None], theta + step, theta)
            r = torch.where(better[:, None], tried, r)
            damping = torch.where(better, damping / 4, damping * 4).clamp(1e-15, 1e15)
        return theta, r.abs().amax(1)

    def _jacobian(self, theta: Tensor, x: Tensor) -> Tensor:
        w, b, a, _ = self._parts(theta)
        z = w * x[:, None] + b
        back = a * self.derivative(z)
        by_neuron = torch.stack([back * x[:, None], back, self.activation(z)], -1).flatten(-2)
        return torch.cat([by_neuron, torch.ones_like(by_neuron[..., :1])], -1)

    @staticmethod
    def _parts(theta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        rows = theta[..., :-1].unflatten(-1, (-1, 3))[..., None, :, :]
        return rows[..., 0], rows[..., 1], rows[..., 2], theta[..., -1:]


TANH = ShallowFamily(torch.tanh, lambda z: 1 - torch.tanh(z).square())
RELU = ShallowFamily(torch.relu, lambda z: (z > 0).to(z))


# -- Definition 2 ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class PermutedOutputs:
    """Largest change of the outputs under Eq. 7, and under Eq. 7 with one permutation inverted."""

    printed: float
    inverted: float
    size: float


@torch.no_grad()
def _permuted(net: nn.Sequential, gammas: list[Tensor], invert: bool) -> nn.Sequential:
    """V^i[j, l] = W^i[gamma_{i+1}(j), gamma_i(l)], d^i[j] = b^i[gamma_{i+1}(j)]."""
    other = random_network([4, 6, 5, 3], type(net[1]), last_bias=False)
    layers = [layer for layer in net if isinstance(layer, nn.Linear)]
    copies = [layer for layer in other if isinstance(layer, nn.Linear)]
    for i, (old, new) in enumerate(zip(layers, copies, strict=True)):
        columns = gammas[i].argsort() if invert else gammas[i]
        new.weight.copy_(old.weight[gammas[i + 1]][:, columns])
        if old.bias is not None:
            new.bias.copy_(old.bias[gammas[i + 1]])
    return other


@torch.no_grad()
def _measure_permuted(size: Size) -> PermutedOutputs:
    printed = inverted = largest = 0.0
    cycle = torch.tensor([1, 2, 0])  # not its own inverse
    for activation in (nn.ReLU, nn.Tanh, nn.GELU, nn.Sigmoid, nn.ELU):
        for _ in range(2 if size == "quick" else 20):
            net = random_network([4, 6, 5, 3], activation, last_bias=False)
            inner = [torch.randperm(6), torch.randperm(5)]
            inner = [torch.cat([cycle, 3 + torch.randperm(len(g) - 3)]) for g in inner]
            gammas = [torch.arange(4), *inner, torch.arange(3)]
            x = torch.randn(100, 4, dtype=torch.float64)
            y = net(x)
            largest = max(largest, float(y.abs().max()))
            printed = max(printed, float((_permuted(net, gammas, False)(x) - y).abs().max()))
            inverted = max(inverted, float((_permuted(net, gammas, True)(x) - y).abs().max()))
    return PermutedOutputs(printed, inverted, largest)


def _moved(measured: PermutedOutputs, moved: float) -> Evidence:
    # sums of at most 6 terms in another order, through three layers
    allowed = 100 * EPS * measured.size
    at = (
        "five activations, networks 4-6-5-3, 3-cycles among the permutations: outputs of size up to"
    )
    return Evidence(moved, allowed, f"{at} {measured.size:.2g} move by {moved:.1e}")


ISOMORPHISM = PaperClaim(
    name="modularity/isomorphism",
    place="Definition 2, Eq. 7",
    items=(1, 6),
    measure=_measure_permuted,
    printed=Statement(
        "V^i[j, l] = W^i[gamma_{i+1}(j), gamma_i(l)], d^i[j] = b^i[gamma_{i+1}(j)], the outer "
        "gammas the identity: the same function, whatever the activation",
        lambda measured: _moved(measured, measured.printed),
    ),
    wrong=Statement(
        "the same with the inverse of gamma_i in the second index",
        lambda measured: _moved(measured, measured.inverted),
    ),
)


# -- Definition 6: are equal normal networks isomorphic? -------------------------------------------


@dataclass(frozen=True)
class FittedCopies:
    """Networks 1-2-1 fitted to another one until the functions were equal.

    Largest distance of the parameters over all fits, by activation, after the best permutation:
    of the parameters themselves (``plain``), modulo signs (``signs``), and modulo the activation's
    own symmetry, signs for tanh and positive scales for ReLU (``group``).
    """

    fits: dict[str, int]
    residual: float
    plain: dict[str, float]
    group: dict[str, float]
    signs: dict[str, float]


def _distance(p: Tensor, q: Tensor) -> float:
    """Largest difference of the neurons' parameters, after the best permutation."""
    a, b = p[:6].reshape(2, 3), q[:6].reshape(2, 3)
    return min(
        float((a - b[list(order)]).abs().max()) for order in itertools.permutations(range(2))
    )


def _signed(theta: Tensor) -> Tensor:
    """The same function with a positive incoming weight in every neuron (odd activations)."""
    rows = theta[:6].reshape(2, 3)
    return torch.cat([(rows * rows[:, :1].sign()).flatten(), theta[6:]])


def _scaled(theta: Tensor) -> Tensor:
    """The same function with incoming weights of absolute value 1 (ReLU)."""
    w, b, a = theta[:6].reshape(2, 3).unbind(1)
    size = w.abs()
    return torch.cat([torch.stack([w / size, b / size, a * size], 1).flatten(), theta[6:]])


_TEACHERS = {
    # rows (w, b, a): far from clones, kinks inside [-3, 3]
    "tanh": torch.tensor([1.3, 0.4, 0.8, -2.0, 0.7, 0.5, 0.2], dtype=torch.float64),
    "ReLU": torch.tensor([1.3, 0.4, 0.8, 0.6, -0.9, 1.1, 0.2], dtype=torch.float64),
}


_MODELS = {"tanh": TANH, "ReLU": RELU}
_NORMAL_FORMS = {"tanh": _signed, "ReLU": _scaled}


def _measure_copies(size: Size) -> FittedCopies:
    starts = 60 if size == "quick" else 1000
    x = torch.linspace(-3, 3, 61, dtype=torch.float64)
    fits: dict[str, int] = {}
    plain: dict[str, float] = {}
    group: dict[str, float] = {}
    signs: dict[str, float] = {}
    worst = 0.0
    for name, teacher in _TEACHERS.items():
        reached = _fits(name, teacher, x, starts)
        fits[name] = len(reached)
        worst = max([worst, *(residual for _, residual in reached)])
        students = [theta for theta, _ in reached]
        normal = _NORMAL_FORMS[name]
        plain[name] = max(_distance(s, teacher) for s in students)
        group[name] = max(_distance(normal(s), normal(teacher)) for s in students)
        signs[name] = max(_distance(_signed(s), _signed(teacher)) for s in students)
    return FittedCopies(fits, worst, plain, group, signs)


def _fits(name: str, teacher: Tensor, x: Tensor, starts: int) -> list[tuple[Tensor, float]]:
    """Parameters that reached the teacher's function from random starts, and their residuals."""
    start = torch.randn(starts, 7, dtype=torch.float64)
    if name == "ReLU":  # neurons with other signs give the same function up to a linear part
        start[:, 0:6:3] = start[:, 0:6:3].abs() + 0.1
    model = _MODELS[name]
    fitted, residuals = model.fit(model(teacher, x), x, start, rounds=60)
    return [
        (theta, float(residual))
        for theta, residual in zip(fitted, residuals, strict=True)
        if residual < 1e-11
    ]


def _apart(measured: FittedCopies, distances: dict[str, float], what: str) -> Evidence:
    name, worst = max(distances.items(), key=lambda pair: pair[1])
    # Residuals of at most 1e-11 at 61 points over the least singular value of the fit, 0.02 (two
    # zero ones for the scales of ReLU aside), and over weights as small as 0.01.
    at = (
        f"{sum(measured.fits.values())} networks 1-2-1, fitted from random starts until "
        "their outputs "
        f"agreed with another one's within {measured.residual:.0e}: parameters differ by "
        f"{worst:.2g} "
        f"after {what} ({name})"
    )
    return Evidence(worst, 1e-6, at)


IDENTIFIABLE = PaperClaim(
    name="modularity/identifiability",
    place="Definitions 1 and 6",
    items=(12, 9),
    measure=_measure_copies,
    printed=Statement(
        "normal networks with the same function are isomorphic, that is equal up to permutations "
        "of neurons (tried for tanh and ReLU)",
        lambda measured: _apart(measured, measured.plain, "the best permutation"),
    ),
    corrected=Statement(
        "they are equal up to permutations and signs for tanh, and up to permutations and positive "
        "scales for ReLU with slopes of one sign",
        lambda measured: _apart(measured, measured.group, "the best permutation, signs and scales"),
    ),
    wrong=Statement(
        "they are equal up to permutations and signs for both",
        lambda measured: _apart(measured, measured.signs, "the best permutation and signs"),
    ),
)


# -- Theorem 1 -------------------------------------------------------------------------------------


def _clipped(x: Tensor) -> Tensor:
    return x.clamp(0, 1)


@dataclass(frozen=True)
class SeparatedPair:
    """Two normal networks that are not isomorphic: distance of their outputs, by activation.

    ``clipped`` is with the clipped ReLU; ``apart`` with smoothed ones, which differ from it by
    ``close``.
    """

    clipped: float
    close: tuple[float, ...]
    apart: tuple[float, ...]


def _pair(activation: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """x clipped to [0, 4] by three neurons, in two ways that no permutation maps to each other."""
    first = activation(x) + activation(x - 1) + 2 * activation((x - 2) / 2)
    second = 2 * activation(x / 2) + activation(x - 2) + activation(x - 3)
    return first, second


def _measure_separated(size: Size) -> SeparatedPair:
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

        first, second = _pair(rho, x)
        close.append(float((rho(x) - _clipped(x)).abs().max()))
        apart.append(float((first - second).abs().max()))
    first, second = _pair(_clipped, x)
    return SeparatedPair(float((first - second).abs().max()), tuple(close), tuple(apart))


def _distinguished(apart: float, close: float, name: str) -> Evidence:
    at = f"two normal networks 1-3-1 that are no permutation of each other, {name}: outputs "
    at += f"{apart:.2e} apart, with the activation within {close:.2e} of the clipped ReLU"
    return Evidence(100 * EPS, apart, at)


THEOREM_1 = PaperClaim(
    name="modularity/theorem-1",
    place="Theorem 1",
    items=(13,),
    measure=_measure_separated,
    printed=Statement(
        "as close as you like to an activation such as the clipped ReLU there is one that induces "
        "identifiability (checked: it tells normal networks apart that the clipped ReLU does not)",
        lambda measured: _distinguished(
            min(measured.apart), measured.close[-1], "smoothed clipped ReLU"
        ),
    ),
    wrong=Statement(
        "the clipped ReLU itself tells them apart",
        lambda measured: _distinguished(measured.clipped, 0.0, "clipped ReLU"),
    ),
)


@dataclass(frozen=True)
class ActivationVariation:
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


def _measure_variation(size: Size) -> ActivationVariation:
    steps = 4_001 if size == "quick" else 400_001
    integral, total = {}, {}
    for name, activation in _ACTIVATIONS.items():
        sums, variations = [], []
        for radius in (50.0, 100.0):
            x = torch.linspace(-radius, radius, steps, dtype=torch.float64)
            secants = activation(x).diff() / x.diff()  # means of the derivative, without autograd
            sums.append(float((secants.abs() * x.diff()).sum()))
            variations.append(float(secants.diff().abs().sum()))
        integral[name], total[name] = (sums[0], sums[1]), (variations[0], variations[1])
    return ActivationVariation(integral, total)


def _grown(measured: ActivationVariation, names: tuple[str, ...]) -> Evidence:
    growth = {
        name: max(
            measured.integral[name][1] / measured.integral[name][0],
            measured.total[name][1] / measured.total[name][0],
        )
        for name in names
    }
    name, worst = max(growth.items(), key=lambda pair: pair[1])
    small, large = measured.integral[name]
    at = (
        f"{name}: the integral of |s'| over [-50, 50] is {small:.4g}, over [-100, 100] it is "
        f"{large:.4g}; it or the variation of s' grows by a factor of at most {worst:.3g} "
        f"({', '.join(names)})"
    )
    return Evidence(worst, 1.01, at)  # the grid's step is one percent of a kink's width


BOUNDED_VARIATION = PaperClaim(
    name="modularity/bounded-variation",
    place="Section 2.2, after Theorem 1",
    items=(13,),
    measure=_measure_variation,
    printed=Statement(
        "the clipped ReLU, the logistic function and tanh have s' in BV(R): integrable, and of "
        "bounded variation",
        lambda measured: _grown(measured, ("clipped ReLU", "logistic", "tanh")),
    ),
    wrong=Statement(
        "so have ReLU and ELU, the activations of Section 6",
        lambda measured: _grown(measured, ("ReLU", "ELU")),
    ),
)


CLAIMS = (ISOMORPHISM, IDENTIFIABLE, THEOREM_1, BOUNDED_VARIATION)

"""The three symmetries of the slides: scaling, sign flips and permutations of neurons.

Scaling multiplies a neuron's incoming weights by alpha > 0 and divides its outgoing ones by alpha.
A sign flip multiplies both by -1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations

import torch
from torch import Tensor, nn

from weightloom_papers.claims import PaperClaim, Size
from weightloom_papers.functional_equivalence.networks import (
    AppliedFunction,
    OutputGap,
    compare,
    judged,
    linears,
    network,
    points,
    twin,
    worst_of_each,
)

__all__ = ["PERMUTATIONS", "SCALING", "SIGNS", "factors", "flipped", "permuted", "scaled"]


HOMOGENEOUS: tuple[Callable[[], nn.Module], ...] = (
    nn.ReLU,
    lambda: nn.LeakyReLU(0.01),
    lambda: nn.LeakyReLU(0.3),
)


BENT_ELSEWHERE: tuple[Callable[[], nn.Module], ...] = (nn.Hardtanh, nn.ReLU6, nn.Hardsigmoid)


def factors(count: int) -> Tensor:
    """Log-uniform between 0.1 and 10."""
    return 10 ** (2 * torch.rand(count, dtype=torch.float64) - 1)


@torch.no_grad()
def scaled(
    net: nn.Sequential, layer: int, factor: Tensor, *, bias: bool = True, power: float = 1.0
) -> nn.Sequential:
    """Rows and biases of one layer times ``factor`` [units], columns of the next divided by it."""
    other = twin(net)
    here, after = linears(other)[layer : layer + 2]
    here.weight.mul_(factor[:, None])
    if bias:
        here.bias.mul_(factor)
    after.weight.div_(factor**power)
    return other


# The twins of a network that are compared with it: {statement: (twin, what was compared)}.
Twins = dict[str, tuple[nn.Sequential, str]]


def _gaps(
    activations: Sequence[Callable[[], nn.Module]],
    widths: Sequence[int],
    count: int,
    twins: Callable[[nn.Sequential], Twins],
) -> dict[str, OutputGap]:
    """The worst gap of each statement over ``count`` random networks per activation."""
    gaps: dict[str, list[OutputGap]] = {}
    for activation in activations:
        for _ in range(count):
            net, x = network(widths, activation), points(100, widths[0])
            for statement, (other, where) in twins(net).items():
                gaps.setdefault(statement, []).append(compare(net, other, x, where))
    return worst_of_each(gaps)


def _scaling_shallow(size: Size) -> dict[str, OutputGap]:
    """One factor for a whole hidden layer, as in the example."""

    def twins(net: nn.Sequential) -> Twins:
        alpha = factors(1).expand(5)
        where = f"{net[1]} 3-5-2, alpha = {float(alpha[0]):.3g}"
        unscaled = scaled(net, 0, alpha, bias=False)
        return {"printed": (scaled(net, 0, alpha), where), "wrong": (unscaled, where)}

    return _gaps(HOMOGENEOUS, (3, 5, 2), 20 if size == "quick" else 200, twins)


def _scaling_deep(size: Size) -> dict[str, OutputGap]:
    """A factor for each neuron of each hidden layer in turn."""

    def twins(net: nn.Sequential) -> Twins:
        other, wrong = net, net
        for layer, width in enumerate((6, 5, 4)):
            alpha = factors(width)
            other = scaled(other, layer, alpha)
            wrong = scaled(wrong, layer, alpha, power=0.5)
        where = f"{net[1]} 3-6-5-4-2, scales of every neuron in [0.1, 10]"
        return {"printed": (other, where), "wrong": (wrong, where)}

    return _gaps(HOMOGENEOUS, (3, 6, 5, 4, 2), 10 if size == "quick" else 100, twins)


def _scaling_piecewise(size: Size) -> dict[str, OutputGap]:
    """The same with activations that have kinks at other places than zero."""
    gaps: dict[str, list[OutputGap]] = {"printed": [], "corrected": [], "wrong": []}
    for activation in (*HOMOGENEOUS, lambda: nn.LeakyReLU(-1.0), *BENT_ELSEWHERE):
        for _ in range(10 if size == "quick" else 100):
            net, x = network((3, 5, 2), activation), points(100, 3)
            alpha = factors(5)
            gap = compare(net, scaled(net, 0, alpha), x, f"{net[1]} 3-5-2")
            gaps["printed"].append(gap)
            if not isinstance(net[1], (nn.Hardtanh, nn.Hardsigmoid)):  # ReLU6 is a Hardtanh
                gaps["corrected"].append(gap)
                mirrored = scaled(net, 0, -alpha)
                gaps["wrong"].append(compare(net, mirrored, x, f"{net[1]}, negative factors"))
    return worst_of_each(gaps)


SCALING = (
    PaperClaim("functional-equivalence/scaling", "Example (Scaling)", (2,), _scaling_shallow,
          printed=judged("s(t x) = t s(x) for t > 0: (alpha W1, alpha b1) and W2 / alpha give the "
                         "same function (ReLU, leaky ReLU)", "printed"),
          wrong=judged("(alpha W1, b1) and W2 / alpha: the bias is not scaled", "wrong")),
    PaperClaim("functional-equivalence/scaling-deep", "Scaling Invariance", (2,), _scaling_deep,
          printed=judged("Scaling works between any two consecutive layers of a deep network (here "
                         "with a factor of its own for each neuron)", "printed"),
          wrong=judged("Outgoing weights are divided by sqrt(alpha)", "wrong")),
    PaperClaim("functional-equivalence/scaling-piecewise-linear",
          "Scaling Invariance", (2, 5), _scaling_piecewise,
          printed=judged("Scaling applies to piecewise-linear activations", "printed"),
          corrected=judged("Scaling applies to activations that are linear on either side of zero "
                           "(ReLU, leaky ReLU, abs); not to hardtanh, ReLU6, hard sigmoid, which "
                           "bend elsewhere", "corrected"),
          wrong=judged("Those activations allow factors of either sign", "wrong")),
)  # fmt: skip


ODD: tuple[Callable[[], nn.Module], ...] = (
    nn.Tanh,
    lambda: AppliedFunction(torch.sin, "sin"),
    lambda: AppliedFunction(torch.erf, "erf"),
    nn.Softsign,
)


@torch.no_grad()
def flipped(
    net: nn.Sequential, layer: int, signs: Tensor, *, bias: bool = True, shift: float = 0.0
) -> nn.Sequential:
    """Neurons of one layer multiplied by ``signs`` [units].

    ``shift`` times the old columns of flipped neurons is added to the next bias.
    """
    other = twin(net)
    here, after = linears(other)[layer : layer + 2]
    after.bias.add_(shift * after.weight[:, signs < 0].sum(1))
    here.weight.mul_(signs[:, None])
    if bias:
        here.bias.mul_(signs)
    after.weight.mul_(signs)
    return other


def _signs(count: int) -> Tensor:
    """Random signs; the first is negative, so that something is flipped."""
    signs = 1.0 - 2.0 * torch.randint(0, 2, (count,)).double()
    signs[0] = -1
    return signs


def _signs_shallow(size: Size) -> dict[str, OutputGap]:
    """All hidden neurons flipped, as in the example."""

    def twins(net: nn.Sequential) -> Twins:
        signs = -torch.ones(5, dtype=torch.float64)
        where = f"{net[1]} 3-5-2, all hidden signs flipped"
        wrong = flipped(net, 0, signs, bias=False)
        return {"printed": (flipped(net, 0, signs), where), "wrong": (wrong, where)}

    return _gaps(ODD, (3, 5, 2), 20 if size == "quick" else 200, twins)


def _signs_deep(size: Size) -> dict[str, OutputGap]:
    """Random signs for the neurons of each hidden layer in turn."""

    def twins(net: nn.Sequential) -> Twins:
        other, wrong = net, net
        for layer, width in enumerate((6, 5, 4)):
            signs = _signs(width)
            other = flipped(other, layer, signs)
            wrong = flipped(wrong, layer, signs, shift=1.0)
        where = f"{net[1]} 3-6-5-4-2, random signs of every hidden neuron"
        return {"printed": (other, where), "wrong": (wrong, where)}

    return _gaps(ODD, (3, 6, 5, 4, 2), 10 if size == "quick" else 100, twins)


def _signs_sigmoid(size: Size) -> dict[str, OutputGap]:
    """Sign flips of sigmoid neurons, with the constant in the next bias."""

    def twins(net: nn.Sequential) -> Twins:
        other, wrong = net, net
        for layer, width in enumerate((6, 5)):
            signs = _signs(width)
            other = flipped(other, layer, signs, shift=1.0)
            wrong = flipped(wrong, layer, signs, shift=0.5)
        where = "sigmoid 3-6-5-2, random signs, columns added to the next bias"
        return {"printed": (other, where), "wrong": (wrong, where + " by halves")}

    return _gaps((nn.Sigmoid,), (3, 6, 5, 2), 20 if size == "quick" else 200, twins)


SIGNS = (
    PaperClaim("functional-equivalence/signs", "Example (Sign Flipping)", (3,), _signs_shallow,
          printed=judged("s odd: (-W1, -b1) and -W2 give the same function (tanh, sin, odd "
                         "functions)", "printed"),
          wrong=judged("(-W1, b1) and -W2: the bias keeps its sign", "wrong")),
    PaperClaim("functional-equivalence/signs-deep", "Example (Sign Flipping), last point",
          (3,), _signs_deep,
          printed=judged("Sign flips work between any two consecutive layers of a deep network "
                         "(here neuron by neuron)", "printed"),
          wrong=judged("The next bias takes up the flipped columns, as for the sigmoid", "wrong")),
    PaperClaim("functional-equivalence/signs-sigmoid",
          "Example (Sign Flipping), second point", (3, 5), _signs_sigmoid,
          printed=judged("The sigmoid is odd up to the constant 1/2, which a bias takes up: flip "
                         "(w, b) and the outgoing column v, and add v to the next bias (1/2 before "
                         "and 1/2 after the flip)", "printed"),
          wrong=judged("v / 2 is added to the next bias", "wrong")),
)  # fmt: skip


ANY: tuple[Callable[[], nn.Module], ...] = (
    nn.ReLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.GELU,
    lambda: AppliedFunction(lambda t: torch.cos(t) / (2 + t.abs()), "cos(t) / (2 + |t|)"),
)


def matrix(order: Sequence[int]) -> Tensor:
    """P with (P a)_i = a_order[i]."""
    return torch.eye(len(order), dtype=torch.float64)[list(order)]


@torch.no_grad()
def permuted(net: nn.Sequential, orders: Sequence[Sequence[int]]) -> nn.Sequential:
    """The deep proposition: W^(l) -> P_l W^(l) P_(l-1)^T, b^(l) -> P_l b^(l)."""
    other = twin(net)
    for place, order in enumerate(orders):
        here, after = linears(other)[place : place + 2]
        P = matrix(order)
        here.weight.copy_(P @ here.weight)
        here.bias.copy_(P @ here.bias)
        after.weight.copy_(after.weight @ P.T)
    return other


@torch.no_grad()
def _example(net: nn.Sequential, P: Tensor, outgoing: Tensor, bias: Tensor) -> nn.Sequential:
    """The shallow example, with these matrices for the outgoing weights and the bias."""
    other = twin(net)
    first, last = linears(other)
    first.weight.copy_(P @ first.weight)
    first.bias.copy_(bias @ first.bias)
    last.weight.copy_(last.weight @ outgoing)
    return other


def _permutations_shallow(size: Size) -> dict[str, OutputGap]:
    """Every permutation of one hidden layer."""
    net, x = network((3, 4 if size == "quick" else 6, 2), nn.Tanh), points(100, 3)
    width = linears(net)[0].out_features
    gaps: dict[str, list[OutputGap]] = {"printed": [], "corrected": [], "wrong": []}
    for order in permutations(range(width)):
        P = matrix(order)
        where = f"tanh 3-{width}-2, order {order} of all {width}! orders"
        stay = torch.eye(width, dtype=torch.float64)
        cases = {"printed": (P, P), "corrected": (P.T, P), "wrong": (P.T, stay)}
        for key, (outgoing, bias) in cases.items():
            gaps[key].append(compare(net, _example(net, P, outgoing, bias), x, where))
    return worst_of_each(gaps)


@torch.no_grad()
def _as_printed(
    net: nn.Sequential, orders: Sequence[Sequence[int]], x: Tensor, where: str
) -> OutputGap:
    """Two networks that obey all printed equations; what these leave open is random."""
    first = twin(net)
    linears(first)[-2].bias.fill_(0.3)  # so that b1^(L) = P b2^(L) and b1^(L) = b2^(L)
    second = permuted(first, orders)
    linears(second)[-1].bias.normal_()
    return compare(first, second, x, where + ", b^(L+1) left open")


def _permutations_deep(size: Size) -> dict[str, OutputGap]:
    gaps: dict[str, list[OutputGap]] = {"printed": [], "corrected": [], "wrong": []}
    for activation in ANY:
        for _ in range(10 if size == "quick" else 100):
            net, x = network((3, 6, 5, 4, 2), activation), points(100, 3)
            orders = [torch.randperm(width).tolist() for width in (6, 5, 4)]
            orders[1] = [1, 2, 0, 4, 3]  # not its own inverse
            other = permuted(net, orders)
            where = f"{net[1]} 3-6-5-4-2, random orders"
            gaps["corrected"].append(compare(net, other, x, where))
            gaps["printed"].append(_as_printed(net, orders, x, where))
            wrong = twin(other)
            here = linears(net)[1]
            P, before = matrix(orders[1]), matrix(orders[0])
            linears(wrong)[1].weight.copy_(P @ here.weight.detach() @ before)
            gaps["wrong"].append(compare(net, wrong, x, where))
    return worst_of_each(gaps)


PERMUTATIONS = (
    PaperClaim("functional-equivalence/permutation", "Example (Permutation)", (4,),
          _permutations_shallow,
          printed=judged("(P W2^(1), P b2^(1)) = (W1^(1), b1^(1)) and W2^(2) P = W1^(2) give the "
                         "same function", "printed"),
          corrected=judged("... and W2^(2) P^T = W1^(2); as printed only if P is its own inverse",
                           "corrected"),
          wrong=judged("With P^T, and the biases left where they are", "wrong")),
    PaperClaim("functional-equivalence/permutation-deep",
          "Proposition (Permutation equivalence for deep networks)",
          (4, 5), _permutations_deep,
          printed=judged("W1^(l) = P_l W2^(l) P_(l-1)^T, b1^(l) = P_l b2^(l) for l = 1..L, "
                         "W1^(L+1) = W2^(L+1) P_L^T, b1^(L) = b2^(L) give the same function, any "
                         "activation", "printed"),
          corrected=judged("... the last equation is b1^(L+1) = b2^(L+1); as printed nothing ties "
                           "the outputs' biases", "corrected"),
          wrong=judged("W1^(l) = P_l W2^(l) P_(l-1): one transposition is missing", "wrong")),
)  # fmt: skip

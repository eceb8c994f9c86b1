"""Scaling: a neuron's incoming weights times alpha > 0, its outgoing ones divided by it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from weightloom.verify.claim import Claim, Size
from weightloom.verify.equivalence.nets import (
    Gap,
    compare,
    judged,
    linears,
    network,
    points,
    twin,
    worst,
)

__all__ = ["CLAIMS", "scaled"]

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
    """Rows of one layer times ``factor`` [units], its biases too, columns of the next divided."""
    made = twin(net)
    here, after = linears(made)[layer : layer + 2]
    here.weight.mul_(factor[:, None])
    if bias:
        here.bias.mul_(factor)
    after.weight.div_(factor**power)
    return made


def _shallow(size: Size) -> dict[str, Gap]:
    """One factor for a whole hidden layer, as in the example."""
    found: dict[str, list[Gap]] = {"printed": [], "wrong": []}
    for activation in HOMOGENEOUS:
        for _ in range(20 if size == "quick" else 200):
            net, x = network((3, 5, 2), activation), points(100, 3)
            alpha = factors(1).expand(5)
            where = f"{net[1]} 3-5-2, alpha = {float(alpha[0]):.3g}"
            found["printed"].append(compare(net, scaled(net, 0, alpha), x, where))
            unscaled = scaled(net, 0, alpha, bias=False)
            found["wrong"].append(compare(net, unscaled, x, where))
    return {key: worst(gaps) for key, gaps in found.items()}


def _deep(size: Size) -> dict[str, Gap]:
    """A factor for each neuron of each hidden layer in turn."""
    found: dict[str, list[Gap]] = {"printed": [], "wrong": []}
    for activation in HOMOGENEOUS:
        for _ in range(10 if size == "quick" else 100):
            net, x = network((3, 6, 5, 4, 2), activation), points(100, 3)
            made, wrong = net, net
            for layer, width in enumerate((6, 5, 4)):
                alpha = factors(width)
                made = scaled(made, layer, alpha)
                wrong = scaled(wrong, layer, alpha, power=0.5)
            where = f"{net[1]} 3-6-5-4-2, scales of every neuron in [0.1, 10]"
            found["printed"].append(compare(net, made, x, where))
            found["wrong"].append(compare(net, wrong, x, where))
    return {key: worst(gaps) for key, gaps in found.items()}


def _piecewise(size: Size) -> dict[str, Gap]:
    """The same with activations that bend at other places than zero."""
    found: dict[str, list[Gap]] = {"printed": [], "corrected": [], "wrong": []}
    for activation in (*HOMOGENEOUS, lambda: nn.LeakyReLU(-1.0), *BENT_ELSEWHERE):
        for _ in range(10 if size == "quick" else 100):
            net, x = network((3, 5, 2), activation), points(100, 3)
            alpha = factors(5)
            one = compare(net, scaled(net, 0, alpha), x, f"{net[1]} 3-5-2")
            found["printed"].append(one)
            if not isinstance(net[1], (nn.Hardtanh, nn.Hardsigmoid)):  # ReLU6 is a Hardtanh
                found["corrected"].append(one)
                mirrored = scaled(net, 0, -alpha)
                found["wrong"].append(compare(net, mirrored, x, f"{net[1]}, negative factors"))
    return {key: worst(gaps) for key, gaps in found.items()}


CLAIMS = (
    Claim("002/scaling", "Example (Scaling)", (2,), _shallow,
          printed=judged("s(t x) = t s(x) for t > 0: (alpha W1, alpha b1) and W2 / alpha give the "
                         "same function (ReLU, leaky ReLU)", "printed"),
          wrong=judged("(alpha W1, b1) and W2 / alpha: the bias is not scaled", "wrong")),
    Claim("002/scaling-deep", "Scaling Invariance", (2,), _deep,
          printed=judged("Scaling works between any two consecutive layers of a deep network (here "
                         "with a factor of its own for each neuron)", "printed"),
          wrong=judged("Outgoing weights are divided by sqrt(alpha)", "wrong")),
    Claim("002/scaling-piecewise-linear", "Scaling Invariance", (2, 5), _piecewise,
          printed=judged("Scaling applies to piecewise-linear activations", "printed"),
          corrected=judged("Scaling applies to activations that are linear on either side of zero "
                           "(ReLU, leaky ReLU, abs); not to hardtanh, ReLU6, hard sigmoid, which "
                           "bend elsewhere", "corrected"),
          wrong=judged("Those activations allow factors of either sign", "wrong")),
)  # fmt: skip

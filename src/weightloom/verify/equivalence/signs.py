"""Sign flips: a neuron's incoming and outgoing weights times -1."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from weightloom.verify.claim import Claim, Size
from weightloom.verify.equivalence.nets import (
    Elementwise,
    Gap,
    compare,
    judged,
    linears,
    network,
    points,
    twin,
    worst,
)

__all__ = ["CLAIMS", "flipped"]

ODD: tuple[Callable[[], nn.Module], ...] = (
    nn.Tanh,
    lambda: Elementwise(torch.sin, "sin"),
    lambda: Elementwise(torch.erf, "erf"),
    nn.Softsign,
)


@torch.no_grad()
def flipped(
    net: nn.Sequential, layer: int, signs: Tensor, *, bias: bool = True, shift: float = 0.0
) -> nn.Sequential:
    """Neurons of one layer with their signs [units] changed; ``shift`` times the old columns of
    flipped neurons moves into the next bias."""
    made = twin(net)
    here, after = linears(made)[layer : layer + 2]
    after.bias.add_(shift * after.weight[:, signs < 0].sum(1))
    here.weight.mul_(signs[:, None])
    if bias:
        here.bias.mul_(signs)
    after.weight.mul_(signs)
    return made


def _signs(count: int) -> Tensor:
    """Random, the first one negative: something is flipped."""
    signs = 1.0 - 2.0 * torch.randint(0, 2, (count,)).double()
    signs[0] = -1
    return signs


def _shallow(size: Size) -> dict[str, Gap]:
    found: dict[str, list[Gap]] = {"printed": [], "wrong": []}
    for activation in ODD:
        for _ in range(20 if size == "quick" else 200):
            net, x = network((3, 5, 2), activation), points(100, 3)
            all_of_them = -torch.ones(5, dtype=torch.float64)
            where = f"{net[1]} 3-5-2, all hidden signs flipped"
            found["printed"].append(compare(net, flipped(net, 0, all_of_them), x, where))
            kept = flipped(net, 0, all_of_them, bias=False)
            found["wrong"].append(compare(net, kept, x, where))
    return {key: worst(gaps) for key, gaps in found.items()}


def _deep(size: Size) -> dict[str, Gap]:
    found: dict[str, list[Gap]] = {"printed": [], "wrong": []}
    for activation in ODD:
        for _ in range(10 if size == "quick" else 100):
            net, x = network((3, 6, 5, 4, 2), activation), points(100, 3)
            made, wrong = net, net
            for layer, width in enumerate((6, 5, 4)):
                signs = _signs(width)
                made = flipped(made, layer, signs)
                wrong = flipped(wrong, layer, signs, shift=1.0)
            where = f"{net[1]} 3-6-5-4-2, random signs of every hidden neuron"
            found["printed"].append(compare(net, made, x, where))
            found["wrong"].append(compare(net, wrong, x, where))
    return {key: worst(gaps) for key, gaps in found.items()}


def _sigmoid(size: Size) -> dict[str, Gap]:
    """Flips of logistic neurons, with the constant in the next bias."""
    found: dict[str, list[Gap]] = {"printed": [], "wrong": []}
    for _ in range(20 if size == "quick" else 200):
        net, x = network((3, 6, 5, 2), nn.Sigmoid), points(100, 3)
        made, wrong = net, net
        for layer, width in enumerate((6, 5)):
            signs = _signs(width)
            made = flipped(made, layer, signs, shift=1.0)
            wrong = flipped(wrong, layer, signs, shift=0.5)
        where = "sigmoid 3-6-5-2, random signs, columns added to the next bias"
        found["printed"].append(compare(net, made, x, where))
        found["wrong"].append(compare(net, wrong, x, where + " by halves"))
    return {key: worst(gaps) for key, gaps in found.items()}


CLAIMS = (
    Claim("002/signs", "Example (Sign Flipping)", (3,), _shallow,
          printed=judged("s odd: (-W1, -b1) and -W2 give the same function (tanh, sin, odd "
                         "functions)", "printed"),
          wrong=judged("(-W1, b1) and -W2: the bias keeps its sign", "wrong")),
    Claim("002/signs-deep", "Example (Sign Flipping), last point", (3,), _deep,
          printed=judged("Sign flips work between any two consecutive layers of a deep network "
                         "(here neuron by neuron)", "printed"),
          wrong=judged("The next bias takes up the flipped columns, as for the sigmoid", "wrong")),
    Claim("002/signs-sigmoid", "Example (Sign Flipping), second point", (3, 5), _sigmoid,
          printed=judged("The sigmoid is odd up to the constant 1/2, which a bias takes up: flip "
                         "(w, b) and the outgoing column v, and add v to the next bias (1/2 before "
                         "and 1/2 after the flip)", "printed"),
          wrong=judged("v / 2 is added to the next bias", "wrong")),
)  # fmt: skip

"""Networks for x^2 on [0, 1], and their errors, exact because they are broken lines."""

from __future__ import annotations

import math

import torch
from torch import nn

from weightloom.construct import affine_pieces, square
from weightloom.construct.layers import dense_layer
from weightloom.construct.separation import best_square, square_distance
from weightloom.errors import ConfigError

__all__ = ["LOWERED", "deep_square", "errors", "shallow_square", "shape", "started"]

# How far below the interpolation the network is, in squares of the spacing: for the largest
# error half of what the interpolation is above x^2, for the mean square its mean.
LOWERED = {"sup": 1 / 8, "l2": 1 / 6}


def deep_square(i: int, best: str = "") -> nn.Sequential:
    """h_i of Theorem 4.2, or with ``best`` = "l2" lowered to the nearest function of its pieces."""
    if best not in ("", "l2"):
        raise ConfigError(f"best={best!r} was given; '' (the interpolation) or 'l2' is wanted")
    made = best_square(2**i, deep=True) if best else square(i)
    return nn.Sequential(*made.network.children())


def shallow_square(nodes: int, best: str) -> nn.Sequential:
    """x^2 by one hidden layer of ``nodes`` units: c + 2 h sum_j relu(x - (j - 1/2) h).

    h = 1 / (nodes + 1/2): the even function x^2 on [-1, 1] cut into 2 nodes + 1 equal pieces, and
    one half of it. All units bend inside (0, 1), so there are nodes + 1 pieces, the first of half
    the length. Largest error h^2 / 8 (``best`` = "sup") or squared L2 distance h^4 / 180 ("l2"),
    while no function of nodes + 1 pieces has less than that with h = 1 / (nodes + 1).
    `best_square` spends a unit on x itself and has h = 1 / nodes.

    >>> sup, l2, pieces = errors(shallow_square(4, "sup"))
    >>> round(sup * 8 * 4.5**2, 12), pieces
    (1.0, 5)
    """
    if best not in LOWERED or nodes < 1:
        raise ConfigError(
            f"nodes={nodes}, best={best!r} were given; nodes >= 1 and 'sup' or 'l2' are wanted"
        )
    h = 1 / (nodes + 0.5)
    bends = (torch.arange(nodes, dtype=torch.float64) + 0.5) * h
    # At the first bend x^2 = h^2 / 4, and the network is as far below it as at all others.
    level = h * h * (0.25 - LOWERED[best])
    return nn.Sequential(
        dense_layer(torch.ones(nodes, 1, dtype=torch.float64), -bends),
        nn.ReLU(),
        dense_layer(
            torch.full((1, nodes), 2 * h, dtype=torch.float64),
            torch.tensor([level], dtype=torch.float64),
        ),
    )


def errors(net: nn.Module) -> tuple[float, float, int]:
    """Largest error, L2 error and affine pieces of a network for x^2 on [0, 1].

    On a piece the error is a parabola: largest at its ends or where its slope is that of x^2.
    """
    found = affine_pieces(net, 0, 1)
    left, right = found.breakpoints[:-1], found.breakpoints[1:]
    slope = found.slopes[:, 0]
    top = torch.minimum(torch.maximum(slope / 2, left), right)
    places = torch.stack([left, top, right], 1)
    given = found.starts + slope[:, None] * (places - left[:, None])
    sup = float((given - places.square()).abs().max())
    return sup, math.sqrt(square_distance(net)), found.count


def shape(kind: str, i: int) -> list[int]:
    """Hidden widths of the networks that are trained: all have the 3 i - 1 nodes of h_i.

    "shallow": one layer. "narrow": h_i's own layers of three. "three": three layers.

    >>> [shape(kind, 4) for kind in ("shallow", "narrow", "three")]
    [[11], [2, 3, 3, 3], [3, 4, 4]]
    """
    nodes = 3 * i - 1
    if kind == "shallow":
        return [nodes]
    if kind == "narrow":
        return [2, *[3] * (i - 1)]
    if kind == "three":
        return [nodes // 3, (nodes + 1) // 3, (nodes + 2) // 3]
    raise ConfigError(f"the kind of network {kind!r} is unknown; wanted shallow, narrow or three")


def started(kind: str, i: int, start: str, noise: float, seed: int) -> nn.Sequential:
    """A network to be trained, in double precision.

    ``start`` "default": as PyTorch makes it. "spread": He normal weights, and the bends of the
    first layer drawn from [0, 1], where x^2 is asked for. "built": what was built for its shape
    (`shallow_square` or `deep_square`), every weight multiplied by 1 + ``noise`` times a normal
    number.
    """
    generator = torch.Generator().manual_seed(seed)
    if start == "built":
        if kind == "three":
            raise ConfigError("there is no built network of three layers; start it otherwise")
        made = shallow_square(3 * i - 1, "l2") if kind == "shallow" else deep_square(i, "l2")
        with torch.no_grad():
            for weight in made.parameters():
                drawn = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
                weight.mul_(1 + noise * drawn).requires_grad_(True)
        return made
    widths = shape(kind, i)
    layers: list[nn.Module] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for fan_in, width in zip([1, *widths], [*widths, 1], strict=True):
            layers += [nn.Linear(fan_in, width), nn.ReLU()]
    net = nn.Sequential(*layers[:-1]).double()
    if start == "spread":
        _spread(net, generator)
    elif start != "default":
        raise ConfigError(f"start={start!r} is unknown; wanted default, spread or built")
    return net


@torch.no_grad()
def _spread(net: nn.Sequential, generator: torch.Generator) -> None:
    for number, layer in enumerate(one for one in net if isinstance(one, nn.Linear)):
        scale = math.sqrt(2 / layer.in_features)
        layer.weight.normal_(0, scale, generator=generator)
        layer.bias.zero_()
        if number == 0:
            bends = torch.rand(layer.out_features, generator=generator, dtype=torch.float64)
            layer.bias.copy_(-layer.weight[:, 0] * bends)

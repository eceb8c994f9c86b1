"""The targets of ``training``, the networks that learn them, and the same networks by hand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from weightloom.construct.deep import triangle
from weightloom.construct.inner_products import SpherePairs, depth3
from weightloom.errors import ConfigError
from weightloom.hyper import mlp

__all__ = [
    "by_hand",
    "depth3_widths",
    "equal_hidden",
    "inputs_of",
    "make_model",
    "parameters_of",
    "sample",
    "sawtooth_by_hand",
    "sphere_by_hand",
    "target",
]


#: Largest error of hand-written networks that are not held to the trained ones' size.
LOOSE = 0.5


def inputs_of(config: Mapping[str, Any]) -> int:
    """Numbers that a network of this run sees: a pair of directions, or one number."""
    return 2 * config["d"] if config["task"] == "sphere" else 1


def target(config: Mapping[str, Any], points: Tensor) -> Tensor:
    """Values [n] at points [n, inputs], in float64.

    "sphere": sin(pi w <x, x'>), ``level`` is w. "sawtooth": Delta^level(x) - 1/2 at 2 x - 1: both
    sides are centred, which does not change the task and helps training.
    """
    points = points.to(torch.float64)
    if config["task"] == "sphere":
        x, other = points.chunk(2, -1)
        return torch.sin(math.pi * config["level"] * (x * other).sum(-1))
    if config["task"] == "sawtooth":
        return triangle((points[:, 0] + 1) / 2, config["level"]) - 0.5
    raise ConfigError(f"task {config['task']!r} is unknown; wanted 'sphere' or 'sawtooth'")


def parameters_of(inputs: int, hidden: Sequence[int]) -> int:
    """Weights and biases of a network with one output, without building it.

    >>> parameters_of(6, [342]), parameters_of(6, [48, 48])
    (2737, 2737)
    """
    sizes = [inputs, *hidden, 1]
    return sum((a + 1) * b for a, b in itertools.pairwise(sizes))


def equal_hidden(inputs: int, depth: int, parameters: int) -> list[int]:
    """Hidden widths, all equal, of the network of ``depth`` matrices nearest to ``parameters``.

    >>> equal_hidden(6, 2, 2737), equal_hidden(6, 3, 2737), equal_hidden(1, 9, 1000)
    ([342], [48, 48], [11, 11, 11, 11, 11, 11, 11, 11])
    """
    layers = depth - 1
    width = 1
    while parameters_of(inputs, [width] * layers) < parameters:
        width += 1
    near = min(
        (max(1, width - 1), width),
        key=lambda w: abs(parameters_of(inputs, [w] * layers) - parameters),
    )
    return [near] * layers


def make_model(config: Mapping[str, Any], seed: int) -> nn.Sequential:
    """He normal weights; PyTorch's default biases, which spread the kinks over the inputs.

    (With PyTorch's default weights, nine layers hardly learn Delta^3: the signal vanishes.)
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = mlp([inputs_of(config), *config["hidden"], 1])
        for layer in model:
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return model


def by_hand(config: Mapping[str, Any]) -> tuple[nn.Module, float, list[int]]:
    """A hand-written network for the target, its error bound, and its hidden widths.

    The widths are at most ``config["hidden"]`` where such a network is known.
    """
    if config["task"] == "sphere":
        return sphere_by_hand(config["d"], config["level"], config["hidden"])
    hidden = config["hidden"]
    network = sawtooth_by_hand(config["level"], hidden)
    return network, _rounding(_shares(config["level"], hidden)), list(hidden)


def depth3_widths(d: int, lipschitz: float, eps: float) -> tuple[int, int]:
    """Units that `construct.depth3` needs for the inner product and for f, without building it.

    >>> depth3_widths(3, math.pi * 27, 0.1)
    (216, 1698)
    """
    steep = lipschitz / eps
    return 2 * d * _ceil(math.sqrt(2 * d * steep) / 2), 2 * _ceil(steep)


def sphere_by_hand(
    d: int, frequency: float, hidden: Sequence[int]
) -> tuple[nn.Module, float, list[int]]:
    """`construct.depth3` with the least eps that keeps both layers within ``hidden``.

    The largest useful eps is pi / 2: four nodes for each wave, a triangle wave instead of the sine.
    If that is too wide, the network with eps = 1/2 is returned, although it is larger.
    """
    lipschitz = math.pi * frequency
    fine = [0.01 * 1.02**i for i in range(1000)]
    useful = [*(eps for eps in fine if eps < math.pi / 2), math.pi / 2]
    fits = [eps for eps in useful if _within(depth3_widths(d, lipschitz, eps), hidden)]
    eps = fits[0] if fits else LOOSE
    certified = depth3(lambda t: torch.sin(lipschitz * t), d, lipschitz=lipschitz, eps=eps)
    return certified.network, certified.error_bound, list(depth3_widths(d, lipschitz, eps))


def _within(widths: Sequence[int], hidden: Sequence[int]) -> bool:
    return len(hidden) == len(widths) and all(a <= b for a, b in zip(widths, hidden, strict=True))


def sawtooth_by_hand(power: int, hidden: Sequence[int]) -> nn.Sequential:
    """Delta^power - 1/2 at 2 x - 1, with the hidden widths of a trained network.

    Unused units are zero. A layer with r units can represent Delta^j for 2^j <= r: slope 2^j at
    first, then a turn by 2^(j+1) at every multiple of 2^-j. Layers share ``power`` evenly.
    """
    shares = _shares(power, hidden)
    model = mlp([1, *hidden, 1]).double()
    linear = [layer for layer in model if isinstance(layer, nn.Linear)]
    read = torch.tensor([0.5], dtype=torch.float64), 0.5  # 2 x - 1 back to x
    with torch.no_grad():
        for layer, share in zip(linear, shares, strict=False):
            layer.weight.zero_()
            layer.bias.zero_()
            weight, bias = read
            units = 2**share
            layer.weight[:units, : len(weight)] = weight
            layer.bias[:units] = bias - torch.arange(units, dtype=torch.float64) / units
            turns = 2.0 * units * (-1.0) ** torch.arange(units, dtype=torch.float64)
            turns[0] = units
            read = turns, 0.0
        linear[-1].weight.zero_()
        linear[-1].weight[0, : len(read[0])] = read[0]
        linear[-1].bias.fill_(-0.5)
    return model


def _shares(power: int, hidden: Sequence[int]) -> list[int]:
    """The power of Delta that each hidden layer represents; they sum to ``power``."""
    most = [int(math.log2(width)) for width in hidden]
    if sum(most) < power:
        raise ConfigError(
            f"Delta^{power} does not fit into hidden layers {list(hidden)}: with 2^j units for "
            f"Delta^j they hold Delta^{sum(most)}; take wider or more layers"
        )
    shares = [0] * len(hidden)
    while sum(shares) < power:
        open_ = [i for i in range(len(hidden)) if shares[i] < most[i]]
        shares[min(open_, key=lambda i: shares[i])] += 1
    return shares


def _rounding(shares: Sequence[int]) -> float:
    """r terms of at most 2 r each: their sum is off by r eps of 2 r^2; later slopes multiply it."""
    total, rest = 0.0, sum(shares)
    for share in shares:
        units, rest = 2**share, rest - share
        total += (units + 8) * torch.finfo(torch.float64).eps * 2.0 * units**2 * 2.0**rest
    return total


def sample(config: Mapping[str, Any], count: int, generator: torch.Generator) -> Tensor:
    """Uniform points [count, inputs], float64."""
    if config["task"] == "sphere":
        return SpherePairs.of(config["d"]).sample(count, generator)
    return 2 * torch.rand(count, 1, generator=generator, dtype=torch.float64) - 1


def _ceil(number: float) -> int:
    """Rounded up as `construct.depth3` does: rounding errors do not count, and at least 1."""
    return max(1, math.ceil(number * (1 - 1e-12)))

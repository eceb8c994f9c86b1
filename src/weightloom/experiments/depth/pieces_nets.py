"""Networks whose affine pieces are counted, the lines they are counted along, and small tasks."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from weightloom.construct import affine_pieces, deep
from weightloom.construct.separation import sawtooth
from weightloom.errors import ConfigError

__all__ = ["INPUTS", "TASKS", "count", "lines_through", "network", "noisy_sawtooth", "task"]

TASKS = ("sawtooth", "spirals", "labels")
INPUTS = {"sawtooth": 1, "spirals": 2, "labels": 16}
# Delta^4: 16 pieces, 8 teeth. What a task asks for is well within reach of every network trained.
POWER = 4


def network(inputs: int, width: int, depth: int, init: str, seed: int) -> nn.Sequential:
    """``depth`` hidden ReLU layers of ``width`` units and one output, in double precision.

    ``init`` "default": as PyTorch makes it. "he": He normal weights, standard normal biases. On a
    line through the origin the biases' size would not matter: a network with all biases times c is
    c net(x / c), with as many pieces on the whole line.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for fan_in in [inputs, *[width] * (depth - 1)]:
            layers += [nn.Linear(fan_in, width), nn.ReLU()]
        net = nn.Sequential(*layers, nn.Linear(width, 1)).double()
        if init == "he":
            with torch.no_grad():
                for layer in (one for one in net if isinstance(one, nn.Linear)):
                    layer.weight.normal_(0, math.sqrt(2 / layer.in_features))
                    layer.bias.normal_()
        elif init != "default":
            raise ConfigError(f"init={init!r} is unknown; wanted default or he")
    return net


def lines_through(points: Tensor, lines: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Pairs of different points; on the real line there is one line, from end to end."""
    if points.shape[1] == 1:
        return [(points.min(0).values, points.max(0).values)]
    generator = torch.Generator().manual_seed(seed)
    chosen = [torch.randperm(len(points), generator=generator)[:2] for _ in range(lines)]
    return [(points[pair[0]], points[pair[1]]) for pair in chosen]


def count(net: nn.Sequential, line: tuple[Tensor, Tensor]) -> tuple[int, int]:
    """Affine pieces of ``net`` on the whole line through two points, and between the points.

    The line is put before the network as a layer of one input: what is counted is a network of one
    variable, as in Lemma 4.9.
    """
    start, end = (point.double() for point in line)
    along = nn.Linear(1, len(start), dtype=torch.float64)
    with torch.no_grad():
        along.weight.copy_((end - start)[:, None])
        along.bias.copy_(start)
    joined = nn.Sequential(along, *net)
    whole = affine_pieces(joined, -math.inf, math.inf)
    inside = (whole.breakpoints > 0) & (whole.breakpoints < 1)
    return whole.count, int(inside.sum()) + 1


def noisy_sawtooth(depth: int, noise: float, seed: int) -> nn.Sequential:
    """Delta^depth with every weight and bias multiplied by 1 + noise times a normal number."""
    net = sawtooth(depth)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in net.parameters():
            drawn = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
            weight.mul_(1 + noise * drawn)
    return net


def task(name: str, points: int, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs [n, d] and targets [n, 1] of a small task.

    "sawtooth": Delta^4 stretched over [-1, 1], on a grid. "spirals": two arms of a spiral in the
    square, labelled 1 and -1. "labels": normal points in 16 dimensions with random signs, which can
    only be learned by heart.
    """
    generator = torch.Generator().manual_seed(seed)
    if name == "sawtooth":
        x = torch.linspace(-1, 1, points, dtype=torch.float64)[:, None]
        return x, deep.triangle((x + 1) / 2, POWER)
    if name == "spirals":
        label = torch.arange(points) % 2 * 2.0 - 1
        radius = torch.rand(points, generator=generator).sqrt()
        angle = 3 * math.pi * radius + math.pi * (label + 1) / 2
        x = radius[:, None] * torch.stack([angle.cos(), angle.sin()], 1)
        return x.double(), label.double()[:, None]
    if name == "labels":
        x = torch.randn(points, INPUTS[name], generator=generator, dtype=torch.float64)
        signs = torch.randint(0, 2, (points, 1), generator=generator) * 2 - 1
        return x, signs.double()
    raise ConfigError(f"the task {name!r} is unknown; wanted one of {', '.join(TASKS)}")

"""Tangent kernels of random hypernetworks at one condition, sampled in two ways, and their limit.

f and g have four layers of ReLUs; x = x' = (1, 0), z = (1, 0), z' = (cos a, sin a): Figure 1 of
"On Infinite-Width Hypernetworks". (Section 5.1 says x = (1, -1). Then S = |x|^2 / 2 = 1, and a
limit that lacks its factors of S looks right. With (1, 0) S is 1/2.)

`sample_whole` samples the hypernetwork and computes its kernel. f's last layer W has n N_g numbers,
640 million for the figure's widths 500 and 800. But for one condition W enters only through the
generated weights v = W q / sqrt n, and through W^T J, where J are the derivatives of h by v. Both
are Gaussian: v is N(0, s^2 I) with s^2 = |q|^2 / n, and given v, W is the smallest matrix that
gives v, plus an independent one that vanishes on q. So

    W^T J / sqrt n = q (v . J) / |q|^2 + (I - q q^T / |q|^2) N / sqrt n,    rows of N ~ N(0, J^T J)

and v . J = H h, since h is homogeneous of degree H in v. `sample_in_parts` samples only these: the
same distribution without W, many draws at once. There a width may be None, that is infinite. Then
s^2 = S and the kernel of f is its limit, or J^T J is its limit at this s and h is Gaussian.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from weightloom.errors import ConfigError
from weightloom.kernels import HyperKernel, Tower, empirical
from weightloom.kernels.finite import FiniteHypernetwork

__all__ = [
    "CONDITION",
    "DEPTH",
    "SAMPLERS",
    "limit",
    "printed_limit",
    "sample_in_parts",
    "sample_whole",
]

DEPTH = 4  # weight matrices of f, and of g
CONDITION = (1.0, 0.0)
BATCH_NUMBERS = 2**24  # random numbers in one batch: 128 MB
TINY = 1e-300  # if all neurons are off, everything is 0, and so is 0 / TINY


def _points(angles: Sequence[float]) -> Tensor:
    return torch.tensor([[math.cos(a), math.sin(a)] for a in angles], dtype=torch.float64)


def sample_whole(
    f: int,
    g: int,
    angles: Sequence[float],
    draws: int,
    generator: torch.Generator,
    condition: Sequence[float] = CONDITION,
) -> Tensor:
    """Tangent kernels of hypernetworks of widths f and g between the points at ``angles``.

    [draws, k, k]; every weight of every network is sampled, about f g^2 numbers each.
    """
    u = torch.tensor([list(condition)] * len(angles), dtype=torch.float64), _points(angles)
    sizes = [2] + [f] * (DEPTH - 1), [2] + [g] * (DEPTH - 1) + [1]
    tower = Tower(depth=DEPTH, activation="relu")
    kernels = []
    for _ in range(draws):
        net = FiniteHypernetwork(tower, tower, *sizes, generator=generator, dtype=torch.float64)
        kernels.append(empirical.ntk(net, u))
    return torch.stack(kernels)


def sample_in_parts(
    f: int | None,
    g: int | None,
    angles: Sequence[float],
    draws: int,
    generator: torch.Generator,
    condition: Sequence[float] = CONDITION,
) -> Tensor:
    """The same distribution as `sample_whole`, without f's last layer: f^2 + g^2 numbers each.

    >>> sample_in_parts(500, None, [0.0, 0.5], 2, torch.Generator().manual_seed(0)).shape
    torch.Size([2, 2, 2])
    """
    numbers = DEPTH * ((f or 1) ** 2 + (g or 1) ** 2)
    at_once = max(1, min(draws, BATCH_NUMBERS // numbers))
    return torch.cat(
        [
            _sample_batch(f, g, angles, min(at_once, draws - done), generator, condition)
            for done in range(0, draws, at_once)
        ]
    )


def _sample_batch(
    f: int | None,
    g: int | None,
    angles: Sequence[float],
    draws: int,
    generator: torch.Generator,
    condition: Sequence[float],
) -> Tensor:
    def normal(*shape: int) -> Tensor:
        return torch.randn(draws, *shape, generator=generator, dtype=torch.float64)

    x = torch.tensor(list(condition), dtype=torch.float64).expand(draws, 1, 2)
    if f is None:
        variance = x.square().mean(-1, keepdim=True)  # s^2, [draws, 1, 1]
        _, gram = _primary(g, variance, angles, normal)
        return DEPTH * variance * gram  # at one condition every layer of f has the same share
    hidden = [normal(f, 2), *(normal(f, f) for _ in range(DEPTH - 2))]
    into, q = _forward(hidden, x, last_activation=True)  # q: [draws, 1, f]
    square = q.square().sum(-1, keepdim=True)
    outputs, gram = _primary(g, square / f, angles, normal)
    head = square / f * gram
    safe = square.clamp_min(TINY)
    free = _root(head) @ normal(len(angles), f) / safe.sqrt()  # N / sqrt n, [draws, k, f]
    back = DEPTH * outputs @ q / safe + free - (free @ q.mT) @ q / safe
    return head + _gram(hidden, into, _through(back, q))


def _primary(
    g: int | None, variance: Tensor, angles: Sequence[float], normal: Callable[..., Tensor]
) -> tuple[Tensor, Tensor]:
    """Outputs [draws, k, 1] and J^T J [draws, k, k] of g with weights of this variance."""
    if g is None:
        prior, tangent = _limits_of_g(angles)
        outputs = variance.sqrt() ** DEPTH * (_root(prior) @ normal(len(angles), 1))
        return outputs, variance ** (DEPTH - 1) * tangent
    shapes = [(g, 2), *[(g, g)] * (DEPTH - 2), (1, g)]
    weights = [variance.sqrt() * normal(*shape) for shape in shapes]
    inputs, outputs = _forward(weights, _points(angles).expand(len(variance), -1, -1))
    return outputs, _gram(weights, inputs, torch.ones_like(outputs))


def _limits_of_g(angles: Sequence[float]) -> tuple[Tensor, Tensor]:
    """NNGP and tangent kernel, [k, k], of an infinitely wide g whose weights have variance 1."""
    linear = Tower(depth=1, activation="relu")  # Theta_f = S = 1 at the condition (1, 1)
    x, z = torch.ones(len(angles), 2, dtype=torch.float64), _points(angles)
    prior, tangent = (
        HyperKernel(linear, Tower(depth=DEPTH, activation="relu"), kind=kind)(x, z)
        for kind in ("nngp", "ntk")
    )
    return prior, tangent


def _forward(
    weights: Sequence[Tensor], inputs: Tensor, last_activation: bool = False
) -> tuple[list[Tensor], Tensor]:
    """The input of each layer, [draws, k, in], and the output of the last."""
    layer_inputs, q = [], inputs
    for number, weight in enumerate(weights):
        layer_inputs.append(q)
        q = q @ weight.mT / math.sqrt(weight.shape[-1])
        if last_activation or number < len(weights) - 1:
            q = math.sqrt(2) * q.relu()
    return layer_inputs, q


def _gram(weights: Sequence[Tensor], inputs: Sequence[Tensor], back: Tensor) -> Tensor:
    """Sum over layers of (a . a') (d . d') / width, [draws, k, k].

    ``back`` are the derivatives d at the last layer's output before its activation.
    """
    total: Tensor | None = None
    for weight, a in zip(reversed(weights), reversed(inputs), strict=True):
        width = weight.shape[-1]
        part = (back @ back.mT) * (a @ a.mT) / width
        total = part if total is None else total + part
        back = _through(back @ weight / math.sqrt(width), a)
    if total is None:
        raise ConfigError("a tower without layers has no kernel")
    return total


def _through(back: Tensor, q: Tensor) -> Tensor:
    """Derivatives by q = sqrt(2) relu(y), turned into those by y."""
    return math.sqrt(2) * back * (q > 0)


#: How a kernel is sampled, by the entry ``sampler`` of a run's configuration.
SAMPLERS: dict[str, Callable[..., Tensor]] = {"whole": sample_whole, "parts": sample_in_parts}


def _root(gram: Tensor) -> Tensor:
    """A symmetric root. Cholesky would fail for points that no neuron distinguishes."""
    values, vectors = torch.linalg.eigh(gram)
    return (vectors * values.clamp_min(0).sqrt().unsqueeze(-2)) @ vectors.mT


def limit(angles: Sequence[float], condition: Sequence[float] = CONDITION) -> list[float]:
    """The hyperkernel between angle 0 and each of ``angles``: both widths infinite.

    >>> [round(value, 4) for value in limit([0.0])]
    [0.5]
    """
    tower = Tower(depth=DEPTH, activation="relu")
    x = torch.tensor([list(condition)] * len(angles), dtype=torch.float64)
    kernel = HyperKernel(tower, tower)(x[:1], _points([0.0]), x, _points(angles))
    return [float(value) for value in kernel[0]]


def printed_limit(angles: Sequence[float], condition: Sequence[float] = CONDITION) -> list[float]:
    """`limit` by the formula as printed (Lemma 6): backward steps through g lack their factor S.

    At one condition S^l = |x|^2 / 2 in every layer of f, and Theta_f = L S.

    >>> [round(value, 4) for value in printed_limit([0.0])]
    [1.875]
    """
    s = sum(value * value for value in condition) / len(condition)
    values = []
    for angle in angles:
        size, cosine, theta = 0.5, math.cos(angle), 0.5 * math.cos(angle)
        for _ in range(DEPTH - 1):
            t = math.acos(max(-1.0, min(1.0, cosine)))
            cosine = (math.sin(t) + (math.pi - t) * cosine) / math.pi
            size *= s
            theta = size * cosine + theta * (math.pi - t) / math.pi
        values.append(DEPTH * s * theta)
    return values

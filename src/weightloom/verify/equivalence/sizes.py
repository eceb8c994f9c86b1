"""How large a network is: parameters, width, depth, neurons, and the shapes of its matrices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

from weightloom.bounds import parameters
from weightloom.verify.claim import Claim, Evidence, Size, Statement
from weightloom.verify.equivalence.nets import linears, network

__all__ = ["CLAIMS"]

FIGURE = (3, 4, 3, 2)


@dataclass(frozen=True)
class Counted:
    """What was counted on one real network: parameters, hidden layers, widest, hidden neurons."""

    sizes: tuple[int, ...]
    counts: tuple[int, int, int, int]
    shapes: tuple[tuple[int, int], ...]


def _count(sizes: tuple[int, ...]) -> Counted:
    """From the module itself: its tensors, and the values that pass through its activations."""
    net = network(sizes)
    hidden: list[int] = []
    for part in net:
        if isinstance(part, nn.ReLU):
            part.register_forward_hook(lambda _, __, out: hidden.append(out.shape[-1]))
    net(torch.zeros(1, sizes[0], dtype=torch.float64))
    total = sum(p.numel() for p in net.parameters())
    counts = (total, len(hidden), max(hidden), sum(hidden))
    shapes = tuple((layer.weight.shape[0], layer.weight.shape[1]) for layer in linears(net))
    return Counted(sizes, counts, shapes)


def _measure(size: Size) -> list[Counted]:
    draws = [tuple(torch.randint(1, 9, (n,)).tolist()) for n in (3, 3, 4, 5, 6)]
    return [_count(one) for one in (FIGURE, (5, 1, 1), (1, 7, 1), *draws)]


def _sizes(last_biases: bool) -> Statement:
    text = "S = sum_(i=0..L) d_(i+1) (d_i + 1), W = max d_l, U = d_1 + ... + d_L; " + (
        "(3, 4, 3, 2) has S = 39, W = 4, D = 2, U = 7"
        if last_biases
        else "the outputs have no biases: S is less by d_(L+1)"
    )

    def judge(measured: list[Counted]) -> Evidence:
        off = []
        for one in measured:
            hidden = one.sizes[1:-1]
            S = parameters(one.sizes) - (0 if last_biases else one.sizes[-1])
            said = (S, len(hidden), max(hidden), sum(hidden))
            if one.sizes == FIGURE and last_biases:
                said = (39, 2, 4, 7)
            off.append(max(abs(a - b) for a, b in zip(said, one.counts, strict=True)))
        at = max(range(len(off)), key=off.__getitem__)
        S, D, W, U = measured[at].counts
        told = (
            f"{len(off)} networks, sizes {measured[at].sizes}: S = {S}, D = {D}, W = {W}, U = {U}"
        )
        return Evidence(max(off), 0, f"{told} counted, off by {max(off)}")

    return Statement(text, judge)


def _shallow(text: str, output_bias: int) -> Statement:
    def judge(measured: list[Counted]) -> Evidence:
        off, where = 0, ""
        for one in measured:
            if len(one.sizes) == 3 and one.sizes[-1] == 1:
                d0, d1, _ = one.sizes
                first = math.prod(one.shapes[0]) + one.shapes[0][0]
                said = (d0 + 2) * d1 + output_bias, d0 * d1 + d1
                wrong = max(abs(one.counts[0] - said[0]), abs(first - said[1]))
                if wrong >= off:
                    told = (
                        f"sizes {one.sizes}: {one.counts[0]} parameters, {first} of them in front"
                    )
                    off, where = wrong, f"{told} of the hidden layer, off by {wrong}"
        return Evidence(off, 0, where)

    return Statement(text, judge)


def _shapes(shift: int, turned: bool = False) -> Statement:
    order = "d_i x d_(i-1)" if shift else "d_(i+1) x d_i"
    text = f"W^(i), i = 1..L+1, is a matrix of size {'d_(i-1) x d_i' if turned else order}"

    def judge(measured: list[Counted]) -> Evidence:
        worst, where = 0, ""
        for one in measured:
            wanted = [(b, a) for a, b in pairwise(one.sizes)]
            said = wanted[1 - shift :] + ([(0, one.sizes[-1])] if not shift else [])
            said = [(b, a) for a, b in said] if turned else said
            wrong = sum(a != b for a, b in zip(said, one.shapes, strict=True))
            if wrong >= worst:
                worst, where = wrong, f"sizes {one.sizes}: matrices {one.shapes}"
        return Evidence(worst, 0, f"{where}; {worst} of them have another size than said")

    return Statement(text, judge)


CLAIMS = (
    Claim("002/sizes", "Feedforward neural networks, figure", (1,), _measure,
          printed=_sizes(True), wrong=_sizes(False)),
    Claim("002/sizes-shallow", "Effective Parameter Space; Theorem 3", (1, 8), _measure,
          printed=_shallow("One hidden layer and one output: S = (d_0 + 2) d_1 + 1 = d_0 d_1 + 2 "
                           "d_1 + 1, of which S_h = d_0 d_1 + d_1 lead to the hidden layer", 1),
          wrong=_shallow("... S = (d_0 + 2) d_1", 0)),
    Claim("002/shapes", "Feedforward neural networks, Eq. 1", (1,), _measure,
          printed=_shapes(0), corrected=_shapes(1), wrong=_shapes(1, turned=True)),
)  # fmt: skip

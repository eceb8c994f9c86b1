"""Affine pieces in exact rational arithmetic, unit by unit: the slow, plain version."""

from __future__ import annotations

import itertools
from fractions import Fraction

import torch
from torch import nn

# A function: bends b_1 < ... < b_n, and n + 1 lines (slope, value at 0) between them.


def network_pieces(net, low, high):
    """[low, bends, high] and slopes of the first output of Linear / (Leaky)ReLU layers, exactly."""
    low, high = Fraction(low), Fraction(high)
    functions = [([], [(Fraction(1), Fraction(0))])]
    for layer in net:
        if isinstance(layer, nn.Linear):
            weight = [[_whole(w) for w in row] for row in layer.weight.tolist()]
            bias = [_whole(b) for b in layer.bias.tolist()]
            functions = [combine(functions, w, b) for w, b in zip(weight, bias, strict=True)]
        else:
            leak = Fraction(float(getattr(layer, "negative_slope", 0)))
            functions = [bend(f, leak) for f in functions]
    bends, lines = simplify(*functions[0])
    inside = [i for i, b in enumerate(bends) if low < b < high]
    first = sum(b <= low for b in bends)
    kept = [low, *(bends[i] for i in inside), high]
    return kept, [lines[first + i][0] for i in range(len(inside) + 1)]


def combine(functions, weights, bias):
    bends = sorted({b for f, _ in functions for b in f})
    lines = []
    for i in range(len(bends) + 1):
        inside = middle(bends, i)
        slope, offset = Fraction(0), bias
        for (own, pieces), w in zip(functions, weights, strict=True):
            s, o = pieces[sum(b <= inside for b in own)]
            slope, offset = slope + w * s, offset + w * o
        lines.append((slope, offset))
    return bends, lines


def bend(function, leak):
    bends, lines = function
    more = set(bends)
    for i, (slope, offset) in enumerate(lines):
        if slope:
            root = -offset / slope
            after = i == 0 or root > bends[i - 1]
            before = i == len(bends) or root < bends[i]
            if after and before:
                more.add(root)
    new = sorted(more)
    activated = []
    for i in range(len(new) + 1):
        inside = middle(new, i)
        slope, offset = lines[sum(b <= inside for b in bends)]
        factor = 1 if slope * inside + offset > 0 else leak
        activated.append((factor * slope, factor * offset))
    return new, activated


def middle(bends, i):
    if not bends:
        return Fraction(0)
    if i == 0:
        return bends[0] - 1
    if i == len(bends):
        return bends[-1] + 1
    return (bends[i - 1] + bends[i]) / 2


def simplify(bends, lines):
    keep = [i for i in range(len(bends)) if lines[i] != lines[i + 1]]
    return [bends[i] for i in keep], [lines[0], *(lines[i + 1] for i in keep)]


def whole_network(widths, generator, leak=None, denominator=1):
    """Random weights that are small multiples of 1 / denominator: bends coincide and cancel."""
    sizes = [1, *widths, 1]
    layers = []
    for inputs, outputs in itertools.pairwise(sizes):
        layer = nn.Linear(inputs, outputs, dtype=torch.float64)
        for parameter in layer.parameters():
            numerators = torch.randint(-3, 4, parameter.shape, generator=generator)
            parameter.data = numerators.double() / denominator
        layers += [layer, nn.LeakyReLU(leak) if leak else nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _whole(number):
    """The fraction that was meant: 1/3 is no floating-point number."""
    return Fraction(number).limit_denominator(1000)

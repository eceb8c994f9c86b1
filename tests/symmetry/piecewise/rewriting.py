"""Small networks, and other networks with the same function, written by hand."""

from __future__ import annotations

import itertools

import torch
from torch import nn


def mlp(*widths, activation=nn.ReLU, dtype=torch.float64, bias=True):
    layers = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b, bias=bias), activation()]
    return nn.Sequential(*layers[:-1]).to(dtype)


def shallow(weight, bias, outer, constant, activation=None, dtype=torch.float64):
    """x -> outer s(weight x + bias) + constant, from nested lists or tensors."""
    weight, bias, outer, constant = (
        torch.as_tensor(t, dtype=torch.float64).to(dtype) for t in (weight, bias, outer, constant)
    )
    net = mlp(weight.shape[1], weight.shape[0], outer.shape[0], dtype=dtype)
    if activation is not None:
        net[1] = activation
    with torch.no_grad():
        net[0].weight.copy_(weight)
        net[0].bias.copy_(bias)
        net[2].weight.copy_(outer)
        net[2].bias.copy_(constant)
    return net


def parts(net):
    return [t.detach().double() for t in (net[0].weight, net[0].bias, net[2].weight, net[2].bias)]


def normal(generator, *size):
    return torch.randn(*size, generator=generator, dtype=torch.float64)


def permuted_and_scaled(net, generator, dtype):
    weight, bias, outer, constant = parts(net)
    factor = torch.exp(normal(generator, len(bias))).to(dtype).double()
    order = torch.randperm(len(bias), generator=generator)
    return shallow(
        (weight * factor[:, None])[order], (bias * factor)[order], (outer / factor)[:, order],
        constant, dtype=dtype,
    )  # fmt: skip


def split(net, generator, dtype):
    """Every unit as two clones of other lengths."""
    weight, bias, outer, constant = parts(net)
    share = torch.rand(len(bias), generator=generator, dtype=torch.float64)
    return shallow(
        torch.cat([2 * weight, weight]), torch.cat([2 * bias, bias]),
        torch.cat([outer * share / 2, outer * (1 - share)], 1), constant, dtype=dtype,
    )  # fmt: skip


def turned(net, generator, dtype):
    """relu(t) = relu(-t) + t, with t written as a linear pair that is shifted."""
    weight, bias, outer, constant = parts(net)
    shift = normal(generator, len(bias))
    there = torch.cat([-weight, weight, -weight])
    return shallow(
        there, torch.cat([-bias, bias + shift, -bias - shift]),
        torch.cat([outer, outer, -outer], 1), constant - outer @ shift, dtype=dtype,
    )  # fmt: skip


def padded(net, generator, dtype):
    """Units without outgoing weights, without incoming weights, and a pair that cancels."""
    weight, bias, outer, constant = parts(net)
    extra = normal(generator, 2, weight.shape[1])
    incoming = torch.cat([weight, extra[:1], 0 * extra[:1], 0 * extra[:1], extra[1:], extra[1:]])
    level = torch.tensor([0.3, 0.7, -0.5, 0.2, 0.2], dtype=torch.float64).to(dtype).double()
    out = normal(generator, len(constant), 5).to(dtype).double()
    out[:, 0], out[:, 4] = 0, -out[:, 3]
    constant = constant - 0.7 * out[:, 1]
    return shallow(
        incoming, torch.cat([bias, level]), torch.cat([outer, out], 1), constant, dtype=dtype
    )


REWRITINGS = {f.__name__: f for f in (permuted_and_scaled, split, turned, padded)}

"""Exchanging hidden neurons, in shallow and in deep networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations

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

__all__ = ["CLAIMS", "permuted"]

ANY: tuple[Callable[[], nn.Module], ...] = (
    nn.ReLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.GELU,
    lambda: Elementwise(lambda t: torch.cos(t) / (2 + t.abs()), "cos(t) / (2 + |t|)"),
)


def matrix(order: Sequence[int]) -> Tensor:
    """P with (P a)_i = a_order[i]."""
    return torch.eye(len(order), dtype=torch.float64)[list(order)]


@torch.no_grad()
def permuted(net: nn.Sequential, orders: Sequence[Sequence[int]]) -> nn.Sequential:
    """The deep proposition: W^(l) -> P_l W^(l) P_(l-1)^T, b^(l) -> P_l b^(l)."""
    made = twin(net)
    for place, order in enumerate(orders):
        here, after = linears(made)[place : place + 2]
        P = matrix(order)
        here.weight.copy_(P @ here.weight)
        here.bias.copy_(P @ here.bias)
        after.weight.copy_(after.weight @ P.T)
    return made


@torch.no_grad()
def _example(net: nn.Sequential, P: Tensor, outgoing: Tensor, bias: Tensor) -> nn.Sequential:
    made = twin(net)
    first, last = linears(made)
    first.weight.copy_(P @ first.weight)
    first.bias.copy_(bias @ first.bias)
    last.weight.copy_(last.weight @ outgoing)
    return made


def _shallow(size: Size) -> dict[str, Gap]:
    """Every permutation of one hidden layer."""
    net, x = network((3, 4 if size == "quick" else 6, 2), nn.Tanh), points(100, 3)
    width = linears(net)[0].out_features
    found: dict[str, list[Gap]] = {"printed": [], "corrected": [], "wrong": []}
    for order in permutations(range(width)):
        P = matrix(order)
        where = f"tanh 3-{width}-2, order {order} of all {width}! orders"
        stay = torch.eye(width, dtype=torch.float64)
        cases = {"printed": (P, P), "corrected": (P.T, P), "wrong": (P.T, stay)}
        for key, (outgoing, bias) in cases.items():
            found[key].append(compare(net, _example(net, P, outgoing, bias), x, where))
    return {key: worst(gaps) for key, gaps in found.items()}


@torch.no_grad()
def _as_printed(net: nn.Sequential, orders: Sequence[Sequence[int]], x: Tensor, where: str) -> Gap:
    """Two networks that obey all printed equations; what these leave open is drawn."""
    first = twin(net)
    linears(first)[-2].bias.fill_(0.3)  # so that b1^(L) = P b2^(L) and b1^(L) = b2^(L)
    second = permuted(first, orders)
    linears(second)[-1].bias.normal_()
    return compare(first, second, x, where + ", b^(L+1) left open")


def _deep(size: Size) -> dict[str, Gap]:
    found: dict[str, list[Gap]] = {"printed": [], "corrected": [], "wrong": []}
    for activation in ANY:
        for _ in range(10 if size == "quick" else 100):
            net, x = network((3, 6, 5, 4, 2), activation), points(100, 3)
            orders = [torch.randperm(width).tolist() for width in (6, 5, 4)]
            orders[1] = [1, 2, 0, 4, 3]  # not its own inverse
            made = permuted(net, orders)
            where = f"{net[1]} 3-6-5-4-2, random orders"
            found["corrected"].append(compare(net, made, x, where))
            found["printed"].append(_as_printed(net, orders, x, where))
            wrong = twin(made)
            here = linears(net)[1]
            P, before = matrix(orders[1]), matrix(orders[0])
            linears(wrong)[1].weight.copy_(P @ here.weight.detach() @ before)
            found["wrong"].append(compare(net, wrong, x, where))
    return {key: worst(gaps) for key, gaps in found.items()}


CLAIMS = (
    Claim("002/permutation", "Example (Permutation)", (4,), _shallow,
          printed=judged("(P W2^(1), P b2^(1)) = (W1^(1), b1^(1)) and W2^(2) P = W1^(2) give the "
                         "same function", "printed"),
          corrected=judged("... and W2^(2) P^T = W1^(2); as printed only if P is its own inverse",
                           "corrected"),
          wrong=judged("With P^T, and the biases left where they are", "wrong")),
    Claim("002/permutation-deep", "Proposition (Permutation equivalence for deep networks)",
          (4, 5), _deep,
          printed=judged("W1^(l) = P_l W2^(l) P_(l-1)^T, b1^(l) = P_l b2^(l) for l = 1..L, "
                         "W1^(L+1) = W2^(L+1) P_L^T, b1^(L) = b2^(L) give the same function, any "
                         "activation", "printed"),
          corrected=judged("... the last equation is b1^(L+1) = b2^(L+1); as printed nothing ties "
                           "the outputs' biases", "corrected"),
          wrong=judged("W1^(l) = P_l W2^(l) P_(l-1): one transposition is missing", "wrong")),
)  # fmt: skip

"""Other ways to align two networks: plain weight matching, and rebasin from PyPI.

Both know permutations only, and return a network, not a verdict. Each maps (a, b) to a copy of b
whose hidden units are permuted so that it is close to a.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from importlib.util import find_spec

import torch
from scipy.optimize import linear_sum_assignment
from torch import nn

from weightloom.symmetry import normalize

__all__ = ["Peer", "permutations_found", "installed", "together"]

Peer = Callable[[nn.Module, nn.Module], nn.Module]

SWEEPS = 50


def linear(net: nn.Module) -> list[nn.Linear]:
    return [module for module in net.modules() if isinstance(module, nn.Linear)]


def weight_matching(a: nn.Module, b: nn.Module) -> nn.Module:
    """git re-basin's algorithm by hand.

    Layer by layer, the permutation with the largest inner product with a's weights, until no
    permutation changes.
    """
    first, second = linear(a), linear(b)
    order = [torch.arange(layer.out_features) for layer in first[:-1]]
    for _ in range(SWEEPS):
        moved = False
        for k in torch.randperm(len(order)).tolist():
            incoming = second[k].weight if k == 0 else second[k].weight[:, order[k - 1]]
            last = k + 1 == len(order)
            after = second[k + 1].weight if last else second[k + 1].weight[order[k + 1]]
            score = first[k].weight @ incoming.T + torch.outer(first[k].bias, second[k].bias)
            score = score + first[k + 1].weight.T @ after
            _, columns = linear_sum_assignment(score.detach().numpy(), maximize=True)
            new = torch.from_numpy(columns)
            moved |= not torch.equal(new, order[k])
            order[k] = new
        if not moved:
            break
    return permuted(b, order)


def permuted(net: nn.Module, order: list[torch.Tensor]) -> nn.Module:
    """A copy whose hidden unit i of layer k is unit order[k][i] of the given network."""
    permuted_copy = copy.deepcopy(net)
    for k, layer in enumerate(linear(permuted_copy)):
        if k < len(order):
            layer.weight.copy_(layer.weight[order[k]])
            layer.bias.copy_(layer.bias[order[k]])
        if k > 0:
            layer.weight.copy_(layer.weight[:, order[k - 1]])
    return permuted_copy


def rebasin(a: nn.Module, b: nn.Module) -> nn.Module:
    """rebasin as its README uses it; the input is only traced."""
    from rebasin import PermutationCoordinateDescent

    permuted_copy = copy.deepcopy(b)
    descent = PermutationCoordinateDescent(
        a, permuted_copy, torch.randn(2, linear(a)[0].in_features)
    )
    descent.rebasin()
    return permuted_copy


def installed() -> dict[str, Peer]:
    """The peers that can be measured here; prints a line if rebasin is missing."""
    peers: dict[str, Peer] = {"weight matching": weight_matching}
    if find_spec("rebasin") is None:
        print("rebasin is not installed and is left out; benchmarks/README.md says how to add it")
    else:
        peers["rebasin"] = rebasin
    return peers


def together(a: nn.Module, b: nn.Module) -> bool:
    """Whether the weights agree to float32's rounding."""
    return all(
        torch.allclose(mine, other, rtol=1e-4, atol=1e-6)
        for mine, other in zip(a.parameters(), b.parameters(), strict=True)
    )


def permutations_found(a: nn.Module, b: nn.Module) -> bool:
    """Whether b is a up to scales and signs, unit by unit: the permutations were the right ones.

    It is weightloom that takes the scales and signs out here, so this is kinder to a peer than what
    a user of it sees (`together`).
    """
    return together(normalize(a)[0], normalize(b)[0])

"""Heads of attention layers: which one is which, and the maps inside them.

A head is known by what its function depends on: (W_Q, b_Q)^T W_K and W_O W_V. The key bias adds
the same number to all scores of a query and softmax forgets it; W_O b_V may be part of b_O. Both
are compared as far as they count, not entry by entry.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from weightloom.symmetry.assignment import assign
from weightloom.symmetry.attention import split, weights_that_count
from weightloom.symmetry.group import move
from weightloom.symmetry.match import Pair
from weightloom.symmetry.spec import Attention, Element

__all__ = ["match_heads", "solve_map"]


def match_heads(pair: Pair, element: Element) -> tuple[Element, float, str | None]:
    """The element with heads and maps, the largest deviation of attention layers, and where it is.

    Deviations are relative to the product of the norms of the two factors of a head.
    """
    element = replace(element, permutation=dict(element.permutation), maps=dict(element.maps))
    worst, where = 0.0, None
    for one in pair.spec.attentions:
        sides = [_tensors(pair, one, side, element) for side in (0, 1)]
        found = _match(one, sides[0], sides[1], element)
        if found > worst or found != found:
            worst, where = (found if found == found else float("inf")), one.name
    return element, worst, where


def _tensors(pair: Pair, one: Attention, side: int, element: Element) -> dict[str, Tensor]:
    """The four tensors in float64; those of b with the units around them moved to a's order."""
    result = {}
    for name in (one.in_weight, one.in_bias, one.out_weight, one.out_bias):
        if name is None:
            continue
        tensor = pair.tensors[side][name].double()
        for axis in pair.spec.axes_of_tensor(name) if side else ():
            kind, factor = pair.spec.spaces[axis.space].kind, element.factor.get(axis.space)
            if factor is not None and axis.side == "in":
                factor = kind.outgoing(factor)
            tensor = move(tensor, axis, element.permutation.get(axis.space), factor)
        result[name] = tensor
    return result


def _match(one: Attention, a: dict[str, Tensor], b: dict[str, Tensor], element: Element) -> float:
    forms = [weights_that_count(tensors, one) for tensors in (a, b)]
    parts = [split(tensors, one) for tensors in (a, b)]
    sizes = [_sizes(part) for part in parts]
    gaps = torch.zeros(one.heads, one.heads, dtype=torch.float64)
    worst = torch.zeros_like(gaps)
    for mine, theirs, mine_size, their_size in zip(*forms, *sizes, strict=True):
        for head in range(one.heads):
            gap = (theirs - mine[head]).flatten(1)
            scale = torch.maximum(mine_size[head], their_size).clamp_min(1e-300)
            gaps[head] += gap.norm(dim=1) / scale
            worst[head] = torch.maximum(worst[head], gap.abs().amax(1) / scale)
    order = assign(-gaps.nan_to_num(1e300, posinf=1e300))
    element.permutation[one.head_space] = order
    first, second = parts
    moved = {name: part[order] for name, part in second.items() if name != "bias"}
    element.maps[one.query_map] = solve_map(
        first["query"], moved["query"], first["key"][..., :-1], moved["key"][..., :-1]
    )
    element.maps[one.value_map] = solve_map(
        first["value"][..., :-1],
        moved["value"][..., :-1],
        first["out"].transpose(1, 2),
        moved["out"].transpose(1, 2),
    )
    found = float(worst.gather(1, order[:, None]).max())
    biases = [part["bias"] + (part["out"] @ part["value"][..., -1:]).sum((0, 2)) for part in parts]
    lengths = [size[1].sum() + part["bias"].norm() for size, part in zip(sizes, parts, strict=True)]
    scale = torch.maximum(lengths[0], lengths[1])
    return max(found, float((biases[0] - biases[1]).abs().max() / scale.clamp_min(1e-300)))


def _sizes(part: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Products of the norms of query and key, of output and value, for each head [heads]."""
    norms = {name: part[name].flatten(1).norm(dim=1) for name in ("query", "key", "value", "out")}
    return norms["query"] * norms["key"], norms["out"] * norms["value"]


def solve_map(to: Tensor, given: Tensor, other_to: Tensor, other_given: Tensor) -> Tensor:
    """Matrices A [heads, d, d] with A given = to and A^-T other_given = other_to, least squares.

    The second equation is A^T other_to = other_given, linear in A as well; the normal equations of
    both, A G + H A = C with G = given given^T and H = other_to other_to^T, are solved in the
    eigenvectors of G and H. So one of the two factors may have a smaller rank. Directions that
    neither of them has are free; they get the identity.
    """
    G, H = given @ given.transpose(1, 2), other_to @ other_to.transpose(1, 2)
    C = to @ given.transpose(1, 2) + other_to @ other_given.transpose(1, 2)
    g, U = torch.linalg.eigh(G)
    h, V = torch.linalg.eigh(H)
    total = h[:, :, None] + g[:, None, :]
    known = total > 1e-12 * total.amax((1, 2), keepdim=True)
    rotated = V.transpose(1, 2) @ C @ U
    free = V.transpose(1, 2) @ U
    return V @ torch.where(known, rotated / total.clamp_min(1e-300), free) @ U.transpose(1, 2)

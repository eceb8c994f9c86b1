"""Attention blocks for tests: random ones, disguised ones, and what they compute, by hand.

Nothing here uses the library's own code for groups, maps or projections.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from weightloom.symmetry.matching.heads.factors import HeadFactors


def pairs_of(d, rotated, interleaved):
    """The coordinates that are rotated together, written out."""
    if interleaved:
        return [(i, i + 1) for i in range(0, rotated, 2)]
    return [(i, i + rotated // 2) for i in range(rotated // 2)]


def block(heads, groups, d, width, *, generator, bias=True, rotary=None, out=None, values=None):
    """A random block with weights of the size that PyTorch starts with."""
    out, values = width if out is None else out, d if values is None else values

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * width**-0.5

    weights = [
        random(heads, d, width), random(groups, d, width), random(groups, values, width),
        random(heads, out, values),
    ]  # fmt: skip
    biases = [random(heads, d), random(groups, d), random(groups, values), random(out)]
    planes = None if rotary is None else torch.tensor(rotary)
    return HeadFactors(*weights, *(biases if bias else [None] * 4), planes)


def moderate(n, generator):
    """An invertible matrix with singular values from 0.5 to 2."""
    u = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64)).Q
    v = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64)).Q
    return u @ torch.diag(2 ** (2 * torch.rand(n, generator=generator).double() - 1)) @ v


def commuting(d, rotary, generator):
    """A map that commutes with all rotations: r [[cos, -sin], [sin, cos]] in each plane."""
    result = torch.zeros(d, d, dtype=torch.float64)
    for one, two in rotary:
        r = 2 ** float(2 * torch.rand((), generator=generator) - 1)
        angle = torch.tensor(6.28 * float(torch.rand((), generator=generator))).double()
        result[one, one] = result[two, two] = r * torch.cos(angle)
        result[two, one], result[one, two] = r * torch.sin(angle), -r * torch.sin(angle)
    rest = [i for i in range(d) if all(i not in pair for pair in rotary)]
    if rest:
        result[torch.tensor(rest)[:, None], torch.tensor(rest)] = moderate(len(rest), generator)
    return result


def disguised(a, generator, dtype=None, maps=True):
    """Another block with the same function, head order [H] and group order [G] with it.

    Head i of the new block is head order[i] of a.
    """
    heads, groups = len(a.query), len(a.key)
    shared, d, c = heads // groups, a.query.shape[1], a.value.shape[1]
    rotary = [] if a.rotary is None else a.rotary.tolist()
    group_order = torch.randperm(groups, generator=generator)
    order = torch.cat([
        g * shared + torch.randperm(shared, generator=generator) for g in group_order
    ])  # fmt: skip
    new = {name: getattr(a, name) for name in ("query_bias", "key_bias", "value_bias")}
    query, key = a.query[order].clone(), a.key[group_order].clone()
    value, output = a.value[group_order].clone(), a.output[order].clone()
    biases = {
        "query_bias": None if a.query_bias is None else a.query_bias[order].clone(),
        "key_bias": None if a.key_bias is None else a.key_bias[group_order].clone(),
        "value_bias": None if a.value_bias is None else a.value_bias[group_order].clone(),
    }
    del new
    for g in range(groups if maps else 0):
        A = commuting(d, rotary, generator) if rotary else moderate(d, generator)
        B = moderate(c, generator)
        back = torch.linalg.inv(A).T
        key[g], value[g] = back @ key[g], B @ value[g]
        if biases["key_bias"] is not None:
            biases["key_bias"][g] = back @ biases["key_bias"][g]
            biases["value_bias"][g] = B @ biases["value_bias"][g]
        for h in range(g * shared, (g + 1) * shared):
            query[h], output[h] = A @ query[h], output[h] @ torch.linalg.inv(B)
            if biases["query_bias"] is not None:
                biases["query_bias"][h] = A @ biases["query_bias"][h]
    new = replace(a, query=query, key=key, value=value, output=output, **biases)
    return (new if dtype is None else cast(new, dtype)), order, group_order


def cast(a, dtype):
    names = [
        f"{name}{end}" for name in ("query", "key", "value", "output") for end in ("", "_bias")
    ]
    values = {name: getattr(a, name) for name in names}
    return replace(a, **{k: v if v is None else v.to(dtype) for k, v in values.items()})


def attention(a, x):
    """The output [batch, length, F] of a block for inputs [batch, length, E], step by step."""
    heads, groups = len(a.query), len(a.key)
    total = torch.zeros(*x.shape[:2], a.output.shape[1], dtype=x.dtype)

    def zero(bias):
        return 0.0 if bias is None else bias

    for h in range(heads):
        g = h // (heads // groups)
        q = x @ a.query[h].T + (0.0 if a.query_bias is None else a.query_bias[h])
        k = x @ a.key[g].T + (0.0 if a.key_bias is None else a.key_bias[g])
        v = x @ a.value[g].T + (0.0 if a.value_bias is None else a.value_bias[g])
        if a.rotary is not None:
            q, k = rotated(q, a.rotary.tolist()), rotated(k, a.rotary.tolist())
        weights = torch.softmax(q @ k.mT / a.query.shape[1] ** 0.5, -1)
        total = total + weights @ v @ a.output[h].T
    return total + zero(a.output_bias)


def rotated(q, rotary):
    """RoPE: plane p of position t is rotated by t / 10 ** p."""
    result = q.clone()
    t = torch.arange(q.shape[1], dtype=q.dtype)
    for p, (one, two) in enumerate(rotary):
        cos, sin = torch.cos(t / 10.0**p), torch.sin(t / 10.0**p)
        result[..., one] = cos * q[..., one] - sin * q[..., two]
        result[..., two] = sin * q[..., one] + cos * q[..., two]
    return result

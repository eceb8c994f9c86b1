"""Rules of attention and gates against Jacobians at many points of the ball."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch.func import jacrev

from weightloom.bounds import attention_lipschitz, gated_lipschitz, normalised_length
from weightloom.errors import ConfigError
from weightloom.networks.activations import lookup

DOUBLE = torch.float64


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def in_ball(count, *shape, radius, seed=0):
    """Rows of length up to the radius, most of them on the sphere."""
    x = normal(count, *shape, seed=seed)
    lengths = radius * torch.rand(count, *shape[:-1], 1, dtype=DOUBLE).clamp_min(0.1).pow(0.2)
    return x / x.norm(dim=-1, keepdim=True) * lengths


def steepest(function, points):
    """The largest 2-norm of the Jacobian at these points."""
    sizes = (math.prod(function(points[0]).shape), points[0].numel())
    jacobians = [jacrev(function)(x).reshape(sizes) for x in points]
    return max(float(torch.linalg.matrix_norm(j, 2)) for j in jacobians)


def attend(x, query, key, value, output, heads, query_bias, mask=None):
    """Written out: tokens [n, d]."""
    split = (w.chunk(heads) for w in (query, key, value, query_bias))
    results = []
    for w_q, w_k, w_v, b_q in zip(*split, strict=True):
        scores = (x @ w_q.T + b_q) @ (x @ w_k.T).T / math.sqrt(len(w_q))
        if mask is not None:
            scores = scores.masked_fill(mask, -math.inf)
        results.append(scores.softmax(1) @ x @ w_v.T)
    return torch.cat(results, 1) @ output.T


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("radius", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("scale", [0.3, 2.0])
def test_attention(heads, causal, radius, scale):
    tokens, size = 4, 4
    weights = [scale * normal(size, size, seed=seed) for seed in range(4)]
    bias = scale * normal(size, seed=9)
    mask = torch.ones(tokens, tokens).triu(1).bool() if causal else None
    bound = attention_lipschitz(
        *weights, heads=heads, tokens=tokens, radius=radius, query_bias=bias
    )
    points = in_ball(40, tokens, size, radius=radius)
    seen = steepest(lambda x: attend(x, *weights, heads, bias, mask), points)
    assert seen <= bound
    assert bound <= 60 * seen, "a bound, but not an idle one"


def test_attention_to_one_token_reaches_the_root_of_their_number():
    """The first part alone is sharp: all rows read the same token."""
    eye, zero = torch.eye(2, dtype=DOUBLE), torch.zeros(2, 2, dtype=DOUBLE)
    x = in_ball(1, 9, 2, radius=1.0)[0]
    first = torch.ones(9, 9).bool()
    first[:, 0] = False  # a mask that lets everyone see the first token only
    bias = torch.zeros(2, dtype=DOUBLE)
    seen = steepest(lambda x: attend(x, zero, zero, eye, eye, 1, bias, first), [x])
    assert seen == pytest.approx(3)
    assert attention_lipschitz(zero, zero, eye, eye, heads=1, tokens=9, radius=1.0) == seen


def test_without_a_radius_there_is_no_bound():
    """The slope grows with the square of the length, as the rule says."""
    eye, bias = torch.eye(2, dtype=DOUBLE), torch.zeros(2, dtype=DOUBLE)

    def at(radius):
        # A short token that attends equally to two long, opposite ones.
        x = radius * torch.tensor([[0.0, 1e-3], [1.0, 0.0], [-1.0, 0.0]], dtype=DOUBLE)
        return steepest(lambda x: attend(x, eye, eye, eye, eye, 1, bias), [x])

    assert at(20.0) > 50 * at(2.0)
    for radius in (math.inf, math.nan, -1.0):
        with pytest.raises(ConfigError, match=r"for inputs of bounded length only"):
            attention_lipschitz(eye, eye, eye, eye, heads=1, tokens=3, radius=radius)


@pytest.mark.parametrize("radius", [0.2, 1.0, 5.0])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("bias", [False, True])
def test_gates(radius, seed, bias):
    gate, up = normal(6, 4, seed=seed), normal(6, 4, seed=seed + 50)
    down = normal(3, 6, seed=seed + 90)
    biases = (normal(6, seed=1), normal(6, seed=2)) if bias else (None, None)
    slope = lookup("silu").lipschitz
    bound = gated_lipschitz(
        gate,
        up,
        down,
        radius=radius,
        activation_slope=slope,
        gate_bias=biases[0],
        up_bias=biases[1],
    )

    def swiglu(x):
        return (F.silu(F.linear(x, gate, biases[0])) * F.linear(x, up, biases[1])) @ down.T

    seen = steepest(swiglu, in_ball(300, 4, radius=radius))
    assert seen <= bound <= 15 * seen
    with pytest.raises(ConfigError, match=r"radius=inf was given; a product of two maps"):
        gated_lipschitz(gate, up, down, radius=math.inf, activation_slope=slope)


@pytest.mark.parametrize("size", [1, 2, 7])
def test_length_after_a_normalisation(size):
    gain, bias = normal(size, seed=1), normal(size, seed=2)
    x = torch.cat([normal(200, size), 1e3 * torch.eye(size, dtype=DOUBLE)])
    limit = normalised_length(gain, bias, size)
    for out in (F.layer_norm(x, (size,), gain, bias), F.rms_norm(x, (size,), gain) + bias):
        assert float(out.norm(dim=1).max()) <= limit
    # Reached by RMSNorm without bias, at the entry with the largest gain.
    long = F.rms_norm(x, (size,), gain).norm(dim=1).max()
    assert float(long) == pytest.approx(normalised_length(gain, None, size), rel=1e-5)

"""Lipschitz constants (2-norm) of blocks from the norms of their weights.

Attention and gated layers multiply values with values, so they have no Lipschitz constant on all
inputs. They have one on inputs of bounded length, and a normalisation in front bounds the length.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from weightloom.bounds.spectral import spectral_norm
from weightloom.errors import ConfigError

__all__ = ["attention_lipschitz", "gated_lipschitz", "normalised_length"]


def normalised_length(gain: Tensor | None, bias: Tensor | None, size: int) -> float:
    """How long a row of ``size`` numbers can be after LayerNorm or RMSNorm, in the 2-norm.

    The normalised row has length at most sqrt(size), so gain * row + bias has at most max|gain|
    sqrt(size) + ||bias||.

    >>> normalised_length(torch.full((4,), 3.0), None, 4)
    6.0
    """
    largest = 1.0 if gain is None else float(gain.detach().abs().max())
    shift = 0.0 if bias is None else float(torch.linalg.vector_norm(bias.detach().double()))
    return largest * math.sqrt(size) + shift


def attention_lipschitz(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    *,
    heads: int,
    tokens: int,
    radius: float,
    query_bias: Tensor | None = None,
) -> float:
    """A Lipschitz constant of self-attention of ``tokens`` rows, each of length at most ``radius``.

    From all rows to all rows, in the 2-norm; weights are [out, in] as in `nn.Linear`, the scale is
    1 / sqrt(head size), and any mask is allowed. For one head, y_i = V sum_j p_ij x_j with p_i the
    softmax of x_i' A x_j + b' x_j, A = W_q' W_k / sqrt(d), b = W_k' b_q / sqrt(d) (other terms do
    not depend on j and cancel). Its derivative has three parts,

        V sum_j p_ij h_j:                       at most ||V|| sqrt(n), since ||P||_2 <= sqrt(n);
        V Cov_i(x) A' h_i:                      at most ||V|| ||A|| R^2;
        V sum_j p_ij (x_j - mean) c_i' h_j:     at most ||V|| R (||A|| R + ||b||) sqrt(n),

    with c_i = A' x_i + b, n rows of length at most R, and Cauchy-Schwarz for the sum over j in the
    last one. Heads add as squares. Without a radius there is no constant: the second part grows
    with the inputs (Kim, Papamakarios and Mnih 2021).

    >>> eye = torch.eye(2)
    >>> attention_lipschitz(eye, 0 * eye, eye, eye, heads=1, tokens=4, radius=1.0)  # a mean
    2.0
    """
    if not (0 <= radius < math.inf and tokens >= 1 and heads >= 1):
        raise ConfigError(
            f"radius={radius}, tokens={tokens}, heads={heads} was given; attention has a Lipschitz "
            f"constant for inputs of bounded length only: wanted a finite radius >= 0, and at "
            f"least one token and one head"
        )
    squares = 0.0
    root = math.sqrt(tokens)
    biases = query.new_zeros(len(query)) if query_bias is None else query_bias
    parts = zip(
        *(w.detach().double().chunk(heads) for w in (query, key, value, biases)), strict=True
    )
    for w_q, w_k, w_v, b_q in parts:
        scale = math.sqrt(len(w_q))
        a = spectral_norm(w_q.T @ w_k).value / scale
        b = float(torch.linalg.vector_norm(w_k.T @ b_q)) / scale
        inside = root + a * radius**2 + root * radius * (a * radius + b)
        squares += (spectral_norm(w_v).value * inside) ** 2
    return spectral_norm(output.detach().double()).value * math.sqrt(squares)


def gated_lipschitz(
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    *,
    radius: float,
    activation_slope: float,
    gate_bias: Tensor | None = None,
    up_bias: Tensor | None = None,
) -> float:
    """A Lipschitz constant of down (s(gate x) * (up x)) for ||x|| <= radius, with s(0) = 0.

    SwiGLU: s is SiLU, with ``activation_slope`` 1.0998394. Row i of the derivative is s'(g_i) u_i
    gate_i + s(g_i) up_i, and |u_i|, |s(g_i)| are bounded by the lengths of the rows: the constant
    is ||down|| (||diag(a) gate|| + ||diag(c) up||) with these bounds a and c. Two linear maps
    multiplied have no Lipschitz constant on all inputs.

    >>> one = torch.ones(1, 1)
    >>> gated_lipschitz(one, one, one, radius=3.0, activation_slope=1.0)  # x^2 for |x| <= 3
    6.0
    """
    if not 0 <= radius < math.inf:
        raise ConfigError(
            f"radius={radius} was given; a product of two maps has a Lipschitz constant for inputs "
            f"of bounded length only: wanted a finite radius >= 0"
        )
    u, g = (_sizes(w, b, radius) for w, b in ((up, up_bias), (gate, gate_bias)))
    through_gate = spectral_norm(activation_slope * u[:, None] * gate.detach().double()).value
    through_up = spectral_norm(activation_slope * g[:, None] * up.detach().double()).value
    return spectral_norm(down.detach().double()).value * (through_gate + through_up)


def _sizes(weight: Tensor, bias: Tensor | None, radius: float) -> Tensor:
    """|w_i x + b_i| at most, for each row."""
    rows = torch.linalg.vector_norm(weight.detach().double(), dim=1) * radius
    return rows if bias is None else rows + bias.detach().double().abs()

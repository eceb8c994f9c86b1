"""Bounds of whole networks: attacks from below, two other ways to the number, known answers."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from weightloom.bounds import lipschitz, lipschitz_lower, read_chain
from weightloom.bounds.semidefinite import closed_form, tuned
from weightloom.bounds.semidefinite.recursion import Multipliers, WorkLimits, propagated
from weightloom.errors import ConfigError

ACTIVATIONS = {
    "relu": nn.ReLU,
    "leaky": lambda: nn.LeakyReLU(0.3),
    "steep": lambda: nn.LeakyReLU(2.0),
    "negative": lambda: nn.LeakyReLU(-0.5),
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "hardswish": nn.Hardswish,
    "identity": nn.Identity,
    "prelu": lambda: nn.PReLU(init=0.4),
}
# Rounding is added to the bound, so it may exceed what is exact in real numbers by a little.
ROUNDING = 1e-7
# A difference quotient of step 1e-5 has relative errors of about eps |bias| / (slope * 1e-5).
ATTACK = 1e-6


def network(sizes, activation="relu", seed=0, scale=1.0):
    torch.manual_seed(seed)
    layers = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), ACTIVATIONS[activation]()]
    net = nn.Sequential(*layers[:-1]).double()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(scale)
    return net


def weights(net):
    return [layer.weight.detach() for layer in net if isinstance(layer, nn.Linear)]


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(1, 8), min_size=2, max_size=5),
    st.sampled_from(sorted(ACTIVATIONS)),
    st.integers(0, 9999),
    st.sampled_from([0.3, 1.0, 5.0]),
)
def test_between_an_attack_and_the_product(sizes, activation, seed, scale):
    net = network(sizes, activation, seed, scale)
    chain = read_chain(net)
    lower = lipschitz_lower(net, 2, starts=4, rounds=2, seed=seed).value
    fast = closed_form(chain)
    assert lower <= fast * (1 + ATTACK)
    assert fast <= lipschitz(net, 2, method="product") * (1 + ROUNDING)
    assert lipschitz(net, 2) <= fast * (1 + 1e-12)
    generator = torch.Generator().manual_seed(seed)
    sized = Multipliers()
    propagated(chain, sized, WorkLimits())
    for spread in (0.3, 2.0):  # any multipliers give a bound
        values = [(spread * torch.randn(n, generator=generator, dtype=torch.float64),
                   spread * torch.randn((), generator=generator, dtype=torch.float64))
                  for n in sized.sizes]  # fmt: skip
        any_bound = math.exp(float(propagated(chain, Multipliers(values), WorkLimits())))
        assert lower <= any_bound * (1 + ATTACK)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(1, 6), min_size=3, max_size=4),
    st.sampled_from(sorted(ACTIVATIONS)),
    st.integers(0, 999),
)
def test_tuned_is_between_an_attack_and_the_closed_form(sizes, activation, seed):
    net = network(sizes, activation, seed)
    lower = lipschitz_lower(net, 2, starts=6, rounds=3).value
    best = tuned(read_chain(net), iterations=15)
    assert lower <= best * (1 + ATTACK)
    assert best <= closed_form(read_chain(net)) * (1 + 1e-12)


@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu"])
def test_trained_networks(activation):
    """Training aligns layers, so bounds are sharper there than at a random start."""
    net = network([2, 24, 24, 2], activation, seed=1)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(256, 2, generator=generator, dtype=torch.float64)
    y = (x.prod(1) > 0).long()
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(150):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()
    lower = lipschitz_lower(net, 2, starts=32, rounds=15).value
    fast, best = (lipschitz(net, 2, method=m) for m in ("sdp-fast", "sdp"))
    assert lower <= best <= fast < lipschitz(net, 2, method="product")
    assert best < 2 * lower, "a factor of two would show"


def as_printed(matrices):
    """ECLipsE-Fast as its authors write it, for slopes in [0, 1]: the inverses M of our X.

    M_i = L_i - L_i W_i M_(i-1)^-1 W_i' L_i / 4 with L_i = l_i I, l_i = 2 / sigma(W M^-1 W'); the
    bound is sqrt(sigma(W_last M^-1 W_last')). Returns it and the multipliers.
    """
    m = torch.eye(matrices[0].shape[1], dtype=torch.float64)
    multipliers = []
    for w in matrices[:-1]:
        inner = w @ torch.linalg.solve(m, w.T)
        factor = 2 / float(torch.linalg.matrix_norm(inner, 2))
        multipliers.append(factor)
        m = factor * torch.eye(len(w), dtype=torch.float64) - factor**2 / 4 * inner
    last = matrices[-1] @ torch.linalg.solve(m, matrices[-1].T)
    return math.sqrt(float(torch.linalg.matrix_norm(last, 2))), multipliers


def certificate(matrices, multipliers, bound):
    """The matrix of LipSDP (Fazlyab et al., Theorem 2) over all layers; >= 0 if the bound holds.

    rho |x|^2 - |W y|^2 - sum_i 2 l_i (y_i - W_i y_(i-1))' y_i * (-1) over (x, y_1, ..., y_L).
    """
    sizes = [w.shape[1] for w in matrices]
    starts = [0, *itertools.accumulate(sizes)]
    block = [slice(a, b) for a, b in itertools.pairwise(starts)]
    p = torch.zeros(starts[-1], starts[-1], dtype=torch.float64)
    p[block[0], block[0]] += bound**2 * torch.eye(sizes[0], dtype=torch.float64)
    for i, (w, factor) in enumerate(zip(matrices[:-1], multipliers, strict=True)):
        p[block[i + 1], block[i + 1]] += factor * torch.eye(len(w), dtype=torch.float64)
        p[block[i + 1], block[i]] -= factor / 2 * w
        p[block[i], block[i + 1]] -= factor / 2 * w.T
    p[block[-1], block[-1]] -= matrices[-1].T @ matrices[-1]
    return float(torch.linalg.eigvalsh(p).min())


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("sizes", [[3, 7, 2], [6, 9, 5, 4], [4, 8, 8, 8, 3]])
def test_two_other_ways_to_the_closed_form(sizes, seed):
    net = network(sizes, seed=seed)
    bound = float(closed_form(read_chain(net)))
    printed, multipliers = as_printed(weights(net))
    assert bound == pytest.approx(printed, rel=1e-8)
    # The recursion starts with the input's identity, so rho scales every multiplier.
    scaled = [factor * printed**2 for factor in multipliers]
    assert certificate(weights(net), scaled, bound) >= -1e-9 * bound**2
    assert certificate(weights(net), scaled, 0.999 * bound) < 0


@pytest.mark.parametrize("slope", [1.0, 0.999999, -1.000001])
def test_linear_networks_have_the_norm_of_the_product(slope):
    """Sharp: nothing is lost where nothing is switched. The product of norms is far above."""
    net = network([6, 9, 7, 4], seed=1)
    for i in (1, 3):
        net[i] = nn.LeakyReLU(abs(slope)) if slope > 0 else nn.Identity()
    whole = torch.linalg.multi_dot(weights(net)[::-1])
    true = float(torch.linalg.matrix_norm(whole, 2))
    assert true * (1 - 1e-12) <= lipschitz(net, 2) <= true * (1 + 1e-4)
    assert lipschitz(net, 2, method="product") > 1.5 * true


def test_one_matrix():
    net = network([7, 5], seed=3)
    true = float(torch.linalg.matrix_norm(net[0].weight.detach(), 2))
    for bound in (closed_form(read_chain(net)), tuned(read_chain(net))):
        assert true * (1 - 1e-14) <= bound <= true * (1 + 1e-8)


def two_rows(first, second):
    net = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1)).double()
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[first], [second]]))
        net[2].weight.fill_(1.0)
    return net


def test_known_answers_of_one_hidden_layer():
    # |x|: constant 1. The product is 2; one multiplier for both units can show sqrt 2, and two
    # can show sup over S > v v'/4 of 1' X' 1 -> 1.
    net = two_rows(1.0, -1.0)
    assert lipschitz(net, 2, method="product") == pytest.approx(2)
    assert lipschitz(net, 2, method="sdp-fast") == pytest.approx(math.sqrt(2), rel=1e-6)
    assert 1 <= lipschitz(net, 2, method="sdp") <= 1.001
    # relu(3 x) + relu(-x): constant 3.
    assert 3 <= lipschitz(two_rows(3.0, -1.0), 2, method="sdp") <= 3.003
    # relu(x) + relu(x): 2, attained, so no method may be below.
    net = two_rows(1.0, 1.0)
    for method in ("sdp-fast", "sdp"):
        assert 2 * (1 - 1e-12) <= lipschitz(net, 2, method=method) <= 2 + 1e-6


def test_orthogonal_rows_are_exact():
    """All units can be on at once: |w| is attained, and the bound says so."""
    net = network([5, 5, 1])
    with torch.no_grad():
        net[0].weight.copy_(torch.linalg.qr(net[0].weight)[0])
    true = float(net[2].weight.detach().norm())
    assert true * (1 - 1e-12) <= lipschitz(net, 2) <= true * (1 + 1e-8)


def test_much_below_the_product_on_wide_networks():
    """What it is for. The numbers: 1.73, 0.79, 0.46 and 0.14 from below."""
    net = network([10, 50, 50, 50, 10])
    fast, best = (lipschitz(net, 2, method=m) for m in ("sdp-fast", "sdp"))
    assert fast < 0.5 * lipschitz(net, 2, method="product")
    assert best < 0.65 * fast
    assert lipschitz_lower(net, 2, starts=8, rounds=3).value <= best


def test_biases_and_the_order_of_units_do_not_matter():
    net, other = network([4, 9, 9, 3], seed=2), network([4, 9, 9, 3], seed=2)
    order = torch.randperm(9)
    with torch.no_grad():
        other[0].weight.copy_(other[0].weight[order])
        other[0].bias.normal_()
        other[2].weight.copy_(other[2].weight[:, order])
    assert lipschitz(net, 2) == pytest.approx(lipschitz(other, 2), rel=1e-9)


def test_no_overflow_and_zero():
    deep = nn.Sequential(*[layer for _ in range(60) for layer in (nn.Linear(8, 8), nn.ReLU())])
    with torch.no_grad():
        for layer in deep[::2]:
            layer.weight.mul_(1e20)
    bound, product = closed_form(read_chain(deep)), lipschitz(deep, 2, method="product")
    assert bound == math.inf
    assert 60 * math.log(1e20) / 2 < bound.log <= product.log * (1 + 1e-9)
    with torch.no_grad():
        deep[30].weight.zero_()
    for method in ("sdp-fast", "sdp", "best"):
        assert lipschitz(deep, 2, method=method) == 0
    assert closed_form(read_chain(network([3, 4, 2]).half())) > 0


def test_a_stage_that_is_too_large_counts_with_its_norm():
    net = network([6, 9, 9, 20, 4], seed=4)
    chain = read_chain(net)
    full, narrow = closed_form(chain), closed_form(chain, WorkLimits(units=10))
    product = lipschitz(net, 2, method="product")
    assert full < narrow * (1 - 1e-3)
    assert narrow < product * (1 - 1e-3)
    assert lipschitz_lower(net, 2, starts=8, rounds=3).value <= full


def test_layers_on_the_last_axis_of_larger_inputs():
    """Every token by itself: the same constant as for one token."""
    net = network([4, 9, 9, 3])
    assert lipschitz(net, 2, input_shape=(5, 4)) == pytest.approx(lipschitz(net, 2), rel=1e-9)
    mixed = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Flatten(), nn.Linear(30, 3)).double()
    lower = lipschitz_lower(mixed, 2, input_shape=(5, 4), starts=8, rounds=3)
    assert lower.value <= lipschitz(mixed, 2, input_shape=(5, 4), method="sdp-fast")


def test_messages():
    net = network([2, 3, 2])
    for norm in (1, math.inf):
        with pytest.raises(ConfigError, match=r"semidefinite bounds are about the 2-norm"):
            lipschitz(net, norm, method="sdp")
    with pytest.raises(ConfigError, match=r"choose one of best, product, paths, sdp-fast, sdp"):
        lipschitz(net, 2, method="sdp-slow")
    with pytest.raises(ConfigError, match=r"pass input_shape=\(channels, height, width\)"):
        lipschitz(nn.Sequential(nn.Conv2d(1, 1, 3)), 2, method="sdp-fast")

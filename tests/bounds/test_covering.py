"""Covering numbers: the proof's steps on real networks, exact counts, the printed corners."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weightloom.bounds import (
    RULES,
    log_covering_number,
    log_group_order,
    log_ranges,
    log_sensitivity,
    log_volume,
    parameters,
    stochastic_error,
)
from weightloom.bounds import covering as module
from weightloom.errors import ConfigError

CASE = {"bound": 1.0, "radius": 1.0, "lipschitz": 1.0}

widths = st.lists(st.integers(1, 5), min_size=2, max_size=5)
sizes = st.floats(0.05, 3)


def plain_lambda(d, B, Bx, rho, zero=0.0):
    """Steps 1 and 2 of the proof as written, without logarithms."""
    e, h, met = None, None, math.sqrt(d[0]) * Bx + 1
    for layer in range(1, len(d)):
        if layer > 1:
            met = d[layer - 1] * h + 1
        e = met if e is None else met + B * d[layer - 1] * rho * e
        h = zero + rho * B * met
    return e


def test_the_numbers_of_the_notes():
    """theory.md: 17597, 21497 and 14825 with K = ceil(2 B Lambda / eps), that is, with eps / 2."""
    d = [10, 128, 1]
    result = {r: log_covering_number(d, epsilon=0.1, rule=r, **CASE) for r in RULES}
    assert round(result["theorem3"].log) == 17597
    assert round(result["theorem4"].log) == 21497
    assert round(log_covering_number(d, epsilon=0.05, **CASE).log) == 14825
    assert result["rigorous"].log < 14825 - 1000  # half as many cells: S ln 2 = 1065 less
    assert all(c.valid and not c.warnings for c in result.values())


@given(widths, sizes, sizes, sizes, st.sampled_from([0.0, 0.5]))
def test_lambda_by_plain_arithmetic(d, B, Bx, rho, zero):
    result = log_sensitivity(d, bound=B, radius=Bx, lipschitz=rho, at_zero=zero)
    assert math.exp(result) == pytest.approx(plain_lambda(d, B, Bx, rho, zero), rel=1e-10)


@given(st.lists(st.integers(1, 3), min_size=2, max_size=4), sizes, st.floats(0.01, 5))
def test_count_by_exact_arithmetic(d, B, eps):
    """K^(S - sum d) prod C(K + d - 1, d) with whole numbers of any size."""
    ratio = Fraction(plain_lambda(d, B, 1.0, 1.0)) * Fraction(B) / Fraction(eps)
    K = max(1, math.ceil(ratio * (1 - Fraction(1, 10**12))))  # 10.0000000000000002 cells are 10
    count = K ** (parameters(d) - sum(d[1:-1]))
    for width in d[1:-1]:
        count *= math.comb(K + width - 1, width)
    result = log_covering_number(d, bound=B, radius=1.0, lipschitz=1.0, epsilon=eps)
    assert result.log == pytest.approx(math.log(count), rel=1e-9, abs=1e-9)


def forward(d, theta, x, act):
    """Networks theta [n, S] at points x [m, d0]: [n, m, outputs], by hand."""
    a, at = x.expand(len(theta), *x.shape), 0
    for layer, (inner, out) in enumerate(itertools.pairwise(d)):
        W = theta[:, at : at + inner * out].reshape(-1, out, inner)
        at += inner * out
        a = a @ W.transpose(1, 2) + theta[:, None, at : at + out]
        at += out
        a = act(a) if layer < len(d) - 2 else a
    return a


def ball(n, d0, radius):
    x = torch.randn(n, d0, dtype=torch.float64)
    return radius * x / x.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("d", [[3, 4, 1], [2, 3, 5, 2], [4, 2, 3, 2, 1], [5, 1]])
@pytest.mark.parametrize(("B", "Bx"), [(1.0, 1.0), (0.3, 5.0), (2.0, 0.1)])
def test_lambda_is_attained(d, B, Bx):
    """All weights B, the input along (1, ..., 1), everything moved by delta: within 0.1 percent."""
    delta = 1e-6 * B
    theta = torch.full((1, parameters(d)), B, dtype=torch.float64)
    x = torch.full((1, d[0]), Bx / math.sqrt(d[0]), dtype=torch.float64)
    moved = forward(d, theta, x, torch.relu) - forward(d, theta - delta, x, torch.relu)
    bound = math.exp(log_sensitivity(d, bound=B, radius=Bx))
    assert 0.999 * bound <= float(moved.max()) / delta <= bound * (1 + 1e-8)  # rounding over delta
    # Step 1 too: every layer's range is reached.
    assert float(forward(d, theta, x, torch.relu).max()) == pytest.approx(
        math.exp(log_ranges(d, bound=B, radius=Bx)[-1]), rel=1e-12
    )


ACTS = {"relu": (torch.relu, 1.0, 0.0), "tanh": (torch.tanh, 1.0, 0.0),
        "sigmoid": (torch.sigmoid, 0.25, 0.5), "cos": (torch.cos, 1.0, 1.0)}  # fmt: skip


@settings(max_examples=60)
@given(widths, sizes, sizes, st.sampled_from(sorted(ACTS)), st.integers(0, 999), st.floats(0, 1))
def test_lambda_is_never_exceeded(d, B, Bx, name, seed, push):
    """Random and extreme networks (signs pushed to +B), random moves: adversaries all."""
    act, rho, zero = ACTS[name]
    torch.manual_seed(seed)
    theta = (2 * torch.rand(64, parameters(d), dtype=torch.float64) - 1) * B
    theta = torch.where(torch.rand_like(theta) < push, B, theta)
    other = (theta + 0.1 * B * torch.randn_like(theta).sign()).clamp(-B, B)
    x = ball(32, d[0], Bx)
    moved = (forward(d, theta, x, act) - forward(d, other, x, act)).abs().flatten(1).amax(1)
    bound = math.exp(log_sensitivity(d, bound=B, radius=Bx, lipschitz=rho, at_zero=zero))
    assert bool((moved <= bound * (theta - other).abs().amax(1) * (1 + 1e-9) + 1e-12).all())


@settings(max_examples=40)
@given(st.lists(st.integers(1, 4), min_size=3, max_size=4), st.integers(0, 999))
def test_the_grid_covers(d, seed):
    """Steps 3 and 4 carried out: sort the biases, move to centres of cells, stay within eps."""
    B, Bx, eps = 1.5, 2.0, 0.7
    torch.manual_seed(seed)
    K = max(1, math.ceil(B * plain_lambda(d, B, Bx, 1.0) / eps))
    Ws = [(2 * torch.rand(b, a, dtype=torch.float64) - 1) * B for a, b in itertools.pairwise(d)]
    bs = [(2 * torch.rand(b, dtype=torch.float64) - 1) * B for b in d[1:]]
    flat = torch.cat([t.flatten() for W, b in zip(Ws, bs, strict=True) for t in (W, b)])[None]
    for layer in range(len(d) - 2):
        order = bs[layer].argsort(descending=True)
        Ws[layer], bs[layer] = Ws[layer][order], bs[layer][order]
        Ws[layer + 1] = Ws[layer + 1][:, order]
    cells = [((t + B) / (2 * B) * K).floor().clamp(0, K - 1) for t in (*Ws, *bs)]
    hidden = cells[len(Ws) : -1]
    assert all(bool((c.diff() <= 0).all()) for c in hidden)  # one of the C(K + d - 1, d)
    centres = [(c + 0.5) * 2 * B / K - B for c in cells]
    Wc, bc = centres[: len(Ws)], centres[len(Ws) :]
    moved = torch.cat([t.flatten() for W, b in zip(Wc, bc, strict=True) for t in (W, b)])[None]
    x = torch.cat([ball(50, d[0], Bx), ball(50, d[0], Bx / 2)])
    apart = (forward(d, flat, x, torch.relu) - forward(d, moved, x, torch.relu)).abs().max()
    assert float(apart) <= eps


def test_multisets_by_counting():
    """C(K + d - 1, d) descending sequences, listed one by one; and huge K against whole numbers."""
    for K, d in ((1, 4), (3, 2), (4, 5)):
        listed = sum(1 for _ in itertools.combinations_with_replacement(range(K), d))
        assert math.exp(module._log_multisets(math.log(K), d)) == pytest.approx(listed, rel=1e-10)
    for K, d in ((10**6, 50), (10**18, 50), (7, 1000)):
        exact = math.log(math.comb(K + d - 1, d))
        assert module._log_multisets(math.log(K), d) == pytest.approx(exact, rel=1e-12)


def test_many_neurons_are_bounded_from_above(monkeypatch):
    for K in (1, 5, 1e6, 1e30):
        exact = module._log_multisets(math.log(K), 10_000)
        monkeypatch.setattr(module, "SUMMED", 10)
        above = module._log_multisets(math.log(K), 10_000)
        monkeypatch.undo()
        assert exact - 1e-6 <= above <= exact + math.log1p(10_000 / K) + 1e-6


@given(widths, st.floats(1e-3, 10), sizes, sizes, st.floats(1e-4, 1e4), st.sampled_from([0.0, 1.0]))
def test_the_rigorous_rule_is_never_below_what_is_needed(d, B, Bx, rho, eps, zero):
    given_ = {"bound": B, "radius": Bx, "lipschitz": rho, "at_zero": zero}
    result = log_covering_number(d, epsilon=eps, **given_)
    assert result.valid
    assert result.log >= result.log_lower >= 0
    assert result.log_discount >= -1e-9
    assert result.log_discount <= log_group_order(d) + 1e-6 * abs(result.log) + 1e-9
    # More accuracy, larger boxes and balls never need fewer.
    assert log_covering_number(d, epsilon=eps / 2, **given_).log >= result.log - 1e-9
    assert (
        log_covering_number(d, epsilon=eps, **{**given_, "bound": 2 * B}).log >= result.log - 1e-9
    )


def test_where_the_printed_theorems_are_false():
    """theory.md: N <= 0.17 for B = 0.01, eps = 0.005; ln N = -496 for eps = 4096."""
    small = log_covering_number(
        [1, 1, 1], bound=0.01, radius=1, lipschitz=1, epsilon=0.005, rule="theorem3"
    )
    assert math.exp(small.log) == pytest.approx(0.168, abs=1e-3)
    assert not small.valid
    assert any("at least 1" in text for text in small.warnings)
    assert any("constants alone" in text for text in small.warnings)
    # Balls of radius 0.005 around networks: two for constants in [-0.01, 0.01], 2^3 for 3 outputs.
    assert math.exp(small.log_lower) == pytest.approx(2)
    three = log_covering_number([1, 1, 3], bound=0.01, radius=1, lipschitz=1, epsilon=0.005)
    assert math.exp(three.log_lower) == pytest.approx(8)
    coarse = log_covering_number([1, 128, 1], epsilon=4096, rule="theorem3", **CASE)
    assert round(coarse.log) == -496
    assert not coarse.valid
    # Not contradicted, but not proven either.
    between = log_covering_number(
        [100, 2, 1], bound=0.05, radius=1.0, lipschitz=1.0, epsilon=0.02, rule="theorem4"
    )
    assert between.valid == (between.log >= log_covering_number(
        [100, 2, 1], bound=0.05, radius=1.0, lipschitz=1.0, epsilon=0.02
    ).log)  # fmt: skip
    curved = log_covering_number([3, 4, 1], epsilon=0.1, rule="theorem4", at_zero=0.5, **CASE)
    assert any("s(0) is not 0" in text for text in curved.warnings)


@pytest.mark.parametrize("rule", ["rigorous", "theorem4"])
def test_no_overflow(rule):
    d = [10**5] * 60
    result = log_covering_number(d, bound=10.0, radius=1e6, lipschitz=2.0, epsilon=1e-9, rule=rule)
    assert math.isfinite(result.log)
    assert result.log > parameters(d)
    assert log_group_order(d) == pytest.approx(58 * math.lgamma(10**5 + 1))
    assert math.isfinite(log_volume(d, 1e-3))
    assert math.isfinite(log_ranges(d, bound=10.0, radius=1.0)[-1])
    huge = log_covering_number([10, 10**7, 1], epsilon=0.1, **CASE)
    assert math.isfinite(huge.log)


def test_group_order_and_volume():
    assert math.exp(log_group_order([2, 3, 4, 1])) == pytest.approx(6 * 24)
    assert math.exp(log_group_order([2, 3, 4, 1], [True, False])) == pytest.approx(6 * 24 * 8)
    assert parameters([3, 4, 3, 2]) == 39
    box, kept = (log_volume([2, 3, 1], 2.0, r) for r in (False, True))
    assert math.exp(box) == pytest.approx(4.0**13)
    assert math.exp(box - kept) == pytest.approx(6)


def test_the_volume_need_not_vanish():
    """Printed: "approaches zero". True for one hidden layer, false for two and B > 1/2."""
    at = (10**2, 10**3, 10**4, 10**5)
    shallow = [log_volume([1, w, 1], 1.0, representatives=True) for w in at]
    deep = [log_volume([1, w, w, 1], 0.51, representatives=True) for w in at]
    small = [log_volume([1, w, w, 1], 0.5, representatives=True) for w in at]
    assert shallow == sorted(shallow, reverse=True)
    assert shallow[-1] < 0
    assert deep[-1] > deep[-2] > 0
    assert small == sorted(small, reverse=True)


def test_stochastic_error():
    d, n = [4, 8, 1], 1000
    log = log_covering_number(d, epsilon=1 / n, **CASE).log
    assert stochastic_error(d, n, **CASE) == pytest.approx(math.sqrt(log / n))
    assert stochastic_error(d, n, power=2, **CASE) == pytest.approx(log / n)
    errors = [stochastic_error(d, 10**k, **CASE) for k in range(2, 9)]
    assert errors == sorted(errors, reverse=True)
    with pytest.raises(ConfigError, match=r"theorem3 gives ln N = .* < 0 here.*rigorous"):
        stochastic_error([1, 99, 1], 1, bound=0.01, radius=1, lipschitz=1, rule="theorem3")
    with pytest.raises(ConfigError, match=r"power=3 was given"):
        stochastic_error(d, n, power=3, **CASE)
    with pytest.raises(ConfigError, match=r"samples=0 was given"):
        stochastic_error(d, 0, **CASE)


def test_several_activations():
    listed = log_covering_number([3, 4, 5, 1], bound=1, radius=1, lipschitz=[2.0, 2.0], epsilon=0.1)
    same = log_covering_number([3, 4, 5, 1], bound=1, radius=1, lipschitz=2.0, epsilon=0.1)
    assert listed == same
    flat = log_covering_number([3, 4, 1], bound=1, radius=1, lipschitz=0.0, epsilon=0.1)
    assert math.isfinite(flat.log)
    assert float(flat) == flat.log


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"widths": [3]}, r"widths=\[3\] was given"),
        ({"widths": [3, 0, 1]}, r"widths=\[3, 0, 1\]"),
        ({"bound": 0.0, "epsilon": -1.0}, r"bound=0.0, epsilon=-1.0 was given; wanted positive"),
        ({"radius": math.nan}, r"radius=nan"),
        ({"lipschitz": [1.0, 2.0]}, r"lipschitz=\[1.0, 2.0\].*each of the 1 hidden"),
        ({"lipschitz": -1.0}, r"lipschitz=-1.0"),
        ({"rule": "five"}, r"rule='five' was given; choose one of rigorous"),
        ({"at_zero": math.inf}, r"at_zero=inf"),
        ({"widths": [3, 4, 4, 1], "rule": "theorem3"}, r"Theorem 3 is about one hidden layer"),
    ],
)
def test_messages(change, why):
    options = {"widths": [3, 4, 1], "epsilon": 0.1, **CASE, **change}
    with pytest.raises(ConfigError, match=why):
        log_covering_number(options.pop("widths"), **options)
    with pytest.raises(ConfigError, match=r"signs has 1 entries but there are 2"):
        log_group_order([1, 2, 3, 1], [True])

"""Bounds against exact quantiles, Monte Carlo and searches that try to break them."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import minimize_scalar

from weightloom.errors import ConfigError, ShapeError
from weightloom.networks.activations import Activation
from weightloom_papers.deep_learning_theory.near_init.attacks import (
    attack,
    near_zero_quantile,
    relu_worst,
    relu_worst_pair,
    taylor_errors,
)
from weightloom_papers.deep_learning_theory.near_init.bounds import (
    near_zero_bound,
    noise_bound,
    relu_bound,
    row_norm_bound,
    smooth_bound,
    uniform_noise_bound,
)
from weightloom_papers.deep_learning_theory.near_init.shallow import (
    Shallow,
    largest_output,
    nonlinearities,
    nonlinearity,
)

FORMS = ("printed", "corrected", "sharp")
NONLINEARITIES = nonlinearities()
SMOOTH = [name for name in NONLINEARITIES if name != "relu"]


def unit(dims, seed=0):
    x = torch.randn(dims, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x / x.norm()


# -- nonlinearities ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", SMOOTH)
def test_slopes_and_smoothness_by_autograd(name):
    """sigma' and beta = sup |sigma''| against derivatives that torch takes, on a fine grid."""
    sigma = NONLINEARITIES[name]
    z = torch.linspace(-9, 9, 180_001, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(sigma.function(z).sum(), z, create_graph=True)
    assert torch.allclose(slope, sigma.slope(z), atol=1e-12)
    (bend,) = torch.autograd.grad(sigma.slope(z).sum(), z)
    largest = float(bend.abs().max()) if bend.dim() else 1.0
    assert largest == pytest.approx(sigma.smoothness, rel=1e-7)


def test_a_callable_brings_its_smoothness():
    own = nonlinearity(lambda z: torch.log(torch.cosh(z)), smoothness=1.0)
    assert isinstance(own, Activation)
    z = torch.linspace(-3, 3, 50, dtype=torch.float64)
    assert torch.allclose(own.slope(z), torch.tanh(z), atol=1e-12)
    assert attack(Shallow.sample(50, 2, own), 1.0, steps=10).ratio < 1
    with pytest.raises(
        ConfigError, match=r"is not 0\.5-smooth: s'\(-?0\.65\d\) = .* differ by 0\.7698"
    ):
        nonlinearity(torch.tanh, smoothness=0.5)
    with pytest.raises(ConfigError, match=r"is not 7-smooth"):
        nonlinearity(torch.relu, smoothness=7.0)
    with pytest.raises(ConfigError, match="smoothness=None was given for a callable"):
        nonlinearity(torch.tanh)
    with pytest.raises(ConfigError, match="activation='swish' is unknown; choose one of relu, "):
        nonlinearity("swish")


# -- Proposition 3.4 --------------------------------------------------------------------------


@pytest.mark.parametrize("name", SMOOTH)
def test_smooth_bound_stands_a_search(name):
    """Gradient ascent over V and x comes close (0.9 of the bound and more) and not beyond."""
    attacked = attack(Shallow.sample(200, 3, name, rho=1.7), radius=0.5, steps=40)
    assert 0.9 < attacked.ratio <= 1 + 1e-12
    assert float(attacked.x.norm()) == pytest.approx(1)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(SMOOTH),
    st.integers(1, 40),
    st.integers(1, 4),
    st.floats(0.01, 20),
    st.floats(0.0, 3.0),
    st.integers(0, 10_000),
)
def test_smooth_bound_for_any_weights(name, width, dims, radius, length, seed):
    """No randomness in it: any V0, V, out and x."""
    generator = torch.Generator().manual_seed(seed)
    v, move = torch.randn(2, width, dims, generator=generator, dtype=torch.float64)
    out = torch.randn(width, generator=generator, dtype=torch.float64)
    net = Shallow(3 * v, out, NONLINEARITIES[name])
    x = length * unit(dims, seed)
    hidden = net.hidden + move * (radius / move.norm())
    error = float((net(x[None], hidden) - net.taylor(x[None], hidden)).abs())
    bound = smooth_bound(net.sigma.smoothness, radius, net.largest_out, x_norm=length)
    assert error <= bound * (1 + 1e-9) + 1e-12


def test_smooth_bound_is_attained():
    """z^2 / 2 with all rows along x: no constant can be saved."""
    net, x = Shallow.sample(64, 3, "square"), unit(3)
    net = Shallow(net.hidden, net.out.abs(), net.sigma)
    hidden = net.hidden + 0.25 * x
    error = float((net(x[None], hidden) - net.taylor(x[None], hidden)).abs())
    assert error == pytest.approx(smooth_bound(1.0, 0.25 * 8, net.largest_out), rel=1e-12)


def test_smooth_bound_as_printed_is_false():
    """Printed with F_0(x; V0), which is F(x; V0): first order, beyond any second-order bound."""
    net, x = Shallow.sample(100, 3, "tanh"), unit(3)
    gradient = net.features(x[None]).reshape(net.hidden.shape)
    radius = 1e-3
    hidden = net.hidden + gradient * (radius / gradient.norm())
    bound = smooth_bound(net.sigma.smoothness, radius, net.largest_out)
    printed = (net(x[None], hidden) - net.taylor(x[None], net.hidden)).abs()
    right = (net(x[None], hidden) - net.taylor(x[None], hidden)).abs()
    assert float(right) <= bound
    assert float(printed) > 10_000 * bound


# -- Proposition 3.7 --------------------------------------------------------------------------


@pytest.mark.parametrize("width", [10, 300])
@pytest.mark.parametrize("radius", [0.3, 2.0])
def test_relu_worst_case_is_exact(width, radius):
    """Gradient ascent never finds more, and comes close; the V returned attains it."""
    net, x = Shallow.sample(width, 3, seed=width), 0.8 * unit(3)
    exact = relu_worst(net, x, radius)
    attacked = attack(net, radius, x=x, steps=150, starts=16)
    assert attacked.error <= exact.error * (1 + 1e-9)
    assert attacked.error > 0.9 * exact.error
    gap = net(x[None], exact.hidden) - net.taylor(x[None], exact.hidden)
    assert float(gap.abs()) == pytest.approx(exact.error, rel=1e-9)
    assert float((exact.hidden - net.hidden).norm()) == pytest.approx(radius)


def test_an_adversary_that_picks_x_after_the_draw():
    """More than Prop. 3.7 promises (x is fixed there): stronger, and still far from the bound."""
    net = Shallow.sample(300, 3)
    free = attack(net, 1.0, form="sharp")
    fixed = [relu_worst(net, unit(3, seed), 1.0).error for seed in range(10)]
    assert max(fixed) < free.error
    assert float(free.x.norm()) == pytest.approx(1)
    assert 0.3 < free.ratio < 0.6


def test_relu_worst_case_by_brute_force():
    """Three nodes: every split of the budget on a fine grid of directions."""
    net, x = Shallow.sample(3, 2, seed=5), unit(2)
    at = net.hidden @ x
    turn = torch.linspace(0, math.pi / 2, 400, dtype=torch.float64)
    a, b = torch.meshgrid(turn, turn, indexing="ij")
    shares = torch.stack([a.cos(), a.sin() * b.cos(), a.sin() * b.sin()], -1).reshape(-1, 3)
    for radius in (0.5, 2.0, 5.0):
        gains = net.out * (radius * shares - at.abs()).clamp(min=0)
        brute = float(gains.sum(1).abs().max())
        assert relu_worst(net, x, radius).error == pytest.approx(brute, rel=1e-3, abs=1e-12)
        assert relu_worst(net, x, radius).error >= brute - 1e-12


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from([1, 7, 100, 3000]),
    st.floats(0.01, 30),
    st.sampled_from([0.5, 0.01]),
    st.integers(0, 1000),
)
def test_relu_forms_are_ordered(width, radius, delta, seed):
    """Each form is a valid bound, sharper than the one before it."""
    printed, corrected, sharp = (relu_bound(width, radius, delta, 1.0, form=f) for f in FORMS)
    around = relu_bound(width, radius, delta, 1.0, form="sharp", around="init")
    assert around <= sharp * (1 + 1e-9) <= corrected * (1 + 1e-6) <= printed * (1 + 1e-6)


@pytest.mark.parametrize("radius", [0.7, 3.0, 7.0])
@pytest.mark.parametrize(("around", "moving"), [("any", 2), ("init", 1)])
def test_sharp_relu_bound_is_its_formula_at_the_best_tau(around, moving, radius):
    """The docstring's formula at the best tau of a grid and near it; large radii have a plateau."""
    m, delta = 5000, 0.03

    def count(log_tau):
        tau = math.exp(log_tau)
        near = m * math.erf(tau / math.sqrt(2)) + math.sqrt(m / 2 * math.log(1 / delta))
        return near + moving * radius**2 / tau**2

    start = min((k / 100 for k in range(-800, 300)), key=count)
    best = minimize_scalar(count, bounds=(start - 0.01, start + 0.01), method="bounded").fun
    expected = 0.2 * moving * radius * math.sqrt(min(best, m))
    value = relu_bound(m, radius, delta, 0.2, form="sharp", around=around)
    assert value == pytest.approx(expected, rel=1e-6)


def test_relu_bound_fails_at_most_as_often_as_promised():
    """The exact worst V of 300 draws against the sharp bound, and pairs V, W against 'any'."""
    x, delta, draws = unit(4), 0.1, 300
    init, any_pair = (
        relu_bound(100, 1.0, delta, 0.1, form="sharp", around=around) for around in ("init", "any")
    )
    ratios, pairs = [], []
    for seed in range(draws):
        net = Shallow.sample(100, 4, seed=seed)
        worst = relu_worst(net, x, 1.0).error
        ratios.append(worst / init)
        pair = relu_worst_pair(net, x, 1.0)
        pairs.append(pair / any_pair)
        assert pair >= worst  # V alone is a special case
    allowed = delta * draws + 3 * math.sqrt(delta * (1 - delta) * draws)
    assert sum(r > 1 for r in ratios) <= allowed
    assert sum(r > 1 for r in pairs) <= allowed
    assert max(ratios) > 0.35  # not empty: within a factor of three
    assert max(pairs) > 0.5


def test_worst_pair_is_attained():
    """Build the V and W that `relu_worst_pair` speaks of."""
    net, x, radius = Shallow.sample(200, 3), unit(3), 1.5
    at = net.hidden @ x
    best = 0.0
    for sign in (1, -1):
        rows = (net.out * sign > 0).nonzero()[:, 0]
        rows = rows[at[rows].abs().argsort()]
        k = int((at[rows].square().cumsum(0) <= radius**2).sum())
        rows = rows[:k]
        w, v = net.hidden.clone(), net.hidden.clone()
        w[rows] -= (1 + 1e-9) * at[rows, None] * x
        v[rows] += at[rows, None].sign() * x * (radius / math.sqrt(k))
        assert float((w - net.hidden).norm()) <= radius * (1 + 1e-8)
        assert float((v - net.hidden).norm()) <= radius * (1 + 1e-8)
        best = max(best, float((net(x[None], v) - net.expand(x[None], v, w)).abs()))
    assert best == pytest.approx(relu_worst_pair(net, x, radius), rel=1e-6)


def test_brute_forcing_is_far_off():
    """Remark 3.5: |out| sqrt(m) |V| grows with the width; the worst case falls."""
    x = unit(3)
    worst, brute = [], []
    for width in (100, 10_000):
        net = Shallow.sample(width, 3)
        worst.append(relu_worst(net, x, 1.0).error)
        brute.append(net.largest_out * math.sqrt(width) * float(net.hidden.norm()))
    assert brute[1] > 9 * brute[0]
    assert worst[1] < 0.6 * worst[0]


# -- Lemma 3.8 --------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "tau"), [(50, 0.5), (1000, 0.1), (100, 0.01)])
@pytest.mark.parametrize("delta", [0.5, 0.1, 0.01])
def test_near_zero_count(width, tau, delta):
    """Exact binomial tails: all forms hold; printed is larger than corrected below 1/e."""
    law = stats.binom(width, math.erf(tau / math.sqrt(2)))
    bounds = {form: near_zero_bound(width, tau, delta, form=form) for form in FORMS}
    assert all(law.sf(bound) <= delta for bound in bounds.values())
    assert (bounds["printed"] > bounds["corrected"]) == (delta < 1 / math.e)
    assert bounds["sharp"] < bounds["corrected"]


def test_near_zero_quantile_is_binomial():
    law = stats.binom(400, math.erf(0.2 / math.sqrt(2)))
    quantile = near_zero_quantile(400, 0.2, 0.1, draws=1500)
    # A sampled quantile is within three standard errors of its level.
    error = 3 * math.sqrt(0.1 * 0.9 / 1500)
    assert law.ppf(0.9 - error) <= quantile <= law.ppf(0.9 + error)
    assert quantile <= near_zero_bound(400, 0.2, 0.1)


# -- Lemma 3.15 -------------------------------------------------------------------------------


def test_row_norms_as_printed_fail():
    """d = 10, m = 100, delta = 0.1: violated with probability 0.753, exactly and sampled."""
    printed = row_norm_bound(100, 10, 0.1, form="printed")
    exact = 1 - stats.chi(10).cdf(printed) ** 100
    assert exact == pytest.approx(0.753, abs=1e-3)
    draws = 2000
    v = torch.randn(draws, 100, 10, generator=torch.Generator().manual_seed(0))
    largest = v.norm(dim=2).amax(1)
    assert abs(float((largest > printed).double().mean()) - exact) < 3 * math.sqrt(0.19 / draws)
    assert float((largest > row_norm_bound(100, 10, 0.1)).double().mean()) <= 0.1


@pytest.mark.parametrize("dims", [1, 2, 10, 100])
@pytest.mark.parametrize("width", [1, 100, 10_000])
def test_row_norms_corrected_hold(dims, width):
    law = stats.chi(dims)
    for delta in (0.5, 0.1, 1e-3):
        assert -math.expm1(width * law.logcdf(row_norm_bound(width, dims, delta))) <= delta


@pytest.mark.parametrize("width", [1, 20, 1000])
def test_noise_at_one_point(width):
    """Sampled |F(x; w0)|; the sharp bound is 3.7 and more times smaller than the printed one."""
    generator = torch.Generator().manual_seed(width)
    signs = 2.0 * torch.randint(2, (2000, width), generator=generator) - 1
    g = torch.randn(2000, width, generator=generator)
    outputs = (signs * torch.relu(g)).sum(1).abs() / math.sqrt(width)
    for delta in (0.3, 0.05):
        for form in FORMS:
            bound = noise_bound(width, delta, 1 / math.sqrt(width), form=form)
            assert float((outputs > bound).double().mean()) <= delta
        sharp = noise_bound(width, delta, 1.0, form="sharp")
        assert sharp < noise_bound(width, delta, 1.0) / 2


def test_noise_everywhere():
    """sup over the circle, computed exactly for 200 draws."""
    level = 1 / math.sqrt(300)
    largest = [largest_output(Shallow.sample(300, 2, seed=s)) for s in range(200)]
    for delta in (0.5, 0.1):
        sharp, corrected, printed = (
            uniform_noise_bound(300, 2, delta, level, form=f)
            for f in ("sharp", "corrected", "printed")
        )
        assert sum(each > sharp for each in largest) <= delta * 200
        assert sharp < corrected < printed
    assert max(largest) > 0.25 * sharp


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 60), st.integers(1, 2), st.integers(0, 1000))
def test_largest_output_against_a_scan(width, dims, seed):
    """Each gap between kinks by scipy's bounded search, which knows nothing of gradients."""
    net = Shallow.sample(width, dims, seed=seed)
    if dims == 1:
        ends = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
        assert largest_output(net) == pytest.approx(float(net(ends).abs().max()))
        return

    def value(angle):
        point = torch.tensor([[math.cos(angle), math.sin(angle)]], dtype=torch.float64)
        return -float(net(point).abs())

    middle = torch.atan2(net.hidden[:, 1], net.hidden[:, 0])
    kinks = torch.cat([middle + math.pi / 2, middle - math.pi / 2]) % (2 * math.pi)
    kinks = torch.cat([kinks, kinks + 2 * math.pi]).sort().values[: 2 * width + 1].tolist()
    best = max(-value(angle) for angle in kinks)
    for low, high in itertools.pairwise(kinks):
        if high - low > 1e-9 and width <= 12:
            optimum = minimize_scalar(value, bounds=(low, high), method="bounded")
            best = max(best, -optimum.fun)
    scan = torch.linspace(0, 2 * math.pi, 5000, dtype=torch.float64)
    best = max(best, float(net(torch.stack([scan.cos(), scan.sin()], 1)).abs().max()))
    assert best <= largest_output(net) * (1 + 1e-9) + 1e-12
    assert largest_output(net) <= best * (1 + 1e-5) + 1e-12


# -- the experiment ---------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu"])
def test_taylor_errors_fall_with_the_width(activation):
    rows = taylor_errors([50, 3200], seeds=range(3), activation=activation, dims=3)
    assert [(row.width, row.seed) for row in rows] == [(w, s) for w in (50, 3200) for s in range(3)]
    for row in rows:
        assert max(row.random, row.aligned) <= row.worst * (1 + 1e-9)
        assert row.worst <= row.bound * (1 + 1e-9)
        assert row.bound <= row.corrected <= row.printed
    mean = [sum(row.worst for row in rows if row.width == w) / 3 for w in (50, 3200)]
    slope = math.log(mean[1] / mean[0]) / math.log(3200 / 50)
    assert slope == pytest.approx(-1 / 6 if activation == "relu" else -1 / 2, abs=0.06)


# -- messages ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda: relu_bound(10, 1.0, 0.1, 1.0, form="best"), "form='best' is unknown; choose one"),
        (lambda: relu_bound(10, 1.0, 0.1, 1.0, around="w"), "around='w' is unknown"),
        (lambda: relu_bound(0, 1.0, 0.1, 1.0), "width=0 was given; wanted a whole number"),
        (lambda: relu_bound(10, 1.0, 1.5, 1.0), "delta=1.5 was given; a probability"),
        (lambda: relu_bound(10, math.nan, 0.1, 1.0), "radius=nan was given; wanted a finite"),
        (lambda: row_norm_bound(10, 2, 0.1, form="sharp"), "form='sharp' is unknown"),
        (lambda: row_norm_bound(10, 0, 0.1), "dims=0 was given"),
        (lambda: smooth_bound(math.inf, 1.0, 1.0), "for the ReLU there is relu_bound"),
        (lambda: attack(Shallow.sample(5, 2), -1.0), "radius=-1.0 was given"),
        (
            lambda: attack(Shallow.sample(5, 2), 1.0, x=torch.full((2,), 2.0)),
            r"\|x\| = 2\.8\d* was",
        ),
        (
            lambda: attack(Shallow.sample(5, 2, torch.abs, smoothness=math.inf), 1.0),
            "no bound is known for abs, which has kinks",
        ),
        (lambda: relu_worst(Shallow.sample(5, 2, "tanh"), unit(2), 1.0), "activation is tanh; use"),
        (lambda: largest_output(Shallow.sample(5, 3)), "this network is relu in 3"),
        (lambda: taylor_errors([10], radius=0.0), "radius=0.0 was given"),
        (lambda: Shallow.sample(0, 2), "width=0 and dims=2 were given"),
        (lambda: Shallow.sample(3, 2, rho=-1.0), "rho=-1.0 was given"),
        (
            lambda: Shallow(torch.full((3, 2), math.nan), torch.ones(3), nonlinearity("relu")),
            "hold NaN or infinity",
        ),
        (
            lambda: relu_worst(
                Shallow(torch.ones(2, 2), torch.tensor([1.0, 2.0]), nonlinearity("relu")),
                torch.ones(2),
                1.0,
            ),
            "output weights between 1 and 2 in magnitude",
        ),
    ],
)
def test_messages(run, message):
    with pytest.raises(ConfigError, match=message):
        run()


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (
            lambda: Shallow.sample(5, 2)(torch.ones(4, 3)),
            r"x has shape \(4, 3\); wanted points \[n, 2",
        ),
        (
            lambda: Shallow.sample(5, 2).taylor(torch.ones(4, 2), torch.ones(4, 2)),
            r"hidden weights of shape \(4, 2\) were given; wanted \(5, 2\)",
        ),
        (
            lambda: attack(Shallow.sample(5, 2), 1.0, x=torch.ones(3)),
            r"x has shape \(3,\); wanted one",
        ),
        (lambda: relu_worst(Shallow.sample(5, 2), torch.ones(3), 1.0), r"wanted one point \[2\]"),
        (
            lambda: Shallow(torch.ones(3, 2), torch.ones(2), nonlinearity("relu")),
            r"hidden \(3, 2\) and out \(2,\) do not fit",
        ),
    ],
)
def test_shape_messages(run, message):
    with pytest.raises(ShapeError, match=message):
        run()
